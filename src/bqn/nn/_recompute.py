"""Activation checkpointing: keep what enters a segment of layers, and compute its inside again in the backward pass.

Segments end behind layers that return a small belief and little else to hold on to (`Layer.cut_behind`), such as the
sign. The repetition gives the same numbers and changes nothing: running statistics have seen the batch already
(`Layer.recomputing`), weights hand out what they did (`computed_once`, `drawn`), precision is what it was.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from bqn.beliefs import Belief
from bqn.nn._layer import Layer
from bqn.nn._posterior import handed_out, handing_out
from bqn.propagate import half


def in_segments(body: nn.Sequential, x: Belief) -> Belief:
    """What `body` makes of `x`; of all segments but the last, the backward pass keeps only what enters them."""
    *segments, rest = _cut(body)
    for segment in segments:
        x = _checkpointed(body, segment, x)
    return _through(rest, x)


def _cut(layers: Iterable[nn.Module]) -> list[list[nn.Module]]:
    segments: list[list[nn.Module]] = [[]]
    for layer in layers:
        segments[-1].append(layer)
        if isinstance(layer, Layer) and layer.cut_behind:
            segments.append([])
    return segments


def _through(layers: Iterable[nn.Module], x: Belief) -> Belief:
    for layer in layers:
        x = cast(Belief, layer(x))
    return x


def _checkpointed(body: nn.Module, segment: list[nn.Module], x: Belief) -> Belief:
    weights, precision = handed_out(segment), half.lowered_to()

    def run(entering: Belief) -> Belief:
        # Beliefs remember what they have worked out. Both passes begin with copies that have worked out nothing yet, so
        # that they do the same.
        with handing_out(weights):
            return _through(segment, entering if isinstance(entering, Tensor) else copy.copy(entering))

    def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        return nullcontext(), _repetition(body, precision)

    # Weights are drawn before, if they are, and layers must draw nothing: there are no generators to preserve.
    result = checkpoint(run, x, use_reentrant=False, preserve_rng_state=False, context_fn=contexts)
    return cast(Belief, result)


@contextmanager
def _repetition(body: nn.Module, precision: torch.dtype | None) -> Iterator[None]:
    layers = [layer for layer in body.modules() if isinstance(layer, Layer)]
    try:
        for layer in layers:
            layer.recomputing = True
        with nullcontext() if precision is None else half.lowered(precision):
            yield
    finally:
        for layer in layers:
            layer.recomputing = False
