"""What a command may fail with, and what the user is told about it: one line each."""

from __future__ import annotations

import errno
import sys
from collections.abc import Iterator
from contextlib import contextmanager


class UsageError(ValueError):
    """Arguments or settings that cannot be used as they are: exit code 2."""


class InterruptedRunError(Exception):
    """Ctrl-C during training, with words about what remains: exit code 130.

    No KeyboardInterrupt, which typer would take for itself.
    """


class OutputError(Exception):
    """Standard output takes no more; `closed` if its reader has gone, as in `bqn data list | head`."""

    def __init__(self, error: OSError) -> None:
        super().__init__(f"cannot write to standard output: {error.strerror}")
        self.closed = error.errno == errno.EPIPE


@contextmanager
def settings_are_usage() -> Iterator[None]:
    """Turn a wrong setting into wrong usage, for commands whose settings come from the user."""
    from bqn.training.errors import ConfigError

    try:
        yield
    except ConfigError as error:
        raise UsageError(str(error)) from error


def is_expected(error: BaseException) -> bool:
    """Whether this may go wrong without a fault in this package. Anything else is a bug, and shows as one."""
    if isinstance(error, ImportError):
        return _is_missing_extra(error)
    return isinstance(error, (OSError, ValueError)) or _is_of_memory(error) or ends_training(error)


def ends_training(error: BaseException) -> bool:
    """Whether it is one of the ways in which training can end early; in all processes, where there are several."""
    if "bqn.training" not in sys.modules:  # nobody has trained, and the import takes seconds
        return False
    from bqn.training.errors import DivergedError, LostProcessError

    return isinstance(error, (DivergedError, LostProcessError))


def describe(error: BaseException) -> str:
    """The error as one line."""
    if _is_of_memory(error):
        text = "out of memory; --accumulate, --checkpoint-activations or a smaller --batch-size need less"
    elif isinstance(error, OSError) and error.strerror:
        text = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    else:
        text = str(error) or type(error).__name__
    return one_line(text)


def one_line(text: str) -> str:
    """No line breaks, and nothing that a terminal would take for a command: names of files can hold both."""
    return "".join(sign if sign.isprintable() else " " if sign == "\n" else repr(sign)[1:-1] for sign in text)


def _is_missing_extra(error: ImportError) -> bool:
    """Whether an optional library is not there, and the message says how to install it."""
    return "pip install" in str(error)


def _is_of_memory(error: BaseException) -> bool:
    """Whether the memory is full, that of a GPU or the other."""
    torch = sys.modules.get("torch")
    if isinstance(error, MemoryError) or (torch is not None and isinstance(error, torch.OutOfMemoryError)):
        return True
    # torch has no class of its own for the memory of a CPU
    return isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error)
