"""Medium fan-in (C.2): add discrete variables on a lattice by multiplying their Fourier transforms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor

from bqn.beliefs import Categorical
from bqn.levels import MAX_SUPPORT, Levels, index_tensor, lattice_index, lattice_step
from bqn.propagate import half

# Complex numbers held at once; beyond this a user has asked for an exact sum where only the CLT is feasible.
_MAX_ELEMENTS = 2**30


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
    if any(part.shape.numel() == 0 for part in parts):  # an empty batch, which FFT libraries refuse
        shape = torch.broadcast_shapes(*(part.shape[:-1] for part in parts))
        return Categorical.of(sum_levels(terms), probs=_probs(parts[0]).new_zeros((*shape, span)))
    spectrum = None
    for part, index in zip(parts, indices, strict=True):
        product = tree_product(torch.fft.rfft(_on_lattice(part, index), n=span), -2)
        spectrum = product if spectrum is None else spectrum * product
    if spectrum is None:
        raise ValueError("parts must hold at least one term")
    probs = torch.fft.irfft(spectrum, n=span)
    # Rounding leaves tiny negative numbers; lift them without cutting the gradient of a probability that is zero.
    probs = probs + (probs.clamp_min(0) - probs).detach()
    return Categorical.of(sum_levels(terms), probs=probs)


def sum_levels(terms: Sequence[tuple[int, Levels]]) -> Levels:
    """The levels of the result of `sum_terms`: all lattice points from the lowest sum to the highest."""
    step = _common_step(terms)
    lowest = sum(count * levels[0] for count, levels in terms)
    return tuple(lowest + step * i for i in range(1 + sum(n * lattice_index(q, step)[-1] for n, q in terms)))


def _common_step(terms: Sequence[tuple[int, Levels]]) -> float:
    step = lattice_step(tuple(levels for _, levels in terms))
    if step is None:
        sets = " and ".join(str(levels) for _, levels in terms)
        raise ValueError(
            f"levels: method 'fft' needs levels on a common lattice, and {sets} are not; use 'contract' or 'clt'"
        )
    return step


def _on_lattice(part: Categorical, index: tuple[int, ...]) -> Tensor:
    """Probabilities `(..., E, lattice points)` of the part's terms, zero between its levels."""
    probs = _probs(part)
    if len(index) == index[-1] + 1:
        return probs
    return probs.new_zeros((*probs.shape[:-1], index[-1] + 1)).index_copy(-1, index_tensor(index, probs), probs)


def _probs(part: Categorical) -> Tensor:
    """Those of half precision, which has no transforms, in float32; so is the law of the sum then."""
    return cast(Tensor, half.raised(part.probs, torch.float32))
