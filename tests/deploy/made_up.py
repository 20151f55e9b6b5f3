"""Made-up programs, every operation in every order, with arrays that fit: what a file can hold and no network is.

Odd windows, groups of any width, pooling of pooling, lattices far from zero, selectors, values that are read twice.
Most are valid; in some a sum could leave 32 bits.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bqn.deploy.ops import output_size
from bqn.deploy.program import (
    PIXELS,
    Add,
    Conv2d,
    Encode,
    Flatten,
    Input,
    Lattice,
    Linear,
    MaxPool,
    Op,
    Packed,
    Program,
    SumPool,
    Threshold,
)
from bqn.deploy.shapes import Size

LATTICES = (Lattice(-1, 2, 2),) * 4 + (
    Lattice(-1, 1, 3),
    Lattice(-3, 2, 4),
    Lattice(0, 1, 2),
    Lattice(3, 5, 7),
    Lattice(-10, 1, 20),
    Lattice(-900, 60, 17),
)
CHANNELS = (1, 2, 3, 5, 8, 16, 17, 31, 33, 64, 65, 70, 130)
MOST = 1200  # numbers in a value
MOST_CASES = 20


@dataclass(frozen=True)
class Made:
    """A value so far: its size, its lattice if it is codes, and what its integers can be."""

    name: str
    size: Size
    lattice: Lattice | None
    low: int
    high: int
    spacing: int


@dataclass
class Maker:
    """Adds operations at random; an operation that would not fit is left out."""

    rng: np.random.Generator
    ops: list[Op] = field(default_factory=list)
    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    values: list[Made] = field(default_factory=list)

    def choose(self, options: Any) -> Any:
        return options[int(self.rng.integers(len(options)))]

    def chance(self, probability: float) -> bool:
        return bool(self.rng.random() < probability)

    def number(self, low: int, high: int) -> int:
        return int(self.rng.integers(low, high + 1))

    def pair(self, low: int, high: int) -> tuple[int, int]:
        return self.number(low, high), self.number(low, high)

    def add(self, op: Op, size: Size, lattice: Lattice | None, ends: tuple[int, int, int]) -> None:
        self.ops.append(op)
        self.values.append(Made(op.name, size, lattice, *ends))

    def add_codes(self, op: Op, size: Size, lattice: Lattice) -> None:
        self.add(op, size, lattice, (lattice.low, lattice.high, lattice.stride))

    def start(self) -> None:
        rows, columns = self.choose(((1, 1), (1, self.number(1, 20)), self.pair(1, 9)))
        channels = self.choose([each for each in CHANNELS if each * rows * columns <= MOST])
        shape = (channels, rows, columns) if rows * columns > 1 or self.chance(0.5) else (channels,)
        self.add_codes(Input("input", "pixels", shape), (channels, rows, columns), PIXELS)

    def grow(self) -> None:
        x = self.values[-1] if self.chance(0.8) else self.choose(self.values)
        kinds = [self.threshold, self.pool, self.pool, self.join, self.flatten, self.encode]
        if x.lattice is not None:
            kinds += [self.product] * 5
        elif self.chance(0.6):
            kinds = [self.threshold]
        self.choose(kinds)(str(len(self.ops)), x)

    def product(self, name: str, x: Made) -> None:
        inputs, weight, bias = x.size[0], self.choose(LATTICES), self.chance(0.5)
        op: Linear | Conv2d
        if x.size[1:] == (1, 1) and self.chance(0.5):
            size = (self.choose(CHANNELS), 1, 1)
            op = Linear(name, x.name, inputs, size[0], weight, bias)
        else:
            groups = self.choose([each for each in (1, 1, 1, 2, 3, 5, inputs) if inputs % each == 0])
            outputs, whole = groups * self.number(1, max(1, 40 // groups)), self.chance(0.15)
            kernel = x.size[1:] if whole else self.pair(1, 4)
            padding, dilation = ((0, 0), (1, 1)) if whole else (self.pair(0, 3), self.pair(1, 2))
            stride = self.pair(1, 3)
            rows, columns = map(output_size, x.size[1:], kernel, stride, padding, dilation)
            size = (outputs, rows, columns)
            op = Conv2d(name, x.name, inputs, outputs, kernel, stride, padding, dilation, groups, weight, bias)
        if not _fits(size):
            return
        count = int(np.prod(op.weight_shape))
        codes = self.rng.integers(0, weight.levels, count)
        planes = [np.packbits(codes >> plane & 1, bitorder="little") for plane in range(weight.planes)]
        self.arrays[f"{name}.weight"] = np.stack(planes)[None]
        if bias:
            self.arrays[f"{name}.bias"] = self.rng.integers(-99, 100, (1, size[0])).astype(np.int16)
        most = count // size[0] * _largest(x.low, x.high) * _largest(weight.low, weight.high) + 99
        self.add(op, size, None, (-most, most, 1))

    def threshold(self, name: str, x: Made) -> None:
        lattice, selector, cases = self.choose(LATTICES), None, 1
        codes = [value for value in self.values if value.size == x.size and value.lattice is not None]
        others = [value for value in codes if value.lattice.levels <= MOST_CASES]
        if others and self.chance(0.4):
            other = self.choose(others)
            selector, cases = other.name, other.lattice.levels
        spread = max(1, int(0.2 * _largest(x.low, x.high) ** self.choose((0.5, 0.8, 1.0))))
        values = self.rng.integers(-spread, spread + 1, (1, cases, lattice.levels - 1, x.size[0]))
        self.arrays[f"{name}.thresholds"] = np.sort(values, 2).astype(np.int32)
        self.arrays[f"{name}.flips"] = self.rng.integers(0, 256, (1, -(-x.size[0] // 8))).astype(np.uint8)
        self.add_codes(Threshold(name, x.name, x.size[0], lattice, selector, cases), x.size, lattice)

    def pool(self, name: str, x: Made) -> None:
        kernel = self.pair(1, 4)
        padding = (0, 0) if self.chance(0.5) else (self.number(0, kernel[0] // 2), self.number(0, kernel[1] // 2))
        stride = kernel if self.chance(0.5) else self.pair(1, 3)
        rows, columns = map(output_size, x.size[1:], kernel, stride, padding)
        size = (x.size[0], rows, columns)
        if not _fits(size):
            return
        if self.chance(0.4):
            self.add(MaxPool(name, x.name, kernel, stride, padding), size, x.lattice, (x.low, x.high, x.spacing))
            return
        area = kernel[0] * kernel[1]
        ends = (area * x.low, area * x.high, *([0] if any(padding) else []))
        spacing = int(np.gcd(x.spacing, x.low)) if any(padding) else x.spacing
        self.add(SumPool(name, x.name, kernel, stride, padding), size, None, (min(ends), max(ends), spacing))

    def join(self, name: str, x: Made) -> None:
        other = self.choose([value for value in self.values if value.size == x.size])
        a, b = self.pair(1, 5)
        spacing = int(np.gcd(a * x.spacing, b * other.spacing))
        ends = (a * x.low + b * other.low, a * x.high + b * other.high, spacing)
        self.add(Add(name, (x.name, other.name), (a, b)), x.size, None, ends)

    def encode(self, name: str, x: Made) -> None:
        lattice = Lattice(x.low, x.spacing, (x.high - x.low) // x.spacing + 1)
        if lattice.levels <= 2**16:
            self.add_codes(Encode(name, x.name, lattice), x.size, lattice)

    def flatten(self, name: str, x: Made) -> None:
        self.add(Flatten(name, x.name), (int(np.prod(x.size)), 1, 1), x.lattice, (x.low, x.high, x.spacing))


def made_up_program(rng: np.random.Generator) -> Packed:
    """One member of up to a dozen operations."""
    maker = Maker(rng)
    maker.start()
    for _ in range(int(rng.integers(2, 12))):
        maker.grow()
    if maker.values[-1].size[1:] != (1, 1):
        maker.flatten(str(len(maker.ops)), maker.values[-1])
    arrays = {**maker.arrays, "head.log_scale": np.zeros(1, np.float32)}
    return Packed(Program(tuple(maker.ops), maker.ops[-1].name, 1.0, "softmax"), 1, arrays)


def _fits(size: Size) -> bool:
    return min(size) > 0 and int(np.prod(size)) <= MOST


def _largest(low: int, high: int) -> int:
    return max(abs(low), abs(high))
