"""A packed network as an ONNX model of ordinary float operators: for programs that read ONNX, not for size or speed.

Weights are floats here, 32 times as large as one bit, and products are float products. All integers of the network are
exact in these floats (float64 where float32 would round), so that the answers are those of the packed network.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from bqn.deploy.given import Given, packed_of
from bqn.deploy.onnx_graph import Graph
from bqn.deploy.program import (
    FEATURE_BITS,
    Add,
    Array,
    Conv2d,
    Encode,
    Flatten,
    Linear,
    MaxPool,
    Op,
    Packed,
    PackedError,
    SumPool,
    Threshold,
)
from bqn.deploy.shapes import infer_sizes
from bqn.deploy.validation import validate

EXACT = {np.dtype(np.float32): 2**24 - 1, np.dtype(np.float64): 2**53}
Float: TypeAlias = "np.dtype[np.floating[Any]]"


def to_onnx(packed: Given) -> bytes:
    """A packed network as the content of an `.onnx` file; needs the extra `onnx`.

    Parameters
    ----------
    packed : Packed, PackedModel or path of a packed file
        With the shape of its examples, as `bqn pack` and `input_shape` of `bqn.pack` give it.

    Returns
    -------
    bytes
        A model with the input `pixels`, uint8 `(N, *shape)`, or `features`, float32 `(N, *shape)`. Its outputs are
        `logits`, the integers before the head, int64 `(members, N, outputs)`, and for classes `probabilities`, float32
        `(N, classes)`, averaged over the members, or for a regression `mean`, `var`, `skewness` and `kurtosis`, float32
        `(N, outputs)`.

    Raises
    ------
    PackedError
        A ValueError: the network cannot be written so; the message says which part and why.
    """
    return _Exporter(packed_of(packed)).model()


class _Exporter:
    """Writes one network after the other into one graph; what members share is stored once."""

    def __init__(self, packed: Packed) -> None:
        self.packed, self.program = packed, packed.program
        shape = self.program.input.shape
        if shape is None:
            raise PackedError("the file does not say what shape its examples have; pack with input_shape")
        self.shape = shape
        self.sizes = infer_sizes(self.program, shape)
        self.kinds = self._kinds()
        self.graph = Graph()
        self.member = 0
        self.values: dict[str, str] = {}

    def model(self) -> bytes:
        pixels = self.program.input.kind == "pixels"
        name = self.program.input.kind
        self.graph.input(name, "uint8" if pixels else "float32", ("N", *self.shape))
        given = self._pixels(name) if pixels else self._features(name)
        members = [self._member(member, given) for member in range(self.packed.members)]
        outputs = self.sizes[self.program.output][0]
        logits = self.graph.add("Concat", *members, axis=0, output="logits")
        self.graph.output(logits, "int64", (self.packed.members, "N", outputs))
        stacked = self.graph.add("Cast", logits, to="float64")
        if self.program.head == "softmax":
            self._softmax(stacked, outputs)
        else:
            self._gaussian(stacked)
        return self.graph.finish(
            "A quantized network in float operators, for compatibility; its packed file is smaller and faster.",
            {"classes": "\n".join(self.program.classes), "members": str(self.packed.members)},
        )

    def _kinds(self) -> dict[str, Float]:
        """The type in which each value is exact."""
        kinds: dict[str, Float] = {}
        for name, span in validate(self.packed).items():
            kinds[name] = np.dtype(np.float32 if span.most <= EXACT[np.dtype(np.float32)] else np.float64)
            op = self.program.by_name[name]
            if kinds[name] == np.float64 and isinstance(op, (Conv2d, SumPool)):
                raise PackedError(
                    f"{name}: its sums can reach {span.most}, more than a float32 convolution holds exactly"
                )
        return kinds

    # --- inputs and members -----------------------------------------------------------------------------------------

    def _image(self, name: str) -> str:
        """`(N, C, H, W)` of any example."""
        size = self.sizes[self.program.input.name]
        return name if len(self.shape) == 3 else self.graph.add("Reshape", name, np.array([-1, *size], np.int64))

    def _pixels(self, name: str) -> str:
        plain = self.graph.add("Cast", self._image(name), to="float32")
        doubled = self.graph.add("Mul", plain, np.float32(2))
        return self.graph.add("Sub", doubled, np.float32(255))

    def _features(self, name: str) -> str:
        """Standardized in float32, then rounded to integers in units of 2^-24."""
        if "input.mean" in self.packed.arrays:
            name = self.graph.add("Sub", name, self.packed.array("input.mean", 0))
            name = self.graph.add("Div", name, self.packed.array("input.std", 0))
        wide = self.graph.add("Cast", self._image(name), to="float64")
        return self.graph.add("Round", self.graph.add("Mul", wide, np.float64(2**FEATURE_BITS)))

    def _member(self, member: int, given: str) -> str:
        """The integers of one member, int64 `(1, N, outputs)`."""
        self.member, self.values = member, {self.program.input.name: given}
        for op in self.program.ops[1:]:
            self.values[op.name] = self._convert(op)
        integers = self.graph.add("Cast", self._vector(self.program.output), to="int64")
        return self.graph.add("Unsqueeze", integers, np.array([0], np.int64))

    def _vector(self, name: str) -> str:
        """A value as `(N, C)`."""
        return self.graph.add("Flatten", self.values[name], axis=1)

    def _read(self, source: str, op: Op) -> str:
        """A value in the type of what is made of it."""
        if self.kinds[source] == self.kinds[op.name]:
            return self.values[source]
        return self.graph.add("Cast", self.values[source], to=self.kinds[op.name].name)

    # --- operations -------------------------------------------------------------------------------------------------

    def _convert(self, op: Op) -> str:
        if isinstance(op, Linear):
            return self._linear(op)
        if isinstance(op, Conv2d):
            weights = self._weights(op).transpose(0, 3, 1, 2)
            bias = self.packed.bias(op, self.member).astype(np.float32)
            window = _window(op.kernel, op.stride, op.padding) | {"dilations": op.dilation, "group": op.groups}
            return self.graph.add("Conv", self._read(op.source, op), weights.astype(np.float32), bias, **window)
        if isinstance(op, SumPool):  # an average would round
            channels = self.sizes[op.name][0]
            ones = np.ones((channels, 1, *op.kernel), np.float32)
            window = _window(op.kernel, op.stride, op.padding)
            return self.graph.add("Conv", self._read(op.source, op), ones, **window, group=channels)
        if isinstance(op, MaxPool):
            return self.graph.add("MaxPool", self.values[op.source], **_window(op.kernel, op.stride, op.padding))
        if isinstance(op, Add):
            parts = [
                self.graph.add("Mul", self._read(source, op), self.kinds[op.name].type(factor))
                for source, factor in zip(op.sources, op.factors, strict=True)
            ]
            return self.graph.add("Add", *parts)
        if isinstance(op, Threshold):
            return self._threshold(op)
        if isinstance(op, Encode):
            return self._read(op.source, op)
        assert isinstance(op, Flatten)
        return self._as_image(self._vector(op.source))

    def _as_image(self, name: str) -> str:
        """`(N, C)` as `(N, C, 1, 1)`: all values between operations have four axes."""
        return self.graph.add("Unsqueeze", name, np.array([2, 3], np.int64))

    def _weights(self, op: Linear | Conv2d) -> Array:
        """The integers of the weights, `(O, kh, kw, I / groups)`."""
        codes = self.packed.weight_codes(op, self.member).astype(np.int64)
        return codes * op.weight.stride + op.weight.low

    def _linear(self, op: Linear) -> str:
        kind = self.kinds[op.name]
        weights = self._weights(op).reshape(op.out_features, op.in_features).T.astype(kind)
        flat = self.graph.add("Flatten", self._read(op.source, op), axis=1)
        sums = self.graph.add("MatMul", flat, np.ascontiguousarray(weights))
        if op.bias:
            sums = self.graph.add("Add", sums, self.packed.bias(op, self.member).astype(kind))
        return self._as_image(sums)

    def _threshold(self, op: Threshold) -> str:
        """`low + stride *` the number of thresholds that are reached: they lie along a last axis of their own."""
        kind, made = self.kinds[op.source], self.kinds[op.name]
        value = self.values[op.source]
        flips = self.packed.flips(op, self.member)
        if flips.any():
            value = self.graph.add("Mul", value, np.where(flips, -1, 1).astype(kind).reshape(-1, 1, 1))
        table = np.moveaxis(self.packed.thresholds(op, self.member), 1, 2).astype(kind)  # (cases, C, T)
        if op.selector is None:
            levels: str | Array = table[0][:, None, None, :]
        else:
            levels = self.graph.add("Gather", table.reshape(-1, table.shape[-1]), self._rows(op), axis=0)
        reached = self.graph.add("GreaterOrEqual", self.graph.add("Unsqueeze", value, np.array([4], np.int64)), levels)
        counts = self.graph.add("Cast", reached, to=made.name)
        code = self.graph.add("ReduceSum", counts, np.array([4], np.int64), keepdims=0)
        scaled = self.graph.add("Mul", code, made.type(op.lattice.stride))
        return self.graph.add("Add", scaled, made.type(op.lattice.low))

    def _rows(self, op: Threshold) -> str:
        """Where the thresholds of each element stand in a table of `(cases * C)` rows."""
        assert op.selector is not None
        lattice = self.program.lattices[op.selector]
        integers = self.graph.add("Cast", self.values[op.selector], to="int64")
        code = self.graph.add("Div", self.graph.add("Sub", integers, np.int64(lattice.low)), np.int64(lattice.stride))
        first = self.graph.add("Mul", code, np.int64(op.channels))
        return self.graph.add("Add", first, np.arange(op.channels, dtype=np.int64).reshape(-1, 1, 1))

    # --- heads, in float64 ------------------------------------------------------------------------------------------

    def _heads(self, name: str) -> Array:
        """An array of the head, with all members."""
        return np.stack([self.packed.array(name, member) for member in range(self.packed.members)]).astype(np.float64)

    def _softmax(self, stacked: str, outputs: int) -> None:
        scales = self.program.step / np.exp(self._heads("head.log_scale"))
        probs = self.graph.add("Softmax", self.graph.add("Mul", stacked, scales.reshape(-1, 1, 1)), axis=-1)
        self._emit("probabilities", self._average(probs), outputs)

    def _gaussian(self, stacked: str) -> None:
        """Moments of the mixture with equal weights of normal predictions; see `model._mix`."""
        graph, weight = self.graph, self._heads("head.weight")
        arrays, outputs = self.packed.arrays, weight.shape[1]
        unit, shift = (
            arrays[f"target.{name}"][0].astype(np.float64) if f"target.{name}" in arrays else np.full(outputs, usual)
            for name, usual in (("std", 1.0), ("mean", 0.0))
        )
        # Around the shift, which would cost digits.
        parts = graph.add("MatMul", stacked, np.moveaxis(weight, 1, 2) * self.program.step * unit)
        noise = np.exp(self._heads("head.log_noise"))[:, None, :] * unit**2
        center = self._average(parts)
        gaps = graph.add("Sub", parts, center)
        squares = graph.add("Mul", gaps, gaps)
        var = self._average(graph.add("Add", squares, noise))
        third = self._average(graph.add("Mul", gaps, graph.add("Add", squares, 3 * noise)))
        inner = graph.add("Add", graph.add("Mul", squares, graph.add("Add", squares, 6 * noise)), 3 * noise**2)
        fourth = self._average(inner)
        self._emit("mean", graph.add("Add", center, shift), outputs)
        self._emit("var", var, outputs)
        self._emit("skewness", graph.add("Div", third, graph.add("Pow", var, np.float64(1.5))), outputs)
        self._emit("kurtosis", graph.add("Div", fourth, graph.add("Mul", var, var)), outputs)

    def _average(self, stacked: str) -> str:
        total = self.graph.add("ReduceSum", stacked, np.array([0], np.int64), keepdims=0)
        return self.graph.add("Div", total, np.float64(self.packed.members))

    def _emit(self, name: str, value: str, outputs: int) -> None:
        self.graph.output(self.graph.add("Cast", value, to="float32", output=name), "float32", ("N", outputs))


def _window(kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int]) -> dict[str, Any]:
    return {"kernel_shape": kernel, "strides": stride, "pads": (*padding, *padding)}
