"""Medium fan-in (C.2): add discrete variables on a lattice by multiplying their Fourier transforms.

Transforms subtract, so what is left in the tail of a sum is their rounding error, which has nothing to do with how
small the tail is. They are made in float64, and what lies below that error is lifted to it: a softmax, which multiplies
the tail by e to the level, may then find a bound loose, but never one that does not hold. `contraction` has no such
floor, and is what "auto" takes.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from bqn.beliefs import Categorical
from bqn.levels import MAX_SUPPORT, Levels, index_tensor, lattice_index, lattice_step, without_rounding
from bqn.propagate import half

# Complex numbers held at once; beyond this a user has asked for an exact sum where only the CLT is feasible.
_MAX_ELEMENTS = 2**30
# Error of a probability: four times what was seen of sums of up to 512 terms.
_NOISE = 2.0**-47


def tree_product(tensor: Tensor, dim: int) -> Tensor:
    """Product over `dim` by halving.

    The gradient of each factor is the product of all others, formed without division, so it is finite and right where
    a factor is zero (C.2 divides by it). Unlike `torch.prod` it never asks the device whether there is a zero.
    """
    while tensor.shape[dim] > 1:
        middle = tensor.shape[dim] // 2
        paired = tensor.narrow(dim, 0, middle) * tensor.narrow(dim, middle, middle)
        rest = tensor.narrow(dim, 2 * middle, tensor.shape[dim] - 2 * middle)
        tensor = torch.cat((paired, rest), dim) if rest.shape[dim] else paired
    return tensor.squeeze(dim)


def sum_terms(parts: Sequence[Categorical]) -> Categorical:
    """The law of a sum of independent terms on a common lattice.

    Arguments and result as for `contraction.sum_terms`; in addition the differences of all levels must be multiples of
    one step. Every transform has the one length R, the span of the sum in lattice steps (C.2, corrected).
    """
    terms = [(part.shape[-1], part.level_values) for part in parts]
    step = _common_step(terms)
    indices = [lattice_index(levels, step) for _, levels in terms]
    span = 1 + sum(count * index[-1] for (count, _), index in zip(terms, indices, strict=True))
    elements = max(part.shape.numel() for part in parts) * (span // 2 + 1)
    if span > MAX_SUPPORT or elements > _MAX_ELEMENTS:
        raise ValueError(
            f"method: 'fft' would need {elements:.2g} complex numbers for sums over {span} values; use 'clt' for a "
            "fan-in this large"
        )
    dtype = torch.float32 if half.is_low(parts[0]) else parts[0].dtype
    if any(part.shape.numel() == 0 for part in parts):  # an empty batch, which FFT libraries refuse
        shape = torch.broadcast_shapes(*(part.shape[:-1] for part in parts))
        return Categorical.of(sum_levels(terms), probs=parts[0].probs.new_zeros((*shape, span), dtype=dtype))
    spectrum = None
    for part, index in zip(parts, indices, strict=True):
        product = tree_product(torch.fft.rfft(_on_lattice(part, index), n=span), -2)
        spectrum = product if spectrum is None else spectrum * product
    if spectrum is None:
        raise ValueError("parts must hold at least one term")
    probs = torch.fft.irfft(spectrum, n=span)
    # Lifted without cutting the gradient of a probability that is zero.
    probs = probs + (probs.clamp_min(_NOISE) - probs).detach()
    return Categorical.of(sum_levels(terms), probs=probs.to(dtype))


def sum_levels(terms: Sequence[tuple[int, Levels]]) -> Levels:
    """The levels of the result of `sum_terms`: all lattice points from the lowest sum to the highest."""
    step = _common_step(terms)
    lowest = sum(count * levels[0] for count, levels in terms)
    points = 1 + sum(count * lattice_index(levels, step)[-1] for count, levels in terms)
    return without_rounding(tuple(lowest + step * i for i in range(points)))


def _common_step(terms: Sequence[tuple[int, Levels]]) -> float:
    step = lattice_step(tuple(levels for _, levels in terms))
    if step is None:
        sets = " and ".join(str(levels) for _, levels in terms)
        raise ValueError(
            f"levels: method 'fft' needs levels on a common lattice, and {sets} are not; use 'contract' or 'clt'"
        )
    return step


def _on_lattice(part: Categorical, index: tuple[int, ...]) -> Tensor:
    """Probabilities `(..., E, lattice points)` of the part's terms in float64, zero between its levels."""
    probs = part.probs.double()
    if len(index) == index[-1] + 1:
        return probs
    return probs.new_zeros((*probs.shape[:-1], index[-1] + 1)).index_copy(-1, index_tensor(index, probs), probs)
