"""Atomic writes: the old file or the new one, whatever goes wrong."""

import errno
import os
import resource

import pytest

from bqn.training import CheckpointError
from bqn.training.files import remove_leftovers, write_atomic


def test_writes_and_replaces(tmp_path):
    path = tmp_path / "file"
    write_atomic(path, b"old")
    write_atomic(path, b"new")
    assert path.read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize("failing", ["fsync", "replace"])
def test_full_disk_leaves_the_old_file(tmp_path, monkeypatch, failing):
    path = tmp_path / "file"
    write_atomic(path, b"old")

    def full(*arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, failing, full)
    with pytest.raises(CheckpointError, match=r"cannot write .*file: No space left on device; what was saved before"):
        write_atomic(path, b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


def test_write_cut_short_by_the_system(tmp_path):
    path = tmp_path / "file"
    write_atomic(path, b"old")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        with pytest.raises(CheckpointError, match="File too large"):
            write_atomic(path, bytes(1_000_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


def test_missing_folder(tmp_path):
    with pytest.raises(CheckpointError, match=r"cannot write .*: No such file or directory"):
        write_atomic(tmp_path / "none" / "file", b"new")


def test_an_interrupt_passes_and_leaves_nothing(tmp_path, monkeypatch):
    def interrupt(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_atomic(tmp_path / "file", b"new")
    assert os.listdir(tmp_path) == []


def test_leftovers(tmp_path):
    for name in ("file", "file.12-ab.tmp", "fileabc.tmp", "other.tmp"):
        (tmp_path / name).touch()
    remove_leftovers(tmp_path / "file")
    assert sorted(os.listdir(tmp_path)) == ["file", "other.tmp"]
