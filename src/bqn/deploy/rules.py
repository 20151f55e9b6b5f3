"""What becomes of each layer of `bqn.nn` in a packed network: one function a kind of layer."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import cast

import numpy as np
import torch
from torch import Tensor
from torch.nn import Identity, Module

from bqn import nn
from bqn.deploy.bits import pack_bits, smallest
from bqn.deploy.folding import Pool, Step, Symbol, UnpackableError, common_unit, lattice_of
from bqn.deploy.lowering import REASON, Lowering, lowers
from bqn.deploy.ops import output_size
from bqn.deploy.program import (
    INT32_MAX,
    WIDE_MAX,
    Add,
    Array,
    Conv2d,
    Flatten,
    Lattice,
    Linear,
    MaxPool,
    Pair,
    Product,
    SumPool,
)
from bqn.nn._conv import _Conv
from bqn.nn._linear import WeightedSum
from bqn.nn._norm import _BatchNorm
from bqn.nn._pool import _AvgPool, _MaxPool, _Pool
from bqn.propagate import pooling

WEIGHT_LEVELS = 256
# Thresholds behind a shortcut are one set for each value of the other summand.
MOST_CASES = 256

Shape = tuple[int, ...]


# --- products -------------------------------------------------------------------------------------------------------


@lowers(nn.Linear)
def _linear(low: Lowering, name: str, layers: Sequence[nn.Linear], x: Symbol) -> Symbol:
    first = layers[0]
    if x.shape is not None and x.shape != (first.in_features,):
        raise UnpackableError(f"{name}: Linear would read {x.shape}, expected ({first.in_features},)")
    low.require_rank(x, 1, name)
    x = low.codes(name, _with_channels(x, first.in_features, name), name)
    shape = None if x.shape is None else (first.out_features,)

    def op(weight: Lattice) -> Linear:
        return Linear(name, x.name, first.in_features, first.out_features, weight, first.bias is not None)

    return _product(low, name, op, layers, x, first.in_features, shape)


@lowers(nn.Conv1d, nn.Conv2d)
def _conv(low: Lowering, name: str, layers: Sequence[_Conv], x: Symbol) -> Symbol:
    first = layers[0]
    geometry = first.geometry
    assert geometry is not None
    if x.real:
        raise UnpackableError(f"{name}: real-valued features enter a convolution; only Linear can take them")
    low.require_rank(x, 1 + first.spatial, name)
    kernel, stride, dilation = _pair(first.kernel_size, 1), _pair(geometry.stride, 1), _pair(geometry.dilation, 1)
    padding, groups = _pair(geometry.padding, 0), geometry.groups
    x = low.codes(name, _with_channels(x, first.in_channels, name), name)
    shape = _window_shape(x.shape, first.out_channels, first.spatial, name, kernel, stride, padding, dilation)

    def op(weight: Lattice) -> Conv2d:
        return Conv2d(
            name, x.name, first.in_channels, first.out_channels, kernel, stride, padding, dilation, groups, weight,
            first.bias is not None,
        )  # fmt: skip

    return _product(low, name, op, layers, x, first.in_channels // groups * math.prod(kernel), shape)


def _product(
    low: Lowering,
    name: str,
    make: Callable[[Lattice], Product],
    layers: Sequence[WeightedSum],
    x: Symbol,
    terms: int,
    shape: Shape | None,
) -> Symbol:
    """Emit a product with its weights and bias, and note what a sampled layer takes out of its sums."""
    weight_unit, lattice = _store_weights(low, name, layers)
    weight_error = terms * float(weight_unit) * _size(lattice) * x.error
    biases = [_tensor(layer.bias, name).tolist() for layer in layers if layer.bias is not None]
    # Where biases are finer than the sums, the integers of the weights grow; their codes stay.
    unit = common_unit([weight_unit * x.unit, *(Fraction(value) for bias in biases for value in bias)])
    finer = int(weight_unit * x.unit / unit)
    lattice = Lattice(finer * lattice.low, finer * lattice.stride, lattice.levels)
    integers = [[int(Fraction(value) / unit) for value in bias] for bias in biases]
    most = terms * _size(x) * _size(lattice) + max((abs(value) for bias in integers for value in bias), default=0)
    limit = WIDE_MAX if x.real else INT32_MAX - 1
    if most > limit:
        raise UnpackableError(f"{name}: its sums can reach {most} of their units, more than {limit}")
    if integers:
        low.store(f"{name}.bias", smallest([np.array(bias, np.int64) for bias in integers]))
    op = make(lattice)
    low.emit(op)
    result = Symbol(
        name, unit, -most, most, channels=op.weight_shape[0], shape=shape, flat=x.flat, error=weight_error, real=x.real
    ).rounded(terms)
    if layers[0].expected_shift is None:
        return result
    with torch.no_grad():
        return result.with_shifts(-torch.stack([layer._correction() for layer in layers]))


def _size(values: Symbol | Lattice) -> int:
    """The largest integer, whatever its sign."""
    return max(abs(values.low), abs(values.high))


def _store_weights(low: Lowering, name: str, layers: Sequence[WeightedSum]) -> tuple[Fraction, Lattice]:
    """The unit and the lattice of the weights of all members; an array of their bit-planes."""
    weights = [_tensor(layer.weight, name) for layer in layers]
    levels = sorted(set().union(*(_distinct(weight) for weight in weights)))
    unit, lattice = lattice_of(levels, WEIGHT_LEVELS, name)
    codes = {level: (int(Fraction(level) / unit) - lattice.low) // lattice.stride for level in levels}
    low.store(f"{name}.weight", [_planes(weight, codes, lattice) for weight in weights])
    return unit, lattice


def _distinct(weight: Tensor) -> set[float]:
    """The values in a tensor, a few more than allowed at most: faster than sorting where they are few."""
    values: set[float] = set()
    left = weight.reshape(-1)
    while left.numel() and len(values) <= WEIGHT_LEVELS:
        values.add(float(left[0]))
        left = left[left != left[0]]
    return values


def _planes(weight: Tensor, codes: Mapping[float, int], lattice: Lattice) -> Array:
    """Bit-planes `(planes, bytes)` of weights `(O, I)`, `(O, I, k)` or `(O, I, kh, kw)`; order `(O, kh, kw, I)`."""
    full = weight.reshape(*weight.shape[:2], *(1,) * (4 - weight.dim()), *weight.shape[2:]).permute(0, 2, 3, 1)
    values = np.ascontiguousarray(full.numpy()).reshape(-1)
    coded = np.zeros(values.size, np.uint8)
    for level, code in codes.items():
        if code:
            coded[values == np.float32(level)] = code
    planes = np.zeros((lattice.planes, -(-values.size // 8)), np.uint8)
    for position in range(lattice.planes):
        planes[position] = pack_bits(coded >> position & 1)
    return planes


def _tensor(weight: object, name: str) -> Tensor:
    """A drawn weight, finite and in float32."""
    assert isinstance(weight, Tensor)
    if weight.dtype != torch.float32:
        raise UnpackableError(f"{name}: its weights are {weight.dtype}, expected torch.float32")
    if not bool(torch.isfinite(weight).all()):
        raise UnpackableError(f"{name}: its weights are not finite")
    return weight.detach()


# --- one value in, one value out ------------------------------------------------------------------------------------


@lowers(nn.Sign, nn.Quantize)
def _quantize(low: Lowering, name: str, layers: Sequence[nn.Quantize], x: Symbol) -> Symbol:
    return low.threshold(name, x, layers, name)


@lowers(nn.RandomThreshold)
def _random_threshold(low: Lowering, name: str, layers: Sequence[nn.RandomThreshold], x: Symbol) -> Symbol:
    return low.threshold(name, _with_channels(x, layers[0].num_features, name), layers, name)


@lowers(nn.BatchNorm1d, nn.BatchNorm2d)
def _batch_norm(low: Lowering, name: str, layers: Sequence[_BatchNorm], x: Symbol) -> Symbol:
    if any(layer.training for layer in layers):
        raise UnpackableError(f"{name}: BatchNorm is in training mode; its answers would depend on the batch")
    normalized = replace(_waiting(_with_channels(x, layers[0].num_features, name), name), normalized=True)
    return normalized.then([_elementwise(each) for each in layers])


@lowers(nn.Product)
def _scale(low: Lowering, name: str, layers: Sequence[nn.Product], x: Symbol) -> Symbol:
    return _waiting(_with_channels(x, layers[0].num_features, name), name).then([_elementwise(each) for each in layers])


def _elementwise(layer: Module) -> Step:
    """A layer on candidates `(M, C)`; a layer for images sees them as images of one pixel."""
    spatial = (1, 1) if isinstance(layer, nn.BatchNorm2d) else ()

    def step(x: Tensor, added: float) -> Tensor:
        return cast(Tensor, layer(x.reshape(*x.shape, *spatial))).reshape(x.shape)

    return step


def _waiting(x: Symbol, name: str) -> Symbol:
    """`x`, to which one more step may be added."""
    if x.pools:
        raise UnpackableError(f"{name} stands behind a MaxPool that follows a batch norm; put a quantizer between them")
    return x


def _with_channels(x: Symbol, channels: int, name: str) -> Symbol:
    if x.channels not in (None, channels):
        raise UnpackableError(f"{name} would read {x.channels} channels, expected {channels}")
    return replace(x, channels=channels)


@lowers(nn.Flatten)
def _flatten(low: Lowering, name: str, layers: Sequence[Module], x: Symbol) -> Symbol:
    settled = x.settled()
    if settled is None:
        raise UnpackableError(f"{name}: Flatten {REASON}")
    if x.shape is not None and len(x.shape) == 1:
        return x
    shape = None if x.shape is None else (math.prod(x.shape),)
    channels = None if shape is None else shape[0]
    return replace(settled, name=low.emit(Flatten(name, settled.name)), channels=channels, shape=shape, flat=True)


@lowers(Identity)
def _identity(low: Lowering, name: str, layers: Sequence[Module], x: Symbol) -> Symbol:
    return x


# --- pooling --------------------------------------------------------------------------------------------------------


@lowers(nn.AvgPool1d, nn.AvgPool2d)
def _average(low: Lowering, name: str, layers: Sequence[_AvgPool], x: Symbol) -> Symbol:
    kernel, stride, padding = _geometry(layers[0])
    count = math.prod(kernel)
    low.require_rank(x, 1 + layers[0].spatial, name)
    x = x.settled() or x
    if x.waiting or x.real:
        raise UnpackableError(f"{name}: AvgPool {REASON}, or put the AvgPool first")
    if any(padding) and x.shifts is not None:
        raise UnpackableError(
            f"{name}: AvgPool pads sums that are shifted for the batch norm behind it; pool without padding"
        )
    ends = (count * x.low, count * x.high, *((0,) if any(padding) else ()))
    spacing = math.gcd(x.spacing, x.low) if any(padding) else x.spacing
    most = max(map(abs, ends))
    if most > INT32_MAX - 1:
        raise UnpackableError(f"{name}: its sums can reach {most} of their units, more than {INT32_MAX - 1}")
    total = replace(
        x, name=low.emit(SumPool(name, x.name, kernel, stride, padding)), low=min(ends), high=max(ends),
        spacing=spacing, lattice=None, error=count * x.error, shifts=None if x.shifts is None else count * x.shifts,
        shape=_window_shape(x.shape, x.channels, layers[0].spatial, name, kernel, stride, padding, (1, 1)),
    ).rounded(count)  # fmt: skip
    if count & (count - 1) == 0:  # the division is exact
        shifts = None if total.shifts is None else total.shifts / count
        return replace(total, unit=total.unit / count, error=total.error / count, shifts=shifts)
    return replace(total.then([_division(layer) for layer in layers]), average=count)


def _division(layer: _AvgPool) -> Step:
    """The layer's own division of a sum: on a window that holds the sum and zeros."""

    def step(x: Tensor, added: float) -> Tensor:
        window = x.new_zeros(*x.shape, math.prod(layer.kernel_size))
        window[..., 0] = x
        size = layer.kernel_size
        return pooling.average_windows(window.unflatten(-1, size), size, size, (0,) * layer.spatial).reshape(x.shape)

    return step


