"""The UCI regression sets with their published splits, and the Boston table."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from bqn.data._dataset import DataError, Split
from bqn.data._split import hold_out
from bqn.data._table import Row, numbers, read_text, require_width

BOSTON_HEADER = "CRIM,ZN,INDUS,CHAS,NOX,RM,AGE,DIS,RAD,TAX,PTRATIO,B,LSTAT,MEDV"
BOSTON_TEST_FRACTION = 0.1  # as in the published splits


def read_uci(paths: Mapping[str, Path], split: int) -> tuple[Split, Split]:
    """Training and test split number `split` of a set in the layout `data.txt`, `index_*.txt`."""
    table_path = paths["data.txt"]
    rows = _rows(table_path)
    table = numbers(table_path, rows, range(len(rows[0].cells)))
    features = _index(paths["index_features.txt"], table.shape[1])
    targets = _index(paths["index_target.txt"], table.shape[1])
    train_path, test_path = paths[f"index_train_{split}.txt"], paths[f"index_test_{split}.txt"]
    train, test = _index(train_path, len(table)), _index(test_path, len(table))
    if len(np.union1d(train, test)) != len(table) or len(train) + len(test) != len(table):
        raise DataError(
            f"{train_path} and {test_path}: {len(train)} and {len(test)} rows must be different ones and together "
            f"all {len(table)} of {table_path}"
        )
    return _split(table, features, targets, train), _split(table, features, targets, test)


def read_boston(paths: Mapping[str, Path], split: int) -> tuple[Split, Split]:
    """Training and test split with seed `split` of the Boston table."""
    path = paths["boston.csv"]
    lines = read_text(path).splitlines()
    if not lines or lines[0] != BOSTON_HEADER:
        raise DataError(f"{path}: line 1 must be {BOSTON_HEADER}")
    names = BOSTON_HEADER.split(",")
    rows = [Row(number, line.split(",")) for number, line in enumerate(lines[1:], start=2) if line]
    width = len(names)
    if len(rows) < 1 / BOSTON_TEST_FRACTION:
        raise DataError(f"{path}: {len(rows)} rows are too few to split")
    require_width(path, rows, width)
    table = numbers(path, rows, range(width), names)
    train, test = hold_out(torch.empty(len(table), 1), BOSTON_TEST_FRACTION, split, stratify=False)
    features, target = np.arange(width - 1), np.array([width - 1])
    return _split(table, features, target, train.numpy()), _split(table, features, target, test.numpy())


def _rows(path: Path) -> list[Row]:
    lines = enumerate(read_text(path).splitlines(), start=1)
    rows = [Row(number, cells) for number, line in lines if (cells := line.split())]
    if not rows:
        raise DataError(f"{path}: the file is empty")
    require_width(path, rows, len(rows[0].cells))
    return rows


def _index(path: Path, below: int) -> npt.NDArray[np.int64]:
    """Different whole numbers from 0 to `below - 1`, in the order of the file."""
    rows = _rows(path)
    values = numbers(path, rows, [0])[:, 0]
    require_width(path, rows, 1)
    wrong = (values != np.floor(values)) | (values < 0) | (values >= below)
    if wrong.any():
        raise DataError(f"{path}: index {values[wrong][0]:g}, expected whole numbers from 0 to {below - 1}")
    if len(np.unique(values)) != len(values):
        raise DataError(f"{path}: the same index twice")
    return values.astype(np.int64)


def _split(
    table: npt.NDArray[np.float64],
    features: npt.NDArray[np.int64],
    targets: npt.NDArray[np.int64],
    rows: npt.NDArray[np.int64],
) -> Split:
    part = table[rows].astype(np.float32)
    return Split(torch.from_numpy(part[:, features]), torch.from_numpy(part[:, targets]))
