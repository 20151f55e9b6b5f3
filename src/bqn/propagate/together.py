"""What the sums of a layer have in common, by what their inputs have, and what that adds to their variance.

Inputs at neighbouring positions err together (`neighbours`), and so do units that read the same inputs (`units`). Here
a layer finds what its inputs say of it, and what it says itself to the layers behind.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from bqn.beliefs import Belief, Categorical, Gaussian, mean_of, var_of
from bqn.propagate import compiled, cpu, neighbours, units
from bqn.propagate.neighbours import Reading
from bqn.propagate.products import Geometry, product
from bqn.propagate.units import Units

if TYPE_CHECKING:
    from bqn.propagate.clt import BatchStatistics

_LEAST_SHARE = 0.1  # of a variance that common noise may leave of it


def with_common_noise(var: Tensor, noises: Iterable[Tensor | None]) -> Tensor:
    """A variance of sums over independent inputs, with what it gains or loses because these err together.

    That it cannot lose all of it is known; what is worked out from averages may say otherwise, and near zero the slope
    of a sign knows no bounds. So a share is kept.
    """
    known = [noise.to(var.dtype) for noise in noises if noise is not None]
    if not known:
        return var
    if len(known) == 1 and var.dim() == 2 and var.shape == known[0].shape and cpu.usable(var, known[0]):
        return compiled.with_noise(var, known[0], _LEAST_SHARE)
    total: Tensor = _AtLeast.apply(sum(known, var), var, _LEAST_SHARE)  # type: ignore[no-untyped-call]
    return total


class _AtLeast(torch.autograd.Function):
    """The larger of a variance and a share of another.

    For rows `(N, units)` it keeps which it is. For images, of which that would be much to keep, gradients pass to the
    first as if it were the larger.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, whole: Tensor, share: float) -> Tensor:
        return torch.maximum(x, share * whole)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        x, whole, ctx.share = inputs
        ctx.passes = x.dim() > 2
        if not ctx.passes:
            ctx.save_for_backward(x >= ctx.share * whole)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        if ctx.passes:
            return grads[0], None, None
        (above,) = ctx.saved_tensors
        return torch.where(above, grads[0], 0.0), torch.where(above, 0.0, ctx.share * grads[0]), None


def units_of(x: Belief, weight: Categorical, geometry: Geometry | None) -> Units | None:
    """What the sums of a matrix product have in common: inputs that are not known."""
    if isinstance(x, Tensor) or geometry is not None or weight.mean.dim() != 2 or len(x.shape) != 2:
        return None
    return units.that_read(x, weight.mean)


def noise_of_units(x: Belief, weight: Categorical, geometry: Geometry | None) -> Tensor | None:
    """What the variance gains because the units that are read have inputs in common, shaped like the output."""
    if isinstance(x, Tensor) or x.units is None or geometry is not None:
        return None
    return units.common_noise(x.units, weight.mean)


def correlation_of_sums(
    x: Belief, weight: Categorical, centre: Tensor, statistics: BatchStatistics, momentum: float | None
) -> Tensor:
    """What the sums of a convolution at two positions side by side have in common, before any stride."""

    def measure() -> Tensor:
        mean = weight.mean.detach()
        inputs = mean_of(x).detach()
        if isinstance(x, Categorical) and len(x.level_values) == 2:  # not `x.var`, which would be kept for backward
            var: Tensor | None = (x.level_values[1] - inputs) * (inputs - x.level_values[0])
        else:
            var = var_of(x)
        square = weight.constant_square
        second = mean.new_full((), square) if square is not None else (mean.square() + weight.var.detach()).mean()
        known = None if isinstance(x, Tensor) else x.neighbours
        moments = second - mean.square().mean(), second
        return neighbours.of_sums(inputs, var, centre, moments, known)

    return statistics.correlation(measure, momentum if x.shape[0] else None)


def noise_of_neighbours(x: Belief, weight: Categorical, geometry: Geometry | None) -> Tensor | None:
    """What the variance gains because neighbouring inputs err together, shaped like the output."""
    if isinstance(x, Tensor) or x.neighbours is None:
        return None
    correlation, places = x.neighbours
    if geometry is None:
        if places is None or weight.mean.dim() > 2:
            return None
        common = neighbours.common_weight(weight.mean.unflatten(-1, (-1, math.prod(places))), correlation, places)
        once, still = tuple(1 for _ in places), tuple(0 for _ in places)
        return common_noise(x.reshape(x.shape[0], common.shape[1], *places), common, places, still, once).flatten(1)
    kernel = tuple(weight.shape[2:])
    common = neighbours.common_weight(weight.mean.flatten(2), correlation, kernel, geometry.dilation)
    if set(geometry.dilation) == {1}:
        return common_noise(x, common, kernel, geometry.padding, geometry.stride, geometry.groups)
    channels, once, still = x.shape[1], tuple(1 for _ in kernel), tuple(0 for _ in kernel)
    box = common.new_full((channels, 1, *kernel), 1 / math.prod(kernel))
    read = product(x.var.to(common.dtype), box, geometry._replace(groups=channels))
    noise = product(read, common.reshape(*common.shape, *once), Geometry(once, still, once, geometry.groups))
    return noise * neighbours.inside(correlation, tuple(x.shape[2:]), kernel, geometry).to(noise.dtype)


def common_noise(
    x: Gaussian | Categorical, common: Tensor, kernel: tuple[int, ...], padding: tuple[int, ...],
    stride: tuple[int, ...], groups: int = 1,
) -> Tensor:  # fmt: skip
    """`neighbours.common_noise` of a belief `(N, C, *spatial)`, as far as the pairs of places lie inside the image."""
    pair = x.level_values if isinstance(x, Categorical) and len(x.level_values) == 2 else None
    var = None if pair is not None else x.var
    noise = neighbours.common_noise(x.mean, var, common, Reading(kernel, padding, stride, pair), groups)
    if not any(padding) or x.neighbours is None:
        return noise
    walk = Geometry(stride, padding, tuple(1 for _ in kernel), groups)
    return noise * neighbours.inside(x.neighbours.correlation, tuple(x.shape[2:]), kernel, walk).to(noise.dtype)
