"""The idx files of MNIST and its relatives, zipped or not."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from bqn.data import _content
from bqn.data._dataset import DataError, Split

_UNSIGNED_BYTE = 0x08


def read_idx(path: Path, dims: int) -> npt.NDArray[np.uint8]:
    """The uint8 array with `dims` dimensions in an idx file.

    Every byte is accounted for: a wrong magic number, a size the file cannot have, missing or surplus data are a
    `DataError`, found before memory is taken for them.
    """
    stored = _content.read_bytes(path)
    header_size = 4 + 4 * dims
    header = _content.peek(path, stored, header_size)
    if len(header) < header_size:
        raise DataError(f"{path}: too short for an idx file, {len(header)} of {header_size} header bytes")
    magic, *shape = struct.unpack(f">{1 + dims}I", header)
    expected_magic = _UNSIGNED_BYTE << 8 | dims
    if magic != expected_magic:
        raise DataError(f"{path}: magic number {magic:#010x}, expected {expected_magic:#010x} (uint8, {dims} dims)")
    size = header_size + math.prod(shape)
    if size > _content.most(stored):
        raise DataError(f"{path}: truncated, or a false size: the header promises {shape}, {size:,} bytes")
    data = _content.content(path, stored, limit=size)
    if len(data) < size:
        raise DataError(f"{path}: truncated, {len(data):,} of {size:,} bytes")
    return np.frombuffer(data, np.uint8, offset=header_size).reshape(shape).copy()


def read_idx_set(paths: Mapping[str, Path], classes: int) -> tuple[Split, Split]:
    """Training and test split from the four files of an MNIST-like set, by their official names without `.gz`."""
    train, test = (
        _read_split(paths[f"{part}-images-idx3-ubyte"], paths[f"{part}-labels-idx1-ubyte"], classes)
        for part in ("train", "t10k")
    )
    return train, test


def _read_split(images: Path, labels: Path, classes: int) -> Split:
    x, y = read_idx(images, dims=3), read_idx(labels, dims=1)
    if len(x) != len(y):
        raise DataError(f"{images} has {len(x)} images but {labels} has {len(y)} labels")
    if len(y) and y.max() >= classes:
        raise DataError(f"{labels}: label {y.max()}, expected 0 to {classes - 1}")
    return Split(torch.from_numpy(x).unsqueeze(1), torch.from_numpy(y).long())
