"""Where data lie: one folder, given by argument, by environment, or the platform's cache."""

from __future__ import annotations

import os
import sys
from pathlib import Path

VARIABLE = "BQN_DATA"


def data_root(root: str | os.PathLike[str] | None = None) -> Path:
    """The folder that holds all data sets: `root`, else the environment variable BQN_DATA, else a cache folder."""
    chosen = root or os.environ.get(VARIABLE)
    return Path(chosen).expanduser() if chosen else cache_folder()


def cache_folder() -> Path:
    """The folder that the platform keeps for this package's caches."""
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local", "bqn", "bqn", "Cache")
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "bqn"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "bqn")
