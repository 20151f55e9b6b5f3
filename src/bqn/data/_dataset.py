"""What a data set is: two splits of examples, the task they serve, and the error for everything that is not one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from torch import Tensor

Task: TypeAlias = Literal["classification", "regression"]


class DataError(ValueError):
    """Data that cannot be used: missing, truncated, corrupted or ill-formed. The message is one clear line."""


@dataclass(frozen=True, eq=False)
class Split:
    """Examples and their targets, in memory.

    Attributes
    ----------
    x : Tensor
        uint8 images `(N, C, H, W)`, or float32 features `(N, F)`, not yet standardized.
    y : Tensor
        int64 labels `(N,)`, or float32 targets `(N, out)`.
    """

    x: Tensor
    y: Tensor

    def __post_init__(self) -> None:
        images = self.x.dtype == torch.uint8 and self.x.dim() == 4
        if not images and not (self.x.dtype == torch.float32 and self.x.dim() >= 2):
            raise DataError(
                f"x must be uint8 images (N, C, H, W) or float32 features (N, F), "
                f"got {self.x.dtype} {tuple(self.x.shape)}"
            )
        labels = self.y.dtype == torch.int64 and self.y.dim() == 1
        if not labels and not (self.y.dtype == torch.float32 and self.y.dim() == 2):
            raise DataError(
                f"y must be int64 labels (N,) or float32 targets (N, out), got {self.y.dtype} {tuple(self.y.shape)}"
            )
        if len(self.x) != len(self.y):
            raise DataError(f"x and y must have the same length, got {len(self.x)} and {len(self.y)}")

    def __len__(self) -> int:
        return len(self.x)

    def subset(self, index: Tensor) -> Split:
        """The examples at `index`, an int64 Tensor `(M,)`, in that order."""
        return Split(self.x[index], self.y[index])

    def to(self, device: torch.device | str) -> Split:
        """The same examples on another device."""
        return Split(self.x.to(device), self.y.to(device))


@dataclass(frozen=True, eq=False)
class Dataset:
    """A named data set with its training and test examples, checked once when it is made.

    Attributes
    ----------
    name : str
    task : "classification" or "regression"
    train, test : Split
    classes : tuple of str
        Name of each label, `()` for regression; one name is enough to judge by, a network learns two or more.
    feature_names : tuple of str
        Name of each column of a table that has a header with distinct names, else `()`.
    target_name : str or None
        Name of the column that was taken for the target, likewise.
    """

    name: str
    task: Task
    train: Split
    test: Split
    classes: tuple[str, ...]
    feature_names: tuple[str, ...] = ()
    target_name: str | None = None

    def __post_init__(self) -> None:
        if self.train.x.shape[1:] != self.test.x.shape[1:] or self.train.x.dtype != self.test.x.dtype:
            raise DataError(
                f"{self.name}: test examples are {self.test.x.dtype} {tuple(self.test.x.shape[1:])}, "
                f"training examples {self.train.x.dtype} {tuple(self.train.x.shape[1:])}"
            )
        if self.feature_names and self.input_shape != (len(self.feature_names),):
            raise DataError(f"{self.name}: {len(self.feature_names)} names of features for examples {self.input_shape}")
        for part, split in (("train", self.train), ("test", self.test)):
            self._check(f"{self.name}: {part}", split)

    def _check(self, what: str, split: Split) -> None:
        if not len(split) or not split.x[0].numel():
            raise DataError(f"{what} has no data, x is {tuple(split.x.shape)}")
        for name, values in (("x", split.x), ("y", split.y)):
            if values.is_floating_point() and not bool(torch.isfinite(values).all()):
                raise DataError(f"{what} {name} has NaN or infinite values")
        if self.task == "regression":
            if not split.y.is_floating_point() or self.classes:
                raise DataError(f"{what} y must be float32 targets for regression, got {split.y.dtype}")
            if split.y.shape[1:] != self.train.y.shape[1:]:
                raise DataError(f"{what} y has {split.y.shape[1]} columns, training has {self.train.y.shape[1]}")
            return
        if split.y.is_floating_point() or not self.classes:
            raise DataError(
                f"{what} needs integer labels and the names of their classes, got {len(self.classes)} names"
            )
        low, high = int(split.y.min()), int(split.y.max())
        if low < 0 or high >= len(self.classes):
            raise DataError(f"{what} y must hold labels from 0 to {len(self.classes) - 1}, got {low} to {high}")

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one example: `(C, H, W)` or `(F,)`."""
        return tuple(self.train.x.shape[1:])
