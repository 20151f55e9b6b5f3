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

That is a product with M for each example and each output, which backward makes once more rather than keep it. Where M
reads positions that a convolution has made it is done, and always at evaluation, where no example may depend on others.
Elsewhere, as in an MLP, it would take longer than all the rest of a step. There, while batch norm takes its statistics
from the batch, the means ḡ of the slopes over that batch stand for all examples, and the whole is scaled for each of
them by (Σ g / Σ ḡ)²: one product of weights a step. A network can learn weights whose noise cancels at the mean slopes
and at no example's own. The VGG did, and claimed a fifth of its variance; an MLP has not been seen to.

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
from bqn.propagate import batch, compiled, cpu, devices, half, neighbours

if TYPE_CHECKING:
    from bqn.propagate.neighbours import Neighbours

MOST_OUTPUTS = 32
# Numbers that are formed at once for a part of the batch.
_AT_ONCE = 2**22
# Numbers that are kept for backward where that spares a product.
_KEPT_AT_MOST = 2**24
_PRODUCTS = (torch.float32, torch.bfloat16)  # what a CPU multiplies fast, and its compiled passes read
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
    read : Pair or None, these inputs where they lie on two levels
    """

    doubt: Callable[[], Tensor]
    neighbours: Neighbours | None
    weight: Tensor
    slope: Callable[[], Tensor] | None = None
    from_batch: bool = False
    read: Pair | None = None


class Pair(NamedTuple):
    """The mean of what lies on two levels, and these."""

    mean: Tensor
    low: float
    high: float


def that_read(x: Gaussian | Categorical, weight: Tensor) -> Units:
    """The units that read `x` with weights of these means. They hold on to nothing that `x` is made of itself."""
    if isinstance(x, Categorical) and len(x.level_values) == 2:
        # Formed when it is needed, and each time anew: activation checkpointing relies on it.
        pair = Pair(x.mean, *x.level_values)
        # A function, not an object that can be called: torch 2.11's compiler loses the attributes of such an object.
        return Units(lambda: _Doubt.apply(*pair), x.neighbours, weight, read=pair)  # type: ignore[no-untyped-call]
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
    slope = units.slope().to(weight.dtype)
    if slope.shape[0] == 0:
        return None
    if units.read is not None and _compiled(units, units.read, weight, slope):
        return compiled.common_noise(weight, slope, units.weight, units.read.mean, (units.read.low, units.read.high))
    near, var, level = _noise_of_inputs(units, weight.dtype)
    if units.from_batch and near is None:
        return _by_mean_slopes(weight, slope, units.weight, var)
    pairs = None if near is None else neighbours.over_learned_pairs(_by_channel(units.weight, near), near)
    if _kept(weight, slope, units.weight, near, pairs, var, level):
        return compiled.noise_of_each(weight, slope, units.weight, compiled.Noise(var, level, near, pairs))
    noise: Tensor = _Gain.apply(weight, slope, units.weight, near, pairs, var, level)  # type: ignore[no-untyped-call]
    return noise


def _compiled(units: Units, read: Pair, weight: Tensor, slope: Tensor) -> bool:
    """Whether `compiled.common_noise` can do it: by mean slopes, of inputs on two levels that do not err together."""
    apart = units.neighbours is None or units.neighbours.places is None
    if not (units.from_batch and apart) or batch.current_share() is not None:
        return False
    return cpu.usable(weight, slope, units.weight, read.mean)


def _kept(
    outer: Tensor, slope: Tensor, inner: Tensor, near: Tensor | None, pairs: Tensor | None, var: Tensor,
    level: Tensor | None,
) -> bool:  # fmt: skip
    """Whether `compiled.noise_of_each` does it: on a CPU, where what reaches all sums is not too much to keep."""
    width, inputs = inner.shape
    kept = slope.shape[0] * outer.shape[0] * (width + inputs * (1 if near is None else 2))
    whole = cpu.usable(outer, slope, inner, near, pairs)
    return (
        kept <= _KEPT_AT_MOST
        and whole
        and all(cpu.usable(each, dtype=var.dtype) for each in (var, level))
        and var.dtype in _PRODUCTS
    )


def _by_mean_slopes(outer: Tensor, slope: Tensor, inner: Tensor, var: Tensor) -> Tensor:
    typical = batch.mean_of_all(slope.mean(0))
    size = (slope.abs().sum(-1, keepdim=True) / typical.abs().sum().clamp_min(torch.finfo(slope.dtype).tiny)).square()
    gain: Tensor = _GainOfAll.apply(outer * typical, inner)  # type: ignore[no-untyped-call]
    noise: Tensor = size * (var @ gain.to(var.dtype).mT).to(outer.dtype)
    return noise


class _GainOfAll(torch.autograd.Function):
    """What all examples multiply the variances of their inputs with, `(outputs, inputs)`, if they have the same slopes,
    which `outer` holds too.

    Keeps both weights alone; backward forms all squares anew, which are as large as the larger one.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(outer: Tensor, inner: Tensor) -> Tensor:
        return (outer @ inner).square() - outer.square() @ inner.square()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor, Tensor]:
        outer, inner = ctx.saved_tensors
        by_both = 2 * grads[0] * (outer @ inner)
        by_outer = by_both @ inner.mT - 2 * outer * (grads[0] @ inner.square().mT)
        return by_outer, outer.mT @ by_both - 2 * inner * (outer.square().mT @ grads[0])


