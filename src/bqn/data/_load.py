"""The one way in: a name or a path becomes a data set."""

from __future__ import annotations

import os
from pathlib import Path

from bqn.data._catalog import CATALOG, find_entry
from bqn.data._csv import load_csv
from bqn.data._dataset import DataError, Dataset, Task
from bqn.data._fetch import locate
from bqn.data._images import load_images
from bqn.data._npz import load_npz
from bqn.data._root import data_root


def load(
    source: str | os.PathLike[str],
    root: str | os.PathLike[str] | None = None,
    download: bool = True,
    split: int = 0,
    *,
    target: str | None = None,
    task: Task | None = None,
) -> Dataset:
    """Load a data set into memory; images stay uint8.

    Parameters
    ----------
    source : str or path
        A name from `available()`, or a path to your own data: an `.npz` file, a `.csv` file, or a folder of pictures.
    root : path or None
        Folder that holds the named sets; None: the environment variable BQN_DATA, else a cache folder.
    download : bool
        Whether files of a named set that are not there may be downloaded.
    split : int
        Which train and test split, for sets that have several; a seed for sets that have none of their own.
    target : str or None
        Name of the target column of a `.csv` file, the last one by default.
    task : "classification", "regression" or None
        How to read the targets of a `.csv` or `.npz` file; None: by their looks.

    Returns
    -------
    Dataset
    """
    if isinstance(split, bool) or not isinstance(split, int) or split < 0:
        raise ValueError(f"split must be a whole number from 0, got {split!r}")
    if os.fspath(source) in CATALOG:
        if target is not None or task is not None:
            raise ValueError(f"target and task are for your own files, {source} has its own")
        return _load_named(os.fspath(source), data_root(root), download, split)
    path = Path(source).expanduser()
    if path.is_dir():
        _reject(path, target=target, task=task)
        return load_images(path, split)
    if not path.is_file():
        if path.suffix or len(path.parts) > 1:
            raise DataError(f"{path}: no such file or folder")
        find_entry(str(source))  # raises, with the nearest name
    if path.suffix.lower() == ".npz":
        _reject(path, target=target)
        return load_npz(path, split, task)
    if path.suffix.lower() == ".csv":
        return load_csv(path, split, target, task)
    raise DataError(f"{path}: expected an .npz file, a .csv file or a folder of pictures")


def _load_named(name: str, root: Path, download: bool, split: int) -> Dataset:
    entry = find_entry(name)
    splits = entry.info.splits
    if splits is not None and split >= splits:
        raise DataError(f"{name}: split must be from 0 to {splits - 1}, got {split}")
    return entry.read(locate(entry, root, split, download), split)


def _reject(path: Path, **options: str | None) -> None:
    """Raise for an option that this kind of data does not have."""
    for name, value in options.items():
        if value is not None:
            raise ValueError(f"{name} does not apply to {path}, got {value!r}")
