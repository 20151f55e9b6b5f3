"""`bqn zoo`: the networks that come with the package."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from bqn.cli._console import footnote, show, show_json
from bqn.cli._options import AsJson
from bqn.cli._tables import new_table
from bqn.sizes import bytes_in_words
from bqn.zoo import PRETRAINED, Card

EXAMPLES = """
bqn zoo
bqn run digits-mlp --data digits
"""


def zoo(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Show the card of this network.", show_default="list all")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the pretrained networks that come with bqn, or show the card of one.

    Their names go wherever a packed file goes: bqn run, predict, inspect, export. Scores are those of the packed file
    on its test set.
    """
    if name is not None:
        card = PRETRAINED.card(name)
        if as_json:
            show_json(card.to_dict())
        else:
            show(_details(card))
        return
    cards = PRETRAINED.cards()
    if as_json:
        show_json({"networks": [card.to_dict() for card in cards]})
    else:
        show(_overview(cards), footnote("NLL in nats, ECE over 15 bins; networks: how many the file averages."))


def _overview(cards: list[Card]) -> Table:
    table = new_table("name", "data", "model", "networks", "size", "NLL", "error", "ECE")
    table.padding, table.columns[0].no_wrap = 0, True  # eight columns in eighty characters
    for column in (1, 2):
        table.columns[column].justify = "left"
    for card in cards:
        scores = (f"{card.test['nll']:.4f}", f"{card.test['error']:.2%}", f"{card.test['ece']:.2%}")
        table.add_row(card.name, card.data, card.architecture, str(card.samples), bytes_in_words(card.size), *scores)
    return table


def _details(card: Card) -> Table:
    scores = ", ".join(_score(name, value) for name, value in card.test.items() if name != "examples")
    draws = "" if card.draw_seed is None else f", draws {card.draw_seed}"
    rows = {
        "name": card.name,
        "network": f"{card.architecture}, {card.networks}; {card.weights:,} weights in {_levels(card.levels)}",
        "file": f"{bytes_in_words(card.size)}, sha256 {card.sha256}",
        "data": f"{card.data}, {card.data_size}",
        "licence": card.data_licence,
        "source": card.data_source,
        "test": f"{scores} ({int(card.test['examples']):,} examples)",
        "training": ", ".join(f"{key} {_word(value)}" for key, value in card.training.items()),
        "seed": f"{card.seed}{draws}",
        "use": card.use,
        "limits": card.limits,
        **({} if card.temperature is None else {"temperature": f"{card.temperature:.4g}"}),
        "packed by": f"bqn {card.version}",
    }
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for key, value in rows.items():
        table.add_row(key, Text(value))
    return table


def _score(name: str, value: float) -> str:
    words = {"nll": "NLL", "ece": "ECE"}.get(name, name)
    return f"{words} {value:.2%}" if name in ("error", "ece") else f"{words} {value:.4f}"


def _levels(levels: list[float]) -> str:
    return f"({', '.join(f'{level:g}' for level in levels)})"


def _word(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "/".join(map(str, value)) if isinstance(value, list) else str(value)
