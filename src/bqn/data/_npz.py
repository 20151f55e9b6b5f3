"""A user's own arrays: `.npz` files, read without ever unpickling."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from numpy.lib import format as npy
from torch import Tensor

from bqn.data._content import DEFLATE_RATIO
from bqn.data._dataset import DataError, Dataset, Split, Task
from bqn.data._targets import as_targets, encode_labels, require_task, split_dataset

_WHOLE = ("x", "y")
_SPLIT = ("x_train", "y_train", "x_test", "y_test")
_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
_COMPRESSIONS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_CHANNELS = (1, 3)


def load_npz(path: Path, split: int = 0, task: Task | None = None) -> Dataset:
    """A data set from the arrays `x_train`, `y_train`, `x_test`, `y_test`, or `x` and `y`, which are then split.

    Parameters
    ----------
    path : Path
        Images are uint8 `(N, H, W)`, `(N, C, H, W)` or `(N, H, W, C)` with 1 or 3 channels; features are numbers
        `(N, F)`. Targets are integers or text for classification and floating point for regression, `(N,)` or
        `(N, out)`.
    split : int
        Seed of the train and test split of `x` and `y`.
    task : "classification", "regression" or None
        None: what the type of the targets says.
    """
    require_task(task)
    arrays = _read(path)
    if "x_train" in arrays:
        return _with_split(path, arrays, task)
    x = _inputs(path, "x", arrays["x"])
    y, classes, task = _targets(path, "y", arrays["y"], len(x), task)
    return split_dataset(str(path), task, x, y, classes, split)


def _with_split(path: Path, arrays: Mapping[str, npt.NDArray[Any]], task: Task | None) -> Dataset:
    x_train, x_test = (_inputs(path, name, arrays[name]) for name in ("x_train", "x_test"))
    y_train, y_test = (_squeeze(path, name, arrays[name]) for name in ("y_train", "y_test"))
    size = len(x_train)
    if len(y_train) != size:
        raise DataError(f"{path}: y_train has {len(y_train)} targets for {size} examples")
    if y_train.dtype.kind != y_test.dtype.kind or y_train.shape[1:] != y_test.shape[1:]:
        raise DataError(
            f"{path}: y_train is {y_train.dtype} {y_train.shape} but y_test is {y_test.dtype} {y_test.shape}"
        )
    both = np.concatenate([y_train, y_test])
    y, classes, task = _targets(path, "y_train with y_test", both, size + len(x_test), task)
    train, test = Split(x_train, y[:size]), Split(x_test, y[size:])
    if task == "classification":
        unknown = sorted(set(test.y.tolist()) - set(train.y.tolist()))
        if unknown:
            raise DataError(f"{path}: y_test has the class {classes[unknown[0]]!r}, which y_train does not know")
    return Dataset(str(path), task, train, test, classes)


def _read(path: Path) -> dict[str, npt.NDArray[Any]]:
    """The four arrays of a set that has a split, else the two of one that has none."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            names = _SPLIT if "x_train" in members else _WHOLE
            if any(name not in members for name in names):
                expected = f"expected {', '.join(_SPLIT)}, or {', '.join(_WHOLE)}"
                raise DataError(f"holds {', '.join(sorted(members)) or 'nothing'}; {expected}")
            return {name: _read_array(archive, members[name]) for name in names}
    except DataError as error:
        raise DataError(f"{path}: {error}") from None
    except Exception as error:  # zipfile, zlib and the header parser fail in many ways; the file's name is what helps
        raise DataError(f"{path}: not a readable .npz file ({str(error) or type(error).__name__})") from None


def _read_array(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> npt.NDArray[Any]:
    """One array; sizes are checked before memory is taken for them, and nothing is unpickled."""
    if info.compress_type not in _COMPRESSIONS:
        raise DataError(f"{info.filename} is compressed in a way that numpy does not write")
    if info.file_size > info.compress_size * DEFLATE_RATIO:
        raise DataError(f"{info.filename} claims {info.file_size:,} bytes from {info.compress_size:,}")
    with archive.open(info) as file:
        version = npy.read_magic(file)
        if version not in _HEADERS:
            raise DataError(f"{info.filename} has the npy version {version}, expected 1.0 or 2.0")
        shape, fortran, dtype = _HEADERS[version](file)
        if dtype.kind not in "biufU":
            raise DataError(f"{info.filename} holds {dtype}, expected numbers or text")
        size, present = math.prod(shape) * dtype.itemsize, info.file_size - file.tell()
        if size != present or min(shape, default=0) < 0:
            raise DataError(f"{info.filename} promises {shape} {dtype}, {size:,} bytes, but has {present:,}")
        flat = np.frombuffer(file.read(), dtype)
    return flat.reshape(shape, order="F" if fortran else "C")


def _inputs(path: Path, name: str, x: npt.NDArray[Any]) -> Tensor:
    if x.dtype == np.uint8 and x.ndim in (3, 4):
        if x.ndim == 3:
            x = x[:, None]
        elif x.shape[1] not in _CHANNELS and x.shape[3] in _CHANNELS:
            x = x.transpose(0, 3, 1, 2)
        if x.shape[1] not in _CHANNELS:
            raise DataError(f"{path}: {name} must have 1 or 3 channels, got {x.shape}")
        return torch.from_numpy(np.array(x, order="C"))
    if x.ndim != 2 or x.dtype.kind not in "biuf":
        hint = "; store images as uint8 from 0 to 255" if x.ndim in (3, 4) else ""
        raise DataError(
            f"{path}: {name} must be uint8 images or numeric features (N, F), got {x.dtype} {x.shape}{hint}"
        )
    return torch.from_numpy(_float32(path, name, x))


def _squeeze(path: Path, name: str, y: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Targets `(N,)`, or `(N, out)` with more than one column."""
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.ndim not in (1, 2) or not y.size:
        raise DataError(f"{path}: {name} must be targets (N,) or (N, out), got {y.dtype} {y.shape}")
    return y


def _targets(
    path: Path, name: str, y: npt.NDArray[Any], examples: int, task: Task | None
) -> tuple[Tensor, tuple[str, ...], Task]:
    y = _squeeze(path, name, y)
    if len(y) != examples:
        raise DataError(f"{path}: {name} has {len(y)} targets for {examples} examples")
    task = task or ("regression" if y.dtype.kind == "f" else "classification")
    if task == "regression":
        if y.dtype.kind == "U":
            raise DataError(f"{path}: {name} must be numbers for regression, got text")
        return as_targets(_float32(path, name, y)), (), task
    if y.ndim != 1:
        raise DataError(f"{path}: {name} must be one label an example, got {y.dtype} {y.shape}")
    if y.dtype.kind == "f":
        _float32(path, name, y)  # NaN is not a class
    return *encode_labels(y), task


def _float32(path: Path, name: str, values: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    with np.errstate(over="ignore", invalid="ignore"):
        converted = np.array(values, dtype=np.float32, order="C")
    if not np.isfinite(converted).all():
        raise DataError(f"{path}: {name} has NaN, infinite or too large values")
    return converted
