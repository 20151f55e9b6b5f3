"""Files are written all or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bqn.data._content import write_atomically


def test_makes_folders_and_replaces(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "file"
    for data in (b"old", b"new"):
        write_atomically(path, data)
        assert path.read_bytes() == data
    assert [entry.name for entry in path.parent.iterdir()] == ["file"]


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_failure_leaves_the_old_file_and_no_litter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"old")

    def fail(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, step, fail)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]
