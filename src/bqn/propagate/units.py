"""What the units of a layer have in common: they read the same inputs, and err where these err.

Given their inputs, units are independent: each has weights of its own. But the noise of an input reaches all units that
read it. The correlation of two units is small, and in a sum whose weights have nothing to do with it that is all. The
weights of the last layer do have to do with it. They add up what units of a class have in common, the noise along with
the signal, and against n variances stand n² covariances. With M the mean weights of the units, ν the variances of their
inputs, g the slope of the mean of each quantized unit by its sum, and w the weights of a sum over the units, the
variance of this sum gains

    Σ_{i≠j} w_i w_j g_i g_j Σ_k M_ik M_jk ν_k  =  Σ_k ν_k ((Σ_i w_i g_i M_ik)² - Σ_i w_i² g_i² M_ik²),

to first order in the correlations, which is too little where many units agree and are fairly sure. Inputs that were
flattened from neighbouring positions err together themselves (`neighbours`), which adds pairs of k.

That is a product with M for each example and each output. While batch norm takes its statistics from the batch, the
means ḡ of the slopes over that batch stand for all examples, and the whole is scaled for each of them by
(Σ g / Σ ḡ)²: one product of weights a step. At evaluation no example depends on the others.

Carried over one layer only: from a fully connected layer through batch norm, or none, and a quantizer into the next
fully connected layer, if that has few outputs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from bqn.beliefs import Categorical, Gaussian
from bqn.propagate import batch, neighbours

if TYPE_CHECKING:
    from bqn.propagate.neighbours import Neighbours

MOST_OUTPUTS = 32
# Numbers that are formed at once for a part of the batch.
_AT_ONCE = 2**25
_SURE = 1 - 1e-6  # a unit that leans further has no slope


class Units(NamedTuple):
    """What the units of a belief `(N, units)` are made of.

    Attributes
    ----------
    doubt : function, gives the variances of the inputs that all of them read, `(N, inputs)`
    neighbours : Neighbours or None, what these inputs have in common
    weight : Tensor `(units, inputs)`, the means of their weights
    slope : function or None
        Gives the slope of each unit's mean by its sum, `(N, units)`; None while the units are the sums themselves.
    from_batch : bool
        Whether examples of the batch depend on each other already, so that they may here.
    """

    doubt: Callable[[], Tensor]
    neighbours: Neighbours | None
    weight: Tensor
    slope: Callable[[], Tensor] | None = None
    from_batch: bool = False


def that_read(x: Gaussian | Categorical, weight: Tensor) -> Units:
    """The units that read `x` with weights of these means. They hold on to nothing that `x` is made of itself."""
    if isinstance(x, Categorical) and len(x.level_values) == 2:
        # Formed when it is needed, and each time anew: activation checkpointing relies on it.
        (low, high), mean = x.level_values, x.mean
        return Units(lambda: _Doubt.apply(mean, low, high), x.neighbours, weight)  # type: ignore[no-untyped-call]
    var = x.var
    return Units(lambda: var, x.neighbours, weight)


class _Doubt(torch.autograd.Function):
    """The variance of what lies on two levels, from its mean. Keeps the mean alone, which others keep too."""

    generate_vmap_rule = True

    @staticmethod
    def forward(mean: Tensor, low: float, high: float) -> Tensor:
        return ((high - mean) * (mean - low)).clamp_min(0)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        mean, *ctx.levels = inputs
        ctx.save_for_backward(mean)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor, None, None]:
        (mean,) = ctx.saved_tensors
        return grads[0] * (sum(ctx.levels) - 2 * mean), None, None


def density(score: Tensor) -> Tensor:
    """The standard normal density at a distance from the threshold, but for its constant, 1/√2π."""
    return torch.exp(-0.5 * (score if score.dtype == torch.float64 else score.float()).square())


def density_of(tilt: Tensor) -> Tensor:
    """The same from P(above) - P(below)."""
    result: Tensor = _DensityOfTilt.apply(tilt)  # type: ignore[no-untyped-call]
    return result


class _DensityOfTilt(torch.autograd.Function):
    """exp(-e²) with e = erfinv(tilt), whose derivative is -√π e. Keeps the tilt alone, which others keep too."""

    generate_vmap_rule = True

    @staticmethod
    def forward(tilt: Tensor) -> Tensor:
        wide = tilt if tilt.dtype == torch.float64 else tilt.float()
        return torch.where(wide.abs() < _SURE, torch.exp(-torch.erfinv(wide.clamp(-_SURE, _SURE)).square()), 0.0)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Tensor:
        (tilt,) = ctx.saved_tensors
        wide = tilt if tilt.dtype == torch.float64 else tilt.float()
        root = torch.where(wide.abs() < _SURE, torch.erfinv(wide.clamp(-_SURE, _SURE)), 0.0)
        by_tilt: Tensor = grads[0] * root * -math.sqrt(math.pi)
        return by_tilt.to(tilt.dtype)


def slope_of_quantized(
    densities: Sequence[Tensor], spans: Sequence[float], var: Tensor, direction: Tensor | None
) -> Tensor:
    """The slope of the mean of a quantized variable by the sum that it quantizes.

    Parameters
    ----------
    densities : Tensors, at each threshold as `density` has them
    spans : floats, by how much the level rises there
    var : Tensor, of the sum
    direction : Tensor or None, the sign of what the sum is multiplied with first
    """
    rises = [each * (span / math.sqrt(2 * math.pi)) for each, span in zip(densities, spans, strict=True)]
    wide = var if var.dtype == torch.float64 else var.float()
    scale = wide.clamp_min(torch.finfo(wide.dtype).tiny ** 0.5).rsqrt()
    return sum(rises[1:], rises[0]) * (scale if direction is None else scale * direction.to(wide.dtype))


def common_noise(units: Units, weight: Tensor) -> Tensor | None:
    """What the variance of sums over units gains because these have their inputs in common.

    Parameters
    ----------
    units : Units
    weight : Tensor `(outputs, units)`, the means of the weights of the sums

    Returns
    -------
    Tensor `(N, outputs)`, or None where it is left out. It may be below zero.
    """
    if units.slope is None or weight.dim() != 2 or weight.shape[0] > MOST_OUTPUTS:
        return None
    slope, noise = units.slope().to(weight.dtype), _InputNoise.of(units, weight.dtype)
    if slope.shape[0] == 0:
        return None
    if units.from_batch:
        return _by_mean_slopes(slope, noise, units.weight, weight)
    rows = max(1, _AT_ONCE // (weight.shape[0] * units.weight.shape[1]))
    parts = zip(slope.split(rows), *(var.split(rows) for var in noise.vars), strict=True)
    return torch.cat([_by_own_slopes(part, noise._replace(vars=own), units.weight, weight) for part, *own in parts])


def _by_mean_slopes(slope: Tensor, noise: _InputNoise, inner: Tensor, outer: Tensor) -> Tensor:
    typical = batch.mean_of_all(slope.mean(0))
    size = (slope.abs().sum(-1, keepdim=True) / typical.abs().sum().clamp_min(torch.finfo(slope.dtype).tiny)).square()
    scaled = outer * typical
    gains: tuple[Tensor, Tensor | None] = _Gain.apply(scaled, inner, noise.near)  # type: ignore[no-untyped-call]
    return size * noise.through([gain for gain in gains if gain is not None])


class _Gain(torch.autograd.Function):
    """What sums of units with weights `outer`, which read with weights `inner`, make of the noise of their inputs
    beyond what each unit makes of it by itself: of each input, and of pairs of places, whose correlations are `near`.

    Keeps both weights alone; backward forms all squares anew, which are as large as the larger one.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(outer: Tensor, inner: Tensor, near: Tensor | None) -> tuple[Tensor, Tensor | None]:
        both, square = outer @ inner, outer.square()
        gain = both.square() - square @ inner.square()
        if near is None:
            return gain, None
        return gain, _pairs(both, near) - square @ _pairs(inner, near)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        outer, inner, near = ctx.saved_tensors
        both, square = outer @ inner, outer.square()
        by_both, by_outer, by_inner = torch.zeros_like(both), torch.zeros_like(outer), torch.zeros_like(inner)
        if grads[0] is not None:
            by_both = by_both + 2 * grads[0] * both
            by_outer = by_outer - 2 * outer * (grads[0] @ inner.square().mT)
            by_inner = by_inner - 2 * inner * (square.mT @ grads[0])
        if near is not None and grads[1] is not None:
            by_both = by_both + _spread(both, near, grads[1])
            by_outer = by_outer - 2 * outer * (grads[1] @ _pairs(inner, near).mT)
            by_inner = by_inner - _spread(inner, near, square.mT @ grads[1])
        return by_outer + by_both @ inner.mT, by_inner + outer.mT @ by_both, None


