"""Shapes: checks of a layer's input and small layers that only rearrange it."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from bqn.beliefs import Belief
from bqn.checks import require_floating
from bqn.nn._layer import Layer
from bqn.nn._recompute import in_segments


def require_input(x: Belief, features: int, axis: int, dims: tuple[int, ...] | None, layer: str) -> None:
    """Check that `x` has `features` entries along `axis` and one of the allowed numbers of dimensions."""
    if isinstance(x, Tensor):
        require_floating(x, "x")
    shape = tuple(x.shape)
    if dims is not None and len(shape) not in dims:
        allowed = " or ".join(str(n) for n in dims)
        raise ValueError(f"x must have {allowed} dimensions for {layer}, got shape {shape}")
    if dims is None and len(shape) < 2:
        raise ValueError(f"x must have a batch dimension, (N, {features}), for {layer}, got shape {shape}")
    if shape[axis] != features:
        raise ValueError(f"x must have {features} features in dimension {axis} for {layer}, got shape {shape}")


def numbers(value: int | tuple[int, ...], count: int, name: str, least: int) -> tuple[int, ...]:
    """One number per spatial dimension from a single number or a tuple."""
    values = (value,) * count if isinstance(value, int) and not isinstance(value, bool) else value
    if (
        not isinstance(values, (tuple, list))
        or len(values) != count
        or not all(isinstance(number, int) and number >= least for number in values)
    ):
        raise ValueError(f"{name} must be an integer of at least {least}, or {count} of them, got {value!r}")
    return tuple(values)


class Flatten(Layer):
    """Flatten all dimensions of a belief but the first: `(N, ...)` to `(N, features)`."""

    def forward(self, x: Belief) -> Belief:
        flat = x.reshape(x.shape[0], x.shape[1:].numel())
        if not isinstance(x, Tensor) and not isinstance(flat, Tensor) and x.neighbours is not None:
            flat.neighbours = x.neighbours if len(x.shape) == 2 else x.neighbours._replace(places=tuple(x.shape[2:]))
        return flat


class Sequential(nn.Sequential):
    """`torch.nn.Sequential` for beliefs: each layer's belief enters the next.

    Attributes
    ----------
    recompute : bool
        Whether, in training, the backward pass computes the layers a second time instead of keeping what they have
        computed: activation checkpointing, which saves memory for time. Its layers must draw nothing, as those of
        `bqn.nn` do not.
    """

    recompute: bool = False

    def forward(self, x: Belief) -> Belief:
        if self.recompute and self.training and torch.is_grad_enabled():
            return in_segments(self, x)
        for layer in self:
            x = cast(Belief, layer(x))
        return x
