"""The command line `bqn`: parse, call, print. One command is one file; `_app` lists them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.util import find_spec

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code.

    Parameters
    ----------
    arguments : sequence of str or None
        What follows `bqn` on the command line; that of this process by default.

    Returns
    -------
    int
        0: done; 1: the operation failed; 2: wrong usage; 130: interrupted.
    """
    missing = [name for name in ("typer", "rich") if find_spec(name) is None]
    if missing:
        print(f'bqn: error: the command line needs {missing[0]}: pip install "bqn[cli]"', file=sys.stderr)
        return 1
    try:
        from bqn.cli._main import run

        return run(sys.argv[1:] if arguments is None else list(arguments))
    except KeyboardInterrupt:  # while modules were imported, before or after the command line was read
        print("bqn: interrupted", file=sys.stderr)
        return 130
