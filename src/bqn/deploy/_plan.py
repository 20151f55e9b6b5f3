"""From a program to a plan for the compiled kernels: which kernel multiplies, what is fused, where everything lies.

A product, the sum pooling behind it and the thresholds behind that become one operation; flattening codes costs
nothing, because the weights behind it are reordered instead. What the kernels cannot do (real-valued features, integers
of more than 32 bits, lattices of one level) raises `NotNative`, and the runtime uses numpy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from bqn.deploy import _layout, _native
from bqn.deploy.ops import output_size
from bqn.deploy.program import (
    INT32_MAX,
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
    Pair,
    Product,
    SumPool,
    Threshold,
)

Array = npt.NDArray[Any]
_CODE = Lattice(0, 1, 2)
_CHUNK = 64  # images that go through a plan together at most,
_CHUNK_BYTES = 2**21  # and what their values may take
_MOST_BYTES = 2**28  # of memory for one image, or for what a product reads; beyond it numpy goes on, in parts


class NotNative(Exception):  # noqa: N818 - it is an answer, not an error
    """This program needs the numpy runtime; the message says why."""


@dataclass(frozen=True)
class Value:
    """What an operation made: `pixels` as they came, codes on a lattice, or integers with a bound on their magnitude.

    `flat` says that it stands for its features in torch's order (channel, row, column), although it lies `(H, W, C)`.
    """

    index: int
    height: int
    width: int
    channels: int
    lattice: Lattice | None
    bound: int
    pixels: bool = False
    flat: bool = False

    @property
    def planes(self) -> int:
        return 0 if self.lattice is None else self.lattice.planes

    @property
    def bytes(self) -> int:
        """Of one image."""
        if self.pixels:
            return self.height * self.width * self.channels
        per_pixel = 4 * self.channels if self.lattice is None else 8 * self.planes * -(-self.channels // 64)
        return self.height * self.width * per_pixel


def compile_program(packed: Packed, member: int, shape: tuple[int, ...], instructions: str) -> _native.Plan:
    """A plan that takes pixels uint8 `(N, *shape)` to the integers before the head, int32 `(N, outputs)`.

    Parameters
    ----------
    packed : Packed
    member : int
    shape : shape of one example, `(C, H, W)`, `(C, L)` or `(F,)`
    instructions : one of `_native.supported()`
    """
    builder = Builder(instructions)
    program = packed.program
    readers = Counter(source for op in program.ops for source in op.sources)
    readers[program.output] += 1
    following = {source: op for op in program.ops for source in op.sources if readers[source] == 1}
    values: dict[str, Value] = {}
    done: set[str] = set()
    for op in program.ops:
        if op.name in done:  # fused with a product before it
            continue
        if isinstance(op, Input):
            if op.kind != "pixels":
                raise NotNative("real-valued features")
            values[op.name] = builder.input_pixels(shape)
        elif isinstance(op, (Linear, Conv2d)):
            fused = _fused(op, following)
            values[fused[-1].name] = builder.product_of(packed, member, values[op.source], fused)
            done |= {each.name for each in fused}
        else:
            values[op.name] = builder.plain(op, [values[name] for name in op.sources], packed, member)
    return builder.finish(builder.flattened(builder.integers(values[program.output])), as_row=True)


def _fused(op: Product, following: dict[str, Op]) -> list[Op]:
    """The product, with the pooling in whole windows and the thresholds that nobody else reads between them."""
    chain: list[Op] = [op]
    behind = following.get(op.name)
    if isinstance(behind, SumPool) and behind.kernel == behind.stride and behind.padding == (0, 0):
        chain.append(behind)
        behind = following.get(behind.name)
    if isinstance(behind, Threshold) and behind.selector is None:
        chain.append(behind)
    return chain


class Builder:
    """Emits operations and places their values in the arena."""

    def __init__(self, instructions: str, library: Any = None) -> None:
        self.instructions = instructions
        self.library = library
        self._values: list[Value] = []
        self._ops: list[_native.OpStruct] = []
        self._keep: list[Array] = []
        self._scratch = 0
        self._work = 1

    # --- values -----------------------------------------------------------------------------------------------------

    def _value(
        self, height: int, width: int, channels: int, lattice: Lattice | None, bound: int = 0, **how: Any
    ) -> Value:
        if lattice is not None:
            if lattice.planes == 0:
                raise NotNative("a lattice of one level")
            bound = max(abs(lattice.low), abs(lattice.high))
        if min(height, width, channels) < 1:
            raise NotNative("an image without pixels")
        if bound >= INT32_MAX:
            raise NotNative("integers of more than 32 bits")
        value = Value(len(self._values), height, width, channels, lattice, bound, **how)
        self._values.append(value)
        return value

    def input_pixels(self, shape: tuple[int, ...]) -> Value:
        channels, height, width = {1: (*shape, 1, 1), 2: (shape[0], 1, *shape[1:])}.get(len(shape), shape)
        return self._value(height, width, channels, PIXELS, pixels=True)

    def input_codes(self, height: int, width: int, channels: int, lattice: Lattice) -> Value:
        return self._value(height, width, channels, lattice)

    def input_integers(self, height: int, width: int, channels: int) -> Value:
        return self._value(height, width, channels, None, INT32_MAX - 1)

    def codes(self, value: Value) -> Value:
        """Pixels as packed codes; codes as they are."""
        if not value.pixels:
            return value
        target = self._value(value.height, value.width, value.channels, value.lattice, flat=value.flat)
        return self._emit("pack", value, target)

    def integers(self, value: Value, lattice: Lattice | None = None) -> Value:
        """The integers that codes stand for, on their own lattice or another; integers as they are."""
        if value.lattice is None:
            return value
        value, on = self.codes(value), lattice or value.lattice
        assert on is not None
        top = on.low + on.stride * ((1 << value.planes) - 1)
        bound = max(abs(on.low), abs(top))
        target = self._value(value.height, value.width, value.channels, None, bound, flat=value.flat)
        return self._emit("decode", value, target, low=on.low, step=on.stride)

    def encode(self, value: Value, lattice: Lattice) -> Value:
        target = self._value(value.height, value.width, value.channels, lattice)
        return self._emit("encode", value, target, low=lattice.low, step=lattice.stride)

    def flattened(self, value: Value) -> Value:
        """A value that lies in torch's order."""
        if not value.flat:
            return value
        features = value.height * value.width * value.channels
        if value.pixels or value.height * value.width == 1:
            return replace(value, height=1, width=1, channels=features, flat=False)
        numbers = self.integers(value, _CODE)
        target = self._value(1, 1, features, None, numbers.bound)
        self._emit("flatten", numbers, target)
        if value.lattice is None:
            return target
        codes = self.encode(target, replace(_CODE, levels=1 << value.planes))
        return replace(codes, lattice=value.lattice, bound=value.bound)

    # --- operations -------------------------------------------------------------------------------------------------

    def _emit(self, kind: str, source: Value, target: Value, second: Value | None = None, **fields: Any) -> Value:
        for name, field in fields.items():
            if isinstance(field, np.ndarray):
                self._keep.append(field)
                fields[name] = field.ctypes.data
        self._ops.append(
            _native.OpStruct(
                **{
                    "kind": _native.KINDS.index(kind),
                    "source": source.index,
                    "second": -1 if second is None else second.index,
                    "target": target.index,
                    "height": source.height,
                    "width": source.width,
                    "channels": source.channels,
                    "planes": source.planes,
                    "raw": source.pixels,
                    "out_height": target.height,
                    "out_width": target.width,
                    "out_channels": target.channels,
                    "out_planes": target.planes,
                    **fields,
                }
            )
        )
        return target

    def plain(self, op: Op, sources: list[Value], packed: Packed, member: int) -> Value:
        """An operation without weights."""
        if isinstance(op, Flatten):
            flat = replace(sources[0], flat=True)
            return self.flattened(flat) if flat.pixels or flat.height * flat.width == 1 else flat
        sources = [self.flattened(source) for source in sources]
        if isinstance(op, Threshold):
            thresholds, flips = packed.thresholds(op, member), packed.flips(op, member)
            return self.threshold(sources[0], op.lattice, thresholds, flips, *sources[1:])
        if isinstance(op, Encode):
            return self.encode(self.integers(sources[0]), op.lattice)
        if isinstance(op, Add):
            return self.add(sources[0], sources[1], op.factors)
        assert isinstance(op, (SumPool, MaxPool))
        return self.pool(sources[0], op.kernel, op.stride, op.padding, largest=isinstance(op, MaxPool))

    def add(self, a: Value, b: Value, factors: Pair) -> Value:
        a, b = self.integers(a), self.integers(b)
        bound = abs(factors[0]) * a.bound + abs(factors[1]) * b.bound
        target = self._value(a.height, a.width, a.channels, None, bound)
        return self._emit("add", a, target, b, factor_a=factors[0], factor_b=factors[1])

    def pool(self, x: Value, kernel: Pair, stride: Pair, padding: Pair, largest: bool) -> Value:
        window: dict[str, Any] = {**_layout.window(kernel, stride, padding)}
        height, width = (
            output_size(size, *rest) for size, *rest in zip((x.height, x.width), kernel, stride, padding, strict=True)
        )
        if largest and x.lattice is not None:
            x = self.codes(x)
            assert x.lattice is not None
            if x.planes == 1:
                return self._emit("or_pool", x, self._value(height, width, x.channels, x.lattice), **window)
            numbers = self.integers(x, _CODE)
            target = self._value(height, width, x.channels, None, numbers.bound)
            largest_codes = self._emit("max_pool", numbers, target, **window)
            codes = self.encode(largest_codes, replace(_CODE, levels=1 << x.planes))
            return replace(codes, lattice=x.lattice, bound=x.bound)
        numbers = self.integers(x)
        bound = numbers.bound * (1 if largest else kernel[0] * kernel[1])
        target = self._value(height, width, x.channels, None, bound)
        return self._emit("max_pool" if largest else "sum_pool", numbers, target, **window)

    def threshold(
        self, x: Value, lattice: Lattice, thresholds: Array, flips: Array, selector: Value | None = None
    ) -> Value:
        numbers = self.integers(x)
        if selector is not None:
            selector = self.codes(selector)
        target = self._value(x.height, x.width, x.channels, lattice)
        fields: dict[str, Any] = {
            **_layout.thresholds(thresholds, flips, groups=1),
            "levels": lattice.levels,
            "classes": np.zeros(1, np.int32),
            "pool_h": 1,
            "pool_w": 1,
        }
        if selector is not None:
            fields["planes"] = selector.planes
        return self._emit("threshold", numbers, target, selector, **fields)

    # --- products ---------------------------------------------------------------------------------------------------

    def product_of(self, packed: Packed, member: int, source: Value, fused: Sequence[Op]) -> Value:
        """A product and what is fused with it."""
        op, *behind = fused
        assert isinstance(op, (Linear, Conv2d))
        codes, bias = packed.weight_codes(op, member), packed.bias(op, member)
        pooled = next((each.kernel for each in behind if isinstance(each, SumPool)), (1, 1))
        last = behind[-1] if behind and isinstance(behind[-1], Threshold) else None
        rules = None
        if last is not None:
            rules = (last.lattice, packed.thresholds(last, member), packed.flips(last, member))
        if isinstance(op, Conv2d):
            source = self.flattened(source)
            geometry = _layout.Geometry(op.stride, op.padding, op.dilation, op.groups, pooled)
        else:
            geometry = _layout.Geometry(pool=pooled)
            if source.flat and source.lattice is not None and not source.pixels:
                # A linear layer behind Flatten is a convolution whose kernel is as large as the image.
                shape = (op.out_features, source.channels, source.height, source.width)
                codes = np.ascontiguousarray(codes.reshape(shape).transpose(0, 2, 3, 1))
            else:
                source = self.flattened(source)
        return self.product(source, codes, op.weight, bias, geometry, rules)

    def product(
        self,
        x: Value,
        codes: Array,
        lattice: Lattice,
        bias: Array,
        geometry: _layout.Geometry,
        rules: tuple[Lattice, Array, Array] | None = None,
    ) -> Value:
        """Codes times weights: codes of the weights uint8 `(O, kh, kw, I / groups)`, then pooling and thresholds."""
        if x.lattice is None:
            raise NotNative("a product of integers that are not codes")
        if lattice.planes == 0 or (rules is not None and rules[0].planes == 0):
            raise NotNative("a lattice of one level")
        weights = _layout.Weights(codes, lattice)
        area = geometry.pool[0] * geometry.pool[1]
        largest = int((np.abs(weights.integers).sum((1, 2, 3)) * x.bound + np.abs(bias)).max(initial=0)) * area
        if 2 * largest >= INT32_MAX:  # sums of codes reach from one end of the integers to the other
            raise NotNative("integers of more than 32 bits")
        image = (x.height, x.width, x.channels)
        layout = _layout.choose(self.instructions, image, x.lattice, weights, geometry, x.pixels)
        if min(layout.pooled) < 1:
            raise NotNative("an image without pixels")
        if layout.reads_more_than(_MOST_BYTES, len(codes), 0 if rules is None else rules[0].levels):
            raise NotNative(f"a product that reads more than {_MOST_BYTES} bytes")
        if x.pixels and layout.mode in ("xor", "and"):
            x = self.codes(x)
        fields = layout.fields(weights, bias, rules)
        target = self._value(
            *layout.pooled, len(codes), None if rules is None else rules[0], largest if rules is None else 0
        )
        fields["block"] = layout.images_together(_CHUNK)
        fields["image_bytes"] = x.bytes if layout.direct else layout.image_bytes
        self._scratch = max(self._scratch, layout.scratch(fields["block"]))
        self._work += layout.rows * layout.columns * weights.integers.size
        return self._emit("product", x, target, **fields)

    # --- the end ----------------------------------------------------------------------------------------------------

    def finish(self, output: Value, as_row: bool = False) -> _native.Plan:
        """The plan. The first value is the input, and the last operation makes the output.

        Its results are packed codes `(N, H, W, planes, words)` or integers `(N, H, W, C)`; `(N, H * W * C)` as rows.
        """
        last_read = {0: len(self._ops), output.index: len(self._ops)}
        for step, op in enumerate(self._ops):
            for index in (op.source, op.second, op.target):
                last_read[index] = max(step, last_read.get(index, 0))
        if output.index == 0 or self._ops[-1].target != output.index:
            raise NotNative("an output that no operation makes last")
        placed: dict[int, tuple[int, int]] = {0: (-1, self._values[0].bytes), output.index: (-2, output.bytes)}
        live: list[tuple[int, int, int]] = []  # (offset, end, last read), in order
        for step, op in enumerate(self._ops):
            live = [each for each in live if each[2] >= step]
            if op.target not in placed:
                value = self._values[op.target]
                placed[op.target] = _place(live, value.bytes, last_read[op.target])
        places = [placed.get(value.index, (0, value.bytes)) for value in self._values]
        largest = max(offset + size for offset, size in places)
        if max(largest, self._scratch) > _MOST_BYTES:
            raise NotNative(f"an image that takes more than {_MOST_BYTES} bytes")
        chunk = max(1, min(_CHUNK, _CHUNK_BYTES // largest))
        per_pixel = -(-output.channels // 64)
        shape: tuple[int, ...] = (output.height, output.width)
        shape += (output.channels,) if output.lattice is None else (output.planes, per_pixel)
        if as_row:
            shape = (int(np.prod(shape)),)
        kind = np.int32 if output.lattice is None else np.uint64
        return _native.Plan(
            self._ops,
            self._keep,
            places,
            self._scratch,
            chunk,
            (shape, kind),
            self._work,
            self.instructions,
            self.library,
        )


def _place(live: list[tuple[int, int, int]], size: int, last: int) -> tuple[int, int]:
    """The first gap between live values that is large enough; `live` is kept in order."""
    room, offset = -(-size // 64) * 64, 0
    for position, (start, end, _) in enumerate(live):
        if start - offset >= room:
            live.insert(position, (offset, offset + room, last))
            return offset, size
        offset = end
    live.append((offset, offset + room, last))
    return offset, size
