"""Nonlinear layers: quantizers with fixed or random thresholds."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import torch
from torch import Tensor

from bqn.beliefs import Belief, Gaussian
from bqn.checks import require_floating, require_positive
from bqn.levels import BINARY, TERNARY, Levels, as_levels
from bqn.nn._layer import Layer
from bqn.nn._posterior import DEFAULT_RHO, Posterior, belief_of
from bqn.nn._shapes import require_input
from bqn.propagate import threshold


def _thresholds(levels: Levels, thresholds: Iterable[float] | Tensor | None) -> Levels:
    if thresholds is None:
        return tuple(0.5 * (low + high) for low, high in pairwise(levels))
    values = as_levels(thresholds, "thresholds")
    if len(values) != len(levels) - 1:
        raise ValueError(f"thresholds must be one fewer than the {len(levels)} levels, got {len(values)}")
    return values


class Quantize(Layer):
    """Map each value to one of a few levels; a value on a threshold goes up.

    Parameters
    ----------
    levels : D ascending values
    thresholds : D - 1 ascending values; the midpoints between levels by default

    Belief in, Categorical out, same shape; exact on Categorical input. A tensor gives a tensor.
    """

    cut_behind = True

    def __init__(self, levels: Iterable[float] | Tensor, thresholds: Iterable[float] | Tensor | None = None) -> None:
        super().__init__()
        self.levels = as_levels(levels, at_least=2)
        self.thresholds = _thresholds(self.levels, thresholds)

    def forward(self, x: Belief) -> Belief:
        if isinstance(x, Tensor):
            require_floating(x, "x")
        return threshold.quantize(x, self.levels, self.thresholds)

    def extra_repr(self) -> str:
        return f"levels={self.levels}, thresholds={self.thresholds}"


class Sign(Quantize):
    """-1 below zero, +1 from zero on."""

    def __init__(self) -> None:
        super().__init__(BINARY, (0.0,))

    def extra_repr(self) -> str:
        return ""


class RandomThreshold(Layer):
    """A quantizer whose thresholds are all moved by one random amount per unit: `quantize(x - t)`.

    Parameters
    ----------
    num_features : int
        Units, dimension 1 of the input.
    shifts : ascending sequence, the values that t can take; it has a learned posterior like a weight
    levels, thresholds : as for `Quantize`; sign by default
    prior : categorical prior over the shifts; uniform by default
    """

    cut_behind = True

    def __init__(
        self,
        num_features: int,
        shifts: Iterable[float] | Tensor = TERNARY,
        levels: Iterable[float] | Tensor = BINARY,
        thresholds: Iterable[float] | Tensor | None = None,
        prior: Iterable[float] | Tensor | None = None,
    ) -> None:
        super().__init__()
        self.num_features = require_positive(num_features, "num_features")
        self.levels = as_levels(levels, at_least=2)
        self.thresholds = _thresholds(self.levels, thresholds)
        self.shift = Posterior((num_features,), as_levels(shifts, "shifts", at_least=2), prior)
        self.reset_parameters()

    def reset_parameters(self, rho: float = DEFAULT_RHO, generator: torch.Generator | None = None) -> None:
        self.shift.signal_init_(rho, generator)

    def forward(self, x: Belief) -> Belief:
        require_input(x, self.num_features, axis=1, dims=None, layer="RandomThreshold")
        shift = belief_of(self.shift)
        assert shift is not None
        assert not isinstance(shift, Gaussian)
        moved = shift.reshape(-1, *(1 for _ in x.shape[2:]))
        return threshold.random_threshold(x, moved, self.levels, self.thresholds)

    def extra_repr(self) -> str:
        return f"{self.num_features}, levels={self.levels}, thresholds={self.thresholds}"
