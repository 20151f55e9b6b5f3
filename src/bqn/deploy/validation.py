"""Validation: a program and its arrays are checked as a whole before anything is computed with them.

Everything that the runtime relies on is checked here, and only here: types and shapes of all arrays, the order of the
operations, which values are codes, and that no sum leaves its integer type.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from bqn.deploy.program import (
    FEATURE_BITS,
    FEATURE_LIMIT,
    INT32_MAX,
    WIDE_MAX,
    Add,
    Array,
    Conv2d,
    Encode,
    Flatten,
    Input,
    Lattice,
    Linear,
    MaxPool,
    Op,
    Packed,
    PackedError,
    Product,
    SumPool,
    Threshold,
)
from bqn.deploy.shapes import as_size, infer_sizes

MOST_OPS = 4096
MOST_MEMBERS = 4096
MOST_UNITS = 2**24  # channels or features
MOST_NUMBERS = 2**31  # weights and thresholds of all members, also where they share them: each prepares its own
MOST_CONSTANT = 2**24  # weights among them of a single level: they take no bytes in the file, but do in memory
MOST_WINDOW = 4096  # kernel, stride, padding and dilation
MOST_CODE_LEVELS = 2**16
MOST_WEIGHT_LEVELS = 256
MOST_LOG_SCALE = 80.0  # the exponential is then finite in float32, and so is its inverse
# Within these bounds the fourth moments of a regression are finite in float64.
STEPS = (2.0**-256, 2.0**32)
MOST_HEAD_WEIGHT = 1e12
MOST_TARGET_SCALE = 1e18

_SIGNED = (np.int8, np.int16, np.int32)


@dataclass(frozen=True)
class Range:
    """The integers `low, low + spacing, …, high` that a value may hold, and whether they are codes or wide."""

    low: int
    high: int
    spacing: int
    codes: Lattice | None = None
    wide: bool = False

    @property
    def most(self) -> int:
        return max(abs(self.low), abs(self.high))


def validate(packed: Packed) -> dict[str, Range]:
    """Check a program with its arrays; return the range of every value.

    Raises
    ------
    PackedError
        With what is wrong.
    """
    program = packed.program
    if not 1 <= packed.members <= MOST_MEMBERS:
        raise PackedError(f"members must be from 1 to {MOST_MEMBERS}, got {packed.members}")
    if not 1 <= len(program.ops) <= MOST_OPS or not isinstance(program.ops[0], Input):
        raise PackedError(f"a program has from 1 to {MOST_OPS} operations, the first of them an Input")
    _require_order(packed)
    checker = _Checker(packed)
    for op in program.ops:
        checker.check(op)
    numbers = packed.members * sum(_numbers(op) for op in program.ops)
    if numbers > MOST_NUMBERS:
        raise PackedError(
            f"{packed.members} members would read {numbers} weights and thresholds, at most {MOST_NUMBERS}"
        )
    constant = packed.members * sum(_numbers(op) for op in program.products() if op.weight.planes == 0)
    if constant > MOST_CONSTANT:
        raise PackedError(f"{constant} weights of a single level would be read, at most {MOST_CONSTANT}")
    checker.check_output()
    checker.check_leftovers()
    shape = program.input.shape
    if shape is None and "input.mean" in checker.used:
        shape = packed.arrays["input.mean"].shape[1:]  # the only one that it takes
    if shape is not None:
        _require_outputs(packed, infer_sizes(program, shape)[program.output][0])
    return checker.ranges


def _require_order(packed: Packed) -> None:
    """Every name is new, and every value that is read has been made before: there are no cycles."""
    seen: set[str] = set()
    for position, op in enumerate(packed.program.ops):
        if op.name in seen:
            raise PackedError(f"two operations are called {op.name!r}")
        if position and isinstance(op, Input):
            raise PackedError(f"{op.name} is a second Input")
        for source in op.sources:
            if source not in seen:
                raise PackedError(f"{op.name} reads {source!r}, which no operation before it makes")
        seen.add(op.name)
    if packed.program.output not in seen:
        raise PackedError(f"the output is {packed.program.output!r}, which no operation makes")


class _Checker:
    """Walks through the operations in order and keeps the ranges of their values and the channels known so far."""

    def __init__(self, packed: Packed) -> None:
        self.packed = packed
        self.ranges: dict[str, Range] = {}
        self.channels: dict[str, int | None] = {}
        self.used: set[str] = set()

    def check(self, op: Op) -> None:
        if isinstance(op, Input):
            found, channels = self._input(op), None if op.shape is None else as_size(op.shape)[0]
        else:
            found, channels = self._of(op)
            if not found.wide and found.most > INT32_MAX - 1:
                raise PackedError(f"{op.name}: its integers can reach {found.most}, more than 32 bits hold")
        self.ranges[op.name], self.channels[op.name] = found, channels

    def _of(self, op: Op) -> tuple[Range, int | None]:
        read = [self.ranges[source] for source in op.sources]
        channels = self.channels[op.sources[0]]
        if isinstance(op, (Linear, Conv2d)):
            return self._product(op, read[0], channels), op.weight_shape[0]
        if isinstance(op, Threshold):
            return self._threshold(op, read, channels), op.channels
        if any(value.wide for value in read) and not isinstance(op, Flatten):
            raise PackedError(f"{op.name}: {type(op).__name__} cannot read real-valued features or their sums")
        if isinstance(op, (SumPool, MaxPool)):
            _require_window(op, op.kernel, op.stride, op.padding)
            if any(2 * pad > size for pad, size in zip(op.padding, op.kernel, strict=True)):
                raise PackedError(f"{op.name}: padding {op.padding} is more than half of the window {op.kernel}")
            return (_pooled(op, read[0]) if isinstance(op, SumPool) else read[0]), channels
        if isinstance(op, Add):
            return _added(op, read), channels if channels is not None else self.channels[op.sources[1]]
        if isinstance(op, Encode):
            return _encoded(op, read[0]), channels
        if isinstance(op, Flatten):
            return read[0], None
        raise PackedError(f"{op.name}: unknown operation {type(op).__name__}")

    def _input(self, op: Input) -> Range:
        if op.rank is not None and (op.shape is not None or not 1 <= op.rank <= 3):
            raise PackedError(f"rank of the input must be from 1 to 3, without a shape, got {op.rank}, {op.shape}")
        if op.kind == "pixels":
            lattice = self.packed.program.lattices[op.name]
            return Range(lattice.low, lattice.high, lattice.stride, lattice)
        if op.kind != "features":
            raise PackedError(f"the input is of kind {op.kind!r}, expected 'pixels' or 'features'")
        if "input.mean" in self.packed.arrays or "input.std" in self.packed.arrays:
            mean, std = self._take("input.mean", None, (np.float32,)), self._take("input.std", None, (np.float32,))
            if len(mean) != 1 or mean.shape != std.shape or mean.ndim != 2 or not (std > 0).all():
                raise PackedError("input.mean and input.std must have shape (1, features), std must be positive")
            if op.shape is not None and op.shape != mean.shape[1:]:
                raise PackedError(f"input.mean has {mean.shape[1]} features, the input {op.shape}")
        most = FEATURE_LIMIT << FEATURE_BITS
        return Range(-most, most, 1, wide=True)

    def _product(self, op: Product, read: Range, channels: int | None) -> Range:
        inputs = _require_product(op)
        shape = op.weight_shape
        if channels is not None and channels != inputs:
            raise PackedError(f"{op.name} would read {channels} channels, expected {inputs}")
        if read.codes is None and not (read.wide and isinstance(op, Linear)):
            raise PackedError(f"{op.name} reads {op.source!r}, which is not made of codes")
        if read.wide and not self._is_raw(op.source):
            raise PackedError(f"{op.name} reads sums of real-valued features, which no product can read")
        _require_lattice(op, op.weight, MOST_WEIGHT_LEVELS)
        count = math.prod(shape)
        weights = self._take(f"{op.name}.weight", (op.weight.planes, -(-count // 8)), (np.uint8,))
        _require_codes(op, weights, count)
        terms = math.prod(shape[1:])
        most, kinds = terms * read.most * max(abs(op.weight.low), abs(op.weight.high)), (*_SIGNED, np.int64)
        if op.bias:
            most += _largest(self._take(f"{op.name}.bias", shape[:1], kinds if read.wide else _SIGNED))
        # What the formula of `ops` may form on the way must fit as well.
        way = terms * _extent(read.codes or Lattice(0, read.most, 2)) * _extent(op.weight) + most
        limit = 3 * WIDE_MAX if read.wide else INT32_MAX
        if way > limit or (read.wide and most > WIDE_MAX):
            raise PackedError(f"{op.name}: its sums can reach {way}, more than {limit}")
        return Range(-most, most, 1, wide=read.wide)

    def _is_raw(self, name: str) -> bool:
        op = self.packed.program.by_name[name]
        while isinstance(op, Flatten):
            op = self.packed.program.by_name[op.source]
        return isinstance(op, Input)

    def _threshold(self, op: Threshold, read: list[Range], channels: int | None) -> Range:
        _require_range(op, "channels", op.channels, 1, MOST_UNITS)
        _require_lattice(op, op.lattice, MOST_CODE_LEVELS)
        if channels is not None and channels != op.channels:
            raise PackedError(f"{op.name} would read {channels} channels, expected {op.channels}")
        if op.selector is None:
            if op.cases != 1:
                raise PackedError(f"{op.name} has {op.cases} cases and no selector")
        elif read[1].codes is None or read[1].codes.levels != op.cases:
            raise PackedError(f"{op.name}: its selector must be codes of {op.cases} levels")
        kinds = (*_SIGNED, np.int64) if read[0].wide else _SIGNED
        steps = op.lattice.levels - 1
        thresholds = self._take(f"{op.name}.thresholds", (op.cases, steps, op.channels), kinds)
        if (thresholds[:, :, 1:] < thresholds[:, :, :-1]).any():
            raise PackedError(f"{op.name}: its thresholds descend")
        self._take(f"{op.name}.flips", (-(-op.channels // 8),), (np.uint8,))
        return Range(op.lattice.low, op.lattice.high, op.lattice.stride, op.lattice)

    def check_output(self) -> None:
        program = self.packed.program
        if not STEPS[0] <= program.step <= STEPS[1]:
            raise PackedError(f"step must be from {STEPS[0]:g} to {STEPS[1]:g}, got {program.step}")
        if self.ranges[program.output].wide and self._is_raw(program.output):
            raise PackedError("the output is the input: the program has no layer")
        if program.head == "softmax":
            scale = self._take("head.log_scale", (), (np.float32,))
            if np.abs(scale).max() > MOST_LOG_SCALE:
                raise PackedError(f"head.log_scale must lie within ±{MOST_LOG_SCALE}")
            outputs = self.channels[program.output]
        elif program.head == "gaussian":
            outputs = self._check_gaussian()
        else:
            raise PackedError(f"the head is {program.head!r}, expected 'softmax' or 'gaussian'")
        if outputs is not None:
            _require_outputs(self.packed, outputs if program.head == "softmax" else None)

    def _check_gaussian(self) -> int:
        weight, noise = (self._take(f"head.{name}", None, (np.float32,)) for name in ("weight", "log_noise"))
        if weight.ndim != 3 or noise.ndim != 2 or weight.shape[1] != noise.shape[1] or not weight.size:
            raise PackedError(
                "head.weight must have shape (members, outputs, features), head.log_noise (members, outputs)"
            )
        features = self.channels[self.packed.program.output]
        if features is not None and features != weight.shape[2]:
            raise PackedError(f"head.weight reads {weight.shape[2]} features, the output has {features}")
        if np.abs(noise).max() > MOST_LOG_SCALE or np.abs(weight).max() > MOST_HEAD_WEIGHT:
            raise PackedError(
                f"head.log_noise must lie within ±{MOST_LOG_SCALE}, head.weight within ±{MOST_HEAD_WEIGHT:g}"
            )
        if "target.mean" in self.packed.arrays or "target.std" in self.packed.arrays:
            scale = [self._take(f"target.{name}", (weight.shape[1],), (np.float32,)) for name in ("mean", "std")]
            if any(len(part) != 1 for part in scale) or not (scale[1] > 0).all():
                raise PackedError("target.mean and target.std must be shared, and target.std positive")
            if max(np.abs(part).max() for part in scale) > MOST_TARGET_SCALE:
                raise PackedError(f"target.mean and target.std must lie within ±{MOST_TARGET_SCALE:g}")
        return int(weight.shape[1])

    def check_leftovers(self) -> None:
        extra = sorted(set(self.packed.arrays) - self.used)
        if extra:
            raise PackedError(f"there are arrays that nothing reads: {', '.join(extra[:5])}")

    def _take(self, name: str, shape: tuple[int, ...] | None, kinds: tuple[type[Any], ...]) -> Array:
        """An array that must be there, with its type and, behind the axis of members, its shape."""
        array = self.packed.arrays.get(name)
        if array is None:
            raise PackedError(f"the array {name} is missing")
        if array.dtype not in [np.dtype(kind) for kind in kinds]:
            raise PackedError(f"{name} is {array.dtype}, expected {' or '.join(np.dtype(kind).name for kind in kinds)}")
        if array.ndim < 1 or len(array) not in (1, self.packed.members):
            raise PackedError(f"{name} has shape {array.shape}, expected 1 or {self.packed.members} members first")
        if shape is not None and array.shape[1:] != shape:
            raise PackedError(f"{name} has shape {array.shape[1:]} behind the members, expected {shape}")
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise PackedError(f"{name} has NaN or infinite values")
        self.used.add(name)
        return array


def _numbers(op: Op) -> int:
    """Weights or thresholds of an operation."""
    if isinstance(op, Threshold):
        return op.cases * (op.lattice.levels - 1) * op.channels
    return math.prod(op.weight_shape) if isinstance(op, (Linear, Conv2d)) else 0


def _require_outputs(packed: Packed, outputs: int | None) -> None:
    """Check the number of outputs against the names of the classes, or the width of a Gaussian head."""
    program = packed.program
    if program.head == "gaussian":
        if program.classes:
            raise PackedError("a regression has no classes")
        features = packed.arrays["head.weight"].shape[2]
        if outputs is not None and outputs != features:
            raise PackedError(f"head.weight reads {features} features, the output has {outputs}")
    elif program.classes and len(program.classes) != outputs:
        raise PackedError(f"there are {len(program.classes)} classes for {outputs} outputs")


def _require_product(op: Product) -> int:
    """Check the numbers of a product; how many channels or features it reads."""
    if isinstance(op, Linear):
        inputs, outputs = op.in_features, op.out_features
    else:
        inputs, outputs = op.in_channels, op.out_channels
        _require_window(op, op.kernel, op.stride, op.padding, op.dilation)
        _require_range(op, "groups", op.groups, 1, MOST_UNITS)
        if inputs % op.groups or outputs % op.groups:
            raise PackedError(f"{op.name}: {op.groups} groups do not divide its channels")
    _require_range(op, "inputs", inputs, 1, MOST_UNITS)
    _require_range(op, "outputs", outputs, 1, MOST_UNITS)
    return inputs


def _pooled(op: SumPool, read: Range) -> Range:
    count = math.prod(op.kernel)
    padded = any(op.padding)
    ends = (count * read.low, count * read.high, *((0,) if padded else ()))
    return Range(min(ends), max(ends), math.gcd(read.spacing, read.low) if padded else read.spacing)


def _added(op: Add, read: list[Range]) -> Range:
    for factor in op.factors:
        _require_range(op, "factors", factor, 1, INT32_MAX)
    (a, b), (x, y) = op.factors, read
    return Range(a * x.low + b * y.low, a * x.high + b * y.high, math.gcd(a * x.spacing, b * y.spacing))


def _encoded(op: Encode, read: Range) -> Range:
    lattice = op.lattice
    _require_lattice(op, lattice, MOST_CODE_LEVELS)
    fits = lattice.low <= read.low and read.high <= lattice.high
    if not fits or read.spacing % lattice.stride or (read.low - lattice.low) % lattice.stride:
        raise PackedError(
            f"{op.name}: integers from {read.low} to {read.high} in steps of {read.spacing} do not lie on {lattice}"
        )
    return Range(read.low, read.high, read.spacing, lattice)


def _require_lattice(op: Op, lattice: Lattice, most: int) -> None:
    _require_range(op, "levels", lattice.levels, 1, most)
    _require_range(op, "stride of its levels", lattice.stride, 1, INT32_MAX)
    _require_range(op, "lowest level", lattice.low, -INT32_MAX, INT32_MAX)
    _require_range(op, "highest level", lattice.high, -INT32_MAX, INT32_MAX)
    _require_range(op, "distance of its levels", lattice.high - lattice.low, 0, INT32_MAX)


def _require_window(op: Op, kernel: Any, stride: Any, padding: Any, dilation: Any = (1, 1)) -> None:
    for name, pair, least in (
        ("kernel", kernel, 1),
        ("stride", stride, 1),
        ("padding", padding, 0),
        ("dilation", dilation, 1),
    ):
        for value in pair:
            _require_range(op, name, value, least, MOST_WINDOW)


def _require_range(op: Op, name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise PackedError(f"{op.name}: {name} must be from {least} to {most}, got {value}")


def _require_codes(op: Product, weights: Array, count: int) -> None:
    """Raise if a weight has a code beyond its levels, or if bits behind the last weight are set."""
    spare = -count % 8
    if spare and weights.size and (weights[..., -1] >> np.uint8(8 - spare)).any():
        raise PackedError(f"{op.name}: bits behind its last weight are set")
    highest = op.weight.levels - 1
    if highest == (1 << op.weight.planes) - 1:
        return
    # Bit by bit from the top: is the code above the highest?
    equal, above = np.full(weights.shape[::2], 255, np.uint8), np.zeros(weights.shape[::2], np.uint8)
    for plane in reversed(range(op.weight.planes)):
        bits = weights[:, plane]
        if highest >> plane & 1:
            equal = equal & bits
        else:
            above |= equal & bits
            equal = equal & ~bits
    if above.any():
        raise PackedError(f"{op.name}: a weight has a code beyond its {op.weight.levels} levels")


def _extent(lattice: Lattice) -> int:
    return abs(lattice.low) + lattice.stride * ((1 << lattice.planes) - 1)


def _largest(values: Array) -> int:
    return max(abs(int(values.min(initial=0))), abs(int(values.max(initial=0))))
