"""All commands, in the order of the help. A new one is a file with a function, and one line here.

The file of a command is imported when the command is used: with torch that takes seconds, which neither the help nor a
misspelt name should. So the help has its one line about each command from here.
"""

from __future__ import annotations

import inspect
from importlib import import_module
from typing import Annotated, Any

import typer

from bqn import __version__
from bqn.cli._console import show
from bqn.cli._errors import UsageError
from bqn.cli._help import Command, Group
from bqn.cli._processes import here

COMMANDS = {
    "Train": {
        "train": "Train a network and keep it in a folder.",
        "resume": "Continue a run after Ctrl-C, a crash or a power cut, from where it was last saved.",
        "sweep": "Train every combination of values of λ, learning rate and batch size, with several seeds each.",
        "data": "List, fetch and verify data sets.",
    },
    "Look": {
        "evaluate": "Evaluate a run in its modes: analytic, by sampled networks (mc), by the most probable one (map).",
        "compare": "Evaluate several runs on their test examples and put the figures side by side, the best bold.",
        "benchmark": "Train several methods on the same splits and put their figures side by side.",
        "report": "Write one HTML page about a run: learning curves, calibration, errors, uncertainty.",
        "faithfulness": "Compare the analytic pass of a classifier with the sampled networks that it stands for.",
        "reproduce": "Make a table or figure of the paper again: plan its runs, train and judge them, and record each.",
    },
    "Use": {
        "predict": "Predict for examples in files, with uncertainty.",
    },
    "Deploy": {
        "pack": "Pack a run into one file that works alone: a bit for a binary weight, integers for everything else.",
        "run": "Evaluate a packed file on data, or predict for examples in files, by integer arithmetic.",
        "inspect": "Show the layers of a packed file, the bits of its weights, and how its bytes add up.",
        "zoo": "List the pretrained networks that come with bqn, or show the card of one.",
        "export": "Write a packed network as a C header, an ONNX model or an HTML page.",
    },
}


class _Commands(Group):
    """The commands, each imported when it is used."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        for panel, commands in COMMANDS.items():
            for name, text in commands.items():
                self.add_command(Command(name, help=text, rich_help_panel=panel), name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, found, rest = super().resolve_command(ctx, args)
        return name, None if found is None or name is None else build(name), rest


def build(name: str) -> Any:
    """The command of that name: the function in its file that is called so, with its docstring as help."""
    module = import_module(f"bqn.cli.{name}")
    if hasattr(module, "app"):  # a group of commands
        return typer.main.get_command(module.app)
    command = getattr(module, name)
    paragraphs = inspect.cleandoc(command.__doc__ or "").split("\n\n")
    text = "\n\n".join(paragraph.replace("\n", " ") for paragraph in paragraphs)
    alone = typer.Typer(add_completion=False, rich_markup_mode="rich", pretty_exceptions_enable=False)
    alone.command(name, cls=Command, help=text, epilog=module.EXAMPLES)(command)
    return typer.main.get_command(alone)


app = typer.Typer(
    cls=_Commands,
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
    processes = here()
    if context.invoked_subcommand not in ("train", "resume") and processes is not None and processes.several:
        raise UsageError(f"torchrun is for bqn train and bqn resume, not for bqn {context.invoked_subcommand}")
