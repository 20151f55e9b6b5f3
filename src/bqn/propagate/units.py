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
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from bqn.beliefs import Categorical, Gaussian
from bqn.propagate import batch, neighbours

if TYPE_CHECKING:
    from bqn.propagate.neighbours import Neighbours

MOST_OUTPUTS = 32
# Numbers that are formed at once for a part of the batch.
_AT_ONCE = 2**25
# A unit that leans further has no slope; its distance from the threshold counts as so many standard deviations.
_SURE, _FAR = 1 - 1e-6, 40.0


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
        return Units(lambda: ((high - mean) * (mean - low)).clamp_min(0), x.neighbours, weight)
    var = x.var
    return Units(lambda: var, x.neighbours, weight)


def score_of(tilt: Tensor) -> Tensor:
    """How many standard deviations above its threshold the mean of a sum lies, from P(above) - P(below)."""
    tilt = tilt if tilt.dtype == torch.float64 else tilt.float()
    score = math.sqrt(2) * torch.erfinv(tilt.clamp(-_SURE, _SURE))
    return torch.where(tilt.abs() < _SURE, score, _FAR)


def slope_of_quantized(
    scores: Sequence[Tensor], spans: Sequence[float], var: Tensor, direction: Tensor | None
) -> Tensor:
    """The slope of the mean of a quantized variable by the sum that it quantizes.

    Parameters
    ----------
    scores : Tensors, distances of the mean from each threshold in standard deviations
    spans : floats, by how much the level rises there
    var : Tensor, of the sum
    direction : Tensor or None, the sign of what the sum is multiplied with first
    """
    wide = var.dtype if var.dtype == torch.float64 else torch.float32
    rises = [span * torch.exp(-0.5 * score.to(wide).square()) for score, span in zip(scores, spans, strict=True)]
    floor = torch.finfo(wide).tiny ** 0.5
    slope = sum(rises[1:], rises[0]) * var.to(wide).clamp_min(floor).rsqrt() / math.sqrt(2 * math.pi)
    return slope if direction is None else slope * direction.to(wide)


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
    together, alone = noise.squares(scaled @ inner), noise.squares(inner)
    return size * noise.through([both - scaled.square() @ one for both, one in zip(together, alone, strict=True)])


def _by_own_slopes(slope: Tensor, noise: _InputNoise, inner: Tensor, outer: Tensor) -> Tensor:
    together = noise.through(noise.squares((outer * slope.unsqueeze(1)) @ inner))
    alone = (slope.square() * noise.through(noise.squares(inner))) @ outer.square().mT
    return together - alone


class _InputNoise(NamedTuple):
    """Variances of the inputs, `(N, inputs)`, and where neighbours err together their means by channel."""

    vars: list[Tensor]
    known: Neighbours | None
    places: tuple[int, ...]

    @classmethod
    def of(cls, units: Units, dtype: torch.dtype) -> _InputNoise:
        var, known = units.doubt().to(dtype), units.neighbours
        if known is None or known.places is None:
            return cls([var], None, ())
        return cls([var, var.unflatten(-1, (-1, math.prod(known.places))).mean(-1)], known, known.places)

    def squares(self, weight: Tensor) -> list[Tensor]:
        """What a weight `(..., inputs)` multiplies each of the variances with."""
        if self.known is None:
            return [weight.square()]
        by_channel = weight.unflatten(-1, (-1, math.prod(self.places)))
        return [weight.square(), neighbours.common_weight(by_channel, self.known.correlation, self.places)]

    def through(self, squares: list[Tensor]) -> Tensor:
        """The variances of sums with these squares: `(outputs, ...)` for all examples or `(N, outputs, ...)`."""
        terms = [
            var @ square.mT if square.dim() == 2 else (square @ var.unsqueeze(-1)).squeeze(-1)
            for var, square in zip(self.vars, squares, strict=True)
        ]
        return sum(terms[1:], terms[0])
