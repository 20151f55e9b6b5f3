"""Putting a new run where another one is, which is given up only once the new one is under way."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from bqn.cli._console import note
from bqn.training import CheckpointError
from bqn.training.folder import RunFolder


def require_free(folder: Path, force: bool) -> None:
    """Raise if a run is in `folder`, unless it may be replaced."""
    if RunFolder(folder).config.exists() and not force:
        raise CheckpointError(
            f"{folder} already holds a run: continue it with bqn resume {shlex.quote(str(folder))}, replace it with "
            f"--force, or choose another --out"
        )
    if force and RunFolder(folder).config.exists() and Path.cwd().is_relative_to(folder.resolve()):
        raise CheckpointError(f"{folder} cannot be replaced from inside: leave the folder first")


@contextmanager
def replacing(folder: Path) -> Iterator[Callable[[], None]]:
    """Set a run in `folder` aside. It comes back, unless the function that is given was called: then it is removed.

    Files in the folder that are not part of a run are never removed, and a link to the folder stays one.
    """
    folder = folder.resolve()
    if not RunFolder(folder).config.exists():
        yield lambda: None
        return
    with RunFolder(folder).held():  # nobody trains here
        pass
    aside = _free_name(folder)
    folder.rename(aside)
    folder.mkdir()  # a link to nothing could not be written through
    under_way = False

    def started() -> None:
        nonlocal under_way
        if not under_way:
            under_way = True
            _remove(aside)

    try:
        yield started
    finally:
        if not under_way:
            shutil.rmtree(folder, ignore_errors=True)
            aside.rename(folder)


def _free_name(folder: Path) -> Path:
    number = 1
    while (name := folder.with_name(f"{folder.name}.replaced{f'-{number}' * (number > 1)}")).exists():
        number += 1
    return name


def _remove(aside: Path) -> None:
    run = RunFolder(aside)
    run.clean()
    for file in (run.config, run.preprocessing, run.checkpoint, run.best, run.history, aside / "report.html"):
        file.unlink(missing_ok=True)
    shutil.rmtree(aside / "tensorboard", ignore_errors=True)
    try:
        aside.rmdir()
    except OSError:  # it holds something else
        note(f"bqn: other files of the replaced run are kept in {aside}")
