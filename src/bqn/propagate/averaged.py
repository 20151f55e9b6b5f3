"""Averages over neighbouring outputs of a convolution: its weights are the same at all of them, and so is their noise.

Taken for independent, four outputs would average to a quarter of their variance; in a sampled network they hardly do,
since one drawn filter serves them all. But convolution and average pooling together are again a sum over the weights.
With B the mean over a pooling window of n positions, weights of mean M and variance V, inputs of mean μ and variance ν,

    mean = M · Bμ,        var = V · ((Bμ)² + Bν / n) + K² · ν

where K is what the filter and the window make of one input together: the filter averaged over the window. This is exact
for independent weights and inputs. The products run over the pooled positions only, so it is also less work.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple, TypeGuard

import torch
import torch.nn.functional as F
from torch import Tensor

from bqn.beliefs import Belief, Categorical, Gaussian, mean_of, var_of
from bqn.propagate import clt, half, pooling


class Convolution(NamedTuple):
    """What a convolution's belief was made from, as in `clt.linear`."""

    x: Belief
    weight: Categorical
    bias: Belief | None
    geometry: clt.Geometry
    centre: Callable[[Tensor, float | None], Tensor] | None


def averages(source: object, kernel: tuple[int, ...], padding: tuple[int, ...]) -> TypeGuard[Convolution]:
    """Whether `average` can be used on what a belief was made from, for pooling windows of this size."""
    if not isinstance(source, Convolution) or any(padding) or len(kernel) not in (1, 2):
        return False
    stride, _, dilation, groups = source.geometry
    return groups == 1 and set(stride) == set(dilation) == {1} and source.x.shape[0] > 0


def average(source: Convolution, shape: torch.Size, kernel: tuple[int, ...], stride: tuple[int, ...]) -> Gaussian:
    """The belief about the average over windows of a convolution's outputs.

    Parameters
    ----------
    source : Convolution that `averages` accepts
    shape : of the result
    kernel, stride : of the pooling, one entry per spatial dimension
    """
    x, weight, bias, _, centre = source
    bias_mean = None if bias is None else mean_of(bias)

    def total() -> tuple[Tensor, Tensor]:
        mean, var = _moments(source, kernel, stride, bias_mean, None)
        bias_var = None if bias is None else var_of(bias)
        return mean, var if bias_var is None else var + clt.per_unit(bias_var, source.geometry)

    def within(momentum: float | None) -> tuple[Tensor, Tensor]:
        return total() if centre is None else _moments(source, kernel, stride, bias_mean, centre(mean_of(x), momentum))

    return Gaussian.deferred(shape, weight.mean, total, within)


def _moments(
    source: Convolution, kernel: tuple[int, ...], stride: tuple[int, ...], bias: Tensor | None, centre: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Mean and variance; with a centre, V · (Bμ)² becomes V · (Bμ - centre)², see `clt`."""
    x, weight, _, geometry, _ = source
    strided = clt.Geometry(stride, tuple(0 for _ in stride), tuple(1 for _ in stride), 1)
    if half.applies(strided, mean_of(x)):
        dtype = half.working_dtype(mean_of(x))
    else:
        x, dtype = half.raised(x, weight.dtype), weight.dtype
    mean, var = _padded(mean_of(x).to(dtype), geometry), var_of(x)
    box = _box(mean, kernel)
    if var is None and centre is not None and clt.gathers(box, weight, strided):
        return clt.moments_of_windows(box, weight, bias, strided, centre)

    def product(inputs: Tensor, weights: Tensor, shift: Tensor | None = None) -> Tensor:
        if dtype == weight.dtype:
            return clt.product(inputs, weights, strided, shift)
        inputs = inputs.contiguous(memory_format=torch.channels_last)
        summed = half.product(inputs, weights.to(dtype=dtype, memory_format=torch.channels_last), strided)
        return summed if shift is None else summed + clt.per_unit(shift, strided).to(dtype)

    result = product(box, weight.mean, bias)
    squares = box.square()
    if var is not None:
        var = _padded(var.to(dtype), geometry)
        squares = squares + _box(var, kernel) / math.prod(kernel)
    if centre is None:
        noise = product(squares, weight.var)
    else:
        along = weight.var * centre
        constant = (along * centre).flatten(1).sum(-1)
        noise = product(torch.cat((squares, box), 1), torch.cat((weight.var, -2 * along), 1), constant)
    if var is not None:
        borders = [side for size in reversed(kernel) for side in (size - 1, size - 1)]
        noise = noise + product(var, _box(F.pad(weight.mean, borders), kernel).square())
    return result, clt.not_negative(noise)


def _box(tensor: Tensor, kernel: tuple[int, ...]) -> Tensor:
    """The mean over the window that begins at each position."""
    return pooling.average_windows(tensor, kernel, tuple(1 for _ in kernel), tuple(0 for _ in kernel))


def _padded(tensor: Tensor, geometry: clt.Geometry) -> Tensor:
    return F.pad(tensor, [side for size in reversed(geometry.padding) for side in (size, size)])
