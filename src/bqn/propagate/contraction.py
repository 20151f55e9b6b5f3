"""Small fan-in (C.1): sum over all joint values of a few discrete variables."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence

from torch import Tensor

from bqn.beliefs import Categorical
from bqn.levels import Levels, combine_levels, index_tensor


def combine(a: Categorical, b: Categorical, operation: Callable[[float, float], float]) -> Categorical:
    """The law of `operation(a, b)` for independent a and b, element by element; shapes broadcast.

    Values that coincide are one level of the result: its probability is the sum over all pairs that give it.
    """
    levels, index = combine_levels(a.level_values, b.level_values, operation)
    joint = (a.probs.unsqueeze(-1) * b.probs.unsqueeze(-2)).flatten(-2)
    if len(index) == len(levels) and index == tuple(range(len(levels))):
        return Categorical.of(levels, probs=joint)
    target = index_tensor(index, joint)
    probs = joint.new_zeros((*joint.shape[:-1], len(levels))).index_add(-1, target, joint)
    return Categorical.of(levels, probs=probs)


def sum_terms(parts: Sequence[Categorical]) -> Categorical:
    """The law of a sum of independent terms, by contracting one term after the other.

    Parameters
    ----------
    parts : sequence of Categorical
        Each has shape `(..., E)`: E terms that share one set of levels. All terms of all parts are added; leading
        dimensions broadcast. Any levels will do, on a lattice or not.

    Returns
    -------
    Categorical of shape `(...)` over the whole support of the sum.
    """
    total: Categorical | None = None
    for part in parts:
        for term in part.probs.unbind(-2):
            belief = Categorical.of(part.level_values, probs=term)
            total = belief if total is None else combine(total, belief, operator.add)
    if total is None:
        raise ValueError("parts must hold at least one term")
    return total


def sum_levels(terms: Sequence[tuple[int, Levels]]) -> Levels:
    """The levels of the result of `sum_terms`, from the number of terms and the levels of each part."""
    total: Levels = (0.0,)
    for count, levels in terms:
        for _ in range(count):
            total, _ = combine_levels(total, levels, operator.add)
    return total


def embed(belief: Categorical, levels: Levels) -> Tensor:
    """Probabilities of `belief` over a larger set of levels that contains its own: `(..., len(levels))`."""
    if belief.level_values == levels:
        return belief.probs
    position = {value: i for i, value in enumerate(levels)}
    target = index_tensor(tuple(position[value] for value in belief.level_values), belief.probs)
    return belief.probs.new_zeros((*belief.probs.shape[:-1], len(levels))).index_copy(-1, target, belief.probs)


def with_zero_levels(levels: Levels) -> Levels:
    return levels if 0.0 in levels else tuple(sorted((*levels, 0.0)))


def with_zero(belief: Categorical) -> Categorical:
    """The same belief over its levels and 0, for masks and padding that put a 0 in the place of a value."""
    levels = with_zero_levels(belief.level_values)
    if levels == belief.level_values:
        return belief
    return Categorical.of(levels, probs=embed(belief, levels), mean=belief.mean, var=lambda: belief.var)
