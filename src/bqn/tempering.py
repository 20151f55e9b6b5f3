"""Temperature scaling (Guo et al. 2017): one number, fitted on held-out examples, makes a classifier as sure as it
should be.

It changes no prediction, only how confident it is. A comparison of NLLs is fair to networks that were never taught to
be calibrated only if they may have it. Where several networks are averaged, the average is what is tempered, unless it
is to become part of the networks.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from bqn.checks import require_labels

_RANGE = 12.0  # temperatures from e⁻¹² to e¹² are considered
_STEPS = 60  # golden sections: the bracket shrinks to 1e-11 of its width


def temper(log_probs: Tensor, temperature: float) -> Tensor:
    """Probabilities `(N, K)` proportional to the given ones to the power 1 / `temperature`."""
    return torch.softmax(log_probs / temperature, -1)


def fit_temperature(log_probs: Tensor, y: Tensor) -> float:
    """The temperature with the lowest NLL.

    Parameters
    ----------
    log_probs : Tensor `(N, K)` or `(S, N, K)`
        Logarithms of the predicted probabilities, or logits; float64 where they are far apart. Of S networks: each is
        tempered alike, and their average is what is judged.
    y : integer Tensor `(N,)`
    """
    if log_probs.dim() not in (2, 3) or not log_probs.shape[:-1].numel():
        raise ValueError(f"log_probs must have shape (examples, classes), at least one, got {tuple(log_probs.shape)}")
    require_labels(y, log_probs.shape[-2:-1], log_probs.shape[-1])
    members = log_probs.double().reshape(-1, *log_probs.shape[-2:])
    target = y.long().expand(len(members), -1).unsqueeze(-1)

    def nll(log_temperature: float) -> float:
        scaled = torch.log_softmax(members * torch.tensor(-log_temperature).double().exp(), -1)
        return float(math.log(len(members)) - scaled.gather(-1, target).logsumexp(0).mean())

    if not math.isfinite(nll(0.0)):
        raise ValueError(
            "log_probs must hold no NaN or positive infinity and give no label a probability of zero, got a mean NLL "
            f"of {nll(0.0)} at temperature 1"
        )
    # Of one network the NLL is convex in the inverse temperature, so in its logarithm it has a single valley.
    ratio = (5**0.5 - 1) / 2
    low, high = -_RANGE, _RANGE
    left, right = high - ratio * (high - low), low + ratio * (high - low)
    at_left, at_right = nll(left), nll(right)
    for _ in range(_STEPS):
        if at_left <= at_right:
            high, right, at_right = right, left, at_left
            left = high - ratio * (high - low)
            at_left = nll(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + ratio * (high - low)
            at_right = nll(right)
    return float(torch.tensor(0.5 * (low + high)).double().exp())
