from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bqn.report.axis import Axis

SIZES = st.floats(-1e9, 1e9).filter(lambda value: value == 0 or abs(value) > 1e-9)


@given(st.lists(SIZES, min_size=1, max_size=5))
def test_an_axis_has_room_for_all_values_and_a_few_marks(values: list[float]) -> None:
    axis = Axis.around("x", values)
    hair = 1e-6 * (axis.high - axis.low)
    assert axis.low <= min(values) + hair
    assert axis.high >= max(values) - hair
    marks = [value for value, _ in axis.ticks()]
    assert 2 <= len(marks) <= 9
    assert (marks[0], marks[-1]) == pytest.approx((axis.low, axis.high), abs=10 * hair)


@given(st.floats(1e-6, 1e6), st.floats(1.5, 1e6))
def test_a_logarithmic_axis_has_marks_within(low: float, factor: float) -> None:
    axis = Axis.around("x", [low, low * factor], log=True)
    marks = [value for value, _ in axis.ticks()]
    assert 1 <= len(marks) <= 10
    assert all(axis.low <= value <= axis.high for value in marks)
    assert axis.place(low) < axis.place(low * factor)


def test_marks_are_round() -> None:
    shares = [text for _, text in Axis("x", 0, 1, percent=True).ticks()]
    assert shares == [f"{share}\u00a0%" for share in range(0, 101, 20)]
    assert [text for _, text in Axis("x", -0.3, 0.3).ticks()] == ["−0.2", "0.0", "0.2"]
    assert [text for _, text in Axis("x", 0, 50_000).ticks()][1] == "10,000"
    assert [text for _, text in Axis("x", 0.01, 10, log=True).ticks()] == ["0.01", "0.1", "1", "10"]
    many = Axis("x", 1e-9 / 1.3, 0.03 * 1.3, log=True)  # eight powers of ten, whose names would run into each other
    assert [text for _, text in many.ticks()] == ["1e−09", "1e−07", "1e−05", "0.001"]


@pytest.mark.parametrize("epochs", [1, 2, 7, 40, 1000])
def test_epochs_are_whole(epochs: int) -> None:
    marks = [value for value, _ in Axis("epoch", 0.75, epochs + 0.25, whole=True).ticks()]
    assert marks
    assert all(value == int(value) and 1 <= value <= epochs for value in marks)


def test_values_beyond_the_ends_are_put_there() -> None:
    axis = Axis("x", 2, 4)
    assert [axis.place(value) for value in (1, 2, 3, 4, 5)] == [0, 0, 0.5, 1, 1]
    assert Axis("x", 1, 100, log=True).place(0) == 0


@pytest.mark.parametrize(("low", "high", "log"), [(1, 1, False), (2, 1, False), (0, 1, True), (0, float("inf"), False)])
def test_bad_ends_are_refused(low: float, high: float, log: bool) -> None:
    with pytest.raises(ValueError, match="low"):
        Axis("x", low, high, log=log)
