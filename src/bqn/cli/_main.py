"""One run of the command line: the commands do the work, every way to end becomes an exit code and at most one line."""

from __future__ import annotations

import re
import traceback

import typer

from bqn.cli._app import app
from bqn.cli._console import complain, note, printing
from bqn.cli._errors import (
    InterruptedRunError,
    OutputError,
    UsageError,
    describe,
    ends_training,
    is_expected,
    one_line,
)
from bqn.cli._processes import here

FAILED, WRONG_USAGE, INTERRUPTED = 1, 2, 130

_NUMBERS = re.compile(r"Input should be a valid (integer|number), unable to parse string as an? (integer|number)")
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
        _complain(_parser_message(error, arguments), of_all=True)
        return WRONG_USAGE
    except OutputError as error:
        if not error.closed:
            complain(str(error))
        return FAILED
    except Exception as error:
        if not is_expected(error):
            raise
        if "--debug" in arguments:
            traceback.print_exc()
        _complain(describe(error), of_all=isinstance(error, UsageError) or ends_training(error))
        return WRONG_USAGE if isinstance(error, UsageError) else FAILED
    if code == INTERRUPTED:
        note("bqn: interrupted")
    return int(code or 0)


def _complain(text: str, of_all: bool) -> None:
    """The line about what went wrong. Of several processes (torchrun) the first alone says what concerns them all."""
    try:
        processes = here()
    except ValueError:  # which is what the line is about
        processes = None
    if processes is None or processes.first:
        complain(text)
    elif not of_all:
        complain(f"process {processes.rank} of {processes.count}: {text}")


def _parser_message(error: BaseException, arguments: list[str]) -> str:
    """The parser's complaint in the tone of all others, with what was given and the way to the help."""
    text = one_line(error.format_message()).rstrip(".")  # type: ignore[attr-defined]
    given = _given(error, arguments)
    if given is not None and repr(given) not in text:  # depends on the version of typer
        text = f"{_NUMBERS.sub(_expected, text)}, got {given!r:.80}"
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "bqn"
    return f"{text[:1].lower()}{text[1:]}; see {command} --help"


def _expected(words: re.Match[str]) -> str:
    return "expected a whole number" if words[1] == "integer" else "expected a number"


def _given(error: BaseException, arguments: list[str]) -> str | None:
    """What the option that the parser complains about was given."""
    names = getattr(getattr(error, "param", None), "opts", [])
    for place, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        if name in names and (equals or place + 1 < len(arguments)):
            return value if equals else arguments[place + 1]
    return None
