"""Hold-out splits: disjoint, complete, deterministic, stratified."""

from __future__ import annotations

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from bqn.data import DataError, Split, split_validation
from bqn.data._split import permutation


def numbered(labels: list[int]) -> Split:
    """Examples that carry their own position."""
    return Split(torch.arange(float(len(labels))).unsqueeze(1), torch.tensor(labels))


def positions(split: Split) -> list[int]:
    return split.x[:, 0].int().tolist()


@given(
    st.lists(st.integers(0, 4), min_size=2, max_size=80), st.floats(0.05, 0.95), st.integers(0, 2**32), st.booleans()
)
def test_parts_are_disjoint_complete_and_in_order(
    labels: list[int], fraction: float, seed: int, stratify: bool
) -> None:
    split = numbered(labels)
    try:
        train, validation = split_validation(split, fraction, seed, stratify)
    except DataError:
        assume(False)  # one part would be empty
    assert sorted(positions(train) + positions(validation)) == list(range(len(labels)))
    for part in (train, validation):
        assert positions(part) == sorted(positions(part))
        assert part.y.tolist() == [labels[position] for position in positions(part)]


@given(st.lists(st.integers(2, 30), min_size=2, max_size=6), st.floats(0.1, 0.9), st.integers(0, 1000))
def test_each_class_gives_its_share(counts: list[int], fraction: float, seed: int) -> None:
    labels = [label for label, count in enumerate(counts) for _ in range(count)]
    try:
        train, validation = split_validation(numbered(labels), fraction, seed, stratify=True)
    except DataError:
        assume(False)  # one part would be empty
    for label, count in enumerate(counts):
        held = int((validation.y == label).sum())
        assert abs(held - count * fraction) <= 1
        assert int((train.y == label).sum()) >= 1
    assert abs(len(validation) - round(len(labels) * fraction)) <= len(counts)


def test_stratified_size_is_exact_where_no_class_is_small() -> None:
    train, validation = split_validation(numbered([0] * 33 + [1] * 33 + [2] * 34), 0.25, 7, stratify=True)
    assert (len(train), len(validation)) == (75, 25)


@pytest.mark.parametrize("fraction", [0.5, 0.6, 0.9])
def test_no_class_leaves_the_training_part(fraction: float) -> None:
    train, _ = split_validation(numbered([0] * 10 + [1] + [2] * 2), fraction, 0, stratify=True)
    assert set(train.y.tolist()) == {0, 1, 2}


def test_same_seed_same_parts_other_seed_other_parts() -> None:
    split = numbered([0, 1] * 50)
    first, again, other = (positions(split_validation(split, 0.2, seed, False)[1]) for seed in (3, 3, 4))
    assert first == again
    assert first != other


def test_order_is_the_same_for_ever() -> None:
    """Records of experiments depend on these numbers."""
    assert permutation(8, 0).tolist() == [3, 2, 1, 6, 0, 7, 4, 5]
    assert sorted(permutation(1000, 5).tolist()) == list(range(1000))


def test_permutation_is_uniform() -> None:
    first = torch.tensor([int(permutation(5, seed)[0]) for seed in range(2000)])
    frequencies = torch.bincount(first, minlength=5) / 2000
    assert (frequencies - 0.2).abs().max() < 0.04


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.1, float("nan")])
def test_refuses_fractions_outside_the_open_interval(fraction: float) -> None:
    with pytest.raises(ValueError, match="fraction must be between 0 and 1"):
        split_validation(numbered([0, 1] * 5), fraction, 0, False)


def test_refuses_an_empty_part() -> None:
    with pytest.raises(DataError, match="one part would be empty"):
        split_validation(numbered([0, 1]), 0.1, 0, False)


def test_refuses_to_stratify_regression() -> None:
    with pytest.raises(ValueError, match="stratify needs integer labels"):
        split_validation(Split(torch.ones(9, 1), torch.ones(9, 1)), 0.3, 0, stratify=True)