@lowers(nn.MaxPool1d, nn.MaxPool2d)
def _maximum(low: Lowering, name: str, layers: Sequence[_MaxPool], x: Symbol) -> Symbol:
    pool = Pool(*_geometry(layers[0]))
    low.require_rank(x, 1 + layers[0].spatial, name)
    shape = _window_shape(x.shape, x.channels, layers[0].spatial, name, pool.kernel, pool.stride, pool.padding, (1, 1))
    x = x.settled() or x
    if x.real:
        raise UnpackableError(f"{name}: MaxPool on real-valued features cannot be packed")
    if x.waiting:  # a batch norm may turn the order around, but the quantizer behind the pool does not
        return replace(x, pools=(*x.pools, pool), shape=shape)
    return replace(x, name=low.emit(MaxPool(name, x.name, pool.kernel, pool.stride, pool.padding)), shape=shape)


def _geometry(layer: _Pool) -> tuple[Pair, Pair, Pair]:
    return _pair(layer.kernel_size, 1), _pair(layer.stride, 1), _pair(layer.padding, 0)


def _pair(values: Shape, fill: int) -> Pair:
    """The parameters of a window; one over a single dimension is one row high."""
    return (fill, values[0]) if len(values) == 1 else (values[0], values[1])


def _window_shape(
    shape: Shape | None, channels: int | None, spatial: int, name: str, kernel: Pair, stride: Pair, padding: Pair,
    dilation: Pair,
) -> Shape | None:  # fmt: skip
    if shape is None:
        return None
    if len(shape) != 1 + spatial:
        raise UnpackableError(f"{name} would read {shape}, expected channels and {spatial} spatial dimensions")
    sizes = [
        output_size(size, kernel[axis], stride[axis], padding[axis], dilation[axis])
        for axis, size in zip(range(2 - spatial, 2), shape[1:], strict=True)
    ]
    if min(sizes) < 1:
        raise UnpackableError(f"{name} would read {shape}, smaller than its window {kernel}")
    return (cast(int, channels), *sizes)


