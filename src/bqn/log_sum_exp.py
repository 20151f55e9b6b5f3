"""Upper bounds on E[log Σ exp h] for uncertain h: Jensen's, and the tilted ones of Knowles and Minka (2011)."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from bqn.beliefs import Categorical
from bqn.checks import may_look
from bqn.propagate import cpu

# Enough for the optimum to within 1e-8 up to variances of 2,000 (tests/test_heads.py).
_BISECTIONS = 8
_NEWTON_STEPS = 4
_STEP_SIZES = (1.0, 0.3)
# Up to this variance three plain Newton steps from softmax(m) come within 1e-8 of the optimum (tests/test_heads.py).
_EASY_UP_TO = 4.0
# Discrete logits, on a CPU, where it stops once all have arrived: most take five, hardly any more than ten, some thirty
# if the levels span hundreds of times the scale. Elsewhere there is no looking, and those are left short of it.
_CATEGORICAL_STEPS = 40
_CATEGORICAL_STEPS_UNSEEN = 15


def tilted_log_sum_exp(mean: Tensor, var: Tensor) -> Tensor:
    """Upper bound on E[log Σ exp h] for independent normal h, the best of the tilted family; shape `(N,)`.

    For every a, ½ Σ a² v + log Σ exp(m + (1 - 2a) v / 2) is a bound, convex in a; a = 0 is Jensen's. The best a is
    found by Newton steps (the Hessian is diagonal plus rank one) that never accept a worse point, from the best of
    three starts: 0, softmax(m), and the solution for large variances. At the optimum the derivative by a vanishes,
    and at any a the gradient is that of a valid bound, so a counts as a constant.
    """
    with torch.no_grad():
        tilt = _best_tilt(mean, var)
    return _tilted(mean, var, tilt)


def _tilted(mean: Tensor, var: Tensor, tilt: Tensor) -> Tensor:
    return 0.5 * (tilt.square() * var).sum(-1) + torch.logsumexp(mean + (0.5 - tilt) * var, -1)


def _best_tilt(mean: Tensor, var: Tensor) -> Tensor:
    if mean.dim() == 2 and cpu.usable(mean, var):
        return cpu.best_tilt(mean, var)
    if may_look(var) and var.numel() and bool(var.amax() <= _EASY_UP_TO):
        tilt = torch.softmax(mean, -1)
        for _ in range(3):
            tilt = tilt - _newton_step(mean, var, tilt)
        return tilt
    tilt = torch.zeros_like(mean)
    value = _tilted(mean, var, tilt)
    for start in (torch.softmax(mean, -1), _level_tilt(mean, var)):
        tilt, value = _keep_better(mean, var, tilt, value, start)
    for _ in range(_NEWTON_STEPS):
        step, origin = _newton_step(mean, var, tilt), tilt
        for size in _STEP_SIZES:
            tilt, value = _keep_better(mean, var, tilt, value, origin - size * step)
    # So near the optimum the values differ by rounding alone and say nothing more; a last small step is safe there.
    step = _newton_step(mean, var, tilt)
    return torch.where(step.abs().amax(-1, keepdim=True) < 1e-2, tilt - step, tilt)


def _newton_step(mean: Tensor, var: Tensor, tilt: Tensor) -> Tensor:
    probs = torch.softmax(mean + (0.5 - tilt) * var, -1)
    damped = 1 / (1 + var * probs)
    gap = (tilt - probs) * damped
    weighted = probs * damped
    rank_one = (var * probs * gap).sum(-1, keepdim=True) / weighted.sum(-1, keepdim=True)
    return torch.addcmul(gap, weighted, rank_one)


def _keep_better(mean: Tensor, var: Tensor, tilt: Tensor, value: Tensor, candidate: Tensor) -> tuple[Tensor, Tensor]:
    reached = _tilted(mean, var, candidate)
    better = reached < value  # also false where rounding made a NaN
    return torch.where(better.unsqueeze(-1), candidate, tilt), torch.where(better, reached, value)


def _level_tilt(mean: Tensor, var: Tensor) -> Tensor:
    """The tilt that makes all exponents equal as far as 0 ≤ a ≤ 1 and Σ a = 1 allow: optimal for large variances.

    a = ½ + (m - c) / v, cut to [0, 1]; its sum falls with c, which is bisected.
    """
    inverse = 1 / var.clamp_min(1e-6)
    low = (mean - 0.5 * var).amin(-1, keepdim=True)
    high = (mean + 0.5 * var).amax(-1, keepdim=True)
    for _ in range(_BISECTIONS):
        level = 0.5 * (low + high)
        above = (0.5 + (mean - level) * inverse).clamp(0, 1).sum(-1, keepdim=True) > 1
        low, high = torch.where(above, level, low), torch.where(above, high, level)
    return (0.5 + (mean - 0.5 * (low + high)) * inverse).clamp(0, 1)


def categorical_log_sum_exp(
    belief: Categorical, inverse_scale: Tensor, mean: Tensor, var: Tensor, bound: str
) -> Tensor:
    """Upper bound on E[log Σ exp h] for independent discrete h, with their exact moment-generating functions.

    For every a, E[log Σ exp h] ≤ Σ a_j E[h_j] + log Σ_k E[exp(h_k - Σ a_j h_j)], which is convex in a; a = 0 is
    Jensen's. The best a lies between 0 and 1, and its gradient counts as for `tilted_log_sum_exp`. Tails are
    multiplied by e to the level, so each probability must be right relative to itself; one that has underflowed counts
    as the smallest number that has not, and the bound holds.
    """
    values = belief.levels * inverse_scale
    log_probs = belief.log_probs
    tilt = torch.zeros_like(mean)
    if bound == "tilted":
        with torch.no_grad():
            search = _opaque_categorical_tilt if torch.compiler.is_compiling() else _best_categorical_tilt
            tilt = search(values, log_probs, mean, _best_tilt(mean, var))
    without = torch.logsumexp(log_probs - tilt.unsqueeze(-1) * values, -1)
    with_own = torch.logsumexp(log_probs + (1 - tilt).unsqueeze(-1) * values, -1)
    return _categorical_bound(tilt, mean, without, with_own)


def _categorical_bound(tilt: Tensor, mean: Tensor, without: Tensor, with_own: Tensor) -> Tensor:
    """`(N,)` from log E[exp(-a h)] and log E[exp((1 - a) h)] of each logit."""
    return (tilt * mean).sum(-1) + torch.logsumexp(without.sum(-1, keepdim=True) - without + with_own, -1)


class _Point(NamedTuple):
    """A tilt a `(N, K)` and the bound there `(N, 1)`.

    Its derivative by a is `slope`, the second is diag(c + p d²) - (p d)(p d)ᵀ with `curvature` c, `probs` p, `gap` d.
    """

    tilt: Tensor
    bound: Tensor
    slope: Tensor
    curvature: Tensor
    probs: Tensor
    gap: Tensor

    def after_step(self, damping: Tensor) -> Tensor:
        """The tilt after a Newton step; the best one lies between 0 and 1."""
        steepest = self.slope.abs().amax(-1, keepdim=True)
        curvature = self.curvature + damping * steepest + math.sqrt(torch.finfo(self.slope.dtype).tiny)
        common = self.probs * self.gap
        inverse = 1 / (curvature + common * self.gap)
        step, along = inverse * self.slope, inverse * common
        rank_one = (common * step).sum(-1, keepdim=True) / (self.probs * curvature * inverse).sum(-1, keepdim=True)
        return (self.tilt - step - along * rank_one).clamp(0, 1)

    def or_other(self, keep: Tensor, other: _Point) -> _Point:
        """This point in the rows to keep `(N, 1)`, the other elsewhere."""
        return _Point(*(torch.where(keep, mine, theirs) for mine, theirs in zip(self, other, strict=True)))


def _best_categorical_tilt(values: Tensor, log_probs: Tensor, mean: Tensor, start: Tensor) -> Tensor:
    """Newton steps from the better of a = 0 and `start`, damped where they fail, never to a worse point."""

    def at(tilt: Tensor) -> _Point:
        (without, mean_without, var_without), (with_own, mean_with, var_with) = (
            _tilted_moments(values, log_probs, power) for power in (-tilt, 1 - tilt)
        )
        probs = torch.softmax(with_own - without, -1)
        return _Point(
            tilt,
            _categorical_bound(tilt, mean, without, with_own).unsqueeze(-1),
            mean - (1 - probs) * mean_without - probs * mean_with,
            (1 - probs) * var_without + probs * var_with,
            probs,
            mean_with - mean_without,
        )

    jensen = at(torch.zeros_like(mean))
    best, candidate = jensen, at(start.clamp(0, 1))
    damping = undamped = torch.zeros_like(best.bound)
    rounding = 16 * torch.finfo(mean.dtype).eps
    for _ in range(_CATEGORICAL_STEPS if may_look(mean) else _CATEGORICAL_STEPS_UNSEEN):
        better = candidate.bound < best.bound  # also false where rounding made a NaN
        best = candidate.or_other(better, best)
        slack = rounding * (best.bound.abs() + values[-1] - values[0])
        gain = (best.slope * (best.tilt - best.after_step(undamped))).sum(-1, keepdim=True)
        if may_look(mean) and bool((gain <= slack).all()):
            break
        damping = torch.where(better, 0.5 * damping, (4 * damping).clamp_min(0.5))
        candidate = at(best.after_step(damping))
    for _ in range(2):  # so near the optimum values differ by rounding alone, and the slope says more
        candidate = at(best.after_step(undamped))
        flatter = candidate.slope.abs().amax(-1, keepdim=True) < best.slope.abs().amax(-1, keepdim=True)
        best = candidate.or_other(flatter & (candidate.bound <= best.bound + slack), best)
    return torch.where(best.bound < jensen.bound, best.tilt, 0.0)


@torch.library.custom_op("bqn::best_categorical_tilt", mutates_args=())
def _opaque_categorical_tilt(values: Tensor, log_probs: Tensor, mean: Tensor, start: Tensor) -> Tensor:
    """The same as one operation to a compiler, which would take minutes over the loop, and could not stop it early."""
    return _best_categorical_tilt(values, log_probs, mean, start)


@_opaque_categorical_tilt.register_fake
def _(values: Tensor, log_probs: Tensor, mean: Tensor, start: Tensor) -> Tensor:
    return torch.empty_like(mean)


def _tilted_moments(values: Tensor, log_probs: Tensor, power: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """log E[exp(t h)] of each logit for the power t, and mean and variance under the law in that proportion."""
    scores = log_probs + power.unsqueeze(-1) * values
    probs = torch.softmax(scores, -1)
    mean = probs @ values
    return torch.logsumexp(scores, -1), mean, (probs * (values - mean.unsqueeze(-1)).square()).sum(-1)
