"""The arithmetic of the runtime, in numpy alone: xor or and, popcount, comparisons, sums.

These functions say what the native kernels must compute: `_native` replaces them one by one where it can, with the same
arguments and the same answers. Layouts, all of them C-contiguous:

- packed codes: uint64 `(N, H, W, planes, words)`; channel c is bit c % 64 of word c // 64, planes from the least
  significant, and the bits behind the last channel are zero;
- packed weights: uint64 `(O, kh, kw, planes, words)`, likewise along the input channels;
- integers: int32 `(N, H, W, C)`.

Lattices are triples `(low, stride, levels)`: code k stands for `low + stride * k`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from bqn.deploy.program import Lattice, Pair

Packed64 = npt.NDArray[np.uint64]
Int32 = npt.NDArray[np.int32]
Codes = npt.NDArray[np.unsignedinteger[Any]]

Tap = tuple[Pair, tuple[slice, slice], tuple[slice, slice]]

# Numbers that a product forms at once: few enough to stay in a cache.
_BLOCK = 2**17
# Channels below which a word for each pixel would be a waste, and how many codes of windows may be copied out at once.
_NARROW = 48
_MOST_COPIED = 2**26

if hasattr(np, "bitwise_count"):
    count_bits: Callable[[Packed64], npt.NDArray[np.uint8]] = np.bitwise_count
else:
    _COUNTS = np.array([value.bit_count() for value in range(2**16)], np.uint8)

    def count_bits(words: Packed64) -> npt.NDArray[np.uint8]:
        """The bits that are set in each word, for numpy before 2.0."""
        parts = np.ascontiguousarray(words).view(np.uint16).reshape(*words.shape, 4)
        counts: npt.NDArray[np.uint8] = _COUNTS[parts].sum(-1, dtype=np.uint8)
        return counts


# --- bit-planes -----------------------------------------------------------------------------------------------------


def pack(codes: Codes, planes: int) -> Packed64:
    """Cut codes `(..., C)` into bit-planes: `(..., planes, words)`."""
    channels = codes.shape[-1]
    words = -(-channels // 64)
    packed = np.zeros((*codes.shape[:-1], planes, words * 8), np.uint8)
    for plane in range(planes):
        bits = (codes >> codes.dtype.type(plane)) & codes.dtype.type(1)
        packed[..., plane, : -(-channels // 8)] = np.packbits(bits.astype(np.uint8), axis=-1, bitorder="little")
    return packed.view("<u8").astype(np.uint64, copy=False)


def unpack(packed: Packed64, channels: int) -> Codes:
    """Codes `(..., C)` from bit-planes `(..., planes, words)`: uint8, uint16 or uint32, whichever is the smallest."""
    planes = packed.shape[-2]
    codes = np.zeros(
        (*packed.shape[:-2], channels), np.uint8 if planes <= 8 else np.uint16 if planes <= 16 else np.uint32
    )
    streams = np.ascontiguousarray(packed).astype("<u8", copy=False).view(np.uint8)
    for plane in range(planes):
        bits = np.unpackbits(streams[..., plane, :], axis=-1, count=channels, bitorder="little")
        codes |= bits.astype(codes.dtype) << codes.dtype.type(plane)
    return codes


def decode(codes: Codes, lattice: Lattice) -> Int32:
    """The integers that codes stand for: int32 of the same shape."""
    return codes.astype(np.int32) * np.int32(lattice.stride) + np.int32(lattice.low)


# --- products -------------------------------------------------------------------------------------------------------


def linear(x: Packed64, weight: Packed64, x_lattice: Lattice, w_lattice: Lattice, features: int, bias: Int32) -> Int32:
    """`Σ_i w[o, i] x[n, i] + bias[o]`.

    Parameters
    ----------
    x : packed codes `(N, planes, words)`
    weight : packed weights `(O, planes, words)`
    features : int
        How many inputs there are, at most 64 * words.
    bias : int32 `(O,)`

    Returns
    -------
    int32 `(N, O)`
    """
    return bias + _dots(x, weight, x_lattice, w_lattice, features)


def conv2d(
    x: Packed64,
    weight: Packed64,
    x_lattice: Lattice,
    w_lattice: Lattice,
    channels: int,
    stride: Pair,
    padding: Pair,
    dilation: Pair,
    bias: Int32,
) -> Int32:
    """Convolution over two dimensions; padding counts as the integer zero, so taps beyond the border add nothing.

    Parameters
    ----------
    x : packed codes `(N, H, W, planes, words)`
    weight : packed weights `(O, kh, kw, planes, words)`
    channels : int
        How many input channels there are, at most 64 * words.
    bias : int32 `(O,)`

    Returns
    -------
    int32 `(N, H', W', O)`
    """
    kernel = (weight.shape[1], weight.shape[2])
    rows, columns = (
        output_size(size, *rest) for size, *rest in zip(x.shape[1:3], kernel, stride, padding, dilation, strict=True)
    )
    result = np.empty((len(x), rows, columns, len(weight)), np.int32)
    result[...] = bias
    places = list(taps(x.shape[1:3], (rows, columns), kernel, stride, padding, dilation))
    copied = math.prod(result.shape[:3]) * kernel[0] * kernel[1] * channels
    if channels < _NARROW and len(places) > 1 and copied <= _MOST_COPIED:
        return _narrow_conv2d(x, weight, x_lattice, w_lattice, channels, places, result)
    for (i, j), outputs, inputs in places:
        seen = x[:, inputs[0], inputs[1]]
        pixels = seen.reshape(math.prod(seen.shape[:3]), *x.shape[3:])
        dots = _dots(pixels, weight[:, i, j], x_lattice, w_lattice, channels)
        result[:, outputs[0], outputs[1]] += dots.reshape(*seen.shape[:3], len(weight))
    return result


def _narrow_conv2d(
    x: Packed64,
    weight: Packed64,
    x_lattice: Lattice,
    w_lattice: Lattice,
    channels: int,
    places: list[Tap],
    result: Int32,
) -> Int32:
    """Few channels: all of a window go into the same words.

    With x = a + b X for codes X, which are zero where there is padding, the sum is b Σ X w plus a times the weights
    within the image.
    """
    codes, filters = unpack(x, channels), unpack(weight, channels)
    windows = np.zeros((*result.shape[:3], *weight.shape[1:3], channels), codes.dtype)
    weight_sums = decode(filters, w_lattice).sum(-1, dtype=np.int32)
    for (i, j), outputs, inputs in places:
        windows[:, outputs[0], outputs[1], i, j] = codes[:, inputs[0], inputs[1]]
        result[:, outputs[0], outputs[1]] += np.int32(x_lattice.low) * weight_sums[:, i, j]
    count = weight.shape[1] * weight.shape[2] * channels
    dots = _dots(
        pack(windows.reshape(math.prod(result.shape[:3]), count), x_lattice.planes),
        pack(filters.reshape(len(weight), count), w_lattice.planes),
        Lattice(0, x_lattice.stride, x_lattice.levels),
        w_lattice,
        count,
    )
    result += dots.reshape(result.shape)
    return result


def grouped_conv2d(
    x: Int32, weight: Int32, groups: int, stride: Pair, padding: Pair, dilation: Pair, bias: Int32
) -> Int32:
    """Convolution in groups of channels, on plain integers: groups are too narrow for words of 64 channels.

    Parameters
    ----------
    x : int32 `(N, H, W, I)`
    weight : int32 `(O, kh, kw, I / groups)`

    Returns
    -------
    int32 `(N, H', W', O)`
    """
    kernel = (weight.shape[1], weight.shape[2])
    rows, columns = (
        output_size(size, *rest) for size, *rest in zip(x.shape[1:3], kernel, stride, padding, dilation, strict=True)
    )
    result = np.empty((len(x), rows, columns, len(weight)), np.int32)
    result[...] = bias
    filters = weight.reshape(groups, len(weight) // groups, *weight.shape[1:])
    for (i, j), outputs, inputs in taps(x.shape[1:3], (rows, columns), kernel, stride, padding, dilation):
        seen = x[:, inputs[0], inputs[1]]
        split = seen.reshape(*seen.shape[:3], groups, weight.shape[3])
        dots = np.einsum("nhwgi,goi->nhwgo", split, filters[:, :, i, j])
        result[:, outputs[0], outputs[1]] += dots.reshape(*seen.shape[:3], len(weight))
    return result


def _dots(x: Packed64, weight: Packed64, x_lattice: Lattice, w_lattice: Lattice, count: int) -> Int32:
    """`Σ_i w[o, i] x[m, i]` of packed `(M, P, words)` and `(O, Q, words)`: int32 `(M, O)`.

    With x = a + b X and w = c + d W for codes X and W, the sum is n a c + a d ΣW + c b ΣX + b d Σ 2^(p+q) |X_p ∧ W_q|;
    where both lattices are symmetric it is b d / 4 Σ 2^(p+q) (n - 2 |X_p ⊕ W_q|), over all pairs p, q of planes.
    """
    by_xor = x_lattice.symmetric and w_lattice.symmetric
    meet = np.bitwise_xor if by_xor else np.bitwise_and
    result = np.zeros((len(x), len(weight)), np.int32)
    block = max(1, _BLOCK // max(1, len(weight)))
    for start in range(0, len(x), block):
        part = x[start : start + block]
        sums = result[start : start + block]
        for p in range(x.shape[1]):
            for q in range(weight.shape[1]):
                common = np.zeros(sums.shape, np.int32)
                for word in range(x.shape[2]):
                    common += count_bits(meet(part[:, p, word, None], weight[None, :, q, word]))
                sums += common << np.int32(p + q)
    a, b, c, d = x_lattice.low, x_lattice.stride, w_lattice.low, w_lattice.stride
    if by_xor:
        total = ((1 << x_lattice.planes) - 1) * ((1 << w_lattice.planes) - 1) * count
        return np.int32(b * d // 4) * (np.int32(total) - np.int32(2) * result)
    result *= np.int32(b * d)
    result += np.int32(count * a * c)
    result += np.int32(a * d) * _code_sums(weight)
    result += np.int32(c * b) * _code_sums(x)[:, None]
    return result


def _code_sums(packed: Packed64) -> Int32:
    """The sum of the codes along the channels: `(M, planes, words)` to int32 `(M,)`."""
    ones = count_bits(packed).sum(-1, dtype=np.int32)
    places = np.int32(1) << np.arange(packed.shape[1], dtype=np.int32)
    sums: Int32 = (ones * places).sum(-1, dtype=np.int32)
    return sums


# --- thresholds -----------------------------------------------------------------------------------------------------


def threshold(
    q: npt.NDArray[np.signedinteger[Any]],
    thresholds: npt.NDArray[np.signedinteger[Any]],
    flips: npt.NDArray[np.bool_],
    planes: int,
    cases: Codes | None = None,
) -> Packed64:
    """How many thresholds each integer reaches, as packed codes.

    Parameters
    ----------
    q : int32 (int64 behind real-valued features) `(N, H, W, C)`
    thresholds : of the dtype of q, `(cases, T, C)`
    flips : bool `(C,)`
        Where -q is compared instead of q.
    planes : int
        Bit-planes of the result.
    cases : codes `(N, H, W, C)` or None
        Which thresholds hold for each element; the first where None.

    Returns
    -------
    packed codes `(N, H, W, planes, words)`
    """
    directed = np.where(flips, -q, q)
    codes = np.zeros(q.shape, np.uint8 if planes <= 8 else np.uint16)
    channel = np.arange(q.shape[-1])
    for step in range(thresholds.shape[1]):
        level = thresholds[0, step] if cases is None else thresholds[cases, step, channel]
        codes += directed >= level
    return pack(codes, planes)


# --- pooling --------------------------------------------------------------------------------------------------------


def sum_pool(x: Int32, kernel: Pair, stride: Pair, padding: Pair) -> Int32:
    """Sums over windows of int32 `(N, H, W, C)`; padding adds nothing."""
    return cast(Int32, _pool(x, kernel, stride, padding, np.add, 0))


def max_pool(x: Int32, kernel: Pair, stride: Pair, padding: Pair) -> Int32:
    """Maxima over windows of int32 `(N, H, W, C)`; padding never wins."""
    return cast(Int32, _pool(x, kernel, stride, padding, np.maximum, np.iinfo(np.int32).min))


def max_pool_bits(x: Packed64, kernel: Pair, stride: Pair, padding: Pair) -> Packed64:
    """Maxima over windows of packed codes of one plane `(N, H, W, 1, words)`: or."""
    return cast(Packed64, _pool(x, kernel, stride, padding, np.bitwise_or, 0))


def _pool(x: Any, kernel: Pair, stride: Pair, padding: Pair, join: Any, neutral: int) -> Any:
    rows, columns = (
        output_size(size, *rest) for size, *rest in zip(x.shape[1:3], kernel, stride, padding, strict=True)
    )
    result = np.full((len(x), rows, columns, *x.shape[3:]), neutral, x.dtype)
    for _, outputs, inputs in taps(x.shape[1:3], (rows, columns), kernel, stride, padding, (1, 1)):
        seen = result[:, outputs[0], outputs[1]]
        join(seen, x[:, inputs[0], inputs[1]], out=seen)
    return result


# --- windows --------------------------------------------------------------------------------------------------------


def output_size(size: int, kernel: int, stride: int, padding: int, dilation: int = 1) -> int:
    """Places at which a window fits; zero or less if it does not fit at all."""
    return (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1


def taps(
    size: tuple[int, ...], outputs: Pair, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair
) -> Iterator[Tap]:
    """For every element (i, j) of a window: the outputs for which it lies inside, and the inputs that they read."""
    per_axis = [
        [_along(extent, count, dilation[axis] * i - padding[axis], stride[axis]) for i in range(kernel[axis])]
        for axis, (extent, count) in enumerate(zip(size, outputs, strict=True))
    ]
    for i, row in enumerate(per_axis[0]):
        for j, column in enumerate(per_axis[1]):
            if row is not None and column is not None:
                yield (i, j), (row[0], column[0]), (row[1], column[1])


def _along(extent: int, outputs: int, offset: int, stride: int) -> tuple[slice, slice] | None:
    """Outputs o for which `stride * o + offset` lies within `extent`, and those inputs; None if there are none."""
    first = max(0, -(offset // stride)) if offset < 0 else 0
    last = min(outputs - 1, (extent - 1 - offset) // stride)
    if last < first:
        return None
    start = stride * first + offset
    return slice(first, last + 1), slice(start, stride * last + offset + 1, stride)
