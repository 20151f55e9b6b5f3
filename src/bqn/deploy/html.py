"""A packed network as one HTML page: draw, pick a picture or type numbers, and see what it answers and how sure it is.

The page holds the packed file itself and a runtime in JavaScript (`page/`), which covers every operation of a program.
It loads nothing: it works offline, on a phone, and from a mail.
"""

from __future__ import annotations

import base64
import html
import json
import math
import re
from importlib import resources
from pathlib import PurePath
from typing import Any

from bqn.deploy.container import to_bytes
from bqn.deploy.given import Given, packed_of
from bqn.deploy.inspection import describe
from bqn.deploy.program import Packed, PackedError
from bqn.deploy.shapes import infer_sizes

MOST_FIELDS = 256
_SCRIPTS = ("network.js", "model.js", "drawing.js", "words.js", "answer.js", "page.js")
# Data sets whose images fill their frame; digits of others are drawn as in MNIST, 20 pixels high in 28.
_FILLED = ("digits", "fashion-mnist", "kmnist")


def to_html(packed: Given, title: str | None = None) -> str:
    """A page that holds a packed network and runs it.

    Images of one channel can be drawn, those of one or three can be picked or dropped; anything else of at most 256
    numbers is a form.

    Parameters
    ----------
    packed : Packed, PackedModel or path of a packed file
    title : heading of the page; from the data and the model by default

    Raises
    ------
    PackedError
        A ValueError: the file does not say the shape of its input, or nobody could enter such an input.
    """
    packed = packed_of(packed)
    parts = {
        "title": html.escape(title or _title(packed)),
        "style": _read("style.css"),
        "facts": _json(_facts(packed)),
        "packed": base64.b64encode(to_bytes(packed)).decode(),
        "script": "(() => {\n" + "".join(map(_read, _SCRIPTS)) + "})();\n",
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], _read("page.html"))


def _read(name: str) -> str:
    return (resources.files("bqn.deploy") / "page" / name).read_text(encoding="utf-8")


def _json(value: Any) -> str:
    """JSON that can stand in a script element: no text in it can end the element."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False).replace("<", "\\u003c")


def _title(packed: Packed) -> str:
    words = [packed.about.get(key) for key in ("data", "model")]
    # The data may be a path, of which only the name is anybody's business.
    said = [
        PurePath(word.replace("\\", "/")).name.removesuffix(".npz").removesuffix(".csv")
        for word in words
        if isinstance(word, str)
    ]
    return " · ".join(filter(None, said)) or "A packed network"


def _facts(packed: Packed) -> dict[str, Any]:
    """All that the page shows but does not compute."""
    program = packed.program
    shape = program.input.shape
    if shape is None:
        raise PackedError(
            f"{program.input.name}: the file does not say the shape of its input, which a page needs; "
            "pack the network with input_shape"
        )
    frame = _frame(packed)
    count = math.prod(shape)
    if frame is None and count > MOST_FIELDS:
        raise PackedError(
            f"{program.input.name}: a page takes images of one or three channels, or at most {MOST_FIELDS} numbers; "
            f"this network takes {program.input.kind} of shape {shape}"
        )
    described = describe(packed)
    outputs = infer_sizes(program, shape)[program.output][0]
    names = program.classes or tuple(map(str, range(outputs)))
    return {
        "names": list(names) if program.head == "softmax" else [],
        "frame": frame,
        "draw": frame is not None and frame["channels"] == 1,
        "fields": None if frame is not None else _fields(packed, count),
        "lead": _lead(described),
        "facts": _rows(described),
        "columns": ["layer", "operation", "what", "channels × rows × columns", "bytes"],
        "layers": [
            [
                layer["name"], layer["op"], layer["what"], " × ".join(map(str, layer["size"])),
                f"{layer['bytes']:,}" if layer["bytes"] else "",
            ]
            for layer in described["layers"]
        ],
    }  # fmt: skip


def _frame(packed: Packed) -> dict[str, Any] | None:
    """How drawings and pictures become inputs; None where the input is no image."""
    given = packed.program.input
    assert given.shape is not None
    if given.kind != "pixels" or len(given.shape) != 3 or given.shape[0] not in (1, 3):
        return None
    channels, rows, columns = given.shape
    size = min(rows, columns)
    filled = packed.about.get("data") in _FILLED or size < 16
    return {
        "channels": channels,
        "rows": rows,
        "columns": columns,
        "box": size * (15 / 16 if filled else 20 / 28),
        "pen": size * (0.075 if size < 16 else 0.041),
        "centre": "box" if filled else "mass",
    }


def _fields(packed: Packed, count: int) -> list[dict[str, Any]]:
    """One field a number: it starts at the mean of the training data, and arrow keys move it by a tenth of the std."""
    pixels = packed.program.input.kind == "pixels"
    scaled = "input.mean" in packed.arrays
    means = packed.array("input.mean", 0).tolist() if scaled else [128.0 if pixels else 0.0] * count
    stds = packed.array("input.std", 0).tolist() if scaled else [10.0] * count if pixels else [1.0] * count
    return [
        {"label": f"{'pixel' if pixels else 'feature'} {place}", "value": mean, "step": 1.0 if pixels else std / 10}
        for place, (mean, std) in enumerate(zip(means, stds, strict=True), 1)
    ]


def _lead(described: dict[str, Any]) -> str:
    count = described["members"]
    size = _bytes(described["file_bytes"])
    if count == 1:
        return f"A network with {_bits(described)}, {size}, runs in this page."
    return f"{count} networks with {_bits(described)}, {size} together, run in this page."


def _bits(described: dict[str, Any]) -> str:
    bits = described["bits_per_weight"]
    return "one bit a weight" if bits == 1 else f"{bits:.2g} bits a weight"


def _rows(described: dict[str, Any]) -> list[tuple[str, str]]:
    products = sum(1 for layer in described["layers"] if layer["weights"])
    return [
        ("packed file", _bytes(described["file_bytes"])),
        ("one in float32", _bytes(described["float32_bytes"])),
        ("members", f"{described['members']}"),
        ("layers", f"{products}"),
        ("weights a member", f"{described['weights']:,}"),
    ]


def _bytes(count: int) -> str:
    if count < 1000:
        return f"{count} bytes"
    return f"{count / 1000:.1f} kB" if count < 10**6 else f"{count / 10**6:.2f} MB"
