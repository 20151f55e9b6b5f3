"""Archives give up exactly the files that are wanted."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from bqn.data import DataError
from bqn.data._unpack import as_it_is, boston, from_tar

SIZES = {"folder/a.bin": 3, "folder/b.bin": 2}


def archive(path: Path, members: dict[str, bytes], links: dict[str, str] | None = None) -> Path:
    with tarfile.open(path, "w:gz") as file:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            file.addfile(info, io.BytesIO(data))
        for name, target in (links or {}).items():
            info = tarfile.TarInfo(name)
            info.type, info.linkname = tarfile.SYMTYPE, target
            file.addfile(info)
    return path


def test_only_the_wanted_files_come_out(tmp_path: Path) -> None:
    path = archive(
        tmp_path / "x.tar.gz",
        {"readme": b"x", "../a.bin": b"evil", "/folder/a.bin": b"abs", "folder/b.bin": b"bb", "folder/a.bin": b"aaa"},
        {"folder/c.bin": "/etc/passwd"},
    )
    assert dict(from_tar(SIZES, path)) == {"a.bin": b"aaa", "b.bin": b"bb"}
    assert [entry.name for entry in tmp_path.iterdir()] == ["x.tar.gz"]


def test_links_wrong_sizes_and_missing_files_are_refused(tmp_path: Path) -> None:
    link = archive(tmp_path / "link.tar.gz", {"folder/b.bin": b"bb"}, {"folder/a.bin": "/etc/passwd"})
    with pytest.raises(DataError, match=r"folder/a\.bin is not a file of 3 bytes"):
        dict(from_tar(SIZES, link))
    size = archive(tmp_path / "size.tar.gz", {"folder/a.bin": b"aaaa", "folder/b.bin": b"bb"})
    with pytest.raises(DataError, match=r"folder/a\.bin is not a file of 3 bytes"):
        dict(from_tar(SIZES, size))
    missing = archive(tmp_path / "missing.tar.gz", {"folder/b.bin": b"bb"})
    with pytest.raises(DataError, match=r"the archive lacks folder/a\.bin"):
        dict(from_tar(SIZES, missing))


@pytest.mark.parametrize("keep", [0, 1, 20, 60, 100])
def test_a_truncated_archive(tmp_path: Path, keep: int) -> None:
    path = archive(tmp_path / "x.tar.gz", {"folder/a.bin": b"aaa", "folder/b.bin": b"bb"})
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(DataError, match=r"x\.tar\.gz: "):
        dict(from_tar(SIZES, path))


def test_not_an_archive(tmp_path: Path) -> None:
    path = tmp_path / "x.tar.gz"
    path.write_bytes(b"<html>gone</html>")
    with pytest.raises(DataError, match=r"not a readable tar\.gz archive"):
        dict(from_tar(SIZES, path))


def test_plain_files_stay_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"data")
    assert dict(as_it_is("name", path)) == {"name": b"data"}


def test_boston_loses_its_counts_and_quotes(tmp_path: Path) -> None:
    path = tmp_path / "boston_house_prices.csv"
    path.write_bytes(b'506,13,,,\n"CRIM","ZN"\n1,2\n3,4\n')
    assert dict(boston(path)) == {"boston.csv": b"CRIM,ZN\n1,2\n3,4\n"}
