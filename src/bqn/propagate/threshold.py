"""Nonlinearities: the law of a quantized value (C.3 for Gaussian input, C.1 for discrete input)."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from bqn.beliefs import Belief, Categorical, Gaussian
from bqn.checks import may_look
from bqn.levels import Levels, index_tensor, interval_index, level_tensor
from bqn.propagate import compiled
from bqn.propagate.neighbours import Neighbours, behind_sign
from bqn.propagate.normalization import Normalization
from bqn.propagate.normalized_sign import is_compiled, normalized_sign
from bqn.propagate.units import Units, density, density_of, slope_of_quantized

_ROOT_HALF = math.sqrt(0.5)
_SURE = 40.0  # standard deviations beyond which the normal distribution function is 0 or 1 in float64


def standardize(mean: Tensor, var: Tensor, threshold: float | Tensor = 0.0) -> Tensor:
    """`(mean - threshold) / √var`; plus or minus 40 where there is no variance, plus on the threshold itself.

    The floor on the variance keeps `var^-1.5`, which the gradient needs, inside the range of the dtype.
    """
    distance = mean - threshold if isinstance(threshold, Tensor) or threshold != 0 else mean
    floor = torch.finfo(var.dtype).tiny ** 0.5
    if may_look(var) and var.numel() and bool(var.amin() > floor):
        return distance * var.rsqrt()
    noisy = ~(var <= floor)  # so that a NaN stays a NaN
    score = distance * torch.where(noisy, var, 1.0).rsqrt()
    return torch.where(noisy, score, torch.where(distance >= 0, _SURE, -_SURE).to(score.dtype))


def quantize(x: Belief, levels: Levels, thresholds: Levels) -> Tensor | Categorical:
    """Map `x` to the level of the interval it falls into; a value on a threshold goes up.

    Parameters
    ----------
    x : belief `(...)`
        Known values get the gradient of a straight-through estimator (Courbariaux et al. 2016): as if the quantizer
        were the identity from the lowest level to the highest, and constant outside. For a sign that is hard tanh.
    levels : D ascending values
    thresholds : D - 1 ascending values between which the intervals lie
    """
    if isinstance(x, Tensor):
        if not (x.requires_grad and torch.is_grad_enabled()):
            return _levels_of(x, levels, thresholds)
        known: Tensor = _StraightThrough.apply(x, levels, thresholds)  # type: ignore[no-untyped-call]
        return known
    if isinstance(x, Categorical):
        return _quantize_categorical(x, levels, thresholds)
    return _quantize_gaussian(x, levels, thresholds)


def _levels_of(x: Tensor, levels: Levels, thresholds: Levels) -> Tensor:
    values, borders = level_tensor(levels, x), level_tensor(thresholds, x)
    if len(levels) == 2:  # the same in one pass
        return torch.where(x < borders[0], values[0], values[1])
    return values[torch.bucketize(x.contiguous(), borders, right=True)]


class _StraightThrough(torch.autograd.Function):
    """The levels of known values, see `quantize`."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, levels: Levels, thresholds: Levels) -> Tensor:
        return _levels_of(x, levels, thresholds)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        x, levels, _ = inputs
        ctx.ends = levels[0], levels[-1]
        ctx.save_for_backward(x)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor, None, None]:
        (x,) = ctx.saved_tensors
        low, high = ctx.ends
        return torch.where((x >= low) & (x <= high), grads[0], 0.0), None, None


def _quantize_categorical(x: Categorical, levels: Levels, thresholds: Levels) -> Categorical:
    position = interval_index(x.level_values, thresholds)
    if position == tuple(range(len(levels))):
        if levels == x.level_values:
            return x
        return Categorical.of(levels, probs=x.probs, neighbours=x.neighbours)
    target = index_tensor(position, x.probs)
    probs = x.probs.new_zeros((*x.probs.shape[:-1], len(levels))).index_add(-1, target, x.probs)
    return Categorical.of(levels, probs=probs)


