"""From raw targets to labels with class names, or to regression targets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from bqn.data._dataset import DataError, Dataset, Split, Task
from bqn.data._split import hold_out

TEST_FRACTION = 0.2
TASKS = ("classification", "regression")


def require_task(task: str | None) -> None:
    if task is not None and task not in TASKS:
        raise ValueError(f"task must be one of {', '.join(TASKS)}, got {task!r}")


def encode_labels(values: npt.NDArray[Any]) -> tuple[Tensor, tuple[str, ...]]:
    """int64 labels `(N,)` and class names in ascending order of the values, which may be text or numbers `(N,)`."""
    classes, labels = np.unique(values, return_inverse=True)
    return torch.from_numpy(labels.reshape(-1).astype(np.int64)), tuple(map(_class_name, classes.tolist()))


def _class_name(value: object) -> str:
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def as_targets(values: npt.NDArray[Any]) -> Tensor:
    """float32 targets `(N, out)` from an array `(N,)` or `(N, out)`."""
    return torch.from_numpy(values.reshape(len(values), -1).astype(np.float32))


def split_dataset(name: str, task: Task, x: Tensor, y: Tensor, classes: Sequence[str], seed: int) -> Dataset:
    """A data set without a split of its own: a fixed share of it, stratified for classification, becomes the test."""
    try:
        train, test = hold_out(y, TEST_FRACTION, seed, stratify=task == "classification")
        whole = Split(x, y)
    except DataError as error:
        raise DataError(f"{name}: {error}") from None
    return Dataset(name, task, whole.subset(train), whole.subset(test), tuple(classes))