# --- two values in --------------------------------------------------------------------------------------------------


@lowers(nn.Add)
def _add(low: Lowering, name: str, layers: Sequence[Module], a: Symbol, b: Symbol) -> Symbol:
    if a.channels is not None and b.channels is not None and a.channels != b.channels:
        raise UnpackableError(f"{name}: Add would read {a.channels} and {b.channels} channels")
    a, b = a.settled() or a, b.settled() or b
    if a.real or b.real:
        raise UnpackableError(f"{name}: Add of real-valued features cannot be packed")
    if not a.waiting and not b.waiting:
        return _add_integers(low, name, a, b)
    scaled, plain = (a, b) if a.waiting else (b, a)
    if plain.waiting or plain.shifts is not None or plain.error or scaled.selector is not None:
        raise UnpackableError(
            f"{name}: Add of two values that are scaled each in its own way; one of them must come straight from a "
            "quantizer"
        )
    levels = (plain.high - plain.low) // plain.spacing + 1
    if levels > MOST_CASES:
        raise UnpackableError(f"{name}: Add of a scaled value and one of {levels} levels, more than {MOST_CASES}")
    return replace(
        _waiting(scaled, name).then([_plus] * low.members),
        selector=low.codes(name, plain, name),
        channels=scaled.channels or plain.channels,
    )


