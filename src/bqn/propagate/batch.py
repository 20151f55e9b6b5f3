"""The batch that statistics are taken over: the examples at hand, or also those that other processes hold.

Batch norm averages over the batch, and so does the centre from which the noise within the batch is measured. Where each
of several processes holds a part of one batch (`bqn.training.distributed`), these averages and their gradients run over
all parts, so that the network is the one that a single process would train. How numbers are added up over the processes
is the caller's business: nothing here knows about them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor


class Share(NamedTuple):
    """A process's part of a batch.

    Attributes
    ----------
    own, all : int
        Examples in the part, and in the whole batch.
    add_up : function
        Returns the sum of a tensor over all processes, as a new tensor. Every process must call it equally often.
    """

    own: int
    all: int
    add_up: Callable[[Tensor], Tensor]


# Not one a thread: the backward pass of a GPU runs in a thread of its own.
_share: Share | None = None


@contextmanager
def shared(share: Share) -> Iterator[None]:
    """Take statistics over the batches of all processes inside the block, forward and backward.

    The loss of a process counts as its summand of the whole loss: gradients of a process hold what its own part does to
    its own summand, and through the statistics to all others.
    """
    global _share
    before, _share = _share, share
    try:
        yield
    finally:
        _share = before


def current_share() -> Share | None:
    """The part that this process has of a shared batch; None for a whole one."""
    return _share


def mean_of_all(own: Tensor) -> Tensor:
    """The mean over the whole batch, from the mean over the examples at hand; with gradients."""
    if _share is None:
        return own
    result: Tensor = _MeanOfAll.apply(own, _share)  # type: ignore[no-untyped-call]
    return result


def moments_of_all(centre: Tensor, total: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance over the whole batch, from those of the examples at hand, by the law of total variance."""
    if _share is None:
        return centre, total
    whole = mean_of_all(centre)
    return whole, mean_of_all(total + (centre - whole).square())


def count_of_all(own: int) -> int:
    """How many numbers the whole batch holds, from how many there are at hand."""
    return own if _share is None else own * _share.all // _share.own


class _MeanOfAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, own: Tensor, share: Share) -> Tensor:
        ctx.share = share
        return share.add_up(own * (share.own / share.all))

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor, None]:
        share: Share = ctx.share
        return share.add_up(grads[0]) * (share.own / share.all), None
