"""All commands, in the order of the help. A new one is a file with a function, and one line here."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated

import typer

from bqn import __version__
from bqn.cli import (
    benchmark,
    compare,
    data,
    evaluate,
    export,
    faithfulness,
    pack,
    predict,
    report,
    reproduce,
    resume,
    run,
    sweep,
    train,
    zoo,
)
from bqn.cli import inspect as inspection
from bqn.cli._console import show
from bqn.cli._errors import UsageError
from bqn.training.distributed import here

app = typer.Typer(
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    epilog="Begin with: bqn train --data digits --out runs/one",
)


def _show_version(wanted: bool) -> None:
    if wanted:
        show(f"bqn {__version__}")
        raise typer.Exit


@app.callback()
def describe(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", metavar="", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", metavar="", help="Show where an error comes from; may stand anywhere.")
    ] = False,
) -> None:
    """Bayesian quantized networks: train, evaluate and use them.

    Exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted.
    """
    if context.invoked_subcommand not in ("train", "resume") and here().several:
        raise UsageError(f"torchrun is for bqn train and bqn resume, not for bqn {context.invoked_subcommand}")


def _add(command: Callable[..., None], panel: str, examples: str) -> None:
    """Register a command under its own name, with its docstring as help."""
    paragraphs = inspect.cleandoc(command.__doc__ or "").split("\n\n")
    text = "\n\n".join(paragraph.replace("\n", " ") for paragraph in paragraphs)
    app.command(command.__name__, help=text, epilog=examples, rich_help_panel=panel)(command)


_add(train.train, "Train", train.EXAMPLES)
_add(resume.resume, "Train", resume.EXAMPLES)
_add(sweep.sweep, "Train", sweep.EXAMPLES)
app.add_typer(data.app, name="data", rich_help_panel="Train")
_add(evaluate.evaluate, "Look", evaluate.EXAMPLES)
_add(compare.compare, "Look", compare.EXAMPLES)
_add(benchmark.benchmark, "Look", benchmark.EXAMPLES)
_add(report.report, "Look", report.EXAMPLES)
_add(faithfulness.faithfulness, "Look", faithfulness.EXAMPLES)
_add(reproduce.reproduce, "Look", reproduce.EXAMPLES)
_add(predict.predict, "Use", predict.EXAMPLES)
_add(pack.pack, "Deploy", pack.EXAMPLES)
_add(run.run, "Deploy", run.EXAMPLES)
_add(inspection.inspect, "Deploy", inspection.EXAMPLES)
_add(zoo.zoo, "Deploy", zoo.EXAMPLES)
_add(export.export, "Deploy", export.EXAMPLES)
