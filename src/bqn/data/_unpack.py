"""From what an address serves to the files of a set: pairs of name and bytes, nothing written, nothing trusted."""

from __future__ import annotations

import tarfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from bqn.data import _content
from bqn.data._dataset import DataError


def as_it_is(name: str, served: Path) -> Iterator[tuple[str, bytes]]:
    """One file, kept as it came."""
    yield name, _content.read_bytes(served)


def from_tar(sizes: Mapping[str, int], served: Path) -> Iterator[tuple[str, bytes]]:
    """The regular files with exactly these paths and sizes from a tar.gz; whatever else it holds is left alone."""
    missing = dict(sizes)
    try:
        with tarfile.open(served, "r|gz") as archive:
            for member in archive:
                size = missing.get(member.name)
                if size is None:
                    continue
                file = archive.extractfile(member) if member.isreg() and member.size == size else None
                if file is None:
                    raise DataError(f"{served}: {member.name} is not a file of {size:,} bytes")
                del missing[member.name]
                yield Path(member.name).name, file.read()
    except (tarfile.TarError, zlib.error, EOFError, OSError) as error:
        raise DataError(f"{served}: not a readable tar.gz archive ({error})") from None
    if missing:
        raise DataError(f"{served}: the archive lacks {', '.join(missing)}")


def boston(served: Path) -> Iterator[tuple[str, bytes]]:
    """scikit-learn's table without its line of counts and the quotes around the names."""
    _, _, table = _content.read_bytes(served).partition(b"\n")
    header, _, rows = table.partition(b"\n")
    yield "boston.csv", header.replace(b'"', b"") + b"\n" + rows
