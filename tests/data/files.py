"""Makers of small files in the real formats."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np

PARTS = ("train", "t10k")


def idx_bytes(array: np.ndarray) -> bytes:
    return struct.pack(f">{1 + array.ndim}I", 0x0800 | array.ndim, *array.shape) + array.tobytes()


def digits(examples: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Random 28 × 28 images and labels from 0 to 9."""
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (examples, 28, 28), dtype=np.uint8), rng.integers(0, 10, examples, dtype=np.uint8)


def write_idx_set(folder: Path, train: int = 12, test: int = 5, zipped: bool = True) -> dict[str, np.ndarray]:
    """The four files of an MNIST-like set; returns the arrays by file name without `.gz`."""
    folder.mkdir(parents=True, exist_ok=True)
    arrays = {}
    for part, examples in zip(PARTS, (train, test), strict=True):
        images, labels = digits(examples, seed=examples)
        arrays |= {f"{part}-images-idx3-ubyte": images, f"{part}-labels-idx1-ubyte": labels}
    for name, array in arrays.items():
        data = idx_bytes(array)
        (folder / f"{name}{'.gz' * zipped}").write_bytes(gzip.compress(data) if zipped else data)
    return arrays


def cifar_bytes(examples: int, seed: int = 0) -> bytes:
    rng = np.random.default_rng(seed)
    records = rng.integers(0, 256, (examples, 3073), dtype=np.uint8)
    records[:, 0] %= 10
    return records.tobytes()


def write_uci_set(folder: Path, rows: int = 10, test: int = 3, split: int = 0) -> np.ndarray:
    """A UCI set of 2 features and a target in column 1; returns its table."""
    folder.mkdir(parents=True, exist_ok=True)
    table = np.arange(rows * 3).reshape(rows, 3) / 4
    np.savetxt(folder / "data.txt", table, fmt="%.7e", delimiter="   ")
    for name, values in {
        "index_features": [0, 2],
        "index_target": [1],
        f"index_train_{split}": range(rows - test),
        f"index_test_{split}": range(rows - test, rows),
    }.items():
        (folder / f"{name}.txt").write_text("".join(f"{value}\n" for value in values))
    return table
