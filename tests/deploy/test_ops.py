"""The arithmetic in numpy against sums over plain integers."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bqn.deploy import ops
from bqn.deploy.program import Lattice

LATTICES = (
    Lattice(-1, 2, 2),
    Lattice(-1, 1, 3),
    Lattice(-3, 2, 4),
    Lattice(-255, 2, 256),
    Lattice(-8, 4, 5),
    Lattice(0, 1, 2),
    Lattice(5, 3, 7),
    Lattice(4, 1, 1),
)
lattices = st.sampled_from(LATTICES)
QUICK = settings(deadline=None, max_examples=80)


def codes_of(rng, lattice, *shape):
    return rng.integers(0, lattice.levels, shape).astype(np.uint8 if lattice.planes <= 8 else np.uint16)


@QUICK
@given(st.integers(1, 140), st.integers(1, 12), st.integers(0, 99))
def test_pack_and_unpack(channels, planes, seed):
    codes = np.random.default_rng(seed).integers(0, 2**planes, (3, 2, channels)).astype(np.uint16)
    packed = ops.pack(codes, planes)
    assert packed.shape == (3, 2, planes, -(-channels // 64))
    np.testing.assert_array_equal(ops.unpack(packed, channels), codes)
    # Channel c is bit c % 64 of word c // 64, and the bits behind the last channel are zero.
    last = channels - 1
    np.testing.assert_array_equal(
        packed[..., 0, last // 64] >> np.uint64(last % 64), (codes[..., last] & 1).astype(np.uint64)
    )


@QUICK
@given(st.integers(1, 200), st.integers(1, 20), lattices, lattices, st.integers(0, 99))
def test_linear(features, outputs, x_lattice, w_lattice, seed):
    rng = np.random.default_rng(seed)
    x, w = codes_of(rng, x_lattice, 4, features), codes_of(rng, w_lattice, outputs, features)
    bias = rng.integers(-50, 50, outputs).astype(np.int32)
    expected = ops.decode(x, x_lattice).astype(np.int64) @ ops.decode(w, w_lattice).astype(np.int64).T + bias
    given_ = ops.linear(
        ops.pack(x, x_lattice.planes), ops.pack(w, w_lattice.planes), x_lattice, w_lattice, features, bias
    )
    assert given_.dtype == np.int32
    np.testing.assert_array_equal(given_, expected)


def plain_convolution(x, w, stride, padding, dilation, groups, bias):
    """Sums over integers, window by window: `(N, H, W, I)` and `(O, kh, kw, I / groups)`."""
    padded = np.pad(x, ((0, 0), (padding[0],) * 2, (padding[1],) * 2, (0, 0)))
    rows = ops.output_size(x.shape[1], w.shape[1], stride[0], padding[0], dilation[0])
    columns = ops.output_size(x.shape[2], w.shape[2], stride[1], padding[1], dilation[1])
    result = np.zeros((len(x), rows, columns, len(w)), np.int64)
    inner, outer = w.shape[3], len(w) // groups
    for r in range(rows):
        for c in range(columns):
            top, left = r * stride[0], c * stride[1]
            window = padded[
                :,
                top : top + dilation[0] * (w.shape[1] - 1) + 1 : dilation[0],
                left : left + dilation[1] * (w.shape[2] - 1) + 1 : dilation[1],
            ]
            for o in range(len(w)):
                part = window[..., o // outer * inner : (o // outer + 1) * inner]
                result[:, r, c, o] = (part * w[o]).sum((1, 2, 3)) + bias[o]
    return result


pairs = st.tuples(st.integers(1, 3), st.integers(1, 3))
paddings = st.tuples(st.integers(0, 3), st.integers(0, 3))


@QUICK
@given(
    channels=st.sampled_from((1, 3, 47, 48, 70)),
    kernel=pairs,
    stride=pairs,
    padding=paddings,
    dilation=pairs,
    x_lattice=lattices,
    w_lattice=lattices,
    seed=st.integers(0, 99),
)
def test_conv2d(channels, kernel, stride, padding, dilation, x_lattice, w_lattice, seed):
    rng = np.random.default_rng(seed)
    x, w = codes_of(rng, x_lattice, 2, 7, 8, channels), codes_of(rng, w_lattice, 5, *kernel, channels)
    bias = rng.integers(-50, 50, 5).astype(np.int32)
    integers = [ops.decode(part, on).astype(np.int64) for part, on in ((x, x_lattice), (w, w_lattice))]
    expected = plain_convolution(*integers, stride, padding, dilation, 1, bias)
    packed = ops.pack(x, x_lattice.planes), ops.pack(w, w_lattice.planes)
    given_ = ops.conv2d(*packed, x_lattice, w_lattice, channels, stride, padding, dilation, bias)
    np.testing.assert_array_equal(given_, expected)


@QUICK
@given(
    groups=st.sampled_from((2, 3, 6)), kernel=pairs, stride=pairs, padding=paddings, dilation=pairs,
    seed=st.integers(0, 99),
)  # fmt: skip
def test_grouped_conv2d(groups, kernel, stride, padding, dilation, seed):
    rng = np.random.default_rng(seed)
    x = rng.integers(-9, 9, (2, 7, 8, 6)).astype(np.int32)
    w = rng.integers(-3, 3, (12, *kernel, 6 // groups)).astype(np.int32)
    bias = rng.integers(-50, 50, 12).astype(np.int32)
    expected = plain_convolution(x, w, stride, padding, dilation, groups, bias)
    np.testing.assert_array_equal(ops.grouped_conv2d(x, w, groups, stride, padding, dilation, bias), expected)


@QUICK
@given(kernel=pairs, stride=pairs, seed=st.integers(0, 99), data=st.data())
def test_pooling(kernel, stride, seed, data):
    padding = tuple(data.draw(st.integers(0, size // 2)) for size in kernel)
    x = np.random.default_rng(seed).integers(-9, 9, (2, 7, 8, 5)).astype(np.int32)
    lowest = np.pad(x, ((0, 0), (padding[0],) * 2, (padding[1],) * 2, (0, 0)), constant_values=-(2**31))
    zeros = np.pad(x, ((0, 0), (padding[0],) * 2, (padding[1],) * 2, (0, 0)))
    bits = ops.pack((x > 0).astype(np.uint8), 1)
    for given_, source, join in (
        (ops.max_pool(x, kernel, stride, padding), lowest, np.max),
        (ops.sum_pool(x, kernel, stride, padding), zeros, np.sum),
        (ops.unpack(ops.max_pool_bits(bits, kernel, stride, padding), 5), lowest > 0, np.max),
    ):
        for r in range(given_.shape[1]):
            for c in range(given_.shape[2]):
                top, left = r * stride[0], c * stride[1]
                window = source[:, top : top + kernel[0], left : left + kernel[1]]
                np.testing.assert_array_equal(given_[:, r, c], join(window, axis=(1, 2)))


@pytest.mark.parametrize("cases", [1, 3])
def test_threshold(cases):
    rng = np.random.default_rng(0)
    q = rng.integers(-10, 11, (3, 2, 2, 70)).astype(np.int32)
    levels = np.sort(rng.integers(-12, 13, (cases, 4, 70)), axis=1).astype(np.int32)
    flips = rng.random(70) < 0.5
    selector = rng.integers(0, cases, q.shape).astype(np.uint8) if cases > 1 else None
    given_ = ops.unpack(ops.threshold(q, levels, flips, 3, selector), 70)
    for index in np.ndindex(q.shape):
        case = 0 if selector is None else selector[index]
        directed = -q[index] if flips[index[-1]] else q[index]
        assert given_[index] == sum(directed >= t for t in levels[case, :, index[-1]])


def test_count_bits_without_numpys_own(monkeypatch):
    """The table that old numpy versions use."""
    import importlib

    words = np.random.default_rng(0).integers(0, 2**63, 50, dtype=np.uint64)
    words[:2] = 0, np.iinfo(np.uint64).max
    expected = [int(word).bit_count() for word in words]
    np.testing.assert_array_equal(ops.count_bits(words), expected)
    monkeypatch.delattr(np, "bitwise_count", raising=False)
    try:
        table = importlib.reload(ops).count_bits(words)
    finally:
        monkeypatch.undo()
        importlib.reload(ops)
    np.testing.assert_array_equal(table, expected)


@pytest.mark.parametrize("channels", [4, 70])
def test_empty_batches(channels):
    signs = Lattice(-1, 2, 2)
    x, weight = np.zeros((0, 5, 6, channels), np.uint8), np.zeros((6, 3, 3, channels), np.uint8)
    bias, windows = np.zeros(6, np.int32), ((1, 2), (1, 1), (1, 1))
    assert ops.conv2d(ops.pack(x, 1), ops.pack(weight, 1), signs, signs, channels, *windows, bias).shape == (0, 5, 3, 6)
    narrow = weight[..., : channels // 2].astype(np.int32)
    assert ops.grouped_conv2d(x.astype(np.int32), narrow, 2, *windows, bias).shape == (0, 5, 3, 6)


def test_windows_too_many_to_copy_give_the_same(monkeypatch):
    rng, lattice = np.random.default_rng(0), Lattice(-1, 1, 3)
    x, weight = (ops.pack(codes_of(rng, lattice, *shape), 2) for shape in ((2, 7, 8, 5), (4, 3, 3, 5)))
    arguments = (x, weight, lattice, lattice, 5, (1, 1), (1, 1), (1, 1), np.arange(4, dtype=np.int32))
    copied = ops.conv2d(*arguments)
    monkeypatch.setattr(ops, "_MOST_COPIED", 0)
    np.testing.assert_array_equal(ops.conv2d(*arguments), copied)
