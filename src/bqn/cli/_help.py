"""How the help of commands looks where it differs from typer's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.text import Text
from typer.core import TyperCommand, TyperGroup


class Command(TyperCommand):
    """A command whose switches, --help among them, show without the type that nobody gives.

    Its epilog holds examples, one a line: typer would make a paragraph of them.
    """

    def format_help(self, ctx: Any, formatter: Any) -> None:
        examples, self.epilog = (self.epilog or "").split("\n"), None
        super().format_help(ctx, formatter)
        lines = [f" $ {line}\n" for line in examples if line]
        if lines:
            words = " Examples:\n" if len(lines) > 1 else " Example:\n"
            Console(highlight=False).print(Text.assemble((words, "dim"), *lines))

    def get_params(self, ctx: Any) -> list[Any]:
        return _plain(super().get_params(ctx))


class Group(TyperGroup):
    """A group of commands, likewise."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _plain(super().get_params(ctx))


def _plain(parameters: Sequence[Any]) -> list[Any]:
    for each in parameters:
        if getattr(each, "is_flag", False) and each.metavar is None:
            each.metavar = ""
    return list(parameters)
