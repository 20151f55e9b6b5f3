"""Small data and quick configs for the tests of training."""

from __future__ import annotations

from typing import Any

import torch

from bqn.data import Dataset, Split
from bqn.training import TrainConfig


def images(count: int = 60, classes: int = 3, seed: int = 0) -> Split:
    """6 × 6 images whose bright row tells the class, with noise."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(classes, (count,), generator=generator)
    x = torch.randint(0, 120, (count, 1, 6, 6), generator=generator)
    x[torch.arange(count), 0, 2 * y] += 100
    return Split(x.to(torch.uint8), y)


def table(count: int = 60, outputs: int = 1, seed: int = 0) -> Split:
    """Four features in odd units and a noisy linear target far from zero."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 4, generator=generator)
    weights = torch.tensor([[1.0, -2.0, 0.5, 0.0], [0.0, 1.0, 1.0, -1.0]])[:outputs]
    y = x @ weights.mT + 0.3 * torch.randn(count, outputs, generator=generator)
    return Split(x * torch.tensor([1.0, 100.0, 0.01, 3.0]) + 7, 1000 + 50 * y)


def dataset(**options: Any) -> Dataset:
    return Dataset("tiny", "classification", images(**options), images(20, seed=1), ("a", "b", "c"))


def regression_dataset() -> Dataset:
    return Dataset("tiny", "regression", table(), table(20, seed=1), ())


def config(**values: Any) -> TrainConfig:
    """Two epochs of three steps of a small network, one thread, on the CPU."""
    quick = {"hidden": (8,), "epochs": 2, "batch_size": 18, "threads": 1, "device": "cpu", "shift": 0, "lam": 1e-3}
    return TrainConfig.preset({**quick, **values})


def regression_config(**values: Any) -> TrainConfig:
    return config(**{"model": "regressor", **values})