def _noise_of_inputs(units: Units, dtype: torch.dtype) -> tuple[Tensor | None, Tensor, Tensor | None]:
    """Variances of the inputs, `(N, inputs)`, behind them their means by channel where neighbours err together, and
    before them how near the places of a channel are to each other then, see `neighbours.matrix_of_pairs`."""
    # Half precision stays what it is where there are products in it: this is a part of a variance, and what is kept for
    # backward is half as much.
    var, known = units.doubt(), units.neighbours
    stays = half.is_low(var) and devices.multiplies(var)
    var = var if stays else var.to(dtype)
    if known is None or known.places is None:
        return None, var, None
    near = neighbours.matrix_of_pairs(known.correlation.to(dtype), known.places)
    return near, var, var.unflatten(-1, (-1, near.shape[0])).mean(-1)


class _Gain(torch.autograd.Function):
    """What sums with weights `outer` over units with slopes `slope`, which read with weights `inner`, gain from what
    these have in common, `(N, outputs)`: the noise that reaches a sum as a whole, less what each unit passes on by
    itself. `near`, `var` and `level` are what `_noise_of_inputs` gives, `pairs` `(units, channels)` is what `inner`
    makes of pairs of places.

    Keeps what it is given alone; backward forms anew what reaches the sums, which is as large as the inputs of all
    examples once for each output.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(
        outer: Tensor, slope: Tensor, inner: Tensor, near: Tensor | None, pairs: Tensor | None, var: Tensor,
        level: Tensor | None,
    ) -> Tensor:  # fmt: skip
        parts = []
        for rows in _rows(slope.shape[0], outer.shape[0] * inner.shape[1]):
            reaching = _reaching(outer, slope[rows], inner, var.dtype)
            together = (reaching.square() * var[rows].unsqueeze(-2)).sum(-1)
            if near is not None and level is not None:
                common = neighbours.over_pairs(_by_channel(reaching, near), near)
                together = together + (common * level[rows].unsqueeze(-2)).sum(-1)
            parts.append(together)
        whole = torch.cat(parts) if len(parts) > 1 else parts[0]
        return whole - (slope.square() * _own_noise(inner, pairs, var, level)) @ outer.square().mT

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        outer, slope, inner, near, pairs, var, level = ctx.saved_tensors
        # what each unit passes on by itself
        own, square = _own_noise(inner, pairs, var, level), outer.square()
        by_unit = grads[0] @ square
        by_outer = -2 * outer * (grads[0].mT @ (slope.square() * own))
        by_slope = -2 * slope * own * by_unit
        by_own = (-slope.square() * by_unit).to(var.dtype)
        by_inner = 2 * inner * (by_own.mT @ var).to(inner.dtype)
        by_var = by_own @ inner.square().to(var.dtype)
        by_pairs = by_level = None
        if pairs is not None and level is not None:
            by_pairs, by_level = (by_own.mT @ level).to(pairs.dtype), by_own @ pairs.to(level.dtype)
        # what reaches a sum as a whole
        by_slopes, by_vars, by_levels = [], [], []
        for rows in _rows(slope.shape[0], outer.shape[0] * inner.shape[1]):
            grad = grads[0][rows].unsqueeze(-1)
            reaching = _reaching(outer, slope[rows], inner, var.dtype)
            by_vars.append((grad * reaching.square()).sum(-2))
            by_reaching = var[rows].unsqueeze(-2) * reaching
            if near is not None and level is not None:
                channels = _by_channel(reaching, near)
                beside = neighbours.beside(channels, near)
                by_levels.append((grad * (beside * channels).sum(-1)).sum(-2))
                by_reaching = by_reaching + (level[rows].unsqueeze(-2).unsqueeze(-1) * beside).flatten(-2)
            low = (2 * grad * by_reaching).to(var.dtype)
            by_scaled = (low @ inner.to(var.dtype).mT).to(outer.dtype)
            by_outer = by_outer + (by_scaled * slope[rows].unsqueeze(-2)).sum(0)
            by_slopes.append((by_scaled * outer).sum(-2))
            scaled = (outer * slope[rows].unsqueeze(-2)).to(var.dtype)
            by_inner = by_inner + (scaled.flatten(0, 1).mT @ low.flatten(0, 1)).to(inner.dtype)
        by_slope, by_var = by_slope + torch.cat(by_slopes), by_var + torch.cat(by_vars).to(var.dtype)
        if by_level is not None:
            by_level = by_level + torch.cat(by_levels).to(by_level.dtype)
        return by_outer, by_slope, by_inner, None, by_pairs, by_var, by_level


def _rows(examples: int, each: int) -> list[slice]:
    """Parts of the batch that form no more than `_AT_ONCE` numbers each."""
    count = max(1, _AT_ONCE // max(each, 1))
    return [slice(start, start + count) for start in range(0, max(examples, 1), count)]


def _reaching(outer: Tensor, slope: Tensor, inner: Tensor, dtype: torch.dtype) -> Tensor:
    """How far an input reaches a sum, through all units that read it: `(N, outputs, inputs)`, from products in `dtype`.

    Not in `dtype` itself: two sums of its squares are compared, which differ by little.
    """
    scaled = (outer * slope.unsqueeze(-2)).to(dtype)
    product = (scaled.flatten(0, 1) @ inner.to(dtype)).to(inner.dtype)
    reaching: Tensor = product.unflatten(0, scaled.shape[:2])
    return reaching


def _own_noise(inner: Tensor, pairs: Tensor | None, var: Tensor, level: Tensor | None) -> Tensor:
    """What the noise of the inputs makes of the variance of each unit's sum: `(N, units)`."""
    own: Tensor = (var @ inner.square().to(var.dtype).mT).to(inner.dtype)
    if pairs is None or level is None:
        return own
    return own + (level @ pairs.to(level.dtype).mT).to(inner.dtype)


def _by_channel(weight: Tensor, near: Tensor) -> Tensor:
    """`(..., inputs)` to `(..., channels, places)`."""
    channels: Tensor = weight.unflatten(-1, (-1, near.shape[0]))
    return channels
