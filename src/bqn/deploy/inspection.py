"""What is in a packed file, and how its bytes add up."""

from __future__ import annotations

import math
from typing import Any

from bqn.deploy.container import FORMAT, to_bytes
from bqn.deploy.program import Add, Conv2d, Input, Lattice, Linear, MaxPool, Op, Packed, Program, SumPool, Threshold
from bqn.deploy.shapes import Size, infer_sizes

_PARTS = {"weight": "weights", "bias": "biases", "thresholds": "thresholds", "flips": "thresholds"}


def describe(packed: Packed) -> dict[str, Any]:
    """A packed network in numbers and words, ready for JSON.

    Bytes are those of all members together. `bytes` has one entry a kind of content, which add up to the whole file:
    "weights", "biases", "thresholds", "head", "scaling" (of inputs and targets) and "description" (everything else).
    `float32_bytes` is what the same weights take in float32, one network.
    """
    program = packed.program
    sizes = None if program.input.shape is None else infer_sizes(program, program.input.shape)
    layers = [_layer(packed, op, sizes) for op in program.ops]
    total = len(to_bytes(packed))
    by_kind = {"weights": 0, "biases": 0, "thresholds": 0, "head": 0, "scaling": 0}
    for name, array in packed.arrays.items():
        by_kind[_kind(name, program)] += array.nbytes
    weights = sum(layer["weights"] for layer in layers)
    bits = sum(layer["weights"] * layer["bits"] for layer in layers)
    return {
        "format": FORMAT,
        "task": "classification" if program.head == "softmax" else "regression",
        "input": {"kind": program.input.kind, "shape": program.input.shape},
        "classes": list(program.classes),
        "members": packed.members,
        "step": program.step,
        "layers": layers,
        "weights": weights,
        "bits_per_weight": bits / weights if weights else 0.0,
        "file_bytes": total,
        "bytes": {**by_kind, "description": total - sum(by_kind.values())},
        "float32_bytes": 4 * weights,
        "about": packed.about,
    }


def _kind(name: str, program: Program) -> str:
    if name in program.head_arrays:
        return "head"
    if name in ("input.mean", "input.std", "target.mean", "target.std"):
        return "scaling"
    return _PARTS[name.rsplit(".", 1)[1]]


def _layer(packed: Packed, op: Op, sizes: dict[str, Size] | None) -> dict[str, Any]:
    own = {part: packed.arrays.get(f"{op.name}.{part}") for part in _PARTS}
    return {
        "name": op.name,
        "op": type(op).__name__,
        "reads": list(op.sources),
        "what": _words(op),
        "size": None if sizes is None else list(sizes[op.name]),
        "weights": math.prod(op.weight_shape) if isinstance(op, (Linear, Conv2d)) else 0,
        "bits": op.weight.planes if isinstance(op, (Linear, Conv2d)) else 0,
        "bytes": sum(array.nbytes for array in own.values() if array is not None),
    }


def _words(op: Op) -> str:
    """The parameters of an operation for people."""
    if isinstance(op, Input):
        return op.kind
    if isinstance(op, Linear):
        return f"{op.in_features} → {op.out_features}, {_levels(op.weight)}"
    if isinstance(op, Conv2d):
        groups = f", {op.groups} groups" if op.groups > 1 else ""
        return f"{op.in_channels} → {op.out_channels}, {_window(op)}{groups}, {_levels(op.weight)}"
    if isinstance(op, (SumPool, MaxPool)):
        return _window(op)
    if isinstance(op, Threshold):
        cases = f", {op.cases} cases" if op.cases > 1 else ""
        return f"{op.lattice.levels} levels{cases}"
    if isinstance(op, Add):
        return " + ".join(
            name if factor == 1 else f"{factor} {name}" for factor, name in zip(op.factors, "ab", strict=True)
        )
    return ""


def _window(op: Conv2d | SumPool | MaxPool) -> str:
    words = f"{op.kernel[0]} × {op.kernel[1]}"
    if op.stride != (1, 1):
        words += f" by {op.stride[0]} × {op.stride[1]}"
    return f"{words} padded {max(op.padding)}" if any(op.padding) else words


def _levels(lattice: Lattice) -> str:
    return {2: "binary", 3: "ternary", 4: "quaternary"}.get(lattice.levels, f"{lattice.levels} levels")
