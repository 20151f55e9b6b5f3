"""What batch norm knows before it normalizes, and what follows from it: moments, coefficients, shared statistics."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from bqn.propagate import batch


class Normalization(NamedTuple):
    """What batch norm knows before it normalizes.

    Attributes
    ----------
    mean, var : Tensor `(N, C, ...)`
        Moments of its input.
    centre, total : Tensor `(C,)`
        Mean and variance that it normalizes with; `total` includes its eps. Without a gradient of their own.
    weight, bias : Tensor `(C,)` or None
    from_batch : bool
        Whether centre and total were computed from `mean` and `var`, so that gradients flow through them too.
    """

    mean: Tensor
    var: Tensor
    centre: Tensor
    total: Tensor
    weight: Tensor | None
    bias: Tensor | None
    from_batch: bool


def normalized_moments(source: Normalization, eps: float) -> tuple[Tensor, Tensor]:
    """Mean and variance behind batch norm, for layers that need them; both `(N, C, ...)`."""
    mean, var, centre, total, weight, bias, from_batch = source
    if from_batch:  # once more, with gradients
        others = [dim for dim in range(mean.dim()) if dim != 1]
        scatter, centre = torch.var_mean(mean, others, correction=0)
        centre, total = batch.moments_of_all(centre, scatter + var.mean(others))
        total = total + eps
    scale = total.rsqrt()
    if weight is not None:
        scale = scale * weight
    shift = -centre * scale if bias is None else bias - centre * scale
    moved = mean * column(scale, mean) + column(shift, mean)
    return moved, var * column(scale.square(), mean)


def coefficients(total: Tensor, weight: Tensor | None, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """sgn(γ) and k per channel. Where γ is zero the sign is that of β, for certain."""
    if weight is None:
        sign = torch.ones_like(total)
        return sign, torch.zeros_like(total) if bias is None else bias * total.sqrt()
    flat, known = weight == 0, torch.zeros_like(total) if bias is None else bias
    offset = known * total.sqrt() / torch.where(flat, 1, weight).abs()
    return weight.sign(), torch.where(flat, torch.where(known >= 0, math.inf, -math.inf), offset)


def column(values: Tensor, like: Tensor) -> Tensor:
    return values.reshape(1, -1, *(1 for _ in like.shape[2:]))


def through_shared_statistics(
    pull: Tensor, mean: Tensor, sign: Tensor, offset: Tensor, centre: Tensor, total: Tensor, share: batch.Share
) -> tuple[Tensor, Tensor]:
    """The terms with 1/n of the gradients by mean and var, where n and A count the parts of all processes."""
    count = mean.numel() // mean.shape[1] * (share.all / share.own)
    pull = share.add_up(pull) / count
    slope = torch.where(sign != 0, pull * offset, 0) / total
    by_mean = column(slope, mean) * (mean - column(centre, mean)) - column(sign * pull, mean)
    return by_mean, column(0.5 * slope, mean)
