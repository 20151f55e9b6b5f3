"""Where words go: results to standard output, everything about the work itself to standard error."""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from bqn.cli._errors import OutputError
from bqn.cli._processes import is_first

_LEAST_WIDTH = 80  # of tables: a narrower terminal breaks their lines, but no digit may be cut off

out = Console(highlight=False)
err = Console(stderr=True, highlight=False)


def show(*parts: RenderableType) -> None:
    """Print tables and text for people, a blank line between parts; text is printed as it is, never read as markup."""
    with printing():
        for position, part in enumerate(parts):
            if position:
                out.print()
            _screen_for(part).print(Text(part) if isinstance(part, str) else part)


def _screen_for(part: RenderableType) -> Console:
    if isinstance(part, Table) and out.width < _LEAST_WIDTH:
        return Console(highlight=False, width=_LEAST_WIDTH)
    return out


def footnote(text: str) -> Text:
    """What explains a table."""
    return Text(text, style="dim")


def show_json(document: dict[str, Any]) -> None:
    """Print one JSON object, on one line, and nothing else."""
    write(f"{json.dumps(document, allow_nan=False, ensure_ascii=False)}\n")


def write(text: str) -> None:
    """Print exactly this."""
    with printing():
        sys.stdout.write(text)


@contextmanager
def printing() -> Iterator[None]:
    """See that all that is printed arrives; an `OutputError` if it does not, and nothing more is printed then."""
    if sys.stdout is None:  # the process was started without one, as by `>&-`
        raise OutputError(OSError(errno.EBADF, os.strerror(errno.EBADF)))
    try:
        yield
        sys.stdout.flush()
    except OSError as error:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())  # lest Python try again at its end
        os.close(nowhere)
        raise OutputError(error) from error


def note(text: str) -> None:
    """Tell something about the work, on one line of any length."""
    err.print(Text(text), soft_wrap=True)


def complain(text: str) -> None:
    """The one line about what went wrong."""
    err.print(Text.assemble(("bqn: error:", "bold red"), " ", text), soft_wrap=True)


@contextmanager
def working(text: str) -> Iterator[Callable[[str], None]]:
    """Show on a terminal that something is under way; elsewhere nothing. Of several processes the first shows it.

    Yields a function that says in words how far it has come.
    """
    with err.status(Text(text)) if is_first() else nullcontext() as status:
        yield lambda what: None if status is None else status.update(Text(f"{text}: {what}"))
