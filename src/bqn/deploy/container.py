"""The packed file: a safetensors container with the arrays, and the program as JSON in its metadata.

The metadata hold three texts: `format`, `program` (see `_describe`) and `sha256`, a checksum of the program and all
arrays. Files are untrusted. The header is read with bounds on all of its numbers, arrays are views of what was read,
and nothing is allocated that the file could make larger than itself.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import numpy as np

from bqn.deploy.program import OPS, Array, Lattice, Op, Packed, PackedError, Program
from bqn.deploy.validation import validate
from bqn.strict_json import parse_object

FORMAT = "bqn-packed-1"
_MOST_HEADER = 2**24
_MOST_NAME = 256
_MOST_INTEGER = 2**53
_MOST_ABOUT = 2**64  # seeds are as large as that
_TYPES = {"U8": np.uint8, "I8": np.int8, "I16": np.int16, "I32": np.int32, "I64": np.int64, "F32": np.float32}
_NAMES = {np.dtype(kind): name for name, kind in _TYPES.items()}
_PROGRAM_KEYS = {"members", "ops", "output", "step", "head", "classes", "about"}


def to_bytes(packed: Packed) -> bytes:
    """A packed network as a file's content."""
    return assemble(_describe(packed), packed.arrays)


def assemble(program: str, arrays: dict[str, Array]) -> bytes:
    """The container around a program and its arrays, the same bytes for the same content.

    The safetensors library would write the metadata in an order that changes from process to process.
    """
    metadata = {"format": FORMAT, "program": program, "sha256": checksum(program, arrays)}
    header: dict[str, Any] = {"__metadata__": metadata}
    position, parts = 0, []
    for name in sorted(arrays, key=lambda name: (-arrays[name].itemsize, name)):  # every number lies on its boundary
        array = arrays[name]
        span = [position, position + array.nbytes]
        header[name] = {"dtype": _NAMES[array.dtype], "shape": array.shape, "data_offsets": span}
        parts.append(array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes())
        position = span[1]
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return b"".join((len(text).to_bytes(8, "little"), text, *parts))


def load(path: str | os.PathLike[str]) -> Packed:
    """Read and check a packed file; a `PackedError`, with the path in its message, if anything is wrong with it."""
    content = Path(path).read_bytes()
    try:
        return from_bytes(content)
    except PackedError as error:
        raise PackedError(f"{os.fspath(path)}: {error}") from None


def from_bytes(content: bytes) -> Packed:
    """Read and check what `to_bytes` made."""
    header, data = _split(content)
    metadata = header.pop("__metadata__", None)
    if not isinstance(metadata, dict) or metadata.get("format") != FORMAT:
        raise PackedError(f"not a packed network: the format must be {FORMAT!r}")
    if set(metadata) != {"format", "program", "sha256"} or not all(isinstance(text, str) for text in metadata.values()):
        raise PackedError("the metadata must hold the texts format, program and sha256")
    arrays = _arrays(header, data)
    try:
        found = checksum(metadata["program"], arrays)
    except UnicodeEncodeError as error:
        raise PackedError(f"the header holds halves of characters: {error}") from None
    if found != metadata["sha256"]:
        raise PackedError("damaged: the checksum does not match")
    packed = _parse(metadata["program"], arrays)
    validate(packed)
    return packed


