"""What a packed network is: a short list of integer operations, and the arrays that they read.

A program is a directed acyclic graph in single-assignment form: every operation has a name, reads values of operations
that stand before it and makes one value of its own name. Nothing here needs torch, and nothing here computes.

Values are of two kinds, both laid out `(N, H, W, C)`; a vector of features is `(N, 1, 1, F)`, a signal `(N, 1, L, C)`.

- **Codes**, small unsigned integers on a `Lattice`: code k stands for the integer `low + stride * k`. They can be cut
  into bit-planes, and only they enter a product. `Input`, `Threshold` and `Encode` make codes.
- **Integers**, signed, at most 32 bits (64 behind real-valued features). `Linear`, `Conv2d`, `SumPool` and `Add` make
  integers. `MaxPool` and `Flatten` keep the kind of what they read.

Integers stand for real numbers in a unit of their own (pixels are odd multiples of 1/256). Units are of no interest to
the arithmetic, since all of them have been folded into thresholds; the last one is `Program.step`: the float network
gives `step` times the integers that the program gives.

An ensemble of S networks is one program with S sets of arrays. Every array has a leading axis of members: S entries, or
one entry that all members share.

====================  ============================  ==================================================================
array                 shape after the member axis   meaning
====================  ============================  ==================================================================
`NAME.weight`         `(planes, bytes)` uint8       bit-planes of the codes of the weights; see `Packed.weight_codes`
`NAME.bias`           `(O,)` signed                 integers that a product starts from; where `bias` is true
`NAME.thresholds`     `(cases, T, C)` signed        see `Threshold`
`NAME.flips`          `(bytes,)` uint8              one bit a channel, little-endian: where the direction is down
`head.log_scale`      `()` float32                  softmax head: logits are divided by its exponential
`head.weight`         `(outputs, features)` float32 Gaussian head
`head.log_noise`      `(outputs,)` float32          Gaussian head: logarithm of the noise variance
`input.mean`, `.std`  `(F,)` float32                standardization of real-valued features, if any; always shared
`target.mean`,`.std`  `(outputs,)` float32          standardization of regression targets, if any; always shared
====================  ============================  ==================================================================
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[Any]
Pair: TypeAlias = tuple[int, int]

# Real-valued features are rounded to multiples of 2^-24, and must lie below 2^12 after standardization: sums of 2^17 of
# them are exact in 53 bits, in whatever order they are added.
FEATURE_BITS = 24
FEATURE_LIMIT = 2**12
PIXEL_BITS = 8
INT32_MAX = 2**31 - 1
WIDE_MAX = 2**53
# Arrays of the head. Those of operations are called as layers are, of which one may be called `head` too.
HEAD_ARRAYS = {"softmax": ("head.log_scale",), "gaussian": ("head.weight", "head.log_noise")}


class PackedError(ValueError):
    """A packed file or program that cannot be used: damaged, ill-formed or inconsistent. One clear line."""


@dataclass(frozen=True)
class Lattice:
    """Integers at equal distances: code k in 0 … levels - 1 stands for `low + stride * k`.

    Signs are `Lattice(-1, 2, 2)`, ternary weights `Lattice(-1, 1, 3)`, pixels `Lattice(-255, 2, 256)`.
    """

    low: int
    stride: int
    levels: int

    @property
    def high(self) -> int:
        return self.low + self.stride * (self.levels - 1)

    @property
    def planes(self) -> int:
        """Bit-planes that hold a code; none for a constant."""
        return (self.levels - 1).bit_length()

    @property
    def symmetric(self) -> bool:
        """Whether every plane is a sign: the integer is `stride / 2 * Σ_p 2^p (2 bit_p - 1)`.

        True for signs, quaternary levels and pixels: their products need only xor and popcount.
        """
        return self.low == -self.high and self.levels == 1 << self.planes


PIXELS = Lattice(-255, 2, 256)


@dataclass(frozen=True)
class Input:
    """What enters.

    Attributes
    ----------
    kind : "pixels" or "features"
        Pixels are uint8 and codes of `PIXELS`. Features are real numbers, standardized in float32 by `input.mean` and
        `input.std` where the file has them, and rounded to integers in units of 2^-24.
    shape : tuple of int or None
        Shape of one example, `(C, H, W)`, `(C, L)` or `(F,)`; None if any shape that the operations allow will do.
    rank : int or None
        Dimensions of one example where the shape is None but the layers say; the operations take a signal for an image.
    """

    name: str
    kind: str
    shape: tuple[int, ...] | None = None
    rank: int | None = None
    sources: ClassVar[tuple[str, ...]] = ()


@dataclass(frozen=True)
class Linear:
    """Codes `(N, 1, 1, I)` to integers `(N, 1, 1, O)`: `Σ_i w[o, i] x[i] + bias[o]`.

    It alone may read real-valued features too, and then makes integers of more than 32 bits.
    """

    name: str
    source: str
    in_features: int
    out_features: int
    weight: Lattice
    bias: bool

    @property
    def sources(self) -> tuple[str, ...]:
        return (self.source,)

    @property
    def weight_shape(self) -> tuple[int, int, int, int]:
        """`(O, 1, 1, I)`: a convolution with one tap."""
        return self.out_features, 1, 1, self.in_features


@dataclass(frozen=True)
class Conv2d:
    """Codes `(N, H, W, I)` to integers `(N, H', W', O)`. Padding counts as the integer zero, not as code zero."""

    name: str
    source: str
    in_channels: int
    out_channels: int
    kernel: Pair
    stride: Pair
    padding: Pair
    dilation: Pair
    groups: int
    weight: Lattice
    bias: bool

    @property
    def sources(self) -> tuple[str, ...]:
        return (self.source,)

    @property
    def weight_shape(self) -> tuple[int, int, int, int]:
        """`(O, kh, kw, I / groups)`."""
        return self.out_channels, *self.kernel, self.in_channels // self.groups


@dataclass(frozen=True)
class SumPool:
    """Sums over windows (average pooling before its division): codes or integers in, integers out. Padding adds 0."""

    name: str
    source: str
    kernel: Pair
    stride: Pair
    padding: Pair

    @property
    def sources(self) -> tuple[str, ...]:
        return (self.source,)


@dataclass(frozen=True)
class MaxPool:
    """Maxima over windows; codes stay codes of the same lattice. Padding never wins."""

    name: str
    source: str
    kernel: Pair
    stride: Pair
    padding: Pair

    @property
    def sources(self) -> tuple[str, ...]:
        return (self.source,)


@dataclass(frozen=True)
class Add:
    """`factors[0] * a + factors[1] * b` of two values of one shape: integers out."""

    name: str
    sources: tuple[str, str]
    factors: Pair


@dataclass(frozen=True)
class Threshold:
    """Everything between two products in one comparison: codes of `lattice` out.

    With q the integer of channel c that is read, d = -1 where the channel flips and +1 elsewhere, the code is the
    number of thresholds t in 0 … T - 1, T = lattice.levels - 1, with `d * q >= thresholds[case, t, c]`. Thresholds do
    not descend with t. A constant channel has thresholds below or above all that q can be.

    Attributes
    ----------
    channels : int
        C.
    selector : str or None
        Codes of the same shape whose code is the `case`, for a shortcut that is added behind a batch norm; without one
        there is a single case.
    cases : int
        Levels of the selector, or 1.
    """

    name: str
    source: str
    channels: int
    lattice: Lattice
    selector: str | None = None
    cases: int = 1

    @property
    def sources(self) -> tuple[str, ...]:
        return (self.source,) if self.selector is None else (self.source, self.selector)


@dataclass(frozen=True)
class Encode:
    """Integers, all of them on `lattice`, to their codes: `(q - low) / stride`. For sums that enter a product."""

    name: str
    source: str
    lattice: Lattice

    @property
    def sources(self) -> tuple[str, ...]:
        return (self.source,)


@dataclass(frozen=True)
class Flatten:
    """`(N, H, W, C)` to `(N, 1, 1, C * H * W)`, features in the order of torch: channel, row, column."""

    name: str
    source: str

    @property
    def sources(self) -> tuple[str, ...]:
        return (self.source,)


Op: TypeAlias = Input | Linear | Conv2d | SumPool | MaxPool | Add | Threshold | Encode | Flatten
Product: TypeAlias = Linear | Conv2d
OPS: dict[str, type[Any]] = {
    kind.__name__: kind for kind in (Input, Linear, Conv2d, SumPool, MaxPool, Add, Threshold, Encode, Flatten)
}


@dataclass(frozen=True)
class Program:
    """The operations in order, and what becomes of the last value.

    Attributes
    ----------
    ops : tuple of Op
        The first, and only the first, is an `Input`.
    output : str
        The value before the head, `(N, 1, 1, outputs of the body)`.
    step : float
        Value of one integer of the output; for an output of codes, of the integers on their lattice.
    head : "softmax" or "gaussian"
    classes : tuple of str
        Names of the classes; `()` for regression, or where nobody gave names.
    """

    ops: tuple[Op, ...]
    output: str
    step: float
    head: str
    classes: tuple[str, ...] = ()

    @cached_property
    def by_name(self) -> dict[str, Op]:
        return {op.name: op for op in self.ops}

    @property
    def input(self) -> Input:
        first = self.ops[0]
        assert isinstance(first, Input)
        return first

    @property
    def head_arrays(self) -> tuple[str, ...]:
        """Names of the arrays that belong to the head; all others are of operations, or scales of the data."""
        return HEAD_ARRAYS[self.head]

    @cached_property
    def lattices(self) -> dict[str, Lattice]:
        """The lattice of every value that is codes."""
        found: dict[str, Lattice] = {}
        for op in self.ops:
            if isinstance(op, Input):
                if op.kind == "pixels":
                    found[op.name] = PIXELS
            elif isinstance(op, (Threshold, Encode)):
                found[op.name] = op.lattice
            elif isinstance(op, (MaxPool, Flatten)) and op.source in found:
                found[op.name] = found[op.source]
        return found

    def products(self) -> Iterator[Product]:
        """The operations with weights."""
        return (op for op in self.ops if isinstance(op, (Linear, Conv2d)))


@dataclass(frozen=True, eq=False)
class Packed:
    """A program with its arrays, as they stand in the file; made by `bqn.deploy.pack` or `load_packed`, and valid.

    Attributes
    ----------
    program : Program
    members : int
        S.
    arrays : dict
        As in the table above, with the leading axis of members.
    about : dict
        What whoever packed it had to say: texts and numbers by name. Nothing depends on it.
    """

    program: Program
    members: int
    arrays: dict[str, Array]
    about: dict[str, Any] = field(default_factory=dict)

    def array(self, name: str, member: int) -> Array:
        """An array of one member, without the leading axis."""
        stored = self.arrays[name]
        own: Array = stored[member if len(stored) > 1 else 0]
        return own

    def weight_codes(self, op: Product, member: int) -> Array:
        """Codes of the weights, uint8 `(O, kh, kw, I / groups)`; the integers are `low + stride * code`.

        In the file each plane is one stream of bits in this order, the least significant bit of a byte first, and the
        planes follow one another from the least significant.
        """
        shape = op.weight_shape
        count = int(np.prod(shape))
        planes = np.unpackbits(self.array(f"{op.name}.weight", member), axis=-1, count=count, bitorder="little")
        codes = np.zeros(count, np.uint8)
        for position, plane in enumerate(planes):
            codes |= plane << np.uint8(position)
        return codes.reshape(shape)

    def bias(self, op: Product, member: int) -> Array:
        """What the sums start from, int64 `(O,)`; zeros if the operation has no bias."""
        if not op.bias:
            return np.zeros(op.weight_shape[0], np.int64)
        return self.array(f"{op.name}.bias", member).astype(np.int64)

    def thresholds(self, op: Threshold, member: int) -> Array:
        """Thresholds, int64 `(cases, T, C)`."""
        return self.array(f"{op.name}.thresholds", member).astype(np.int64)

    def flips(self, op: Threshold, member: int) -> Array:
        """Channels whose direction is down, bool `(C,)`."""
        bits = self.array(f"{op.name}.flips", member)
        return np.unpackbits(bits, count=op.channels, bitorder="little").astype(bool)
