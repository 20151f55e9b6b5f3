"""One data root: argument, environment, cache folder."""

from __future__ import annotations

import sys
from pathlib import Path

import platformdirs
import pytest

from bqn.data import data_root
from bqn.data._root import cache_folder


def test_argument_before_environment_before_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BQN_DATA", str(tmp_path / "environment"))
    assert data_root(tmp_path / "argument") == tmp_path / "argument"
    assert data_root() == tmp_path / "environment"
    monkeypatch.setenv("BQN_DATA", "")
    assert data_root() == cache_folder()
    monkeypatch.delenv("BQN_DATA")
    assert data_root() == cache_folder()


def test_home_is_expanded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    assert data_root("~/data") == tmp_path / "data"
    monkeypatch.setenv("BQN_DATA", "~/other")
    assert data_root() == tmp_path / "other"


def test_cache_folder_is_the_one_of_this_platform(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache_folder() == Path(platformdirs.user_cache_dir("bqn"))
    if sys.platform == "linux":
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        assert cache_folder() == tmp_path / "bqn"


@pytest.mark.parametrize(
    ("platform", "parts"),
    [("win32", ("local", "bqn", "bqn", "Cache")), ("darwin", ("home", "Library", "Caches", "bqn"))],
)
def test_cache_folders_of_other_platforms(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, platform: str, parts: tuple[str, ...]
) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "local"))
    monkeypatch.setattr(Path, "home", lambda: tmp_path / "home")
    assert cache_folder() == tmp_path.joinpath(*parts)
