"""Checks of what users hand in. Shape and dtype checks are free; checks that read values are for entry points only."""

from __future__ import annotations

import math
import operator
from typing import SupportsIndex

import torch
from torch import Tensor

# How far below the root of the largest number inputs must stay: sums of 2^28 of their squares are finite then.
_ROOM_FOR_SUMS = 2.0**14


def in_plain_torch() -> bool:
    """Whether tensors hold their values: not while compiling or inside vmap."""
    return not torch.compiler.is_compiling() and torch._C._functorch.maybe_current_level() is None


def may_read_values(tensor: Tensor) -> bool:
    """Whether looking at values is allowed: not while compiling, capturing a CUDA graph or inside vmap."""
    return in_plain_torch() and not (tensor.is_cuda and torch.cuda.is_current_stream_capturing())


def may_look(tensor: Tensor) -> bool:
    """Whether looking at values costs next to nothing, so that an easy case can be told from a hard one."""
    return tensor.device.type == "cpu" and may_read_values(tensor)


def require_floating(tensor: Tensor, name: str) -> None:
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, got {type(tensor).__name__}")
    if not tensor.is_floating_point():
        raise TypeError(f"{name} must be a floating-point tensor, got {tensor.dtype}; convert it with .float()")


def require_finite(tensor: Tensor, name: str) -> None:
    if may_read_values(tensor) and not bool(torch.isfinite(tensor).all()):
        bad = int((~torch.isfinite(tensor)).sum())
        raise ValueError(f"{name} must be finite, got {bad} NaN or infinite value(s) of {tensor.numel()}")


def require_squarable(tensor: Tensor, name: str) -> None:
    """Raise unless all values are finite and small enough that variances, which are sums of squares, are finite too.

    Values in half precision are squared in float32.
    """
    if not may_read_values(tensor) or not tensor.numel():
        return
    low, high = torch.aminmax(tensor)
    dtype = torch.promote_types(tensor.dtype, torch.float32)
    limit = math.sqrt(torch.finfo(dtype).max) / _ROOM_FOR_SUMS
    largest = float(torch.maximum(-low, high))
    if not largest <= limit:  # nor if it is NaN
        require_finite(tensor, name)
        raise ValueError(
            f"{name} must lie within ±{limit:.1e}, beyond which sums of squares overflow in {dtype}, got a value of "
            f"size {largest:.1e}"
        )


def require_labels(
    y: Tensor, batch: torch.Size | tuple[int, ...], classes: int, name: str = "y", read: bool = True
) -> None:
    """Raise unless `y` is one label per example; whether they are in range is seen only if values may be read."""
    if not isinstance(y, Tensor) or y.is_floating_point() or y.is_complex() or y.dtype == torch.bool:
        kind = y.dtype if isinstance(y, Tensor) else type(y).__name__
        raise TypeError(f"{name} must be an integer tensor of class labels, got {kind}")
    if tuple(y.shape) != tuple(batch):
        raise ValueError(f"{name} must have shape {tuple(batch)}, one label per example, got {tuple(y.shape)}")
    wide = y.long()  # a dtype of few bits may not hold `classes`
    if read and may_read_values(y) and y.numel() and not bool(((wide >= 0) & (wide < classes)).all()):
        raise ValueError(
            f"{name} must hold labels from 0 to {classes - 1}, got values from {int(wide.min())} to {int(wide.max())}"
        )


def require_positive(value: SupportsIndex, name: str) -> int:
    """`value` as an int; integers of numpy are welcome."""
    try:
        number = 0 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = 0
    if number < 1:
        raise ValueError(f"{name} must be a positive integer, got {value!r}")
    return number
