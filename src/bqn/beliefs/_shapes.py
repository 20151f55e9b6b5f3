"""Shapes that a reshape or a flattening of a belief asks for."""

from __future__ import annotations

import math
from typing import cast

import torch


def full_shape(old: torch.Size, given: tuple[int | tuple[int, ...], ...]) -> torch.Size:
    """The shape that a reshape asks for, given as numbers or one tuple, with -1 worked out."""
    shape = given[0] if len(given) == 1 and not isinstance(given[0], int) else given
    sizes = [int(size) for size in cast(tuple[int, ...], shape)]
    if sizes.count(-1) == 1:
        rest = math.prod(size for size in sizes if size != -1)
        sizes[sizes.index(-1)] = old.numel() // rest if rest else 0
    if math.prod(sizes) != old.numel() or any(size < 0 for size in sizes):
        raise ValueError(f"shape: cannot reshape {tuple(old)} into {tuple(cast(tuple[int, ...], shape))}")
    return torch.Size(sizes)


def flat_shape(old: torch.Size, start: int, end: int) -> tuple[int, ...]:
    """The shape after merging the dimensions from `start` to `end`."""
    start, end = start % len(old), end % len(old)
    return (*old[:start], math.prod(old[start : end + 1]), *old[end + 1 :])