def _quantize_gaussian(x: Gaussian, levels: Levels, thresholds: Levels) -> Categorical:
    if len(levels) == 2:
        # Only the mean is formed here: it is all that a following linear layer needs.
        middle, half = 0.5 * (levels[1] + levels[0]), 0.5 * (levels[1] - levels[0])
        units = None
        if isinstance(x.origin, Normalization) and thresholds[0] == 0:
            if x.units is not None and is_compiled(x.origin):
                tilt, slope = compiled.normalized_sign_and_slope(x.origin)
                units = x.units._replace(
                    slope=lambda: slope if half == 1 else half * slope, from_batch=x.origin.from_batch
                )
            else:
                tilt = normalized_sign(x.origin)
        else:
            tilt = torch.erf(standardize(x.mean, x.var, thresholds[0]) * _ROOT_HALF)
        return Categorical.of(
            levels,
            mean=tilt if middle == 0 and half == 1 else middle + half * tilt,
            neighbours=_kept(x, behind_sign),
            units=_quantized(x, lambda: [density_of(tilt)], levels) if units is None else units,
        )
    scores = [standardize(x.mean, x.var, threshold) for threshold in thresholds]
    # erfc, because torch.special.ndtr loses the lower tail
    above = [0.5 * torch.erfc(-score * _ROOT_HALF) for score in scores]
    below = [0.5 * torch.erfc(score * _ROOT_HALF) for score in scores]
    probs = [below[0]]
    for k in range(1, len(thresholds)):
        # Subtract in the nearer tail, where both numbers are small and nothing cancels.
        probs.append(torch.where(scores[k] > 0, below[k] - below[k - 1], above[k - 1] - above[k]))
    probs.append(above[-1])
    return Categorical.of(
        levels,
        probs=torch.stack(probs, -1),
        neighbours=_kept(x),
        units=_quantized(x, lambda: [density(score) for score in scores], levels),
    )


def _kept(x: Gaussian, change: Callable[[Tensor], Tensor] = lambda correlation: correlation) -> Neighbours | None:
    """What neighbours have in common behind a quantizer; through more than two levels nearly all of it gets."""
    known = x.neighbours
    return None if known is None else known._replace(correlation=change(known.correlation))


def _quantized(x: Gaussian, densities: Callable[[], list[Tensor]], levels: Levels) -> Units | None:
    """What quantized units have in common, if that is known of their sums; `densities` as for `slope_of_quantized`."""
    if x.units is None:
        return None
    spans = [upper - lower for lower, upper in pairwise(levels)]
    # Tensors by themselves: a function that knew x would hold on to all that x is made of.
    if isinstance(x.origin, Normalization):
        var, weight, from_batch = x.origin.var, x.origin.weight, x.origin.from_batch
        direction = None if weight is None else weight.detach().sign()
    else:
        var, direction, from_batch = x.var, None, False
    return x.units._replace(slope=lambda: slope_of_quantized(densities(), spans, var, direction), from_batch=from_batch)


def shift(x: Belief, offset: float) -> Belief:
    """The law of `x + offset`."""
    if isinstance(x, Tensor):
        return x + offset
    if isinstance(x, Gaussian):
        return Gaussian.of(x.mean + offset, x.var, x.neighbours)
    shifted = tuple(level + offset for level in x.level_values)
    return Categorical.of(shifted, probs=x.probs, neighbours=x.neighbours)


def _probs(law: Tensor | Categorical, levels: Levels) -> Tensor:
    return (law.unsqueeze(-1) == level_tensor(levels, law)).to(law.dtype) if isinstance(law, Tensor) else law.probs


def random_threshold(
    x: Belief, threshold: Tensor | Categorical, levels: Levels, thresholds: Levels
) -> Tensor | Categorical:
    """The law of `quantize(x - t)` for a random t per unit (C.1, nonlinear layers).

    `threshold` is a Categorical whose shape broadcasts against that of `x`, or a tensor where t is known.
    """
    if isinstance(threshold, Tensor):
        if isinstance(x, Tensor):
            return quantize(x - threshold, levels, thresholds)
        if isinstance(x, Gaussian):
            return quantize(Gaussian.of(x.mean - threshold, x.var), levels, thresholds)
        raise ValueError("threshold: a drawn threshold needs drawn input; sample the whole network instead")
    total: Tensor | None = None
    for position, value in enumerate(threshold.level_values):
        law = quantize(shift(x, -value), levels, thresholds)
        term = threshold.probs[..., position].unsqueeze(-1) * _probs(law, levels)
        total = term if total is None else total + term
    assert total is not None
    return Categorical.of(levels, probs=total)
