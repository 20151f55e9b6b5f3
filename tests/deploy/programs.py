"""Programs at random, written down directly: operations and lattices that networks of this package seldom have."""

from __future__ import annotations

from typing import Any

import numpy as np

from bqn.deploy import Lattice, Packed, PackedError, Program
from bqn.deploy.program import Add, Conv2d, Encode, Flatten, Input, Linear, MaxPool, Op, SumPool, Threshold
from bqn.deploy.shapes import infer_sizes
from bqn.deploy.validation import validate

SIGNS = Lattice(-1, 2, 2)
CODES = (SIGNS, Lattice(-1, 1, 3), Lattice(-3, 2, 4), Lattice(0, 1, 2), Lattice(5, 2, 9), Lattice(-9, 1, 300))
WEIGHTS = (SIGNS, Lattice(-1, 1, 3), Lattice(-3, 2, 4), Lattice(0, 1, 2), Lattice(-40, 1, 256), Lattice(2, 1, 1))


def random_program(seed: int) -> Packed:
    """A valid program with random arrays; the first of a series of attempts that fits 32 bits."""
    rng = np.random.default_rng(seed)
    while True:
        try:
            packed = _Maker(rng).make()
            validate(packed)
        except PackedError:
            continue
        return packed


class _Maker:
    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.members = self.count(1, 3)
        self.ops: list[Op] = []
        self.arrays: dict[str, np.ndarray[Any, Any]] = {}

    def make(self) -> Packed:
        shape = (self.count(1, 4), self.count(4, 9), self.count(4, 9))
        self.ops.append(Input("input", "pixels", shape))
        value = self.conv("input", shape[0], self.pick(3, 8, 40), "first")
        value = self.between(value, "first")
        value = self.conv(value, self.channels(value), self.pick(6, 34), "second")
        a = self.threshold(value, "branch", self.channels(value))
        value = self.conv(a, self.channels(a), self.channels(a), "third", same=True)
        if self.pick(True, False):
            self.ops.append(Add("sum", (value, a), (self.count(1, 3), self.count(1, 3))))
            value = self.threshold("sum", "joined", self.channels("sum"))
        else:
            value = self.threshold(value, "joined", self.channels(value), a)
        value = self.between(value, "last", thresholds=False)
        self.ops.append(Flatten("flat", value))
        features = self.channels("flat")
        self.product(Linear("out", "flat", features, 4, self.pick(*WEIGHTS[:-1]), self.pick(True, False)))
        self.arrays["head.log_scale"] = self.rng.normal(3, 1, self.shared()).astype(np.float32)
        return Packed(Program(tuple(self.ops), "out", 1 / 64, "softmax"), self.members, self.arrays)

    def between(self, value: str, name: str, thresholds: bool = True) -> str:
        """Pools in some order around thresholds, and always codes behind them."""
        order = self.pick(0, 1, 2, 3)
        window = ((2, self.count(1, 2)), (self.count(1, 2), 2), (self.count(0, 1), 0))
        if order == 1:
            self.ops.append(MaxPool(f"{name}.max", value, *window))
            value = f"{name}.max"
        if order == 2 and thresholds:
            self.ops.append(SumPool(f"{name}.sum", value, *window))
            value = f"{name}.sum"
        if thresholds:
            value = self.threshold(value, f"{name}.codes", self.channels(value))
        if order == 3:
            lattice = Program(tuple(self.ops), value, 1.0, "softmax").lattices[value]
            area = window[0][0] * window[0][1]
            low, high = min(0, area * lattice.low), max(0, area * lattice.high)
            self.ops.append(SumPool(f"{name}.average", value, *window))
            self.ops.append(Encode(f"{name}.encoded", f"{name}.average", Lattice(low, 1, high - low + 1)))
            value = f"{name}.encoded"
        return value

    def conv(self, source: str, inside: int, outside: int, name: str, same: bool = False) -> str:
        groups = self.pick(1, 1, 2) if inside % 2 == outside % 2 == 0 else 1
        if same:
            window = ((3, 3), (1, 1), (1, 1), (1, 1))
        else:
            kernel = (self.count(1, 3), self.count(1, 3))
            window = (kernel, (1, self.count(1, 2)), (self.count(0, 2), 1), (1, self.count(1, 2)))
        weight, bias = self.pick(*WEIGHTS), self.pick(True, False)
        return self.product(Conv2d(name, source, inside, outside, *window, groups, weight, bias))

    def product(self, op: Linear | Conv2d) -> str:
        self.ops.append(op)
        count = int(np.prod(op.weight_shape))
        codes = self.rng.integers(0, op.weight.levels, (self.shared(), count))
        planes = [np.packbits(codes >> plane & 1, axis=1, bitorder="little") for plane in range(op.weight.planes)]
        length = -(-count // 8)
        self.arrays[f"{op.name}.weight"] = (
            np.stack(planes, 1).astype(np.uint8) if planes else np.zeros((len(codes), 0, length), np.uint8)
        )
        if op.bias:
            self.arrays[f"{op.name}.bias"] = self.rng.integers(-99, 100, (self.shared(), op.weight_shape[0])).astype(
                np.int8
            )
        return op.name

    def threshold(self, source: str, name: str, channels: int, selector: str | None = None) -> str:
        lattice = self.pick(*CODES)
        cases = 1
        if selector is not None:
            cases = Program(tuple(self.ops), source, 1.0, "softmax").lattices[selector].levels
        self.ops.append(Threshold(name, source, channels, lattice, selector, cases))
        kind, spread = self.pick((np.int8, 100), (np.int16, 3000), (np.int32, 100_000))
        shape = (self.shared(), cases, lattice.levels - 1, channels)
        self.arrays[f"{name}.thresholds"] = np.sort(self.rng.integers(-spread, spread, shape), axis=2).astype(kind)
        flips = self.rng.integers(0, 2, (self.shared(), channels))
        self.arrays[f"{name}.flips"] = np.packbits(flips, axis=1, bitorder="little")
        return name

    # --- small things -----------------------------------------------------------------------------------------------

    def pick(self, *values: Any) -> Any:
        return values[self.rng.integers(len(values))]

    def count(self, least: int, most: int) -> int:
        return int(self.rng.integers(least, most + 1))

    def shared(self) -> int:
        """Members that an array has of its own."""
        return self.pick(1, self.members)

    def channels(self, name: str) -> int:
        shape = self.ops[0].shape  # type: ignore[union-attr]
        return infer_sizes(Program((*self.ops, Flatten("end", name)), "end", 1.0, "softmax"), shape)[name][0]
