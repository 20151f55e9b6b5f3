"""A user's own table: numeric features and one target column."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bqn.data._dataset import DataError, Dataset, Task
from bqn.data._table import Row, is_number, numbers, read_text, require_width
from bqn.data._targets import as_targets, encode_labels, require_task, split_dataset

# A target of so few distinct whole numbers is taken for labels unless the caller says otherwise.
MOST_INTEGER_CLASSES = 20
_DELIMITERS = ",;\t"


def load_csv(path: Path, split: int = 0, target: str | None = None, task: Task | None = None) -> Dataset:
    """A data set from a CSV file with numeric features.

    Parameters
    ----------
    path : Path
        Cells separated by comma, semicolon or tab; the first line may hold names.
    split : int
        Seed of the train and test split.
    target : str or None
        Name of the target column, the last one by default.
    task : "classification", "regression" or None
        None: classification where the target is text or takes at most 20 whole values, regression otherwise.
    """
    require_task(task)
    rows = _rows(path)
    names = _header(rows)
    column = _target_column(path, names, len(rows[0].cells), target)
    body = rows[1:] if names else rows
    if not body:
        raise DataError(f"{path}: a header but no data")
    features = [place for place in range(len(rows[0].cells)) if place != column]
    if not features:
        raise DataError(f"{path}: one column only, expected features and a target; is the delimiter a comma?")
    x = torch.from_numpy(numbers(path, body, features, names).astype(np.float32))
    if task is None:
        task = _guess_task([row.cells[column] for row in body])
    y, classes = _targets(path, body, column, names, task)
    dataset = split_dataset(str(path), task, x, y, classes, split)
    return replace(dataset, **_names(names, features, column))


def _rows(path: Path) -> list[Row]:
    text = read_text(path)
    outside_quotes = re.sub(r'"[^"]*"', "", text.partition("\n")[0])
    delimiter = max(_DELIMITERS, key=outside_quotes.count)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    try:
        rows = [Row(reader.line_num, cells) for cells in reader if cells]
    except csv.Error as error:
        raise DataError(f"{path}: line {reader.line_num}: not a CSV file ({error})") from None
    if not rows:
        raise DataError(f"{path}: the file is empty")
    require_width(path, rows, len(rows[0].cells))
    return rows


def _header(rows: Sequence[Row]) -> list[str]:
    """The names in the first row, or none where it is data: numbers, save perhaps a text label at the end."""
    first, rest = rows[0].cells, rows[1:]
    numeric_features = all(map(is_number, first[:-1]))
    like_the_rest = is_number(first[-1]) or not all(is_number(row.cells[-1]) for row in rest) or not rest
    return [] if numeric_features and like_the_rest else [name.strip() for name in first]


def _target_column(path: Path, names: list[str], width: int, target: str | None) -> int:
    if target is None:
        return width - 1
    if names.count(target) != 1:
        raise DataError(f"{path}: target {target!r} must name one column of the header, which is {names}")
    return names.index(target)


def _names(names: Sequence[str], features: Sequence[int], target: int) -> dict[str, Any]:
    """What the columns are called, if names tell them apart."""
    if not names or len(set(names)) < len(names):
        return {}
    return {"feature_names": tuple(names[place] for place in features), "target_name": names[target]}


def _guess_task(cells: Sequence[str]) -> Task:
    if not all(map(is_number, cells)):
        return "classification"
    values = {float(cell) for cell in cells}
    few_integers = len(values) <= MOST_INTEGER_CLASSES and all(value.is_integer() for value in values)
    return "classification" if few_integers else "regression"


def _targets(
    path: Path, body: Sequence[Row], column: int, names: Sequence[str], task: Task
) -> tuple[Tensor, tuple[str, ...]]:
    if task == "regression":
        return as_targets(numbers(path, body, [column], names)), ()
    cells = [row.cells[column].strip() for row in body]
    for row, cell in zip(body, cells, strict=True):
        if not cell:
            raise DataError(f"{path}: line {row.line}, column {column + 1}: expected a class, got an empty cell")
    if not all(map(is_number, cells)):
        return encode_labels(np.array(cells))
    return encode_labels(numbers(path, body, [column], names)[:, 0])
