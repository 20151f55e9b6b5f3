"""`qnn`: binary weights and activations, learned through a straight-through estimator (Courbariaux et al. 2016).

Every weight is the sign of a latent real number, every activation the sign of its input, with sign(0) = +1. Gradients
pass a sign as if it were hard tanh: unchanged within [-1, 1], not at all outside. Latent weights are cut to [-1, 1]
after each step, since beyond no gradient would ever return them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from bqn.baselines._layers import set_activations, set_weights
from bqn.baselines._method import Method, Plan
from bqn.levels import BINARY
from bqn.network import Network
from bqn.nn import Sign, Weight
from bqn.propagate.threshold import quantize


class BinaryWeight(Weight):
    """Weights of ±1 without doubt: the signs of latent numbers, which are what is learned.

    The latent numbers start uniform in a narrow band around zero (`width`), where every sign can still change.
    """

    width = 0.1
    on_levels = True

    def __init__(self, shape: torch.Size, fan_in: int) -> None:
        super().__init__()
        self.latent = nn.Parameter(torch.empty(shape).uniform_(-self.width, self.width))

    @property
    def shape(self) -> torch.Size:
        return self.latent.shape

    def belief(self) -> Tensor:
        return cast(Tensor, quantize(self.latent, BINARY, (0.0,)))

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        return self.mode()

    def mode(self) -> Tensor:
        return self.belief().detach()

    def kl(self) -> Tensor:
        return self.latent.new_zeros(())


def clip_after_steps(optimizer: torch.optim.Optimizer, clipped: Sequence[Tensor]) -> None:
    """Let an optimizer cut some of its parameters to [-1, 1] after each of its steps."""
    latents = list(clipped)

    @torch.no_grad()
    def clip(*_: Any) -> None:
        torch._foreach_clamp_min_(latents, -1.0)
        torch._foreach_clamp_max_(latents, 1.0)

    optimizer.register_step_post_hook(clip)


class QuantizedPointNetwork(Network):
    """A binary network without doubt. Its one mode is "map"; `mode()` gives a plain network, ready to be packed."""

    modes = ("map",)

    def make_optimizer(self, learning_rate: float) -> torch.optim.Optimizer:
        adam = Network.make_optimizer(self, learning_rate)
        clip_after_steps(adam, [weight.latent for weight in self.modules() if isinstance(weight, BinaryWeight)])
        return adam


def build(plan: Plan) -> QuantizedPointNetwork:
    net = plan.blank()
    set_weights(net.body, BinaryWeight)
    set_activations(net.body, Sign)
    return QuantizedPointNetwork(net.body, net.head)


QNN = Method("binary network, straight-through estimator", build)
