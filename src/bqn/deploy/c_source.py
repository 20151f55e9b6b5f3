"""A packed network as one C99 header: constants in flash, fixed memory, integers; no library but `stdint.h`.

`embedded/runtime.h` holds the functions, of which only those that are needed are taken; `c_memory` decides where values
lie; this file writes down the constants and the calls.
"""

from __future__ import annotations

import re
from importlib import resources
from typing import Any

import numpy as np

from bqn.deploy.c_heads import head_of
from bqn.deploy.c_memory import Group, Layout, settled
from bqn.deploy.given import Given, packed_of
from bqn.deploy.program import (
    Add,
    Array,
    Conv2d,
    Encode,
    Flatten,
    Input,
    Linear,
    MaxPool,
    Op,
    Packed,
    Product,
    SumPool,
    Threshold,
)

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_MOST_NAME = 64
_TYPES = {np.dtype(np.uint8): "uint8_t", np.dtype(np.uint32): "uint32_t"} | {
    np.dtype(f"int{bits}"): f"int{bits}_t" for bits in (8, 16, 32, 64)
}


def to_c(packed: Given, name: str = "bqn_net") -> str:
    """A packed network as a C99 header.

    Parameters
    ----------
    packed : Packed, PackedModel or path of a packed file
        With the shape of its examples, as `bqn pack` and `input_shape` of `bqn.pack` give it.
    name : str
        Prefix of all names in the header.

    Returns
    -------
    str
        The header. What it declares is described in it; `#define NAME_IMPLEMENTATION` before including it in one file
        of a program makes the definitions.

    Raises
    ------
    PackedError
        A ValueError: the network cannot be written in C; the message says which part and why.
    """
    if not is_identifier(name):
        raise ValueError(f"name must be a C identifier of at most 64 letters, digits and _, got {name!r}")
    text = _Writer(packed_of(packed)).header()
    return re.sub(r"\bnet_", f"{name}_", re.sub(r"\bNET_", f"{name.upper()}_", text))


def is_identifier(name: str) -> bool:
    """Whether a text can be the `name` of a header."""
    return _NAME.fullmatch(name) is not None and len(name) <= _MOST_NAME


def as_identifier(text: str) -> str:
    """A text, as of a file's name, made into a prefix for `to_c`."""
    plain = re.sub(r"[^A-Za-z0-9]+", "_", text).strip("_").lower()
    return (plain if _NAME.fullmatch(plain) else f"net_{plain}".rstrip("_"))[:_MOST_NAME]


