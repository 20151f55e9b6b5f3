"""`bqn export`: a packed file in the form that another place needs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bqn.atomic import write_atomic
from bqn.cli._console import show, show_json, working
from bqn.cli._errors import UsageError
from bqn.cli._options import AsJson
from bqn.cli._packed import PackedArgument, open_packed
from bqn.cli._rows import require_choice
from bqn.deploy import Packed
from bqn.sizes import bytes_in_words

EXAMPLES = """
bqn export one.bqn --to c --name digits
bqn export digits-mlp-mc5 --to html --out digits.html
bqn export one.bqn --to onnx
"""

SUFFIXES = {"c": ".h", "onnx": ".onnx", "html": ".html"}
FORMS = tuple(SUFFIXES)


def export(
    file: PackedArgument,
    to: Annotated[
        str, typer.Option("--to", metavar="|".join(FORMS), help="What to make of the file.", show_default=False)
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="PATH", help="The file to write.", show_default="FILE with another suffix"),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            "--name", metavar="NAME", help="Prefix of all names in the C header.", show_default="from the file's name"
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write a packed network as a C header, an ONNX model or an HTML page.

    c: one C99 header with the network inside, for microcontrollers: integers only, no malloc, no library but stdint.h.

    onnx: the same network in ordinary float operators, for programs that read ONNX; neither small nor fast.

    html: one page with the network inside, to draw on or to fill in; it works offline and on a phone.
    """
    require_choice(to, FORMS, "--to")
    if name is not None and to != "c":
        raise UsageError(f"--name is for --to c, got --to {to}")
    packed = open_packed(file)
    target = file.with_suffix(SUFFIXES[to]) if out is None else out
    if target.exists() and file.exists() and target.samefile(file):
        raise UsageError(f"--out is the packed file itself, {file}")
    if target.is_dir() or not target.parent.is_dir():  # to be known before the work begins
        raise UsageError(f"--out must be a file in a folder that is there, got {target}")
    with working(f"exporting {file}"):
        content = _content(packed, to, name, target)
        write_atomic(target, content)
    if as_json:
        show_json({"file": str(target), "form": to, "bytes": len(content), "members": packed.members})
        return
    networks = "1 network" if packed.members == 1 else f"{packed.members} networks"
    show(f"{target}: {bytes_in_words(len(content))}, {networks} as {_WORDS[to]}")


_WORDS = {"c": "a C99 header", "onnx": "an ONNX model in float32", "html": "an HTML page"}


def _content(packed: Packed, to: str, name: str | None, target: Path) -> bytes:
    if to == "c":
        from bqn.deploy.c_source import as_identifier, is_identifier, to_c

        if name is not None and not is_identifier(name):
            raise UsageError(f"--name must be a C identifier of at most 64 letters, digits and _, got {name!r}")
        return to_c(packed, as_identifier(target.stem) if name is None else name).encode()
    if to == "onnx":
        from bqn.deploy.onnx import to_onnx

        return to_onnx(packed)
    from bqn.deploy.html import to_html

    return to_html(packed).encode()
