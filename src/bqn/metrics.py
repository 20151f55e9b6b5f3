"""Metrics: pure functions of predicted probabilities and labels."""

from __future__ import annotations

import torch
from torch import Tensor

from bqn.checks import require_labels


def nll(probs: Tensor, y: Tensor) -> float:
    """Mean negative log-likelihood of the labels, in nats; probs is `(N, K)`, y is `(N,)`."""
    require_labels(y, probs.shape[:1], probs.shape[-1])
    chosen = probs.gather(-1, y.long().unsqueeze(-1)).squeeze(-1)
    return float(-chosen.clamp_min(torch.finfo(probs.dtype).tiny).log().mean())


def error(probs: Tensor, y: Tensor) -> float:
    """Fraction of examples whose most probable class is not the label."""
    require_labels(y, probs.shape[:1], probs.shape[-1])
    return float((probs.argmax(-1) != y).double().mean())


def ece(probs: Tensor, y: Tensor, bins: int = 15) -> float:
    """Expected calibration error: |accuracy - confidence| averaged over `bins` equal bins of confidence."""
    require_labels(y, probs.shape[:1], probs.shape[-1])
    confidence, guess = probs.double().max(-1)
    position = (confidence * bins).long().clamp_max(bins - 1)
    gap = (guess == y).double() - confidence
    return float(torch.zeros(bins, dtype=torch.float64).index_add(0, position.cpu(), gap.cpu()).abs().sum() / len(y))
