"""A normal distribution per element, whose moments are worked out when someone asks."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import torch
from torch import Tensor

from bqn.beliefs._shapes import flat_shape, full_shape
from bqn.checks import may_read_values, require_finite, require_floating

if TYPE_CHECKING:
    from bqn.propagate.neighbours import Neighbours
    from bqn.propagate.units import Units

MomentsFunction: TypeAlias = Callable[[], tuple[Tensor, Tensor]]
WithinFunction: TypeAlias = Callable[[float | None], "Gaussian"]


class Gaussian:
    """Independent normal distribution per element.

    Parameters
    ----------
    mean, var : Tensor
        Same shape and floating dtype; `var` is not negative. Zero variance is allowed and means certainty.

    Attributes
    ----------
    neighbours : Neighbours or None
        What the noise at neighbouring positions has in common, see `bqn.propagate.neighbours`; None for nothing.
    units : Units or None
        What the units are made of and so have in common, see `bqn.propagate.units`; None if that is not known.
    """

    __slots__ = ("_like", "_mean", "_shape", "_total", "_var", "_within", "neighbours", "origin", "units")

    def __init__(self, mean: Tensor, var: Tensor) -> None:
        require_floating(mean, "mean")
        require_floating(var, "var")
        if mean.dtype != var.dtype:
            raise TypeError(f"var must have the dtype of mean, {mean.dtype}, got {var.dtype}")
        if mean.shape != var.shape:
            raise ValueError(f"var must have the shape of mean, {tuple(mean.shape)}, got {tuple(var.shape)}")
        require_finite(mean, "mean")
        require_finite(var, "var")
        if may_read_values(var) and bool((var < 0).any()):
            raise ValueError(f"var must not be negative, got a minimum of {float(var.min())}")
        self._set(mean.shape, mean, lambda: (mean, var), None)

    def _set(self, shape: torch.Size, like: Tensor, total: MomentsFunction, within: WithinFunction | None) -> None:
        self._shape, self._like, self._total, self._within = shape, like, total, within
        self.origin: object = None
        self.neighbours: Neighbours | None = None
        self.units: Units | None = None
        self._mean: Tensor | None = None
        self._var: Tensor | None = None

    @classmethod
    def of(
        cls, mean: Tensor, var: Tensor, neighbours: Neighbours | None = None, units: Units | None = None
    ) -> Gaussian:
        """Build without checks."""
        return cls.deferred(mean.shape, mean, lambda: (mean, var), neighbours=neighbours, units=units)

    @classmethod
    def deferred(
        cls,
        shape: torch.Size,
        like: Tensor,
        total: MomentsFunction,
        within: WithinFunction | None = None,
        origin: object = None,
        neighbours: Neighbours | None = None,
        units: Units | None = None,
    ) -> Gaussian:
        """Build without checks from functions that compute mean and variance when they are asked for.

        Parameters
        ----------
        shape : of the tensor that the belief is about
        like : any tensor of its dtype and device
        total : gives mean and variance
        within : gives the belief without the noise that is common to the whole batch; see `within_batch`
        origin : what the belief is made from, for a layer that can do better with that than with the moments
        neighbours : what the noise at neighbouring positions has in common
        units : what the units are made of
        """
        belief = cls.__new__(cls)
        belief._set(shape, like, total, within)
        belief.origin, belief.neighbours, belief.units = origin, neighbours, units
        return belief

    def _compute(self) -> None:
        self._mean, self._var = self._total()

    @property
    def mean(self) -> Tensor:
        if self._mean is None:
            self._compute()
        return cast(Tensor, self._mean)

    @property
    def var(self) -> Tensor:
        if self._var is None:
            self._compute()
        return cast(Tensor, self._var)

    def within_batch(self, momentum: float | None) -> Gaussian:
        """The same belief without the noise that shifts all examples of a batch alike.

        One drawn weight serves the whole batch, so part of its noise is common to all examples. Batch norm subtracts
        that part again in every sampled network and must not count it (see `bqn.nn.BatchNorm1d`). Linear and
        convolutional layers know how to leave it out; any other belief has none to leave out.

        Parameters
        ----------
        momentum : float or None
            A number: centre on this batch and update the running centre with that weight. None: use the running one.
        """
        return self if self._within is None else self._within(momentum)

    @property
    def shape(self) -> torch.Size:
        return self._shape

    @property
    def dtype(self) -> torch.dtype:
        return self._like.dtype

    @property
    def device(self) -> torch.device:
        return self._like.device

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """One draw, shape of `mean`."""
        noise = torch.empty_like(self.mean).normal_(generator=generator)
        return self.mean + noise * self.var.sqrt()

    def mode(self) -> Tensor:
        return self.mean

    def entropy(self) -> Tensor:
        """Differential entropy per element, in nats; minus infinity where the variance is zero."""
        return 0.5 * torch.log(2 * math.pi * math.e * self.var)

    def central_moment(self, order: int) -> Tensor:
        """Central moment of order 2, 3 or 4 per element."""
        if order not in (2, 3, 4):
            raise ValueError(f"order must be 2, 3 or 4, got {order}")
        if order == 2:
            return self.var
        return torch.zeros_like(self.mean) if order == 3 else 3 * self.var.square()

    def reshape(self, *shape: int | tuple[int, ...]) -> Gaussian:
        """Of another shape; the question for the noise within the batch is passed on."""
        target = full_shape(self.shape, shape)

        def within(momentum: float | None) -> Gaussian:
            inner = self.within_batch(momentum)
            return Gaussian.of(inner.mean.reshape(target), inner.var.reshape(target))

        return Gaussian.deferred(
            target, self._like, lambda: (self.mean.reshape(target), self.var.reshape(target)), within
        )

    def flatten(self, start_dim: int = 0, end_dim: int = -1) -> Gaussian:
        return self.reshape(flat_shape(self.shape, start_dim, end_dim))

    def __getitem__(self, index: Any) -> Gaussian:
        return Gaussian.of(self.mean[index], self.var[index])

    def __repr__(self) -> str:
        return f"Gaussian(shape={tuple(self.shape)}, dtype={self.dtype}, device={self.device})"
