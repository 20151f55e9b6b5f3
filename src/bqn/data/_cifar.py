"""CIFAR-10 in its official binary layout, and its archive."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

from bqn.data import _content
from bqn.data._dataset import DataError, Split

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
BATCHES = (*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin")
_SHAPE = (3, 32, 32)
_RECORD = 1 + 3 * 32 * 32  # a label, then the red, green and blue planes


def read_cifar_batch(path: Path) -> Split:
    """The images and labels in one `.bin` file."""
    data = np.frombuffer(_content.read_bytes(path), np.uint8)
    if not len(data) or len(data) % _RECORD:
        raise DataError(f"{path}: truncated or not CIFAR-10: {len(data):,} bytes, expected a multiple of {_RECORD:,}")
    records = data.reshape(-1, _RECORD)
    labels = records[:, 0]
    if labels.max() >= len(CLASSES):
        raise DataError(f"{path}: label {labels.max()}, expected 0 to {len(CLASSES) - 1}")
    images = records[:, 1:].reshape(-1, *_SHAPE).copy()
    return Split(torch.from_numpy(images), torch.from_numpy(labels.astype(np.int64)))


def read_cifar(paths: Mapping[str, Path]) -> tuple[Split, Split]:
    """Training and test split from the six files."""
    *train, test = (read_cifar_batch(paths[name]) for name in BATCHES)
    return Split(torch.cat([part.x for part in train]), torch.cat([part.y for part in train])), test
