"""The small sets that come with scikit-learn and need no file."""

from __future__ import annotations

import numpy as np
import torch

from bqn.data._dataset import Dataset, Task
from bqn.data._extras import require
from bqn.data._targets import as_targets, split_dataset

_LOADERS = {"digits": "load_digits", "iris": "load_iris", "wine": "load_wine", "breast-cancer": "load_breast_cancer"}
_GRAY_LEVELS = 16  # digits has pixels from 0 to 16


def load_bundled(name: str, split: int) -> Dataset:
    """A set of scikit-learn, with the seed of its train and test split."""
    datasets = require("sklearn.datasets", extra="sklearn", purpose=f"the set {name}")
    if name == "diabetes":
        bunch = datasets.load_diabetes(scaled=False)
        return split_dataset(name, "regression", _features(bunch.data), as_targets(bunch.target), (), split)
    bunch = getattr(datasets, _LOADERS[name])()
    x = _pixels(bunch.images) if name == "digits" else _features(bunch.data)
    task: Task = "classification"
    y = torch.from_numpy(bunch.target.astype(np.int64))
    return split_dataset(name, task, x, y, [str(label) for label in bunch.target_names], split)


def _features(values: np.ndarray[tuple[int, int], np.dtype[np.float64]]) -> torch.Tensor:
    return torch.from_numpy(values.astype(np.float32))


def _pixels(images: np.ndarray[tuple[int, int, int], np.dtype[np.float64]]) -> torch.Tensor:
    """Gray levels from 0 to 16, spread over 0 to 255 and rounded: `(N, 1, 8, 8)`."""
    levels = torch.from_numpy(images.astype(np.int64)).unsqueeze(1)
    return ((levels * 255 + _GRAY_LEVELS // 2) // _GRAY_LEVELS).to(torch.uint8)
