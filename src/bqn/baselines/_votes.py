"""Heads of classifiers with one yes or no for each class, as expectation backpropagation and natural-parameter networks
have them."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from bqn.beliefs import Belief, Gaussian
from bqn.checks import require_labels
from bqn.heads import SoftmaxHead


class OneVersusRestHead(SoftmaxHead):
    """Each class against all others: a subclass gives the log-odds, one for each class.

    An example has the class c if output c says yes and all others no; given that one class is right, the probabilities
    are the softmax of the log-odds.
    """

    def __init__(self, fan_in: int) -> None:
        nn.Module.__init__(self)
        self.fan_in = fan_in

    @property
    def scale(self) -> Tensor:
        return torch.ones(())

    def log_odds(self, belief: Belief) -> Tensor:
        """`(N, K)`."""
        raise NotImplementedError

    def log_likelihood(
        self, belief: Belief, y: Tensor, bound: str = "tilted", validate: bool = True, smoothing: float = 0.0
    ) -> Tensor:
        """log of the probability that output y says yes and all others no: `(N,)`.

        There is one `bound` only, and no `smoothing`.
        """
        if smoothing:
            raise ValueError(f"smoothing must be 0 for a head of one class against the rest, got {smoothing}")
        odds = self.log_odds(belief)
        require_labels(y, odds.shape[:1], odds.shape[-1], read=validate)
        said = 2 * nn.functional.one_hot(y.long(), odds.shape[-1]).to(odds) - 1
        votes: Tensor = nn.functional.logsigmoid(odds * said).sum(-1)
        return votes

    def predict(self, belief: Belief, method: str = "taylor") -> Tensor:
        """Class probabilities `(N, K)`."""
        return torch.softmax(self.log_odds(belief), -1)


class ProbitHead(OneVersusRestHead):
    """Output c says yes where it is positive."""

    def log_odds(self, belief: Belief) -> Tensor:
        z = gaussian(belief).mean / gaussian(belief).var.sqrt()
        odds: Tensor = torch.special.log_ndtr(z) - torch.special.log_ndtr(-z)
        return odds


class LogisticHead(OneVersusRestHead):
    """Output c says yes with the probability σ(h), averaged over normal h by MacKay's approximation."""

    def log_odds(self, belief: Belief) -> Tensor:
        return gaussian(belief).mean / (1 + (math.pi / 8) * gaussian(belief).var).sqrt()


def gaussian(belief: Belief) -> Gaussian:
    """`belief`, which must have moments of a normal distribution."""
    if not isinstance(belief, Gaussian):
        raise TypeError(f"belief must be Gaussian, got {type(belief).__name__}")
    return belief