def checksum(program: str, arrays: dict[str, Array]) -> str:
    """SHA-256 over the program and all arrays, with their names, types and shapes."""
    digest = hashlib.sha256(program.encode())
    for name in sorted(arrays):
        array = arrays[name]
        digest.update(f"\n{name} {array.dtype.name} {array.shape}\n".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


# --- the container ----------------------------------------------------------------------------------------------------


def _split(content: bytes) -> tuple[dict[str, Any], memoryview]:
    """The header as an object, and the bytes behind it."""
    if len(content) < 9 or content[8:9] != b"{":
        raise PackedError(f"not a packed network: no header in its {len(content):,} bytes")
    size = int.from_bytes(content[:8], "little")
    if size > _MOST_HEADER:
        raise PackedError(f"not a packed network: the header would take {size:,} bytes of {len(content):,}")
    if size > len(content) - 8:
        raise PackedError(f"damaged or cut off: the header would take {size:,} bytes of {len(content):,}")
    return parse_object(content[8 : 8 + size], "the header", PackedError), memoryview(content)[8 + size :]


def _arrays(header: dict[str, Any], data: memoryview) -> dict[str, Array]:
    """Views of all arrays, which must lie one behind the other and fill the file."""
    arrays: dict[str, Array] = {}
    spans: list[tuple[int, int]] = []
    for name, entry in header.items():
        if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
            raise PackedError(f"{_shown(name)} must have dtype, shape and data_offsets")
        kind = _TYPES.get(entry["dtype"]) if isinstance(entry["dtype"], str) else None
        if kind is None:
            raise PackedError(f"{_shown(name)} has the type {_shown(entry['dtype'])}, expected {', '.join(_TYPES)}")
        shape = _counts(entry["shape"], f"the shape of {_shown(name)}")
        offsets = _counts(entry["data_offsets"], f"the offsets of {_shown(name)}")
        if len(offsets) != 2 or len(shape) > 8:
            raise PackedError(f"{_shown(name)} must have two offsets and at most eight dimensions")
        begin, end = offsets
        if math.prod(max(1, size) for size in shape) > _MOST_INTEGER:  # an empty array can have absurd dimensions
            raise PackedError(f"{_shown(name)} has the shape {_shown(shape)}, which no array has")
        if end > len(data):
            raise PackedError(f"damaged or cut off: {_shown(name)} ends at byte {end:,} of {len(data):,}")
        if end - begin != math.prod(shape) * np.dtype(kind).itemsize:
            raise PackedError(f"{_shown(name)} of shape {shape} does not fill bytes {begin} to {end} of {len(data)}")
        spans.append((begin, end))
        stored = np.dtype(kind).newbyteorder("<")
        arrays[name] = np.frombuffer(data[begin:end], stored).reshape(shape).astype(kind, copy=False)
    position = 0
    for begin, end in sorted(spans):
        if begin != position:
            raise PackedError("the arrays do not lie one behind the other")
        position = end
    if position != len(data):
        raise PackedError(f"the file has {len(data) - position} bytes behind its arrays")
    return arrays


# --- the program ------------------------------------------------------------------------------------------------------


def _describe(packed: Packed) -> str:
    """The program as JSON: numbers, texts and lists only; a lattice is `[low, stride, levels]`."""
    program = packed.program
    document = {
        "members": packed.members,
        "ops": [_describe_op(op) for op in program.ops],
        "output": program.output,
        "step": program.step,
        "head": program.head,
        "classes": list(program.classes),
        "about": packed.about,
    }
    return json.dumps(document, separators=(",", ":"), allow_nan=False, ensure_ascii=False)


def _describe_op(op: Op) -> dict[str, Any]:
    """The fields of an operation, but for those that are as usual."""
    values = {part.name: getattr(op, part.name) for part in fields(op) if getattr(op, part.name) != part.default}
    return {"op": type(op).__name__} | {name: _plain(value) for name, value in values.items()}


def _plain(value: Any) -> Any:
    return [value.low, value.stride, value.levels] if isinstance(value, Lattice) else value


def _parse(text: str, arrays: dict[str, Array]) -> Packed:
    document = parse_object(text, "the program", PackedError)
    if set(document) != _PROGRAM_KEYS:
        raise PackedError(f"the program must have the keys {', '.join(sorted(_PROGRAM_KEYS))}")
    if not isinstance(document["ops"], list) or not isinstance(document["classes"], list):
        raise PackedError("ops and classes of the program must be lists")
    step = document["step"]
    if isinstance(step, bool) or not isinstance(step, (int, float)):
        raise PackedError(f"step must be a number, got {_shown(step)}")
    try:
        size = float(step)
    except OverflowError:
        raise PackedError("step is too large") from None
    program = Program(
        tuple(_parse_op(entry) for entry in document["ops"]),
        _text(document["output"], "output"),
        size,
        _text(document["head"], "head"),
        tuple(_text(name, "a class") for name in document["classes"]),
    )
    return Packed(program, _integer(document["members"], "members"), arrays, _parse_about(document["about"]))


def _parse_op(entry: Any) -> Op:
    name = entry.get("op") if isinstance(entry, dict) else entry
    kind = OPS.get(name) if isinstance(name, str) and isinstance(entry, dict) else None
    if kind is None:
        raise PackedError(f"unknown operation {_shown(name)}")
    forms = {part.name: str(part.type) for part in fields(kind)}
    needed = {part.name for part in fields(kind) if part.default is MISSING}
    given = set(entry) - {"op"}
    if not needed <= given <= set(forms):
        raise PackedError(f"a {kind.__name__} must have {', '.join(forms)}, got {_shown(sorted(given))}")
    values = {name: _PARSERS[forms[name]](entry[name], f"{name} of a {kind.__name__}") for name in given}
    op: Op = kind(**values)
    return op


def _text(value: Any, what: str) -> str:
    if not isinstance(value, str) or not 1 <= len(value) <= _MOST_NAME or not value.isprintable():
        raise PackedError(f"{what} must be a text of 1 to {_MOST_NAME} printable characters, got {_shown(value)}")
    return value


def _optional_text(value: Any, what: str) -> str | None:
    return None if value is None else _text(value, what)


def _integer(value: Any, what: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) > _MOST_INTEGER:
        raise PackedError(f"{what} must be an integer, got {_shown(value)}")
    return value


def _flag(value: Any, what: str) -> bool:
    if not isinstance(value, bool):
        raise PackedError(f"{what} must be true or false, got {_shown(value)}")
    return value


def _counts(value: Any, what: str) -> tuple[int, ...]:
    if not isinstance(value, list):
        raise PackedError(f"{what} must be a list, got {_shown(value)}")
    counts = tuple(_integer(count, what) for count in value)
    if any(count < 0 for count in counts):
        raise PackedError(f"{what} must not be negative, got {_shown(value)}")
    return counts


def _pair(value: Any, what: str) -> tuple[int, int]:
    counts = _counts(value, what)
    if len(counts) != 2:
        raise PackedError(f"{what} must be two integers, got {_shown(value)}")
    return counts[0], counts[1]


def _two_texts(value: Any, what: str) -> tuple[str, str]:
    if not isinstance(value, list) or len(value) != 2:
        raise PackedError(f"{what} must be two names, got {_shown(value)}")
    return _text(value[0], what), _text(value[1], what)


def _lattice(value: Any, what: str) -> Lattice:
    if not isinstance(value, list) or len(value) != 3:
        raise PackedError(f"{what} must be [low, stride, levels], got {_shown(value)}")
    return Lattice(*(_integer(number, what) for number in value))


def _shape(value: Any, what: str) -> tuple[int, ...] | None:
    return None if value is None else _counts(value, what)


def _optional_integer(value: Any, what: str) -> int | None:
    return None if value is None else _integer(value, what)


_PARSERS: dict[str, Any] = {
    "str": _text,
    "str | None": _optional_text,
    "int": _integer,
    "int | None": _optional_integer,
    "bool": _flag,
    "Pair": _pair,
    "tuple[str, str]": _two_texts,
    "tuple[int, ...] | None": _shape,
    "Lattice": _lattice,
}


def _parse_about(value: Any) -> dict[str, Any]:
    """Texts and numbers by name."""
    if not isinstance(value, dict):
        raise PackedError("about must hold texts and numbers by name")
    for name, entry in value.items():
        text, number = isinstance(entry, str), isinstance(entry, (int, float)) and abs(entry) < _MOST_ABOUT
        if not (text or number or entry is None):
            raise PackedError(f"about must hold texts and numbers by name, got {_shown(entry)}")
        if not name.isprintable() or (text and not entry.isprintable()):
            raise PackedError(f"about must hold printable texts, got {_shown(name)}: {_shown(entry)}")
    return value


def _shown(value: Any) -> str:
    """A value from a file, short enough for a message."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
