"""Optional libraries: present, absent, broken."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from bqn.data._extras import require


def test_a_library_that_is_there() -> None:
    assert require("math", extra="none", purpose="counting") is math


def test_a_library_that_is_not() -> None:
    with pytest.raises(ImportError, match=r'flying needs no_such_library: pip install "bqn\[wings\]"'):
        require("no_such_library.part", extra="wings", purpose="flying")


def test_a_broken_library_is_not_called_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "half_a_library.py").write_text("import its_missing_other_half")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="its_missing_other_half"):
        require("half_a_library", extra="none", purpose="testing")
