"""Examples without targets, from a user's files, in the form that a run takes."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from bqn.cli._runs import describe_shape, require_columns
from bqn.data import DataError, _csv, _images, _npz, _table
from bqn.data._extras import require
from bqn.training.preprocessing import Preprocessing

Shape = tuple[int, ...]


class Inputs(NamedTuple):
    """Examples `(N, *shape)`, each with the file that it came from and its row there, counted from 1."""

    x: Tensor
    origins: list[tuple[str, int]]


def read_inputs(files: Sequence[Path], form: Preprocessing, target: str | None = None) -> Inputs:
    """Read examples of one shape, uint8 `(C, H, W)` or float32 `(F,)`.

    Parameters
    ----------
    files : sequence of Path
        `.npz` with an array `x` or `x_test`, or one array only; `.csv` with one column a feature, with or without the
        target; pictures, one example each.
    form : Preprocessing
        The shape of one example, and the names of its columns: a `.csv` file with a header is read by name.
    target : str or None
        Where names are not known: that of the target's column in a `.csv` file that has it; by default the last column.
    """
    shape = form.input_shape
    parts, origins = [], []
    for file in files:
        x = _read_file(file, form, target)
        if not len(x):
            raise DataError(f"{file} holds no examples")
        if tuple(x.shape[1:]) != shape or (x.dtype == torch.uint8) != (len(shape) == 3):
            raise DataError(f"{file} has {describe_shape(tuple(x.shape[1:]))}, expected {describe_shape(shape)}")
        parts.append(x)
        origins += [(str(file), row) for row in range(1, len(x) + 1)]
    return Inputs(torch.cat(parts), origins)


def _read_file(file: Path, form: Preprocessing, target: str | None) -> Tensor:
    suffix = file.suffix.lower()
    if suffix == ".npz":
        return _read_npz(file)
    if suffix == ".csv":
        return _read_csv(file, form, target)
    if suffix in _images.SUFFIXES:
        return _read_picture(file, form.input_shape)
    raise DataError(f"{file}: expected a file that ends in .npz, .csv, {', '.join(_images.SUFFIXES)}")


def _read_npz(file: Path) -> Tensor:
    try:
        with zipfile.ZipFile(file) as archive:
            members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            only = next(iter(members)) if len(members) == 1 else ""
            name = next((name for name in ("x", "x_test", only) if name in members), None)
            if name is None:
                raise DataError(f"holds {', '.join(sorted(members)) or 'nothing'}; expected an array x")
            array = _npz._read_array(archive, members[name])
    except DataError as error:
        raise DataError(f"{file}: {error}") from None
    except OSError as error:
        raise DataError(f"{file}: cannot be read: {error.strerror or error}") from None
    except Exception as error:  # zipfile, zlib and the header parser fail in many ways; the file's name is what helps
        raise DataError(f"{file}: not a readable .npz file ({str(error) or type(error).__name__})") from None
    return _npz._inputs(file, name, array)


def _read_csv(file: Path, form: Preprocessing, target: str | None) -> Tensor:
    rows = _csv._rows(file)
    if len(form.input_shape) != 1:
        raise DataError(f"{file} holds features, expected {describe_shape(form.input_shape)}")
    first = [name.strip() for name in rows[0].cells]
    if form.feature_names and _is_header(first, form.feature_names):
        require_columns(str(file), first, form.feature_names, form.target_name)
        columns, names = [first.index(name) for name in form.feature_names], first
    else:
        columns, names = _by_position(file, first, form.input_shape[0], target)
    body = rows[1:] if names else rows
    return torch.from_numpy(_table.numbers(file, body, columns, names).astype(np.float32))


def _is_header(first: list[str], expected: Sequence[str]) -> bool:
    """Whether a first row holds names: those that are expected, or no number at all."""
    return set(expected) <= set(first) or not any(map(_table.is_number, first))


def _by_position(file: Path, first: list[str], features: int, target: str | None) -> tuple[list[int], list[str]]:
    """The columns of the features where nobody knows their names, and the names in the first row, if it has any."""
    columns = _feature_columns(file, first, features, target)
    # A first row without any number holds names; one bad cell must not make names of an example.
    return columns, [] if any(_table.is_number(first[column]) for column in columns) else first


def _feature_columns(file: Path, first: list[str], features: int, target: str | None) -> list[int]:
    """The columns of the features: all, or all but the target's."""
    width = len(first)
    if width == features:
        return list(range(width))
    if width != features + 1:
        raise DataError(f"{file} has {width} columns, expected {features} features, or {features + 1} with the target")
    if target is None:
        return list(range(features))
    if first.count(target) != 1:
        raise DataError(f"{file} has {width} columns, but none of them is called {target!r}, the target")
    return [column for column in range(width) if column != first.index(target)]


def _read_picture(file: Path, shape: Shape) -> Tensor:
    image = require("PIL.Image", extra="images", purpose="reading pictures")
    pixels = torch.from_numpy(_images._read(image, file, size=None).copy())
    planes = pixels.unsqueeze(0) if pixels.dim() == 2 else pixels.permute(2, 0, 1)
    if len(shape) == 3 and len(planes) == 1:
        planes = planes.expand(shape[0], *planes.shape[1:])  # gray is a colour too
    return planes.unsqueeze(0)
