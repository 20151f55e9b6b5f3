"""Heads for networks whose last layer is a real-valued one of their own."""

from __future__ import annotations

import torch
from torch import Tensor

from bqn.beliefs import Belief, mean_of, var_of
from bqn.heads import GaussianHead, Head, SoftmaxHead
from bqn.network import Network


class NoiseHead(GaussianHead):
    """Regression: y = h + ε; the body's last layer gives the outputs, the head adds noise of learned variance."""

    def __init__(self, out_features: int) -> None:
        super().__init__(out_features, out_features)
        del self.weight  # the body has it

    def _output(self, belief: Belief) -> tuple[Tensor, Tensor]:
        if len(belief.shape) != 2 or belief.shape[1] != self.out_features:
            raise ValueError(f"belief must have shape (N, {self.out_features}), got {tuple(belief.shape)}")
        mean, var = mean_of(belief), var_of(belief)
        return mean, torch.zeros_like(mean) if var is None else var


def plain_head(net: Network, outputs: int) -> Head:
    """The head behind a real-valued last layer, for the task of `net`: softmax as it is, or noise."""
    if isinstance(net.head, GaussianHead):
        return NoiseHead(outputs)
    return plain_softmax(net.head.fan_in)


def plain_softmax(fan_in: int) -> SoftmaxHead:
    """Softmax without a scale to learn: real weights can be as large as they like."""
    head = SoftmaxHead(fan_in, scale=1.0)
    head.log_scale.requires_grad_(False)
    return head
