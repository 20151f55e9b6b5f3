"""Heads: what turns the belief about the last layer into a likelihood and a prediction (B.2 and B.3, corrected)."""

from __future__ import annotations

import math
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from bqn.beliefs import Belief, Categorical, Gaussian, mean_of, var_of
from bqn.checks import may_read_values, require_finite, require_floating, require_labels, require_positive
from bqn.log_sum_exp import categorical_log_sum_exp, tilted_log_sum_exp
from bqn.propagate import compiled, cpu
from bqn.softmax_integral import expected_softmax

BOUNDS = ("tilted", "jensen")
PREDICTIONS = ("taylor", "integral", "coarse", "mean")

# Largest logit variance at which the second-order Taylor prediction is used; chosen so that its total variation to
# the truth stays below 0.01 (tests/test_heads.py measures it), the integral takes over beyond.
TAYLOR_UP_TO = 0.25


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
            return target - categorical_log_sum_exp(belief, torch.exp(-self.log_scale), mean, var, bound)
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
