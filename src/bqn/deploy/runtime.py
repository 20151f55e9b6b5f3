"""The runtime in numpy: a program's operations, one after the other, on a batch.

`NumpyPlan` is what runs where the compiled kernels are missing or cannot do a program, and what they are tested by.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import numpy as np

from bqn.deploy import ops
from bqn.deploy.program import (
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
    Product,
    SumPool,
    Threshold,
)
from bqn.deploy.shapes import Size, infer_sizes

# Numbers of the largest value of a batch that are held at once; larger batches go through in parts.
_MOST_AT_ONCE = 2**22
# Channels from which on a flattened image keeps its layout, and the weights are reordered instead.
_WIDE_ENOUGH = 32


@dataclass(eq=False)
class Value:
    """A value of a batch in one or more forms, made when they are asked for.

    `codes` is unsigned and `integers` is signed `(N, H, W, C)`, `bits` is packed codes. `flat` says that the value is
    flattened in the order (H, W, C) of its words and not in that of torch.
    """

    channels: int
    lattice: Lattice | None = None
    made_codes: Array | None = None
    made_bits: Array | None = None
    made_integers: Array | None = None
    flat: bool = False

    @cached_property
    def codes(self) -> Array:
        if self.made_codes is not None:
            return self.made_codes
        assert self.made_bits is not None
        return ops.unpack(self.made_bits, self.channels)

    @cached_property
    def bits(self) -> Array:
        if self.made_bits is not None:
            return self.made_bits
        assert self.lattice is not None
        return ops.pack(self.codes, self.lattice.planes)

    @cached_property
    def integers(self) -> Array:
        if self.made_integers is not None:
            return self.made_integers
        assert self.lattice is not None
        return ops.decode(self.codes, self.lattice)


class NumpyPlan:
    """One member of a packed network, ready for inputs of one shape.

    Parameters
    ----------
    packed : Packed
    member : int
    shape : shape of one example

    Calling it takes codes of pixels uint8 `(N, *shape)`, or features float64 `(N, *shape)` in units of 2^-24, and
    returns the integers before the head, `(N, outputs)`.
    """

    def __init__(self, packed: Packed, member: int, shape: tuple[int, ...]) -> None:
        self.packed, self.member = packed, member
        self.program = packed.program
        self.sizes = infer_sizes(self.program, shape)
        largest = max(channels * rows * columns for channels, rows, columns in self.sizes.values())
        self.batch = max(1, _MOST_AT_ONCE // largest)
        self._flat = self._flattened_in_place()
        self._last_use = {source: op.name for op in self.program.ops for source in op.sources}
        self._weights: dict[str, Array] = {}

    def __call__(self, x: Array) -> Array:
        parts = [self._run(x[start : start + self.batch]) for start in range(0, len(x), self.batch)]
        if parts:
            return np.concatenate(parts)
        return np.zeros((0, self.sizes[self.program.output][0]), np.int32)

    def _run(self, x: Array) -> Array:
        values: dict[str, Value] = {}
        for op in self.program.ops:
            if isinstance(op, Input):
                values[op.name] = self._input(op, x)
            else:
                values[op.name] = _STEPS[type(op)](self, op, *(values[source] for source in op.sources))
            for source in op.sources:  # what nobody reads any more need not be kept
                if self._last_use[source] == op.name and source != self.program.output:
                    values.pop(source, None)
        return cast(Array, values[self.program.output].integers.reshape(len(x), -1))

    def _input(self, op: Input, x: Array) -> Value:
        channels, rows, columns = self.sizes[op.name]
        images = np.ascontiguousarray(x.reshape(len(x), channels, rows, columns).transpose(0, 2, 3, 1))
        if op.kind == "pixels":
            return Value(channels, self.program.lattices[op.name], made_codes=images)
        return Value(channels, made_integers=images)

    def _flattened_in_place(self) -> set[str]:
        """Flattened codes that only linear layers read: their words need not move."""
        readers: dict[str, list[Op]] = {op.name: [] for op in self.program.ops}
        for op in self.program.ops:
            for source in op.sources:
                readers[source].append(op)
        return {
            op.name
            for op in self.program.ops
            if isinstance(op, Flatten)
            and op.name in self.program.lattices
            and op.name != self.program.output
            and self.sizes[op.source][0] >= _WIDE_ENOUGH
            and all(isinstance(reader, Linear) for reader in readers[op.name])
        }

    # --- products ---------------------------------------------------------------------------------------------------

    def _linear(self, op: Linear, x: Value) -> Value:
        bias = self.packed.bias(op, self.member)
        if x.lattice is None:
            return self._wide_linear(op, x.integers.reshape(len(x.integers), -1), bias)
        size = self.sizes[self._origin(op.source)] if x.flat else None
        weight = self._prepared(op, lambda: self._flat_weights(op, size))
        bits = x.bits.reshape(len(x.bits), *x.bits.shape[-2:])
        sums = ops.linear(bits, weight, x.lattice, op.weight, op.in_features, bias.astype(np.int32))
        return _integers(sums[:, None, None])

    def _wide_linear(self, op: Linear, x: Array, bias: Array) -> Value:
        """Real-valued features: integers below 2^53, whose sums are exact in float64 in any order."""
        shape = (op.out_features, op.in_features)
        weight = self._prepared(op, lambda: self._integer_weights(op).reshape(shape).astype(np.float64))
        return _integers(((x @ weight.T).astype(np.int64) + bias)[:, None, None])

    def _conv2d(self, op: Conv2d, x: Value) -> Value:
        assert x.lattice is not None
        bias = self.packed.bias(op, self.member).astype(np.int32)
        if op.groups > 1:
            weight = self._prepared(op, lambda: self._integer_weights(op))
            windows = (op.stride, op.padding, op.dilation)
            return _integers(ops.grouped_conv2d(x.integers, weight, op.groups, *windows, bias))
        weight = self._prepared(op, lambda: ops.pack(self.packed.weight_codes(op, self.member), op.weight.planes))
        return _integers(
            ops.conv2d(x.bits, weight, x.lattice, op.weight, op.in_channels, op.stride, op.padding, op.dilation, bias)
        )

    def _prepared(self, op: Product, prepare: Callable[[], Array]) -> Array:
        if op.name not in self._weights:
            self._weights[op.name] = prepare()
        return self._weights[op.name]

    def _integer_weights(self, op: Product) -> Array:
        return ops.decode(self.packed.weight_codes(op, self.member), op.weight)

    def _flat_weights(self, op: Linear, size: Size | None) -> Array:
        """Packed weights `(O, planes, words)`, in the order of the words of an image of this size if there is one."""
        codes = self.packed.weight_codes(op, self.member).reshape(op.out_features, op.in_features)
        if size is None:
            return ops.pack(codes, op.weight.planes)
        pixels = codes.reshape(op.out_features, *size).transpose(0, 2, 3, 1)
        return _join_pixels(ops.pack(pixels, op.weight.planes))

    def _origin(self, name: str) -> str:
        return self.program.by_name[name].sources[0]

    # --- everything else --------------------------------------------------------------------------------------------

    def _sum_pool(self, op: SumPool, x: Value) -> Value:
        return _integers(ops.sum_pool(x.integers, op.kernel, op.stride, op.padding))

    def _max_pool(self, op: MaxPool, x: Value) -> Value:
        windows = (op.kernel, op.stride, op.padding)
        if x.lattice is None:
            return _integers(ops.max_pool(x.integers, *windows))
        if x.lattice.planes == 1:
            return Value(x.channels, x.lattice, made_bits=ops.max_pool_bits(x.bits, *windows))
        codes = ops.max_pool(x.codes.astype(np.int32), *windows)
        return Value(x.channels, x.lattice, made_codes=codes.astype(x.codes.dtype))

    def _add(self, op: Add, a: Value, b: Value) -> Value:
        return _integers(np.int32(op.factors[0]) * a.integers + np.int32(op.factors[1]) * b.integers)

    def _threshold(self, op: Threshold, x: Value, selector: Value | None = None) -> Value:
        levels = self.packed.thresholds(op, self.member)
        if x.integers.dtype == np.int32:
            levels = levels.astype(np.int32)
        cases = None if selector is None else selector.codes
        flips = self.packed.flips(op, self.member)
        bits = ops.threshold(x.integers, levels, flips, op.lattice.planes, cases)
        return Value(op.channels, op.lattice, made_bits=bits)

    def _encode(self, op: Encode, x: Value) -> Value:
        codes = (x.integers - np.int32(op.lattice.low)) // np.int32(op.lattice.stride)
        return Value(x.channels, op.lattice, made_codes=codes.astype(np.uint16 if op.lattice.planes > 8 else np.uint8))

    def _flatten(self, op: Flatten, x: Value) -> Value:
        channels = self.sizes[op.name][0]
        if op.name in self._flat:
            return Value(channels, x.lattice, made_bits=_join_pixels(x.bits)[:, None, None], flat=True)
        if x.lattice is None:
            return _integers(_in_torch_order(x.integers))
        return Value(channels, x.lattice, made_codes=_in_torch_order(x.codes))


_STEPS: dict[type[Any], Callable[..., Value]] = {
    Linear: NumpyPlan._linear,
    Conv2d: NumpyPlan._conv2d,
    SumPool: NumpyPlan._sum_pool,
    MaxPool: NumpyPlan._max_pool,
    Add: NumpyPlan._add,
    Threshold: NumpyPlan._threshold,
    Encode: NumpyPlan._encode,
    Flatten: NumpyPlan._flatten,
}


def _integers(values: Array) -> Value:
    return Value(values.shape[-1], made_integers=values)


def _in_torch_order(values: Array) -> Array:
    """`(N, H, W, C)` to `(N, 1, 1, C * H * W)`."""
    return np.ascontiguousarray(values.transpose(0, 3, 1, 2)).reshape(len(values), 1, 1, -1)


def _join_pixels(bits: Array) -> Array:
    """Packed `(N, H, W, planes, words)` to `(N, planes, H * W * words)`."""
    images, height, width, planes, words = bits.shape  # any of them may be zero, so that -1 would not do
    return np.ascontiguousarray(bits.transpose(0, 3, 1, 2, 4)).reshape(images, planes, height * width * words)
