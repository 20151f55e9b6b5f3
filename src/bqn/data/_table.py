"""Tables of numbers as text: cells to floats, with the place of whatever is not one."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from bqn.data import _content
from bqn.data._dataset import DataError

# What a number looks like; float() also takes "nan", "1_000" and the digits of every script.
_NUMBER = re.compile(r"\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*", re.ASCII)
_COMMA = re.compile(r"\s*[+-]?[\d,;]*\d[,;][+-]?\d[\d,;]*([eE][+-]?\d+)?\s*", re.ASCII)  # no number, but like one
_LARGEST = float(np.finfo(np.float32).max)


class Row(NamedTuple):
    """The cells of one row and the line of the file it ends on, counted from 1."""

    line: int
    cells: list[str]


def is_number(cell: str) -> bool:
    return _NUMBER.fullmatch(cell) is not None


def read_text(path: Path) -> str:
    """The file as text; a byte order mark is dropped."""
    try:
        return _content.read_bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 text, byte {error.start:,} is {error.object[error.start]:#04x}") from None


def numbers(
    path: Path, rows: Sequence[Row], columns: Sequence[int], names: Sequence[str] = ()
) -> npt.NDArray[np.float64]:
    """The cells at `columns` as an array `(rows, columns)`.

    Anything but a number in the range of float32 is an error that names its place.
    """
    cells = [row.cells[column] for row in rows for column in columns]
    text = "".join(cells)
    if "_" in text or not text.isascii():  # float() takes more than numbers
        raise _not_a_number(path, rows, columns, names)
    try:
        values = np.array([float(cell) for cell in cells]).reshape(len(rows), len(columns))
    except ValueError:
        raise _not_a_number(path, rows, columns, names) from None
    if not (np.abs(values) <= _LARGEST).all():  # NaN is not
        raise _not_a_number(path, rows, columns, names)
    return values


def _not_a_number(path: Path, rows: Sequence[Row], columns: Sequence[int], names: Sequence[str]) -> DataError:
    """The error for the first cell that is not one."""
    line, column, cell = next(
        (row.line, column, row.cells[column])
        for row in rows
        for column in columns
        if not is_number(row.cells[column]) or abs(float(row.cells[column])) > _LARGEST
    )
    name = f" ({names[column]})" if names else ""
    got = repr(cell[:40]) if cell.strip() else "an empty cell"
    hint = "; write decimals with a point, as 1.5" if _COMMA.fullmatch(cell) else ""
    return DataError(f"{path}: line {line}, column {column + 1}{name}: expected a number, got {got}{hint}")


def require_width(path: Path, rows: Sequence[Row], width: int) -> None:
    """Raise unless all rows have `width` cells."""
    for row in rows:
        if len(row.cells) != width:
            raise DataError(f"{path}: line {row.line} has {len(row.cells)} columns, expected {width}")
