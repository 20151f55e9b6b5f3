import math
import operator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import bqn
from bqn.levels import (
    as_levels,
    combine_levels,
    interval_index,
    lattice_index,
    lattice_step,
    level_tensor,
    symmetric_pair,
    without_rounding,
)


@pytest.mark.parametrize(
    "levels", [(1, -1), (0, 0), (1.0, float("nan")), (0.0, float("inf")), ((0, 1), (1, 2)), (), ("a", "b")]
)
def test_bad_levels_are_named(levels) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match="levels"):
        as_levels(levels)


def test_levels_from_any_sequence() -> None:
    assert as_levels([-1, 1]) == as_levels(torch.tensor([-1, 1])) == as_levels(range(-1, 2, 2)) == (-1.0, 1.0)


@given(st.integers(-20, 20), st.integers(1, 7), st.lists(st.integers(0, 40), min_size=2, max_size=6, unique=True))
def test_lattice_of_scaled_integers(offset: int, denominator: int, steps: list[int]) -> None:
    levels = tuple(sorted(offset + s / denominator for s in steps))
    step = lattice_step((levels,))
    assert step is not None
    index = lattice_index(levels, step)
    for value, i in zip(levels, index, strict=True):
        assert value == pytest.approx(levels[0] + step * i, abs=1e-9)
    assert math.gcd(*index) == 1  # no coarser lattice would do


def test_no_lattice() -> None:
    assert lattice_step(((0.0, 1.0, 2**0.5),)) is None
    assert lattice_step(((0.0, 1.0), (0.0, 3**0.5))) is None
    assert lattice_step(((-1.0, 1.0), (0.25, 0.75))) == 0.5


def test_combined_levels_merge_what_rounding_splits() -> None:
    levels, index = combine_levels((0.1, 0.2, 0.3), (0.1, 0.2, 0.3), operator.add)
    assert len(levels) == 5
    assert index == (0, 1, 2, 1, 2, 3, 2, 3, 4)


@given(
    numerators=st.lists(st.integers(-12, 12), min_size=2, max_size=4, unique=True),
    denominator=st.sampled_from([1, 3, 7, 10, 100]),
    count=st.integers(2, 6),
)
def test_sums_are_the_fractions_that_they_are(numerators: list[int], denominator: int, count: int) -> None:
    """However often they were rounded: zero is 0, and three tenths are 0.3."""
    levels = tuple(n / denominator for n in sorted(numerators))
    total, truth = levels, set(numerators)
    for _ in range(count - 1):
        total, _ = combine_levels(total, levels, operator.add)
        truth = {a + b for a in truth for b in numerators}
    assert total == tuple(n / denominator for n in sorted(truth))
    assert "-0.0" not in map(repr, total)


def test_what_is_no_fraction_keeps_its_value_and_cancels_to_zero() -> None:
    levels = (-2 * 2**0.5, 2**0.5)
    pairs, _ = combine_levels(levels, levels, operator.add)
    total, _ = combine_levels(pairs, levels, operator.add)
    assert total[2] == 0
    assert total[3] == pytest.approx(3 * 2**0.5, rel=1e-15)
    assert without_rounding((1e-3 + 1e-15, 1.0)) == (1e-3, 1.0)
    assert without_rounding((0.123456789, 1.0)) == (0.123456789, 1.0)


def test_a_rounded_value_on_a_threshold_is_on_it() -> None:
    """And goes up, to whichever side it was rounded; one that is beside it does not."""
    assert interval_index((-4.4e-16, 1.0), (0.0,)) == (1, 1)
    assert interval_index((-1.0, 0.1 + 0.2, 0.7 - 0.4), (0.3,)) == (0, 1, 1)
    assert interval_index((-1.0, -1e-6, 1e-6), (0.0,)) == (0, 0, 1)


def test_symmetric_pair() -> None:
    assert symmetric_pair((-2.0, 2.0)) == 2
    assert symmetric_pair((0.0, 1.0)) is None
    assert symmetric_pair((-1.0, 0.0, 1.0)) is None


def test_nobody_can_change_the_levels_of_others() -> None:
    belief = bqn.Categorical(torch.tensor([0.5, 0.5]), (-1.0, 1.0))
    belief.levels.add_(1)
    assert belief.levels.tolist() == [-1.0, 1.0]


def test_constants_made_in_inference_mode_can_be_trained_with() -> None:
    levels = (-17.0, 3.25)
    with torch.inference_mode():
        level_tensor(levels, torch.zeros(1))
    weight = torch.ones(2, requires_grad=True)
    (weight * level_tensor(levels, weight)).sum().backward()
    assert weight.grad is not None
