"""The objective: the alternative ELBO and the schedules of its weight λ.

What is maximized is the mean over a batch of L̄_n plus λ/N · R with R = -KL(Q ‖ prior) (the sign in appendix A of the
paper is wrong) and N the size of the data set. λ = 1 is the textbook ELBO; the paper sweeps small λ.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from torch import Tensor

Schedule: TypeAlias = Callable[[float], float]


class ElboTerms(NamedTuple):
    """The ELBO and what it is made of, all scalars.

    `value = log_likelihood - lam / data_size * kl`.
    """

    value: Tensor
    log_likelihood: Tensor
    kl: Tensor


def combine(log_likelihoods: Tensor, kl: Tensor, data_size: int, lam: float | Tensor) -> ElboTerms:
    """Put the terms together; `log_likelihoods` is `(N,)`. An empty batch contributes nothing."""
    mean = log_likelihoods.sum() / max(log_likelihoods.shape[0], 1)
    return ElboTerms(mean - lam / data_size * kl, mean, kl)


def constant(lam: float) -> Schedule:
    """λ all the time."""
    _require_finite(lam, "lam")
    return lambda epoch: lam


def warm_up(then: float | Schedule, epochs: float = 5, start: float = -1e-4) -> Schedule:
    """The paper's warm-up: a negative λ, which rewards certainty, for the first epochs; then another schedule.

    The schedule `then` starts to count when the warm-up has ended.
    """
    _require_finite(start, "start")
    _require_length(epochs, "epochs")
    after = then if callable(then) else constant(then)
    return lambda epoch: start if epoch < epochs else after(epoch - epochs)


def decay(start: float, end: float, epochs: float, shape: str = "cosine") -> Schedule:
    """λ from `start` to `end` within `epochs`, and `end` from then on.

    Parameters
    ----------
    shape : "linear", "cosine" or "exponential"
        The last needs a start and an end of the same sign, neither zero.
    """
    _require_finite(start, "start")
    _require_finite(end, "end")
    _require_length(epochs, "epochs")
    if shape == "exponential" and start * end <= 0:
        raise ValueError(f"start and end must have the same sign for an exponential decay, got {start} and {end}")

    def at(epoch: float) -> float:
        done = min(max(epoch / epochs, 0.0), 1.0)
        if shape == "exponential":
            return float(start * (end / start) ** done)
        share = done if shape == "linear" else 0.5 - 0.5 * math.cos(math.pi * done)
        return start + (end - start) * share

    if shape not in ("linear", "cosine", "exponential"):
        raise ValueError(f"shape must be linear, cosine or exponential, got {shape!r}")
    return at


def _require_finite(value: float, name: str) -> None:
    if not math.isfinite(value):
        raise ValueError(f"{name} must be finite, got {value}")


def _require_length(value: float, name: str) -> None:
    if not (value > 0 and math.isfinite(value)):
        raise ValueError(f"{name} must be positive and finite, got {value}")
