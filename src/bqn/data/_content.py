"""Bytes on disk: what a file holds whether or not it is gzipped, its checksum, and writing it all or not at all."""

from __future__ import annotations

import hashlib
import zlib
from pathlib import Path

from bqn import atomic
from bqn.data._dataset import DataError

_GZIP = b"\x1f\x8b"
_GZIP_WINDOW = 31  # what zlib calls the largest window, with gzip header and checksum
DEFLATE_RATIO = 1032  # the most that deflate can expand a byte


def read_bytes(path: Path) -> bytes:
    """The file as it is."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from None


def is_gzip(stored: bytes) -> bool:
    return stored.startswith(_GZIP)


def peek(path: Path, stored: bytes, size: int) -> bytes:
    """The first `size` bytes of the content, or fewer where there are no more."""
    if not is_gzip(stored):
        return stored[:size]
    try:
        return zlib.decompressobj(_GZIP_WINDOW).decompress(stored, size)
    except zlib.error as error:
        raise DataError(f"{path}: corrupted gzip data ({error})") from None


def content(path: Path, stored: bytes, limit: int) -> bytes:
    """What `stored`, the bytes of the file, hold once unzipped; more than `limit` bytes are an error.

    Memory stays within what the file can really hold, whatever it claims.
    """
    if not is_gzip(stored):
        if len(stored) > limit:
            raise DataError(f"{path}: {len(stored):,} bytes, expected {limit:,}")
        return stored
    stream = zlib.decompressobj(_GZIP_WINDOW)
    try:
        data = stream.decompress(stored, limit + 1)
    except zlib.error as error:
        raise DataError(f"{path}: corrupted gzip data ({error})") from None
    if len(data) > limit:
        raise DataError(f"{path}: more than the expected {limit:,} bytes when unzipped")
    if not stream.eof:
        raise DataError(f"{path}: truncated gzip data")
    if stream.unused_data:
        raise DataError(f"{path}: {len(stream.unused_data):,} surplus bytes after the gzip data")
    return data


def most(stored: bytes) -> int:
    """An upper bound on the size of the content."""
    return len(stored) * (DEFLATE_RATIO if is_gzip(stored) else 1)


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file, and the folders that it needs, such that a crash leaves the old one or the new one, whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic.write_atomic(path, data)


def publish(written: Path, path: Path) -> None:
    """Give a finished file on the same disk its final name, durably, in folders that may be new."""
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic.publish(written, path)


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
