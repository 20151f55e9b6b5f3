from __future__ import annotations

import pytest

from bqn.report.layout import certainty, choice_rules, decimals_for, fixed, mode_choice, percent, short
from tests.report.pages import Reader


@pytest.mark.parametrize(
    ("values", "decimals"),
    [
        ([0.0667, 0.112], 4),
        ([5.04, 7.73], 2),
        ([39.4, 30.9], 1),
        ([1234.0], 0),
        ([1e-9], 5),
        ([0.001, 123.0], 1),
        ([0.0, None], 2),
    ],
)
def test_numbers_of_a_row_have_as_many_digits_as_they_need(values: list[float | None], decimals: int) -> None:
    assert decimals_for(values) == decimals


def test_numbers_are_written_for_people() -> None:
    assert fixed(-1234.5, 1) == "−1,234.5"
    assert fixed(None, 3) == "–"
    assert [short(value) for value in (0.06667, 5.0, None)] == ["0.0667", "5.00", "–"]
    assert [percent(share) for share in (0.0209, 0.87, 1.0, 0.0, None)] == [
        "2.09\u00a0%",
        "87.0\u00a0%",
        "100\u00a0%",
        "0.00\u00a0%",
        "–",
    ]


def test_nothing_is_certain_that_is_not() -> None:
    shares = (0.0, 0.0001, 0.3, 0.9949, 0.99999, 1.0)
    assert [certainty(share) for share in shares] == [
        f"{text}\u00a0%" for text in ("0", "<1", "30", "99", "99.9", "100")
    ]


def test_the_first_mode_is_chosen_and_shows_without_rules() -> None:
    page = Reader(mode_choice(["analytic", "mc"]))
    assert [("checked" in attributes) for attributes in page.all("input")] == [True, False]
    rules = choice_rules(["analytic", "mc"])
    assert ".of-mc{display:none}" in rules
    assert not rules.startswith(".of-analytic")
