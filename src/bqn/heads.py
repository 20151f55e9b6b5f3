"""Heads: what turns the belief about the last layer into a likelihood and a prediction (B.2 and B.3, corrected)."""

from __future__ import annotations

import math
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from bqn.beliefs import Belief, Categorical, Gaussian, mean_of, var_of
from bqn.checks import may_look, may_read_values, require_finite, require_floating, require_labels, require_positive
from bqn.propagate import compiled, cpu
from bqn.softmax_integral import expected_softmax

BOUNDS = ("tilted", "jensen")
PREDICTIONS = ("taylor", "integral", "coarse", "mean")

# Largest logit variance at which the second-order Taylor prediction is used; chosen so that its total variation to
# the truth stays below 0.01 (tests/test_heads.py measures it), the integral takes over beyond.
TAYLOR_UP_TO = 0.25
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


class SoftmaxHead(nn.Module):
    """Softmax of `h / s` with a learned scale s.

    Parameters
    ----------
    fan_in : int
        Fan-in of the last linear layer.
    scale : float or None
        Where s starts; the square root of `fan_in` by default, which makes the logits of a start near unit size.
    """

    def __init__(self, fan_in: int, scale: float | None = None) -> None:
        super().__init__()
        require_positive(fan_in, "fan_in")
        start = math.sqrt(fan_in) if scale is None else float(scale)
        if not (start > 0 and math.isfinite(start)):
            raise ValueError(f"scale must be positive and finite, got {scale}")
        self.fan_in = fan_in
        self.log_scale = nn.Parameter(torch.tensor(math.log(start)))

    @property
    def scale(self) -> Tensor:
        return self.log_scale.exp()

    def _compiled(self, belief: Gaussian, y: Tensor) -> bool:
        """Whether `compiled.tilted_likelihood` can do it."""
        known = isinstance(y, Tensor) and y.is_cpu
        return known and len(belief.shape) == 2 and cpu.usable(belief.mean, belief.var, self.log_scale)

    def _logits(self, belief: Belief) -> tuple[Tensor, Tensor | None]:
        """Mean and variance of `h / s`, each `(N, K)`."""
        if belief.dim() != 2 if isinstance(belief, Tensor) else len(belief.shape) != 2:
            raise ValueError(f"belief must have shape (N, classes), got {tuple(belief.shape)}")
        mean, var = mean_of(belief), var_of(belief)
        inverse = torch.exp(-self.log_scale)
        return mean * inverse, None if var is None else var * inverse.square()

    def log_likelihood(
        self, belief: Belief, y: Tensor, bound: str = "tilted", validate: bool = True, smoothing: float = 0.0
    ) -> Tensor:
        """A lower bound on E[log p(y | h)] per example for independent h; the value itself where h is known.

        A Gaussian enters with its two moments, a Categorical with its whole law: it is a bound for both.

        Parameters
        ----------
        belief : belief `(N, K)`
        y : integer Tensor `(N,)`
        bound : "tilted" (Knowles and Minka 2011) or "jensen" (the paper's)
            The tilted bound is never below Jensen's.
        validate : bool
            Whether the labels are looked at, which makes a GPU wait.
        smoothing : float
            Label smoothing: so much of each label counts as every class alike. The bound is then one on the
            log-likelihood that such labels expect.

        Returns
        -------
        Tensor `(N,)`
        """
        if not 0 <= smoothing < 1:
            raise ValueError(f"smoothing must be at least 0 and below 1, got {smoothing}")
        likelihood = self._bound(belief, y, bound, validate)
        if not smoothing:
            return likelihood
        mean, _ = self._logits(belief)
        # All labels have the normalizer in common, which is what the bound is on: the rest is linear in the means.
        target = mean.gather(-1, y.long().unsqueeze(-1)).squeeze(-1)
        return likelihood + smoothing * (mean.mean(-1) - target)

    def _bound(self, belief: Belief, y: Tensor, bound: str, validate: bool) -> Tensor:
        if bound not in BOUNDS:
            raise ValueError(f"bound must be one of {', '.join(BOUNDS)}, got {bound!r}")
        if bound == "tilted" and isinstance(belief, Gaussian) and self._compiled(belief, y):
            require_labels(y, belief.shape[:1], belief.shape[-1], read=validate)
            return compiled.tilted_likelihood(belief.mean, belief.var, self.log_scale, y.long().contiguous())
        mean, var = self._logits(belief)
        require_labels(y, mean.shape[:1], mean.shape[-1], read=validate)
        if y.device != mean.device:
            raise ValueError(f"y must be on the device of the logits, {mean.device}, got {y.device}")
        target = mean.gather(-1, y.long().unsqueeze(-1)).squeeze(-1)
        if var is None:
            return target - torch.logsumexp(mean, -1)
        if isinstance(belief, Categorical):
            return target - _categorical_log_sum_exp(belief, torch.exp(-self.log_scale), mean, var, bound)
        if bound == "jensen":
            return target - torch.logsumexp(mean + 0.5 * var, -1)
        return target - tilted_log_sum_exp(mean, var)

    def expected_log_likelihood(self, h: Tensor, expected: Tensor) -> Tensor:
        """E[log p(y | h)] per example over labels y that have the probabilities `expected` `(N, K)`: Tensor `(N,)`.

        For a known h: what a network maximizes that is to predict `expected`.
        """
        mean, _ = self._logits(h)
        if expected.shape != mean.shape:
            raise ValueError(f"expected must have shape {tuple(mean.shape)}, got {tuple(expected.shape)}")
        return (expected * torch.log_softmax(mean, -1)).sum(-1)

    def predict(self, belief: Belief, method: str = "taylor") -> Tensor:
        """Class probabilities `(N, K)`: not negative, rows sum to one, no sampling.

        Parameters
        ----------
        belief : belief `(N, K)`
        method : str
            "taylor": second-order expansion (corrected) for examples whose logit variances are all at most 0.25,
            and "integral" for the others, where the expansion loses its accuracy and then its sign.
            "integral": E[softmax] of independent normal logits as a one-dimensional integral, at any variance.
            "coarse": the same on a coarse grid, in a fifth of the time: for targets of training.
            "mean": softmax of the mean, for comparison.
        """
        if method not in PREDICTIONS:
            raise ValueError(f"method must be one of {', '.join(PREDICTIONS)}, got {method!r}")
        mean, var = self._logits(belief)
        if var is None or method == "mean" or mean.shape[0] == 0:
            return torch.softmax(mean, -1)
        if method in ("integral", "coarse"):
            return expected_softmax(mean, var, coarse=method == "coarse")
        probs = taylor_softmax(mean, var)
        uncertain = (var > TAYLOR_UP_TO).any(-1)
        if not may_read_values(var):
            return torch.where(uncertain.unsqueeze(-1), expected_softmax(mean, var), probs)
        rows = uncertain.nonzero().squeeze(-1)
        if rows.numel():
            probs = probs.index_copy(0, rows, expected_softmax(mean[rows], var[rows]))
        return probs

    def mix(self, predictions: list[Tensor]) -> Tensor:
        """The prediction of several networks with equal weight: the mean of their probabilities."""
        return torch.stack(predictions).mean(0)

    def require_targets(self, y: Tensor, batch: int) -> None:
        """Raise unless `y` is one integer label per example; their range is checked where the classes are known."""
        require_labels(y, (batch,), torch.iinfo(torch.int64).max, read=False)

    def extra_repr(self) -> str:
        return f"fan_in={self.fan_in}"


