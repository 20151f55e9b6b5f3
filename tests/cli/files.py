"""Small data of a user, and the arguments of quick runs on them."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

QUICK = ("--hidden", "8", "--epochs", "2", "--batch-size", "20", "--threads", "1", "--device", "cpu", "--quiet")


def images(count: int, classes: int = 3, seed: int = 0, size: int = 6) -> tuple[np.ndarray, np.ndarray]:
    """Gray images whose bright row tells the class, and labels."""
    rng = np.random.default_rng(seed)
    y = np.arange(count) % classes
    x = rng.integers(0, 120, (count, size, size))
    x[np.arange(count), 2 * y] += 100
    return x.astype(np.uint8), y


def write_images(path: Path, names: str = "abc", size: int = 6) -> Path:
    """An .npz file with a split: 60 and 30 images of classes with these names."""
    x_train, y_train = images(60, len(names), seed=0, size=size)
    x_test, y_test = images(30, len(names), seed=1, size=size)
    classes = np.array(list(names))
    np.savez(path, x_train=x_train, y_train=classes[y_train], x_test=x_test, y_test=classes[y_test])
    return path


def write_table(path: Path, rows: int = 80, labels: bool = False) -> Path:
    """A .csv file of three features in odd units and a price, or a kind, in its second column."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(rows, 3)) * (1, 100, 0.01) + 7
    price = 1000 + 20 * x[:, 0] + 0.3 * x[:, 1] + rng.normal(size=rows)
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("rooms", "kind" if labels else "price", "area", "age"))
        for features, value in zip(x.round(6).tolist(), price.round(6).tolist(), strict=True):
            target = ("cheap" if value < 1140 else "dear") if labels else value
            writer.writerow((features[0], target, *features[1:]))
    return path