def _plus(x: Tensor, added: float) -> Tensor:
    return x + torch.tensor(added, dtype=x.dtype)


def _add_integers(low: Lowering, name: str, a: Symbol, b: Symbol) -> Symbol:
    unit = common_unit([a.unit, b.unit])
    factors = (int(a.unit / unit), int(b.unit / unit))
    least = factors[0] * a.low + factors[1] * b.low
    most = factors[0] * a.high + factors[1] * b.high
    if max(abs(least), abs(most)) > INT32_MAX - 1:
        raise UnpackableError(f"{name}: its sums can reach {most} of their units, more than {INT32_MAX - 1}")
    shifts = a.shifts if b.shifts is None else b.shifts if a.shifts is None else a.shifts + b.shifts
    spacing = math.gcd(factors[0] * a.spacing, factors[1] * b.spacing)
    return Symbol(
        low.emit(Add(name, (a.name, b.name), factors)), unit, least, most, spacing, None, a.channels or b.channels,
        a.shape or b.shape, a.flat, shifts, a.error + b.error,
    ).rounded(1)  # fmt: skip


# --- what changes from one forward to the next ----------------------------------------------------------------------


@lowers(nn.Dropout, nn.ProbPool1d, nn.ProbPool2d)
def _random(low: Lowering, name: str, layers: Sequence[Module], x: Symbol) -> Symbol:
    raise UnpackableError(
        f"{name}: {type(layers[0]).__name__} draws anew at every forward, but a packed network always gives the same "
        "answer; leave the layer out, or use the float network"
    )
