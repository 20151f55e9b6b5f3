"""One download: through pooch, from the first address that serves it, going on where an earlier try was cut off."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

from bqn.data._dataset import DataError
from bqn.data._extras import require

Progress: TypeAlias = Callable[[str, int, int | None], None]
"""Called with a file's name, the bytes there so far, and all its bytes where they are known."""

_BLOCK = 1 << 16
_TIMEOUTS = (10, 30)  # seconds to connect, and to wait for the next bytes
_MOST_RESUMES = 20


def download(urls: Sequence[str], checksum: str, target: Path, limit: int, progress: Progress | None = None) -> None:
    """Bring what one of the addresses serves to `target`, verified.

    Parameters
    ----------
    urls : sequence of str
        Addresses of the same bytes, tried in order.
    checksum : str
        "md5:…" or "sha256:…" of those bytes.
    target : Path
        What arrives before a connection breaks is kept beside it, in `<name>.part`, for the next try.
    limit : int
        More bytes than these are refused.
    progress : callable or None
    """
    pooch = require("pooch", extra="data", purpose="downloading")
    reasons = []
    for url in urls:
        transfer = _Transfer(target.with_name(target.name + ".part"), target.name, limit, progress)
        try:
            with _quiet(pooch):
                _retrieve(pooch, url, checksum, target, transfer)
            return
        except (ValueError, OSError) as error:  # what pooch, requests and the disk raise
            reasons.append(f"{url}: {_reason(error)}")
    raise DataError("; ".join(reasons))


def _retrieve(pooch: Any, url: str, checksum: str, target: Path, transfer: _Transfer) -> None:
    options = {"known_hash": checksum, "fname": target.name, "path": target.parent, "downloader": transfer}
    try:
        pooch.retrieve(url, **options)
    except ValueError:
        if not transfer.resumed:
            raise
        # The part that an earlier try left behind was of other bytes. It is gone now: once more from the start.
        pooch.retrieve(url, **options)


class _Transfer:
    """A downloader in the sense of pooch that continues a part already there."""

    def __init__(self, part: Path, name: str, limit: int, progress: Progress | None) -> None:
        self.part = part
        self.name = name
        self.limit = limit
        self.progress = progress
        self.resumed = False

    def __call__(self, url: str, output_file: str, _pooch: object) -> None:
        requests = require("requests", extra="data", purpose="downloading")
        self.resumed = self._size() > 0
        for _ in range(_MOST_RESUMES):
            before = self._size()
            try:
                self._receive(requests, url)
                break
            except (requests.ConnectionError, requests.Timeout, requests.exceptions.ChunkedEncodingError):
                if self._size() <= before:
                    raise
        else:
            raise DataError(f"the connection broke {_MOST_RESUMES} times")
        os.replace(self.part, output_file)

    def _size(self) -> int:
        return self.part.stat().st_size if self.part.exists() else 0

    def _receive(self, requests: Any, url: str) -> None:
        start = self._size()
        headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={start}-"} if start else {})
        with requests.get(url, headers=headers, stream=True, timeout=_TIMEOUTS) as response:
            served = response.headers.get("Content-Range", "")
            if start and response.status_code == requests.codes.requested_range_not_satisfiable:
                if served == f"bytes */{start}":
                    return  # all was there already
                self.part.unlink()
                raise DataError(f"cannot continue at byte {start:,}")
            response.raise_for_status()
            if response.status_code == requests.codes.partial_content and not served.startswith(f"bytes {start}-"):
                raise DataError(f"asked for the bytes from {start:,}, got {served!r}")
            if response.status_code != requests.codes.partial_content:
                start = 0
            self._write(requests, response, start)

    def _write(self, requests: Any, response: Any, start: int) -> None:
        length = response.headers.get("Content-Length", "")
        total = start + int(length) if length.isdecimal() else None
        done = start
        with self.part.open("ab" if start else "wb") as file:
            for block in response.iter_content(_BLOCK):
                done += len(block)
                if done > self.limit:
                    break
                file.write(block)
                if self.progress is not None:
                    self.progress(self.name, done, total)
        if done > self.limit:
            self.part.unlink()
            raise DataError(f"more than the expected {self.limit:,} bytes")
        if total is not None and done < total:
            raise requests.ConnectionError(f"the connection broke after {done:,} of {total:,} bytes")


def _reason(error: Exception) -> str:
    """An error in a few words: requests wraps the cause, which alone tells something, in the calls that led to it."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    cause = getattr(error.args[0], "reason", error) if error.args else error
    return str(cause).rpartition("): ")[2] or type(error).__name__


@contextmanager
def _quiet(pooch: Any) -> Iterator[None]:
    """No messages of pooch on standard error."""
    logger = pooch.get_logger()
    level = logger.level
    logger.setLevel("WARNING")
    try:
        yield
    finally:
        logger.setLevel(level)
