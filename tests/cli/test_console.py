"""What a terminal shows while something is under way."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from bqn.cli import _console


def test_work_says_how_far_it_has_come(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    monkeypatch.setattr(_console, "err", Console(file=screen, force_terminal=True, width=80))
    with _console.working("evaluating [runs]") as tell:
        tell("noise 2 of 5, mc")
    assert "evaluating [runs]: noise 2 of 5, mc" in screen.getvalue()


def test_of_several_processes_the_others_show_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    monkeypatch.setattr(_console, "err", Console(file=screen, force_terminal=True, width=80))
    monkeypatch.setattr(_console, "is_first", lambda: False)
    with _console.working("evaluating") as tell:
        tell("mc")
    assert screen.getvalue() == ""
