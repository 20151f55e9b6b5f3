"""`bayesbinn`: a Bernoulli posterior over ±1 by the Bayesian learning rule (Meng, Bachmann and Khan 2020).

Q(w) ∝ exp(λ w) has the natural parameter λ and the mean μ = tanh λ. The rule descends along natural gradients, which
are gradients by μ:

    λ ← (1 - α) λ - α N ∇_μ E_Q[loss],    ∇_μ ≈ g (1 - w²) / (τ (1 - μ²)),    w = tanh((λ + δ) / τ),

where g is the gradient of the loss at the relaxed draw w, δ = ½ log(u / (1 - u)) and u is uniform. So written it is
plain gradient descent with step α N on natural gradients, and α N is the learning rate of the config; the paper has
α = 1e-4, N = 54,000 and τ = 1e-10. Activations are real (ReLU), batch norm has no learned parameters and stands behind
the last layer too, as in the authors' networks.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from bqn.baselines._heads import plain_softmax
from bqn.baselines._layers import MaskedUnits, put_before, set_activations, set_weights, weighted_sums
from bqn.baselines._method import SIZES, Method, Plan
from bqn.heads import SoftmaxHead
from bqn.network import Network
from bqn.nn import BatchNorm1d, BatchNorm2d, Sequential, Weight

_TINY = 1e-10  # keeps the gradient alive where the draw or the mean is ±1 to all digits; the authors' choice
_START = 10.0


class _RelaxedDraw(torch.autograd.Function):
    """tanh((λ + δ) / τ), with the natural gradient in the place of the gradient by λ."""

    @staticmethod
    def forward(ctx: Any, natural: Tensor, noise: Tensor, temperature: float) -> Tensor:
        draw = torch.tanh((natural + noise) / temperature)
        ctx.save_for_backward(natural, draw)
        ctx.temperature = temperature
        return draw

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor, None, None]:
        natural, draw = ctx.saved_tensors
        slope = (1 - draw.square() + _TINY) / ctx.temperature
        return grads[0] * slope / (1 - torch.tanh(natural).square() + _TINY), None, None


class _NaturalKL(torch.autograd.Function):
    """KL from the uniform prior; its gradient by μ, the natural gradient, is λ itself."""

    @staticmethod
    def forward(ctx: Any, natural: Tensor) -> Tensor:
        ctx.save_for_backward(natural)
        size = 2 * natural.abs()
        tail = nn.functional.softplus(-size) + size * torch.sigmoid(-size)
        return (math.log(2) - tail).sum()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Tensor:
        (natural,) = ctx.saved_tensors
        result: Tensor = natural * grads[0]
        return result


class BernoulliWeight(Weight):
    """Weights of ±1 with independent posteriors, given by their natural parameters, which start at ±10.

    Parameters
    ----------
    shape : shape of the weight tensor
    temperature : float
        τ of the relaxed draws.
    """

    def __init__(self, shape: torch.Size, temperature: float) -> None:
        super().__init__()
        self.natural = nn.Parameter(_START * (2.0 * torch.randint(2, shape) - 1))
        self.temperature = temperature

    @property
    def shape(self) -> torch.Size:
        return self.natural.shape

    def belief(self) -> Tensor:
        """A relaxed draw, from -1 to 1."""
        uniform = torch.rand_like(self.natural).clamp_(1e-7, 1 - 1e-7)
        draw: Tensor = _RelaxedDraw.apply(self.natural, 0.5 * torch.logit(uniform), self.temperature)  # type: ignore[no-untyped-call]
        return draw

    @torch.no_grad()
    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        draw = torch.empty_like(self.natural).uniform_(generator=generator)
        return torch.where(draw < torch.sigmoid(2 * self.natural), 1.0, -1.0).to(self.natural.dtype)

    @torch.no_grad()
    def mode(self) -> Tensor:
        return torch.where(self.natural >= 0, 1.0, -1.0).to(self.natural.dtype)

    def kl(self) -> Tensor:
        divergence: Tensor = _NaturalKL.apply(self.natural)  # type: ignore[no-untyped-call]
        return divergence


class NaturalDescent(torch.optim.Optimizer):
    """Gradient descent along the natural gradients that `BernoulliWeight` hands back: the Bayesian learning rule.

    The rate may be a number or a scalar tensor on the device, so that its steps can be recorded.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], lr: float) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            learned = [parameter for parameter in group["params"] if parameter.grad is not None]
            moves = torch._foreach_mul([parameter.grad for parameter in learned], group["lr"])
            torch._foreach_sub_(learned, moves)

    def state_names(self, parameter: Tensor) -> tuple[str, ...]:
        return ()


class BernoulliNetwork(Network):
    """A network with weights of ±1. Modes: "mc", networks drawn and averaged (the paper's mean); "map", the mode."""

    modes = ("mc", "map")

    def make_optimizer(self, learning_rate: float) -> torch.optim.Optimizer:
        learned = (parameter for parameter in self.parameters() if parameter.requires_grad)
        return NaturalDescent(learned, lr=learning_rate)


def build(plan: Plan) -> BernoulliNetwork:
    net = plan.blank()
    assert isinstance(net.head, SoftmaxHead)
    set_weights(net.body, lambda shape, fan_in: BernoulliWeight(shape, plan.options["temperature"]))
    set_activations(net.body, nn.ReLU)
    layers = weighted_sums(net.body)
    layers[-1].bias = None  # batch norm would take it out again
    body = Sequential(net.body, BatchNorm1d(plan.outputs))
    for norm in body.modules():
        if isinstance(norm, (BatchNorm1d, BatchNorm2d)):
            norm.weight = norm.bias = None
    put_before(body, layers, lambda: MaskedUnits(plan.options["dropout"]))
    return BernoulliNetwork(body, plain_softmax(net.head.fan_in))


BAYESBINN = Method(
    "Bernoulli posteriors, Bayesian learning rule",
    build,
    options={"temperature": 1e-10, "dropout": 0.2},
    model_options=tuple(name for name in SIZES if name != "batch_norm"),
)
