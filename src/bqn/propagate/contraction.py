"""Small fan-in (C.1): sum over all joint values of a few discrete variables.

Probabilities are only ever multiplied and added, never subtracted: each keeps its relative accuracy, however small it
is. The tail of a sum may then be multiplied by e to the level, as a softmax does.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from bqn.beliefs import Categorical
from bqn.levels import Levels, combine_levels, computed_once, index_tensor
from bqn.propagate import half


def combine(a: Categorical, b: Categorical, operation: Callable[[float, float], float]) -> Categorical:
    """The law of `operation(a, b)` for independent a and b, element by element; shapes broadcast.

    Values that coincide are one level of the result: its probability is the sum over all pairs that give it.
    """
    levels, index = combine_levels(a.level_values, b.level_values, operation)
    if index == tuple(range(len(levels))):
        return Categorical.of(levels, probs=(a.probs.unsqueeze(-1) * b.probs.unsqueeze(-2)).flatten(-2))
    probs: Tensor = _Combination.apply(a.probs, b.probs, index, len(levels))  # type: ignore[no-untyped-call]
    return Categorical.of(levels, probs=probs)


class _Combination(torch.autograd.Function):
    """Probabilities `(..., size)` of a combination of two variables; `index` is as from `combine_levels`.

    It goes through the levels of one of them, the one that has fewer, and holds nothing of the size of all pairs.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(a: Tensor, b: Tensor, index: tuple[int, ...], size: int) -> Tensor:
        if a.shape[-1] < b.shape[-1]:
            a, b, index = b, a, _transposed(index, a.shape[-1])
        shape = torch.broadcast_shapes(a.shape[:-1], b.shape[:-1])
        probs = (a[..., :1] * b[..., :1]).new_zeros((*shape, size))
        for level, place in enumerate(_places(index, a.shape[-1])):
            joint = a * b[..., level : level + 1]
            if isinstance(place, slice):
                probs[..., place].add_(joint)
            else:
                probs.index_add_(-1, index_tensor(place, probs), joint)
        return probs

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        a, b, ctx.index, _ = inputs
        ctx.save_for_backward(a, b)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, Tensor | None, None, None]:
        a, b = ctx.saved_tensors
        need, index = ctx.needs_input_grad[:2], ctx.index
        swapped = a.shape[-1] < b.shape[-1]
        if swapped:
            a, b, need, index = b, a, need[::-1], _transposed(index, a.shape[-1])
        grad_a: Tensor | None = None
        of_levels: list[Tensor] = []
        for level, place in enumerate(_places(index, a.shape[-1])):
            grad = grads[0]
            read = grad[..., place] if isinstance(place, slice) else grad.index_select(-1, index_tensor(place, grad))
            if need[0]:
                term = read * b[..., level : level + 1]
                grad_a = term if grad_a is None else grad_a + term
            if need[1]:
                of_levels.append((read * a).sum(-1))
        both = (
            None if grad_a is None else grad_a.sum_to_size(a.shape),
            torch.stack(of_levels, -1).sum_to_size(b.shape) if of_levels else None,
        )
        return (*(both[::-1] if swapped else both), None, None)


@computed_once
def _transposed(index: tuple[int, ...], rows: int) -> tuple[int, ...]:
    """`index` of pairs (a, b), row-major with so many a, as one of pairs (b, a)."""
    columns = len(index) // rows
    return tuple(index[row * columns + column] for column in range(columns) for row in range(rows))


@computed_once
def _places(index: tuple[int, ...], rows: int) -> tuple[slice | tuple[int, ...], ...]:
    """For each level of b, where in the result the levels of a come to lie; a slice if that is one after the other."""
    columns = len(index) // rows
    places = [index[column::columns] for column in range(columns)]
    return tuple(
        slice(place[0], place[0] + rows) if place == tuple(range(place[0], place[0] + rows)) else place
        for place in places
    )


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
        for term in cast(Tensor, half.raised(part.probs, torch.float32)).unbind(-2):
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