class _Writer:
    """Collects constants and calls, operation by operation."""

    def __init__(self, packed: Packed) -> None:
        self.packed, self.program = packed, packed.program
        self.layout = Layout(packed)
        self.numbers = {op.name: position for position, op in enumerate(self.program.ops)}
        self.constants: list[str] = []
        self.calls: list[str] = []
        self.parts: set[str] = set()
        self.in_memory = False
        self.wide = self.program.output in self.layout.wide
        self.head = head_of(packed, self.layout.sizes[self.program.output][0], self.wide)

    def header(self) -> str:
        for op in self.program.ops:
            self._value(op)
        for group in self.layout.groups:
            self._group(group)
        result = f"net_x{self._root(self.program.output)}[k]"
        if not self.wide:
            self.parts.add("integer")
            result = f"net_integer({self._ref(self.program.output)}, k, 0)"
        memory = [f"static uint32_t net_memory[{max(1, self.layout.words)}];"] if self.in_memory else []
        sections = [
            *self._declarations(),
            "#ifdef NET_IMPLEMENTATION",
            *_parts("runtime.h", self.parts),
            "\n".join((*memory, *self.constants)),
            *self.head.constants,
            _logits(self.calls, result),
            *_parts("heads.h", set(self.head.parts)),
            "#endif /* NET_IMPLEMENTATION */\n",
        ]
        return "\n\n".join(sections)

    def _declarations(self) -> list[str]:
        sizes, pixels = self.layout.sizes, self.program.input.kind == "pixels"
        inputs, outputs = int(np.prod(sizes[self.program.input.name])), sizes[self.program.output][0]
        shape = " x ".join(map(str, self.program.input.shape or ()))
        macros = (
            f"NET_MEMBERS {self.packed.members}",
            f"NET_INPUTS {inputs}",
            f"NET_OUTPUTS {outputs}",
            f"NET_INPUT {'uint8_t' if pixels else 'float'}",
            f"NET_INTEGER {'int64_t' if self.wide else 'int32_t'}",
            f"NET_STEP {self.program.step!r}",
            *self.head.macros,
        )
        return [
            _ABOUT.format(what="pixels" if pixels else "features", shape=shape),
            "#ifndef NET_H\n#define NET_H",
            "#include <stdint.h>",
            '#ifdef __cplusplus\nextern "C" {\n#endif',
            "\n".join(f"#define {macro}" for macro in macros),
            "/* The integers of one member before the head; NET_STEP times them is what the float network gives. */\n"
            "int net_logits(const NET_INPUT *given, int member, NET_INTEGER *logits);",
            *self.head.prototypes,
            "#ifdef __cplusplus\n}\n#endif",
            "#endif /* NET_H */",
        ]

    # --- values -----------------------------------------------------------------------------------------------------

    def _ref(self, name: str) -> str:
        return f"&net_v{self.numbers[name]}"

    def _root(self, name: str) -> int:
        """The number of the value whose memory this is."""
        return self.numbers[self.layout.root(name)]

    def _value(self, op: Op) -> None:
        place, number = self.layout.places[op.name], self.numbers[op.name]
        root = self.layout.root(op.name)
        if place.form == "wide":
            if root == op.name:
                self.constants.append(f"static int64_t net_x{number}[{place.channels * place.pixels}];")
            return
        if root != op.name and not self.layout.readers[op.name]:
            return  # a view that nobody reads
        self.parts.add("value")
        pointers = "0, 0, 0, 0"
        if place.form != "pixels":
            self.in_memory = True
            pointers = _POINTERS[place.form].format(f"net_memory + {self.layout.offsets[root]}")
        numbers = (*place.size[1:], place.planes, place.width, place.lattice.low, place.lattice.stride)
        kind = "static net_value" if place.form == "pixels" else "static const net_value"
        self.constants.append(
            f"{kind} net_v{number} = {{{pointers}, {', '.join(map(str, numbers))}}}; /* {_comment(op)} */"
        )
        if place.form == "pixels":
            self.calls.append(f"    net_v{number}.pixels = given;")

    # --- operations -------------------------------------------------------------------------------------------------

    def _group(self, group: Group) -> None:
        whole = group.block == group.channels
        first, count = ("0", str(group.channels)) if whole else ("first", "count")
        self.calls.append(f"    /* {', '.join(_comment(op) for op in group.ops)} */")
        made = self.layout.places[group.last.name]
        if made.form == "words" and made.channels % 32:
            self.parts.add("clear")
            self.calls.append(f"    net_clear({self._ref(group.last.name)});")
        lines = []
        for position, op in enumerate(group.ops):
            x0 = first if position == 0 else "0"
            y0 = first if op is group.last else "0"
            lines.append(self._call(op, x0, y0, first, count))
        if whole:
            self.calls += [f"    {line}" for line in lines]
            return
        self.calls += [
            f"    for (int32_t first = 0; first < {group.channels}; first += {group.block}) {{",
            f"        const int32_t left = {group.channels} - first;",
            f"        const int32_t count = left < {group.block} ? left : {group.block};",
            *(f"        {line}" for line in lines),
            "    }",
        ]

    def _call(self, op: Op, x0: str, y0: str, first: str, count: str) -> str:
        made = self._ref(op.name)
        if isinstance(op, Input):
            return self._features(op)
        if isinstance(op, (Linear, Conv2d)):
            return self._product(op, y0, first, count)
        if isinstance(op, Threshold):
            return self._threshold(op, x0, y0, first, count)
        source = self._ref(op.sources[0])
        if isinstance(op, (SumPool, MaxPool)):
            part = "sum_pool" if isinstance(op, SumPool) else "max_pool"
            self.parts.add(part)
            number = self.numbers[op.name]
            window = ", ".join(_braces(pair) for pair in (op.kernel, op.stride, op.padding))
            self.constants.append(f"static const net_pool net_p{number} = {{{window}}};")
            return f"net_{part}({source}, {x0}, {made}, {y0}, &net_p{number}, {count});"
        if isinstance(op, Add):
            self.parts.add("add")
            factors = ", ".join(map(str, op.factors))
            return f"net_add({source}, {self._ref(op.sources[1])}, {made}, {y0}, {factors}, {first}, {count});"
        if isinstance(op, Encode):
            self.parts.add("copy")
            return f"net_copy({source}, {x0}, {made}, {y0}, {count});"
        assert isinstance(op, Flatten)
        self.parts.add("flatten")
        return f"net_flatten({source}, {made}, {self.layout.places[op.source].channels});"

    def _features(self, op: Input) -> str:
        self.parts.add("features")
        scale = "0, 0"
        if "input.mean" in self.packed.arrays:
            for part in ("mean", "std"):
                values = ", ".join(_float(value) for value in self.packed.array(f"input.{part}", 0))
                self.constants.append(f"static const float net_{part}[] = {{{values}}};")
            scale = "net_mean, net_std"
        count = int(np.prod(self.layout.sizes[op.name]))
        return f"if (net_features(given, {scale}, net_x{self.numbers[op.name]}, {count})) return -1;"

    def _product(self, op: Product, y0: str, first: str, count: str) -> str:
        number, kernel = self.numbers[op.name], self.layout.kernel(op)
        self.parts.add(kernel)
        codes = [self.packed.weight_codes(op, member) for member in self._members(f"{op.name}.weight")]
        per_tap = kernel in ("xor", "and")
        outputs, taps, inputs = codes[0].shape[0], codes[0].shape[1] * codes[0].shape[2], codes[0].shape[3]
        terms = inputs if per_tap else taps * inputs
        rows = [code.reshape(outputs * taps if per_tap else outputs, terms) for code in codes]
        weights = self._array("w", op, "weight", [_words(row, op.weight.planes) for row in rows])
        groups = op.groups if isinstance(op, Conv2d) else 1
        window = (op.kernel, op.stride, op.padding, op.dilation) if isinstance(op, Conv2d) else _ONE
        lattice = settled(op.weight)
        numbers = (lattice.planes, -(-terms // 32), lattice.low, lattice.stride)
        self.constants.append(
            f"static const net_product net_p{number} = {{{inputs}, {outputs // groups}, "
            f"{', '.join(map(_braces, window))}, {', '.join(map(str, numbers))}}};"
        )
        bias = "0"
        if op.bias:
            kind = np.int64 if kernel == "wide_linear" else np.int32
            given = [self.packed.bias(op, member).astype(kind) for member in self._members(f"{op.name}.bias")]
            bias = self._array("b", op, "bias", given)
        if kernel == "wide_linear":
            return f"net_wide_linear(net_x{self._root(op.source)}, net_x{number}, &net_p{number}, {weights}, {bias});"
        extra = f", (int32_t *)(net_memory + {self.layout.windows[op.name]})" if kernel == "windows" else ""
        return (
            f"net_{kernel}({self._ref(op.source)}, {self._ref(op.name)}, {y0}, &net_p{number}, {weights}, {bias}, "
            f"{first}, {count}{extra});"
        )

    def _threshold(self, op: Threshold, x0: str, y0: str, first: str, count: str) -> str:
        wide = op.source in self.layout.wide
        given = [self.packed.thresholds(op, member) for member in self._members(f"{op.name}.thresholds")]
        kind = np.dtype(np.int64) if wide else _smallest(given)
        thresholds = self._array("t", op, "thresholds", [values.astype(kind) for values in given])
        flips = self._array("f", op, "flips", list(self.packed.arrays[f"{op.name}.flips"]))
        selector = "0" if op.selector is None else self._ref(op.selector)
        rest = f"{thresholds}, {flips}, {selector}, {op.lattice.levels - 1}, {op.channels}"
        if wide:
            self.parts.add("wide_threshold")
            return f"net_wide_threshold(net_x{self._root(op.source)}, {self._ref(op.name)}, {rest});"
        self.parts.add(f"threshold_{_TYPES[kind]}")
        return (
            f"net_threshold_{_TYPES[kind]}({self._ref(op.source)}, {x0}, {self._ref(op.name)}, {y0}, {rest}, "
            f"{first}, {count});"
        )

    # --- constants --------------------------------------------------------------------------------------------------

    def _members(self, name: str) -> range:
        return range(len(self.packed.arrays[name]))

    def _array(self, letter: str, op: Op, what: str, members: list[Array]) -> str:
        """A constant array with one row a member, or one for all; how a call names the row."""
        name = f"net_{letter}{self.numbers[op.name]}"
        rows = [f"{{{_numbers(values.reshape(-1))}}}" for values in members]
        length = max(1, members[0].size)
        self.constants.append(
            f"static const {_TYPES[members[0].dtype]} {name}[{len(members)}][{length}] = "
            f"{{ /* {_comment(op)}: {what} */\n{','.join(rows)}}};"
        )
        return f"{name}[{'member' if len(members) > 1 else '0'}]"


_POINTERS = {"words": "0, {}, 0, 0", "bytes": "0, 0, (uint8_t *)({}), 0", "integers": "0, 0, 0, (int32_t *)({})"}
_ONE = ((1, 1), (1, 1), (0, 0), (1, 1))

_ABOUT = """/* A quantized network in integers, written by bqn.

   Define NET_IMPLEMENTATION before including this file in one C file of a program, and include it plainly elsewhere.
   It needs no library but stdint.h, allocates nothing, and works in fixed memory: one call at a time.

   An example is NET_INPUTS {what} ({shape}: channels, rows, columns). All functions return -1
   if an input cannot be used: a member that is not there, or a feature that is no number or too large. */"""


def _logits(calls: list[str], result: str) -> str:
    lines = (
        "int net_logits(const NET_INPUT *given, int member, NET_INTEGER *logits) {",
        "    if (member < 0 || member >= NET_MEMBERS) return -1;",
        *calls,
        f"    for (int32_t k = 0; k < NET_OUTPUTS; ++k) logits[k] = {result};",
        "    return 0;",
        "}",
    )
    return "\n".join(lines)


def _parts(file: str, wanted: set[str]) -> list[str]:
    """Functions of a file, and all that they need, in the order of the file."""
    source = resources.files("bqn.deploy").joinpath("embedded", file).read_text(encoding="utf-8")
    needs: dict[str, list[str]] = {}
    texts: dict[str, str] = {}
    for block in re.split(r"^/\*@ ", source, flags=re.MULTILINE)[1:]:
        title, text = block.split(" */\n", 1)
        part, _, needed = title.partition(":")
        for kind in ("int8_t", "int16_t", "int32_t") if "TYPE" in part else ("TYPE",):
            needs[part.replace("TYPE", kind)] = needed.split()
            texts[part.replace("TYPE", kind)] = text.replace("TYPE", kind).strip()
    found: set[str] = set()
    waiting = list(wanted)
    while waiting:
        part = waiting.pop()
        if part not in found:
            found.add(part)
            waiting += needs[part]
    return [texts[part] for part in texts if part in found]


def _words(codes: Array, planes: int) -> Array:
    """Rows of codes `(R, n)` as bit-planes: uint32 `(R, planes, words)`."""
    count = -(-codes.shape[1] // 32)
    packed = np.zeros((len(codes), planes, count * 4), np.uint8)
    for plane in range(planes):
        bits = np.packbits(codes >> np.uint8(plane) & np.uint8(1), axis=1, bitorder="little")
        packed[:, plane, : bits.shape[1]] = bits
    return packed.view("<u4").astype(np.uint32)


def _smallest(arrays: list[Array]) -> np.dtype[Any]:
    """The smallest signed type that holds all values."""
    low = min(int(values.min(initial=0)) for values in arrays)
    high = max(int(values.max(initial=0)) for values in arrays)
    bits = next(bits for bits in (8, 16, 32) if -(2 ** (bits - 1)) <= low and high < 2 ** (bits - 1))
    return np.dtype(f"int{bits}")


def _numbers(values: Array) -> str:
    if not values.size:
        return "0"
    if values.dtype == np.uint32:
        texts = [f"0x{value:x}u" for value in values.tolist()]
    elif values.dtype == np.int64:
        texts = [f"INT64_C({value})" for value in values.tolist()]
    else:
        texts = list(map(str, values.tolist()))
    lines = (",".join(texts[start : start + 12]) for start in range(0, len(texts), 12))
    return ",\n".join(lines)


def _float(value: float) -> str:
    """A float32 constant, exactly."""
    return f"{float(np.float32(value))!r}f"


def _braces(pair: tuple[int, ...]) -> str:
    return f"{{{', '.join(map(str, pair))}}}"


def _comment(op: Op) -> str:
    """The name of an operation, which may hold anything, as it may stand in a comment."""
    return f"{re.sub(r'[^A-Za-z0-9_.-]', '_', op.name)}: {type(op).__name__}"
