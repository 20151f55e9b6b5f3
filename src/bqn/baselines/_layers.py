"""The same architecture with other weights and other activations: what most rivals are made of."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from bqn.heads import GaussianHead
from bqn.network import Network
from bqn.nn import HiddenVariableLayer, Layer, Linear, Quantize, Sequential, Weight
from bqn.nn._linear import WeightedSum

MakeWeight = Callable[[torch.Size, int], Weight]
"""Makes a weight of a shape for a layer of a fan-in; a bias has the fan-in of its layer."""


class Real(Weight):
    """Real weights without doubt, with a normal prior of unit variance whose precision is the λ of the objective.

    They start uniform within ±√(6 / fan_in), so that behind a ReLU the signal keeps its size; a bias starts at zero.
    """

    def __init__(self, shape: torch.Size, fan_in: int) -> None:
        super().__init__()
        bound = math.sqrt(6 / fan_in) if len(shape) > 1 else 0.0
        self.value = nn.Parameter(torch.empty(shape).uniform_(-bound, bound))

    @property
    def shape(self) -> torch.Size:
        return self.value.shape

    def belief(self) -> Tensor:
        return self.value

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        return self.mode()

    def mode(self) -> Tensor:
        return self.value.detach().clone()

    def kl(self) -> Tensor:
        """Minus the logarithm of the prior density, up to a constant."""
        return 0.5 * self.value.square().sum()


class MaskedUnits(HiddenVariableLayer):
    """Dropout (Srivastava et al. 2014): each number is zero with probability `rate`, the others grow to make up for it.

    It draws while training. In a plain network it does so if `draws` is set, which `keep_drawing` does.
    """

    def __init__(self, rate: float) -> None:
        super().__init__()
        if not 0 <= rate < 1:
            raise ValueError(f"rate must be at least 0 and below 1, got {rate}")
        self.rate = rate

    def become_fixed(self, original: Layer) -> None:
        """Nothing is drawn unless somebody asks for it."""

    def forward(self, x: Tensor) -> Tensor:
        if not (self.training or self.draws) or self.rate == 0:
            return x
        kept = torch.empty_like(x).bernoulli_(1 - self.rate, generator=self.generator)
        return x * kept.div_(1 - self.rate)

    def extra_repr(self) -> str:
        return f"rate={self.rate}"


def keep_drawing(module: nn.Module) -> None:
    """Let dropout below `module` go on drawing masks when training is over."""
    for layer in module.modules():
        if isinstance(layer, MaskedUnits):
            layer.draws = True


def weighted_sums(module: nn.Module) -> list[WeightedSum]:
    """All linear layers and convolutions below `module`, in their order."""
    return [layer for layer in module.modules() if isinstance(layer, WeightedSum)]


def set_weights(module: nn.Module, make: MakeWeight) -> None:
    """Give every linear layer and convolution other weights, in place."""
    for layer in weighted_sums(module):
        fan_in = layer.weight.shape[1:].numel()
        for name in ("weight", "bias"):
            old = getattr(layer, name)
            if old is not None:
                setattr(layer, name, make(old.shape, fan_in))


def replace(module: nn.Module, kind: type[Layer], change: Callable[[Layer], nn.Module]) -> None:
    """Put `change(layer)` in the place of every layer of some kind below `module`."""
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, kind):
                setattr(parent, name, change(child))


def set_activations(module: nn.Module, make: Callable[[], nn.Module]) -> None:
    """Give every quantizer's place to another activation."""
    replace(module, Quantize, lambda layer: make())


def put_before(body: nn.Module, layers: Iterable[WeightedSum], make: Callable[[], nn.Module]) -> None:
    """Put a new module before each of `layers`."""
    chosen = {id(layer) for layer in layers}
    replace(body, WeightedSum, lambda layer: Sequential(make(), layer) if id(layer) in chosen else layer)


def real_body(net: Network, outputs: int) -> Sequential:
    """The layers of `net` with real weights and ReLU; for regression the head's linear layer becomes one of them."""
    last = [Linear(net.head.in_features, outputs)] if isinstance(net.head, GaussianHead) else []
    body = Sequential(net.body, *last)
    set_weights(body, Real)
    set_activations(body, nn.ReLU)
    return body