def taylor_softmax(mean: Tensor, var: Tensor) -> Tensor:
    """Second-order expansion of E[softmax] around the mean (B.2, corrected); rows sum to one.

    Valid for small variances only: beyond about one it can leave [0, 1], and what falls out is cut here.
    """
    soft = torch.softmax(mean, -1)
    pull = (1 - 2 * soft) * var
    probs = (soft + 0.5 * soft * (pull - (soft * pull).sum(-1, keepdim=True))).clamp_min(0)
    return probs / probs.sum(-1, keepdim=True)


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


def _categorical_log_sum_exp(
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


class Moments(NamedTuple):
    """Moments of a predictive distribution, each `(N, out_features)`; `kurtosis` is 3 for a normal one."""

    mean: Tensor
    var: Tensor
    skewness: Tensor
    kurtosis: Tensor


class GaussianHead(nn.Module):
    """Regression: y = W h + ε with learned real weights W and noise variances s.

    Parameters
    ----------
    in_features : int
        Units of the last hidden layer.
    out_features : int
        Outputs, independent given h; each has its own noise.
    """

    def __init__(self, in_features: int, out_features: int = 1) -> None:
        super().__init__()
        self.in_features = require_positive(in_features, "in_features")
        self.out_features = require_positive(out_features, "out_features")
        self.weight = nn.Parameter(torch.randn(out_features, in_features) / math.sqrt(in_features))
        self.log_noise = nn.Parameter(torch.zeros(out_features))

    @property
    def noise(self) -> Tensor:
        """Variances s of the noise, `(out_features,)`."""
        return self.log_noise.exp()

    def _output(self, belief: Belief) -> tuple[Tensor, Tensor]:
        """Mean and variance of W h, each `(N, out_features)`."""
        if len(belief.shape) != 2 or belief.shape[1] != self.in_features:
            raise ValueError(f"belief must have shape (N, {self.in_features}), got {tuple(belief.shape)}")
        mean, var = mean_of(belief), var_of(belief)
        output = mean @ self.weight.mT
        return output, torch.zeros_like(output) if var is None else var @ self.weight.square().mT

    def log_likelihood(self, belief: Belief, y: Tensor, validate: bool = True) -> Tensor:
        """E[log p(y | h)] per example, exact for independent h: Tensor `(N,)`; y is `(N, out_features)`.

        `validate` says whether y is searched for NaN and infinity, which makes a GPU wait.
        """
        output, spread = self._output(belief)
        self.require_targets(y, output.shape[0], read=validate)
        square = (y - output).square() + spread
        return -0.5 * (square / self.noise + self.log_noise + math.log(2 * math.pi)).sum(-1)

    def expected_log_likelihood(self, h: Tensor, expected: Moments) -> Tensor:
        """E[log p(y | h)] per example over targets y of which mean and variance are expected: Tensor `(N,)`.

        For a known h: what a network maximizes that is to predict `expected`.
        """
        output, _ = self._output(h)
        if expected.mean.shape != output.shape:
            raise ValueError(f"expected must have shape {tuple(output.shape)}, got {tuple(expected.mean.shape)}")
        square = (expected.mean - output).square() + expected.var
        return -0.5 * (square / self.noise + self.log_noise + math.log(2 * math.pi)).sum(-1)

    def predict(self, belief: Belief) -> Moments:
        """Mean, variance, skewness and kurtosis of the prediction (B.3, corrected)."""
        output, spread = self._output(belief)
        total = spread + self.noise
        skewness, kurtosis = torch.zeros_like(output), torch.full_like(output, 3.0)
        if isinstance(belief, Categorical):
            third, fourth = belief.central_moment(3), belief.central_moment(4)
            excess = fourth - 3 * belief.var.square()
            skewness = third @ self.weight.pow(3).mT / total.pow(1.5)
            kurtosis = 3 + excess @ self.weight.pow(4).mT / total.square()
        return Moments(output, total, skewness, kurtosis)

    def mix(self, predictions: list[Moments]) -> Moments:
        """Moments of the mixture of several predictions with equal weight."""
        mean = torch.stack([part.mean for part in predictions]).mean(0)
        second = third = fourth = torch.zeros_like(mean)
        for part in predictions:
            gap, var = part.mean - mean, part.var
            part_third, part_fourth = part.skewness * var.pow(1.5), part.kurtosis * var.square()
            second = second + var + gap.square()
            third = third + part_third + 3 * gap * var + gap.pow(3)
            fourth = fourth + part_fourth + 4 * gap * part_third + 6 * gap.square() * var + gap.pow(4)
        count = len(predictions)
        var = second / count
        return Moments(mean, var, third / count / var.pow(1.5), fourth / count / var.square())

    def require_targets(self, y: Tensor, batch: int, read: bool = True) -> None:
        """Raise unless `y` is a floating tensor `(batch, out_features)`, of finite values if they may be read."""
        require_floating(y, "y")
        if tuple(y.shape) != (batch, self.out_features):
            raise ValueError(f"y must have shape {(batch, self.out_features)}, got {tuple(y.shape)}")
        if read:
            require_finite(y, "y")

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}"


Head: TypeAlias = SoftmaxHead | GaussianHead
Prediction: TypeAlias = Tensor | Moments
