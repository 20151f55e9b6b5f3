"""Splits and data sets refuse what does not fit together."""

from __future__ import annotations

import pytest
import torch

from bqn.data import DataError, Dataset, Split


def images(n: int = 4) -> torch.Tensor:
    return torch.zeros(n, 1, 2, 2, dtype=torch.uint8)


def test_split_knows_its_length_subset_and_device() -> None:
    split = Split(torch.arange(8.0).reshape(4, 2), torch.tensor([0, 1, 2, 3]))
    part = split.subset(torch.tensor([3, 1]))
    assert len(split) == 4
    assert part.y.tolist() == [3, 1]
    assert part.x.tolist() == [[6, 7], [2, 3]]
    assert split.to("meta").x.is_meta


@pytest.mark.parametrize(
    ("x", "y"),
    [
        (torch.zeros(4, 2, 2, dtype=torch.uint8), torch.zeros(4, dtype=torch.int64)),
        (torch.zeros(4, 2, dtype=torch.float64), torch.zeros(4, dtype=torch.int64)),
        (torch.zeros(4), torch.zeros(4, dtype=torch.int64)),
        (images(), torch.zeros(4, dtype=torch.int32)),
        (images(), torch.zeros(4)),
        (images(), torch.zeros(3, dtype=torch.int64)),
    ],
)
def test_split_refuses_wrong_types_shapes_and_lengths(x: torch.Tensor, y: torch.Tensor) -> None:
    with pytest.raises(DataError):
        Split(x, y)


def test_dataset_tells_its_input_shape() -> None:
    split = Split(images(), torch.tensor([0, 1, 0, 1]))
    assert Dataset("toy", "classification", split, split, ("a", "b")).input_shape == (1, 2, 2)


def test_dataset_refuses_labels_without_a_class() -> None:
    good, bad = Split(images(), torch.tensor([0, 1, 0, 1])), Split(images(), torch.tensor([0, 1, 2, 1]))
    with pytest.raises(DataError, match="toy: test y must hold labels from 0 to 1, got 0 to 2"):
        Dataset("toy", "classification", good, bad, ("a", "b"))
    with pytest.raises(DataError, match="train y must hold labels from 0 to 0, got 0 to 1"):
        Dataset("toy", "classification", good, good, ("a",))
    with pytest.raises(DataError, match="names of their classes, got 0 names"):
        Dataset("toy", "classification", good, good, ())


def test_one_class_is_enough_to_judge_by() -> None:
    split = Split(images(), torch.zeros(4, dtype=torch.int64))
    assert Dataset("toy", "classification", split, split, ("a",)).classes == ("a",)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_dataset_refuses_values_that_are_not_finite(value: float) -> None:
    x, y = torch.ones(3, 2), torch.ones(3, 1)
    good = Split(x, y)
    with pytest.raises(DataError, match="train x has NaN or infinite values"):
        Dataset("toy", "regression", Split(x * value, y), good, ())
    with pytest.raises(DataError, match="test y has NaN or infinite values"):
        Dataset("toy", "regression", good, Split(x, y * value), ())


def test_dataset_refuses_parts_of_different_kinds() -> None:
    good = Split(torch.ones(3, 2), torch.ones(3, 1))
    with pytest.raises(DataError, match="test examples are"):
        Dataset("toy", "regression", good, Split(torch.ones(3, 4), torch.ones(3, 1)), ())
    with pytest.raises(DataError, match="2 columns, training has 1"):
        Dataset("toy", "regression", good, Split(torch.ones(3, 2), torch.ones(3, 2)), ())
    with pytest.raises(DataError, match="float32 targets"):
        Dataset("toy", "regression", Split(images(), torch.tensor([0, 1, 0, 1])), Split(images(), torch.ones(4, 1)), ())
    with pytest.raises(DataError, match="has no data"):
        Dataset("toy", "regression", good, Split(torch.ones(0, 2), torch.ones(0, 1)), ())
