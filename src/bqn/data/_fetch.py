"""Bringing sets to the data root, and checking that what lies there is what was published."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bqn.data import _content
from bqn.data._catalog import CATALOG, Download, Entry, File, SetInfo, find_entry
from bqn.data._dataset import DataError
from bqn.data._download import Progress, download
from bqn.data._extras import require
from bqn.data._root import data_root

_STAGING = ".partial"
_LONGEST_WAIT = 3600  # seconds for another process that fetches the same set
_SLACK = 1 << 20  # compression of small or random bytes adds a little


@dataclass(frozen=True)
class FileReport:
    """The state of one file of a set: where it lies, or should, and what is wrong with it if it is damaged."""

    path: Path
    state: Literal["ok", "missing", "damaged"]
    detail: str = ""


def available() -> tuple[SetInfo, ...]:
    """All sets that `load` knows by name."""
    return tuple(entry.info for entry in CATALOG.values())


def verify(name: str, root: str | os.PathLike[str] | None = None) -> list[FileReport]:
    """Compare the files of a set with the published checksums, by content: any valid compression passes.

    Parameters
    ----------
    name : str
    root : path or None
        Data root; see `data_root`.

    Returns
    -------
    list of FileReport, one a file; empty for the sets that come with scikit-learn.
    """
    base = data_root(root)
    return [_report(file, base) for file in find_entry(name).files()]


def fetch(name: str, root: str | os.PathLike[str] | None = None, progress: Progress | None = None) -> list[FileReport]:
    """Download what is missing or damaged of a set, verify it, and report on every file as `verify` does.

    Parameters
    ----------
    name : str
    root : path or None
        Data root; see `data_root`.
    progress : callable or None
        Called with a file's name, the bytes there so far, and all its bytes or None.
    """
    entry, base = find_entry(name), data_root(root)
    _bring(entry, base, [file for file in entry.files() if _report(file, base).state != "ok"], progress)
    return verify(name, base)


def locate(entry: Entry, root: Path, split: int, allow_download: bool) -> dict[str, Path]:
    """Paths, by file name, of all that is needed to load one split; missing files are downloaded if allowed."""
    files = entry.files(split)
    missing = [file for file in files if file.find(root) is None]
    if missing and not allow_download:
        raise _missing(entry, root, missing, "not downloaded, as download is off")
    _bring(entry, root, missing)
    return {file.name: path for file in files if (path := file.find(root)) is not None}


def _report(file: File, root: Path) -> FileReport:
    path = file.find(root)
    if path is None:
        return FileReport(root / file.places[0], "missing")
    try:
        _require_content(path, file, _content.read_bytes(path))
    except DataError as error:
        return FileReport(path, "damaged", str(error))
    return FileReport(path, "ok")


def _require_content(path: Path, file: File, stored: bytes) -> None:
    data = _content.content(path, stored, limit=file.content.size)
    if len(data) != file.content.size:
        raise DataError(f"{path}: {len(data):,} bytes, expected {file.content.size:,}")
    found = _content.sha256(data)
    if found != file.content.sha256:
        raise DataError(f"{path}: sha256 {found}, expected {file.content.sha256}")


def _bring(entry: Entry, root: Path, wanted: list[File], progress: Progress | None = None) -> None:
    """Download the wanted files; one process at a time does so for a set, others wait and find them there."""
    if not wanted:
        return
    try:
        filelock = require("filelock", extra="data", purpose="downloading")
        staging = root / _STAGING
        staging.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(staging / f"{entry.info.name}.lock", timeout=_LONGEST_WAIT):
            for item in entry.downloads:
                if any(file in wanted and _report(file, root).state != "ok" for file in item.files):
                    _bring_one(entry, item, root, staging, progress)
    except (ImportError, OSError, DataError) as error:
        still = [file for file in wanted if _report(file, root).state != "ok"]
        raise _missing(entry, root, still, f"download failed: {error}") from None


def _bring_one(entry: Entry, item: Download, root: Path, staging: Path, progress: Progress | None) -> None:
    served = staging / f"{entry.info.name}-{item.urls[0].rpartition('/')[2]}"
    files = {file.name: file for file in item.files}
    limit = sum(file.content.size for file in item.files) + _SLACK
    download(item.urls, item.checksum, served, limit, progress)
    for name, data in item.unpack(served):
        path = root / files[name].places[0]
        _require_content(path, files[name], data)
        _content.write_atomically(path, data)
    served.unlink()


def _missing(entry: Entry, root: Path, files: list[File], reason: str) -> DataError:
    names = ", ".join(Path(file.places[0]).name for file in files)
    places = ", ".join(dict.fromkeys(str((root / place).parent) for file in files for place in file.places))
    urls = (url for item in entry.downloads if set(item.files) & set(files) for url in item.urls)
    addresses = ", ".join(dict.fromkeys(url.rpartition("/")[0] + "/" for url in urls))
    return DataError(f"{entry.info.name}: missing {names}; looked in {places}; published at {addresses}; {reason}")