def _pairs(weight: Tensor, near: Tensor) -> Tensor:
    """Σ w_p w_q r_pq over pairs of places of a channel: `(..., inputs)` to `(..., channels)`."""
    return neighbours.over_pairs(weight.unflatten(-1, (-1, near.shape[0])), near)


def _spread(weight: Tensor, near: Tensor, grad: Tensor) -> Tensor:
    """The gradient of `_pairs` by the weight."""
    return neighbours.spread_over_pairs(weight.unflatten(-1, (-1, near.shape[0])), near, grad).flatten(-2)


def _by_own_slopes(slope: Tensor, noise: _InputNoise, inner: Tensor, outer: Tensor) -> Tensor:
    together = noise.through(noise.squares((outer * slope.unsqueeze(1)) @ inner))
    alone = (slope.square() * noise.through(noise.squares(inner))) @ outer.square().mT
    return together - alone


class _InputNoise(NamedTuple):
    """Variances of the inputs, `(N, inputs)`; and where neighbours err together their means by channel, and how near
    the places of a channel are to each other, see `neighbours.matrix_of_pairs`."""

    vars: list[Tensor]
    near: Tensor | None

    @classmethod
    def of(cls, units: Units, dtype: torch.dtype) -> _InputNoise:
        # On a GPU half precision stays what it is: it is a part of a variance, and what is kept for backward is half as
        # much. On a CPU such products are slow, and some crash.
        var, known = units.doubt(), units.neighbours
        stays = var.dtype in (torch.bfloat16, torch.float16) and var.device.type != "cpu"
        var = var if stays else var.to(dtype)
        if known is None or known.places is None:
            return cls([var], None)
        near = neighbours.matrix_of_pairs(known.correlation.to(dtype), known.places)
        return cls([var, var.unflatten(-1, (-1, near.shape[0])).mean(-1)], near)

    def squares(self, weight: Tensor) -> list[Tensor]:
        """What a weight `(..., inputs)` multiplies each of the variances with."""
        return [weight.square()] if self.near is None else [weight.square(), _pairs(weight, self.near)]

    def through(self, squares: list[Tensor]) -> Tensor:
        """The variances of sums with these squares: `(outputs, ...)` for all examples or `(N, outputs, ...)`."""
        terms: list[Tensor] = []
        for var, square in zip(self.vars, squares, strict=True):
            low = square.to(var.dtype)
            term = var @ low.mT if square.dim() == 2 else (low @ var.unsqueeze(-1)).squeeze(-1)
            terms.append(term.to(square.dtype))
        return sum(terms[1:], terms[0])
