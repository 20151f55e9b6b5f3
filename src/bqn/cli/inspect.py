"""`bqn inspect`: what is in a packed file, and how its bytes add up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.table import Table
from rich.text import Text

from bqn.cli._console import footnote, show, show_json
from bqn.cli._options import AsJson
from bqn.cli._packed import PackedArgument, open_packed
from bqn.cli._tables import new_table
from bqn.deploy.columns import KEY
from bqn.deploy.inspection import describe

EXAMPLES = """
bqn inspect one.bqn
bqn inspect digits-mlp
"""


def inspect(file: PackedArgument, as_json: AsJson = False) -> None:
    """Show the layers of a packed file, the bits of its weights, and how its bytes add up."""
    facts = describe(open_packed(file))
    if as_json:
        show_json({"file": str(file), **facts})
        return
    show(
        f"{file}: {_summary(facts)}",
        _layers(facts),
        _bytes(facts),
        footnote("size: channels × rows × columns of one example; bytes: of all members together."),
    )


def _summary(facts: Mapping[str, Any]) -> str:
    members = "1 network" if facts["members"] == 1 else f"{facts['members']} networks"
    classes = f", {len(facts['classes'])} classes" if facts["classes"] else ""
    about = ", ".join(_fact(key, value) for key, value in facts["about"].items() if _is_told(key, value))
    return f"{facts['task']}{classes}, {members} on {facts['input']['kind']}{f' ({about})' if about else ''}"


def _is_told(key: str, value: object) -> bool:
    return value is not None and value is not False and key != KEY


def _fact(key: str, value: object) -> str:
    return key if value is True else f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}"


def _layers(facts: Mapping[str, Any]) -> Table:
    table = new_table("layer", "operation", "what", "size", "weights", "bits", "bytes")
    for column in (1, 2):
        table.columns[column].justify, table.columns[column].no_wrap = "left", False
    for layer in facts["layers"]:
        size = "–" if layer["size"] is None else "×".join(map(str, layer["size"]))
        numbers = [f"{layer[key]:,}" if layer[key] else "" for key in ("weights", "bits", "bytes")]
        table.add_row(Text(layer["name"]), layer["op"], layer["what"], size, *numbers)
    return table


def _bytes(facts: Mapping[str, Any]) -> Table:
    table = new_table("content", "bytes", "share")
    total = facts["file_bytes"]
    for name, count in facts["bytes"].items():
        if count:
            table.add_row(name, f"{count:,}", f"{count / total:.1%}")
    table.add_section()
    table.add_row("file", f"{total:,}", "")
    table.add_row("one in float32", f"{facts['float32_bytes']:,}", f"{facts['float32_bytes'] / total:.1f} ×")
    return table
