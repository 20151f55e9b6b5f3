"""Layers of small fan-in (C.1): shortcut, element-wise product, dropout."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import cast

import torch
from torch import Tensor, nn

from bqn.beliefs import Belief, Categorical, Gaussian, mean_of, var_of
from bqn.checks import require_floating, require_positive
from bqn.levels import BINARY
from bqn.nn._layer import HiddenVariableLayer, Layer
from bqn.nn._posterior import DEFAULT_RHO, Posterior, belief_of
from bqn.nn._shapes import Sequential, require_input
from bqn.propagate import contraction
from bqn.propagate.neighbours import Neighbours


class Add(Layer):
    """The sum of two beliefs, for shortcuts: `Add()(a, b)`.

    Two Categoricals give a Categorical over the whole support of the sum; put a `Quantize` behind it to return to a
    few levels. With a Gaussian, means and variances add. A tensor shifts.
    """

    def forward(self, a: Belief, b: Belief) -> Belief:
        if a.shape != b.shape:
            raise ValueError(f"b must have the shape of a, {tuple(a.shape)}, got {tuple(b.shape)}")
        for belief, name in ((a, "a"), (b, "b")):
            if isinstance(belief, Tensor):
                require_floating(belief, name)
        if isinstance(a, Tensor) and isinstance(b, Tensor):
            return a + b
        if isinstance(a, Categorical) and isinstance(b, Categorical):
            return contraction.combine(a, b, operator.add)

        def within(momentum: float | None) -> Gaussian:
            first, second = (x if isinstance(x, Tensor) else x.within_batch(momentum) for x in (a, b))
            return Gaussian.of(*_add_moments(first, second), _add_neighbours(first, second))

        like = torch.empty(0, dtype=a.dtype, device=a.device)
        return Gaussian.deferred(a.shape, like, lambda: _add_moments(a, b), within, neighbours=_add_neighbours(a, b))


class Shortcut(Sequential):
    """`x + layers(x)`: a residual block around the given layers, which must keep the shape."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__(*layers)
        self.add = Add()

    def forward(self, x: Belief) -> Belief:
        inner = x
        for name, layer in self.named_children():
            if name != "add":
                inner = cast(Belief, layer(inner))
        return cast(Belief, self.add(x, inner))


def _add_moments(a: Belief, b: Belief) -> tuple[Tensor, Tensor]:
    variances = [var for var in (var_of(a), var_of(b)) if var is not None]
    return mean_of(a) + mean_of(b), variances[0] if len(variances) == 1 else variances[0] + variances[1]


def _add_neighbours(a: Belief, b: Belief) -> Neighbours | None:
    """What neighbours of the sum have in common: the mean of both, as if their variances were equal.

    Their true shares would be those of the batch at hand, on which no prediction may depend.
    """
    uncertain = [x.neighbours for x in (a, b) if not isinstance(x, Tensor)]
    known = [neighbours.correlation for neighbours in uncertain if neighbours is not None]
    return Neighbours(sum(known[1:], known[0]) / len(uncertain)) if known else None


class Product(Layer):
    """Multiply each unit by a random quantized weight of its own (element-wise product).

    Parameters
    ----------
    num_features : int
        Units, dimension 1 of the input.
    levels, prior : as for `Linear`

    A Categorical gives a Categorical over the products; anything real-valued gives a Gaussian of the same moments.
    """

    def __init__(
        self,
        num_features: int,
        levels: Iterable[float] | Tensor = BINARY,
        prior: Iterable[float] | Tensor | None = None,
    ) -> None:
        super().__init__()
        self.num_features = require_positive(num_features, "num_features")
        self.weight = Posterior((num_features,), levels, prior)
        self.reset_parameters()

    def reset_parameters(self, rho: float = DEFAULT_RHO, generator: torch.Generator | None = None) -> None:
        self.weight.signal_init_(rho, generator)

    def forward(self, x: Belief) -> Belief:
        require_input(x, self.num_features, axis=1, dims=None, layer="Product")
        weight = belief_of(self.weight)
        assert weight is not None
        weight = weight.reshape(-1, *(1 for _ in x.shape[2:]))
        if isinstance(weight, Tensor):
            if not isinstance(x, Tensor):
                raise ValueError("x must be known where the weight is: sample the whole network")
            return x * weight
        assert isinstance(weight, Categorical)
        if isinstance(x, Categorical):
            return contraction.combine(x, weight, operator.mul)
        mean, var = mean_of(x), var_of(x)
        noise = mean.square() * weight.var
        if var is not None:
            noise = noise + var * (weight.mean.square() + weight.var)
        return Gaussian.of(mean * weight.mean, noise)


class Dropout(HiddenVariableLayer):
    """Set each unit to zero with probability `p`.

    The mask is a hidden variable of the model, at training and at test alike: the analytic pass sums it out, a
    sampled network draws it at every forward. Values are not rescaled, so that levels stay levels.
    """

    def __init__(self, p: float = 0.5) -> None:
        super().__init__()
        if not 0 <= p <= 1:
            raise ValueError(f"p must lie between 0 and 1, got {p}")
        self.p = p

    def forward(self, x: Belief) -> Belief:
        keep = 1 - self.p
        if isinstance(x, Tensor):
            require_floating(x, "x")
        if self.draws:
            if not isinstance(x, Tensor):
                raise ValueError("x must be known in a sampled network")
            return x * self.draw(x.new_tensor((self.p, keep)), x.shape).to(x.dtype)
        if isinstance(x, Categorical):
            spread = contraction.with_zero(x)
            zero = torch.zeros_like(spread.probs)
            zero[..., spread.level_values.index(0.0)] = self.p
            return Categorical.of(spread.level_values, probs=keep * spread.probs + zero)
        mean, var = mean_of(x), var_of(x)
        noise = keep * self.p * mean.square()
        return Gaussian.of(keep * mean, noise if var is None else noise + keep * var)

    def extra_repr(self) -> str:
        return f"p={self.p}"
