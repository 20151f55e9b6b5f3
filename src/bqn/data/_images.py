"""A user's own pictures: a folder for each class, below `train` and `test` or right in the given folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from bqn.data._dataset import DataError, Dataset, Split
from bqn.data._extras import require
from bqn.data._targets import split_dataset

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".pgm", ".ppm", ".tif", ".tiff")
_FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "PPM", "TIFF")
_LEFT_BY_DESKTOPS = ("thumbs.db", "desktop.ini")
_GRAY, _COLOUR = ("1", "L"), ("P", "RGB", "RGBA", "LA")
_MOST_PIXELS = 2**24


def load_images(path: Path, split: int = 0) -> Dataset:
    """A data set from a folder of pictures, all of one size.

    Parameters
    ----------
    path : Path
        `train/<class>/*` and `test/<class>/*`, other folders beside them are not read; or `<class>/*`, which is split.
        Pictures become `(1, H, W)` where all are gray, else `(3, H, W)`; transparency is dropped.
    split : int
        Seed of the train and test split of a folder that has none.
    """
    if not (path / "train").is_dir():
        if (path / "test").is_dir():
            raise DataError(f"{path}: has test but no train folder")
        classes = _classes(path)
        files, labels = _pictures(path, classes)
        x = torch.from_numpy(_read_all(files))
        return split_dataset(str(path), "classification", x, torch.tensor(labels), classes, split)
    if not (path / "test").is_dir():
        raise DataError(f"{path}: has train but no test folder")
    classes = _classes(path / "train")
    for name in _classes(path / "test"):
        if name not in classes:
            raise DataError(f"{path / 'test' / name}: the class {name!r} has no folder in {path / 'train'}")
    files, labels = _pictures(path / "train", classes)
    train = len(files)
    test_files, test_labels = _pictures(path / "test", _classes(path / "test"), classes)
    x, y = torch.from_numpy(_read_all([*files, *test_files])), torch.tensor([*labels, *test_labels])
    return Dataset(str(path), "classification", Split(x[:train], y[:train]), Split(x[train:], y[train:]), classes)


def _classes(folder: Path) -> tuple[str, ...]:
    names = tuple(sorted(entry.name for entry in _entries(folder) if entry.is_dir()))
    if not names:
        raise DataError(f"{folder}: expected a folder of pictures for each class, found none")
    return names


def _entries(folder: Path) -> list[Path]:
    """What a folder holds, in the order of names, without the files that desktops leave behind."""
    try:
        entries = sorted(folder.iterdir())
    except OSError as error:
        raise DataError(f"{folder}: cannot be read: {error.strerror or error}") from None
    return [
        entry for entry in entries if not entry.name.startswith(".") and entry.name.lower() not in _LEFT_BY_DESKTOPS
    ]


def _pictures(
    folder: Path, present: Sequence[str], classes: Sequence[str] | None = None
) -> tuple[list[Path], list[int]]:
    """All picture files of the classes that are present, and the position of each one's class in `classes`."""
    files, labels = [], []
    for name in present:
        entries = _entries(folder / name)
        if not entries:
            raise DataError(f"{folder / name}: no pictures in this folder")
        for entry in entries:
            if entry.suffix.lower() not in SUFFIXES or not entry.is_file():
                raise DataError(f"{entry}: not a picture, expected a file that ends in {', '.join(SUFFIXES)}")
        files += entries
        labels += [(classes or present).index(name)] * len(entries)
    return files, labels


def _read_all(files: Sequence[Path]) -> npt.NDArray[np.uint8]:
    """Pictures of one size as `(N, C, H, W)`."""
    image = require("PIL.Image", extra="images", purpose="reading pictures")
    first = _read(image, files[0], size=None)
    gray = first.ndim == 2
    pictures = np.empty((len(files), 3, *first.shape[:2]), np.uint8)
    for position, file in enumerate(files):
        pixels = _read(image, file, size=first.shape[:2])
        gray = gray and pixels.ndim == 2
        pictures[position] = pixels if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
    return pictures[:, :1].copy() if gray else pictures


def _read(image: Any, file: Path, size: tuple[int, ...] | None) -> npt.NDArray[np.uint8]:
    """The pixels of one picture, `(H, W)` if it is gray, else `(H, W, 3)`."""
    try:
        with image.open(file, formats=_FORMATS) as picture:
            width, height = picture.size
            if size is not None and (height, width) != size:
                raise DataError(f"{file}: {width} × {height} pixels, the first picture has {size[1]} × {size[0]}")
            if width * height > _MOST_PIXELS:
                raise DataError(f"{file}: {width} × {height} pixels, at most {_MOST_PIXELS:,} are read")
            if picture.mode not in (*_GRAY, *_COLOUR):
                raise DataError(f"{file}: pixels of the kind {picture.mode!r}, expected 8 bits gray or RGB")
            return np.asarray(picture.convert("L" if picture.mode in _GRAY else "RGB"))
    except DataError:
        raise
    except FileNotFoundError:
        raise DataError(f"{file}: no such file") from None
    except Exception as error:  # decoders of pictures fail in every way there is; the file's name is what helps
        raise DataError(f"{file}: cannot be read as a picture ({error})") from None
