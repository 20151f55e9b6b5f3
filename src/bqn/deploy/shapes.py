"""Shapes: what size every value of a program has for an input of a given shape."""

from __future__ import annotations

import math
from typing import TypeAlias

from bqn.deploy.ops import output_size
from bqn.deploy.program import (
    Add,
    Conv2d,
    Flatten,
    Input,
    Linear,
    MaxPool,
    Op,
    PackedError,
    Program,
    SumPool,
    Threshold,
)

Size: TypeAlias = tuple[int, int, int]  # channels, rows, columns

# Numbers in one value of one example, in all values together, and operations on them: more would be no network but an
# attempt to exhaust memory or time. (A ResNet-152 on 224 × 224 pixels takes 2^33 operations.)
MOST_ELEMENTS = 2**24
MOST_ELEMENTS_IN_ALL = 2**28
MOST_WORK = 2**36


def as_size(shape: tuple[int, ...]) -> Size:
    """`(F,)`, `(C, L)` or `(C, H, W)` as channels, rows and columns."""
    if not 1 <= len(shape) <= 3 or min(shape) < 1:
        raise PackedError(f"an example must have shape (features,), (C, L) or (C, H, W), got {shape}")
    rows, columns = {1: (1, 1), 2: (1, shape[-1]), 3: shape[-2:]}[len(shape)]
    return shape[0], rows, columns


def infer_sizes(program: Program, shape: tuple[int, ...]) -> dict[str, Size]:
    """The size of every value for examples of this shape; a `PackedError` if the operations do not allow it."""
    sizes: dict[str, Size] = {}
    work = elements = 0
    for op in program.ops:
        size = as_size(shape) if isinstance(op, Input) else _size(op, [sizes[name] for name in op.sources])
        if math.prod(size) > MOST_ELEMENTS:
            raise PackedError(f"{op.name} would hold {math.prod(size)} numbers an example, more than {MOST_ELEMENTS}")
        sizes[op.name] = size
        elements += math.prod(size)
        work += _work(op, size)
    if elements > MOST_ELEMENTS_IN_ALL or work > MOST_WORK:
        raise PackedError(
            f"an example would take {work} operations on {elements} numbers, at most {MOST_WORK} on "
            f"{MOST_ELEMENTS_IN_ALL} are allowed"
        )
    if sizes[program.output][1:] != (1, 1):
        raise PackedError(f"the output {program.output} is of size {sizes[program.output]}, expected a vector")
    return sizes


def _size(op: Op, sources: list[Size]) -> Size:
    channels, rows, columns = size = sources[0]
    if isinstance(op, Linear):
        _require(op, size, size == (op.in_features, 1, 1), f"{op.in_features} features")
        return op.out_features, 1, 1
    if isinstance(op, Conv2d):
        _require(op, size, channels == op.in_channels, f"{op.in_channels} channels")
        return op.out_channels, *_windows(op, size, op.dilation)
    if isinstance(op, (SumPool, MaxPool)):
        return channels, *_windows(op, size, (1, 1))
    if isinstance(op, Flatten):
        return channels * rows * columns, 1, 1
    if isinstance(op, Add) or (isinstance(op, Threshold) and op.selector is not None):
        _require(op, size, sources[1] == size, f"twice the same, not {sources[1]}")
    if isinstance(op, Threshold):
        _require(op, size, channels == op.channels, f"{op.channels} channels")
    return size


def _work(op: Op, made: Size) -> int:
    """Multiplications, additions or comparisons that make a value of this size."""
    if isinstance(op, (Linear, Conv2d)):
        return made[1] * made[2] * math.prod(op.weight_shape)
    if isinstance(op, (SumPool, MaxPool)):
        return math.prod(made) * math.prod(op.kernel)
    return math.prod(made) * (op.lattice.levels if isinstance(op, Threshold) else 1)


def _windows(op: Conv2d | SumPool | MaxPool, size: Size, dilation: tuple[int, int]) -> tuple[int, int]:
    rows, columns = (
        output_size(size[1 + axis], op.kernel[axis], op.stride[axis], op.padding[axis], dilation[axis])
        for axis in range(2)
    )
    _require(op, size, rows > 0 and columns > 0, f"rows and columns for a window of {op.kernel}")
    return rows, columns


def _require(op: Op, size: Size, fits: bool, expected: str) -> None:
    if not fits:
        raise PackedError(f"{op.name} would read (channels, rows, columns) {size}, expected {expected}")
