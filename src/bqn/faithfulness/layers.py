"""How far mean field is off, layer by layer: its means and variances beside those of sampled networks, and the
correlations that it takes to be zero, but for those within a channel (`bqn.propagate.neighbours`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from bqn.beliefs import Belief
from bqn.network import Network, QuantizedNetwork, evaluating
from bqn.nn import Flatten, Layer
from bqn.nn._linear import WeightedSum

PAIRS = 2**14
_ROUNDING = 1e-12  # of the mean square deviation: what float64 leaves where nothing varies
KINDS = ("neighbour", "channel", "unit")


@dataclass(eq=False)
class _Pairs:
    """Pairs of units of an example, by their places in the flattened output, and the sums of their joint deviations."""

    first: Tensor
    second: Tensor
    joint: Tensor


class _Watched:
    """One layer: what mean field says of it, and the sums over sampled networks.

    Deviations are from the mean of mean field, so that their sums of squares lose few digits, and are summed in
    float64: where all networks say the same, what float32 rounds off would pass for their spread.
    """

    def __init__(self, kind: str, mean: Tensor, var: Tensor, generator: torch.Generator) -> None:
        self.kind, self.shape = kind, tuple(mean.shape[1:])
        self.mean, self.var = mean.flatten(), var.flatten()
        self.total, self.square = (torch.zeros_like(self.mean, dtype=torch.float64) for _ in range(2))
        self.pairs = {name: pairs for name in KINDS if (pairs := _choose_pairs(mean, name, generator)) is not None}

    def add(self, output: Tensor) -> None:
        deviation = (output.flatten() - self.mean).double()
        self.total += deviation
        self.square += deviation.square()
        for pairs in self.pairs.values():
            pairs.joint += deviation[pairs.first] * deviation[pairs.second]

    def result(self, count: int) -> dict[str, Any]:
        offset = self.total / count
        variance = (self.square - count * offset.square()) / (count - 1)
        variance = torch.where(variance > _ROUNDING * self.square / count, variance, 0)
        spread = float(variance.mean())
        # The mean of few draws is off by itself, by the variance over their number: that is not mean field's fault.
        squared = float(offset.square().mean()) - spread / count
        known = spread > 0
        return {
            "kind": self.kind,
            "shape": list(self.shape),
            "mean_error": math.sqrt(max(squared, 0.0) / spread) if known else None,
            "variance_ratio": float(self.var.double().mean()) / spread if known else None,
            "correlation": {
                name: _correlation(self.pairs[name], offset, variance, count) if name in self.pairs else None
                for name in KINDS
            },
        }


class LayerTally:
    """Compares the layers of a network with those of its sampled networks, on the same inputs.

    A layer is a leaf of `net.body` that returns a belief, but for `Flatten`, which changes nothing. Where a sampled
    network takes the common shift of its drawn weights out of a sum (`bqn.nn.BatchNorm1d`), the moments compared with
    are those without it, as the analytic pass has them behind batch norm.

    Parameters
    ----------
    net : Network
    x : Tensor `(N, ...)`
        Network input. All of it passes at once, and four tensors of each layer's size are kept.
    seed : int
        Of the choice of pairs.
    """

    def __init__(self, net: Network, x: Tensor, seed: int = 0) -> None:
        self.x = x
        self.count = 0
        generator = torch.Generator().manual_seed(seed)
        self._layers = {
            name: _Watched(kind, mean, var, generator) for name, (kind, mean, var) in _analytic(net, x).items()
        }

    @torch.no_grad()
    def add(self, member: QuantizedNetwork) -> None:
        """One more sampled network of the same architecture, on the device of the inputs."""
        with _watching(member.body, self._take):
            member(self.x)
        self.count += 1

    def _take(self, name: str, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        if name in self._layers:
            self._layers[name].add(output)

    def table(self) -> list[dict[str, Any]]:
        """One row a layer, in the order of the pass; None where something is undefined.

        "layer", "kind" and "shape" name it. "mean_error": root mean square of the difference between mean field's means
        and the true ones, over that of the true standard deviations. "variance_ratio": mean field's variance over the
        true one, both averaged over all units. "correlation": its "mean" and root mean square, "rms", over pairs of
        units of three kinds, "neighbour": positions of a channel side by side; "channel": any two positions of a
        channel; "unit": two channels at one position, or two units. Mean field takes all of them to be zero; the
        analytic pass knows one number of the first two (`bqn.propagate.neighbours`).

        Everything is over weight draws, for one example at a time, and free of the error that few draws bring.
        Correlations are weighted by the variances of their pairs.
        """
        if self.count < 3:
            raise ValueError(f"at least three networks must be added, got {self.count}")
        return [{"layer": name, **layer.result(self.count)} for name, layer in self._layers.items()]


def _correlation(pairs: _Pairs, offset: Tensor, variance: Tensor, count: int) -> dict[str, float] | None:
    """Mean and root mean square correlation of pairs, weighted by their deviations and their variances."""
    covariance = (pairs.joint - count * offset[pairs.first] * offset[pairs.second]) / (count - 1)
    product = variance[pairs.first] * variance[pairs.second]
    if not float(product.sum()) > 0:
        return None
    squared = float(covariance.square().sum() / product.sum())
    # Independent draws have a squared correlation of 1 / (count - 1) on average: adjusted as R² is.
    adjusted = 1 - (1 - squared) * (count - 1) / (count - 2)
    return {"mean": float(covariance.sum() / product.sqrt().sum()), "rms": math.sqrt(max(adjusted, 0.0))}


def _choose_pairs(like: Tensor, kind: str, generator: torch.Generator) -> _Pairs | None:
    """Random pairs of places in a tensor `(N, C, ...)`; None where there are none of that kind."""
    examples, channels, positions = like.shape[0], like.shape[1], like.shape[2:].numel()
    width = like.shape[-1] if like.dim() > 2 else 1
    if {"neighbour": width, "channel": positions, "unit": channels}[kind] < 2:
        return None

    def draw(below: int) -> Tensor:
        return torch.randint(below, (PAIRS,), generator=generator)

    def another(than: Tensor, below: int) -> Tensor:
        return (than + 1 + draw(below - 1)) % below

    example, channel, position = draw(examples), draw(channels), draw(positions)
    other_channel, other_position = channel, position
    if kind == "unit":
        other_channel = another(channel, channels)
    elif kind == "channel":
        other_position = another(position, positions)
    else:
        position = draw(positions // width) * width + draw(width - 1)
        other_position = position + 1
    first = (example * channels + channel) * positions + position
    second = (example * channels + other_channel) * positions + other_position
    return _Pairs(first.to(like.device), second.to(like.device), like.new_zeros(PAIRS, dtype=torch.float64))


@torch.no_grad()
def _analytic(net: Network, x: Tensor) -> dict[str, tuple[str, Tensor, Tensor]]:
    """Kind, mean and variance of every layer in the analytic pass, in its order."""
    found: dict[str, tuple[str, Tensor, Tensor]] = {}
    shifted: dict[int, Belief] = {}  # beliefs whose sampled counterparts have no common shift; kept, so that ids hold

    def take(name: str, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        if isinstance(output, Tensor):
            return
        if isinstance(module, WeightedSum):
            without_shift = bool(module.centred_batches)
        else:
            without_shift = any(id(each) in shifted for each in inputs)
        if without_shift:
            shifted[id(output)] = output
        if not isinstance(module, Flatten):
            belief = output.within_batch(None) if without_shift else output
            found[name] = (type(module).__name__, belief.mean.float(), belief.var.float())

    with evaluating(net), _watching(net.body, take):
        net(x)
    return found


@contextmanager
def _watching(body: nn.Module, take: Callable[[str, nn.Module, tuple[Any, ...], Any], None]) -> Iterator[None]:
    """Call `take` with name, module, inputs and output of every leaf layer below `body` as it passes."""

    def hook(name: str) -> Callable[[nn.Module, tuple[Any, ...], Any], None]:
        return lambda module, inputs, output: take(name, module, inputs, output)

    handles = [
        module.register_forward_hook(hook(name or "body"))
        for name, module in body.named_modules()
        if isinstance(module, Layer) and not any(isinstance(child, Layer) for child in module.children())
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
