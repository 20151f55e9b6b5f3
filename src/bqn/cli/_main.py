"""One run of the command line: the commands do the work, every way to end becomes an exit code and at most one line."""

from __future__ import annotations

import traceback

import typer

from bqn.cli._app import app
from bqn.cli._console import complain, note, printing
from bqn.cli._errors import (
    EXPECTED,
    InterruptedRunError,
    OutputError,
    UsageError,
    describe,
    is_missing_extra,
    one_line,
)
from bqn.training import DivergedError, LostProcessError
from bqn.training.distributed import here

FAILED, WRONG_USAGE, INTERRUPTED = 1, 2, 130

# The base of all errors of the parser: typer brings a click of its own or uses the one that is installed, by version.
_ParserError: type[Exception] = typer.BadParameter.__mro__[2]


def run(arguments: list[str]) -> int:
    """Run the command that `arguments` name and return the exit code."""
    try:
        code = app([each for each in arguments if each != "--debug"] or ["--help"], "bqn", standalone_mode=False)
        with printing():
            pass  # what the parser itself has printed
    except InterruptedRunError as interrupt:
        note(f"bqn: interrupted; {interrupt}")
        return INTERRUPTED
    except (KeyboardInterrupt, typer.Abort):  # which of them, or the code alone, depends on the version of typer
        code = INTERRUPTED
    except _ParserError as error:
        _complain(_parser_message(error), of_all=True)
        return WRONG_USAGE
    except OutputError as error:
        if not error.closed:
            complain(str(error))
        return FAILED
    except EXPECTED as error:
        if isinstance(error, ImportError) and not is_missing_extra(error):
            raise
        if "--debug" in arguments:
            traceback.print_exc()
        _complain(describe(error), of_all=isinstance(error, (UsageError, DivergedError, LostProcessError)))
        return WRONG_USAGE if isinstance(error, UsageError) else FAILED
    if code == INTERRUPTED:
        note("bqn: interrupted")
    return int(code or 0)


def _complain(text: str, of_all: bool) -> None:
    """The line about what went wrong. Of several processes (torchrun) the first alone says what concerns them all."""
    processes = here()
    if processes.first:
        complain(text)
    elif not of_all:
        complain(f"process {processes.rank} of {processes.count}: {text}")


def _parser_message(error: BaseException) -> str:
    """The parser's complaint in the tone of all others, with the way to the help."""
    text = one_line(error.format_message()).rstrip(".")  # type: ignore[attr-defined]
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "bqn"
    return f"{text[:1].lower()}{text[1:]}; see {command} --help"
