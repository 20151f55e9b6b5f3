"""Beliefs: what is known about a tensor. These are the values that flow through a network.

A belief describes every element of a tensor independently (mean field). There are three kinds:

- a plain `torch.Tensor`: known without doubt;
- `Gaussian`: a mean and a variance per element;
- `Categorical`: probabilities over a few levels per element.

Beliefs are immutable. The public constructors check their arguments; the library builds its own beliefs through
`Gaussian.of` and `Categorical.of`, which read no values and so never make a GPU wait.
"""

from __future__ import annotations

from typing import TypeAlias

from torch import Tensor

from bqn.beliefs._categorical import Categorical, opposite_pair
from bqn.beliefs._gaussian import Gaussian, WithinFunction

__all__ = ["Belief", "Categorical", "Gaussian", "WithinFunction", "mean_of", "opposite_pair", "var_of"]

Belief: TypeAlias = Tensor | Gaussian | Categorical


def mean_of(belief: Belief) -> Tensor:
    """The mean; a plain tensor is its own."""
    return belief if isinstance(belief, Tensor) else belief.mean


def var_of(belief: Belief) -> Tensor | None:
    """The variance; None stands for the zero variance of a plain tensor."""
    return None if isinstance(belief, Tensor) else belief.var
