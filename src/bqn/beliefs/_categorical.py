"""Probabilities over a few levels per element, or what stands for them: logits, or a mean on two levels."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor

from bqn.beliefs._gaussian import Gaussian, WithinFunction
from bqn.beliefs._shapes import flat_shape, full_shape
from bqn.checks import may_read_values, require_finite, require_floating
from bqn.levels import Levels, as_levels, level_tensor, symmetric_pair

if TYPE_CHECKING:
    from bqn.propagate.neighbours import Neighbours
    from bqn.propagate.units import Units

Lazy: TypeAlias = Tensor | Callable[[], Tensor]


class Categorical:
    """Independent categorical distribution per element over one set of levels.

    Parameters
    ----------
    probs : Tensor
        Shape `(..., D)`, not negative, summing to one over the last dimension.
    levels : sequence of float
        The D values, strictly ascending.

    Attributes
    ----------
    neighbours, units : Neighbours or None, Units or None
        As for `Gaussian`.
    """

    __slots__ = ("_levels", "_logits", "_mean", "_probs", "_var", "_within", "neighbours", "units")

    def __init__(self, probs: Tensor, levels: Iterable[float] | Tensor) -> None:
        require_floating(probs, "probs")
        values = as_levels(levels)
        _require_one_per_level(probs, values, "probs")
        require_finite(probs, "probs")
        if may_read_values(probs) and probs.numel():
            if bool((probs < 0).any()):
                raise ValueError(f"probs must not be negative, got a minimum of {float(probs.min())}")
            total = probs.sum(-1)
            tolerance = 64 * len(values) * torch.finfo(probs.dtype).eps
            if bool(((total - 1).abs() > tolerance).any()):
                raise ValueError(
                    f"probs must sum to one over the last dimension, got sums from {float(total.min())} to "
                    f"{float(total.max())}"
                )
        self._levels = values
        self._probs: Lazy | None = probs
        self._logits: Tensor | None = None
        self._mean: Lazy | None = None
        self._var: Lazy | None = None
        self._within: WithinFunction | None = None
        self.neighbours: Neighbours | None = None
        self.units: Units | None = None

    @classmethod
    def of(
        cls,
        levels: Levels,
        *,
        probs: Lazy | None = None,
        logits: Tensor | None = None,
        mean: Lazy | None = None,
        var: Lazy | None = None,
        within: WithinFunction | None = None,
        neighbours: Neighbours | None = None,
        units: Units | None = None,
    ) -> Categorical:
        """Build without checks from what is at hand; the rest is derived when asked for.

        At least one of `probs`, `logits` or, for two levels, `mean` is needed. `within`, `neighbours` and `units` are
        as for `Gaussian.deferred`.
        """
        belief = cls.__new__(cls)
        belief._levels, belief._probs, belief._logits = levels, probs, logits
        belief._mean, belief._var, belief._within = mean, var, within
        belief.neighbours, belief.units = neighbours, units
        return belief

    def within_batch(self, momentum: float | None) -> Gaussian | Categorical:
        """As `Gaussian.within_batch`: an exact sum knows its common noise too, and gives the moments without it."""
        return self if self._within is None else self._within(momentum)

    @classmethod
    def from_logits(cls, logits: Tensor, levels: Iterable[float] | Tensor) -> Categorical:
        """From unnormalized log-probabilities `(..., D)`; exact however small a probability is."""
        require_floating(logits, "logits")
        values = as_levels(levels)
        _require_one_per_level(logits, values, "logits")
        require_finite(logits, "logits")
        return cls.of_logits(logits, values)

    @classmethod
    def of_logits(
        cls, logits: Tensor, levels: Levels, tilt: Tensor | None = None, noise: Tensor | None = None
    ) -> Categorical:
        """`from_logits` without checks.

        Of two levels `tilt` is P(upper) - P(lower) and `noise` the variance if they were ±1, if that is known already.
        """
        if len(levels) == 2:
            middle, half = 0.5 * (levels[1] + levels[0]), 0.5 * (levels[1] - levels[0])

            def mean() -> Tensor:
                lean: Tensor = _Tilt.apply(logits) if tilt is None else tilt  # type: ignore[no-untyped-call]
                return lean if middle == 0 and half == 1 else middle + half * lean

            def var() -> Tensor:  # accurate where 1 - tanh² would cancel
                odds = logits[..., 1] - logits[..., 0]
                return (2 * half) ** 2 * torch.sigmoid(odds) * torch.sigmoid(-odds)

            doubt = var if noise is None else noise if half == 1 else half**2 * noise
            return cls.of(levels, probs=lambda: torch.softmax(logits, -1), logits=logits, mean=mean, var=doubt)
        return cls.of(levels, probs=lambda: torch.softmax(logits, -1), logits=logits)

    @classmethod
    def certain(cls, values: Tensor, levels: Iterable[float] | Tensor) -> Categorical:
        """The belief that each element has a known value out of `levels`: one-hot probabilities."""
        require_floating(values, "values")
        ascending = as_levels(levels)
        hit = values.unsqueeze(-1) == level_tensor(ascending, values)
        if may_read_values(values) and not bool(hit.any(-1).all()):
            raise ValueError(f"values must all be one of the levels {ascending}")
        return cls.of(ascending, probs=hit.to(values.dtype))

    @property
    def levels(self) -> Tensor:
        """The D levels, shape `(D,)`, with the dtype and device of the belief."""
        return self._level_tensor().clone()

    def _level_tensor(self) -> Tensor:
        return level_tensor(self._levels, self._any())

    @property
    def level_values(self) -> Levels:
        """The levels as plain numbers."""
        return self._levels

    @property
    def probs(self) -> Tensor:
        """Shape `(..., D)`."""
        if self._probs is None:
            low, high = self._levels
            up = ((self.mean - low) / (high - low)).clamp(0, 1)  # a rounded mean may lie a hair outside
            self._probs = torch.stack((1 - up, up), -1)
        elif not isinstance(self._probs, Tensor):
            self._probs = self._probs()
        return self._probs

    @property
    def log_probs(self) -> Tensor:
        """Log-probabilities `(..., D)`; finite even where a probability has underflowed to zero."""
        if self._logits is not None:
            return torch.log_softmax(self._logits, -1)
        return self.probs.clamp_min(torch.finfo(self.dtype).tiny).log()

    @property
    def mean(self) -> Tensor:
        if self._mean is None:
            self._mean = self.probs @ self._level_tensor()
        elif not isinstance(self._mean, Tensor):
            self._mean = self._mean()
        return self._mean

    @property
    def var(self) -> Tensor:
        if self._var is None:
            if len(self._levels) == 2 and not isinstance(self._probs, Tensor):
                self._var = ((self._levels[1] - self.mean) * (self.mean - self._levels[0])).clamp_min(0)
            else:
                self._var = self.central_moment(2)
        elif not isinstance(self._var, Tensor):
            self._var = self._var()
        return self._var

    @property
    def var_at_hand(self) -> bool:
        """Whether the variance is there already, so that a formula may use it that could do without."""
        return isinstance(self._var, Tensor)

    @property
    def constant_square(self) -> float | None:
        """The square of every level if they are all the same, as for {-1, 1}; else None."""
        pair = symmetric_pair(self._levels)
        return None if pair is None else pair * pair

    def _any(self) -> Tensor:
        """Some tensor at hand, for its dtype and device."""
        for tensor in (self._mean, self._probs, self._logits):
            if isinstance(tensor, Tensor):
                return tensor
        return self.mean

    @property
    def shape(self) -> torch.Size:
        """Shape of the tensor that the belief is about: that of `mean`, without the dimension of the levels."""
        if isinstance(self._mean, Tensor):
            return self._mean.shape
        if isinstance(self._logits, Tensor):
            return self._logits.shape[:-1]
        return self.probs.shape[:-1] if self._mean is None else self.mean.shape

    @property
    def dtype(self) -> torch.dtype:
        return self._any().dtype

    @property
    def device(self) -> torch.device:
        return self._any().device

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """One draw of levels, shape of `mean`. A level of probability zero is never drawn."""
        levels = self._level_tensor()
        if len(levels) == 2:  # one random number an element, from -1 to below 1: a tilt of ±1 leaves no choice
            tilt = self._tilt()
            return _one_of(levels, torch.empty_like(tilt).uniform_(-1, 1, generator=generator).lt_(tilt))
        race = torch.empty_like(self.probs).exponential_(generator=generator)
        return levels[(self.probs.detach() / race).argmax(-1)]

    def _tilt(self) -> Tensor:
        """P(upper) - P(lower) of two levels, without gradient; in half precision it would lose small probabilities."""
        known = (self._logits if self._logits is not None else self.probs).detach()
        known = known.to(torch.promote_types(known.dtype, torch.float32))
        if self._logits is not None:  # without exponentials that underflow, which take a CPU long
            return _Tilt.forward(known)
        lower, upper = known.unbind(-1)
        return (upper - lower) / (upper + lower)  # ±1 exactly where one of them is zero, though the sum is rounded

    def mode(self) -> Tensor:
        """The most probable level; of equals the highest, in step with sign(0) = +1."""
        scores = (self._logits if self._logits is not None else self.probs).detach()
        levels = self._level_tensor()
        if len(levels) == 2:  # the same without an index for each
            return _one_of(levels, scores[..., 1] >= scores[..., 0])
        return levels[len(levels) - 1 - scores.flip(-1).argmax(-1)]

    def entropy(self) -> Tensor:
        """Entropy per element in nats, between 0 and log D."""
        return -(self.probs * self.log_probs).sum(-1)

    def central_moment(self, order: int) -> Tensor:
        """Central moment of the given order per element."""
        distance = self._level_tensor() - self.mean.unsqueeze(-1)
        return (self.probs * distance**order).sum(-1)

    def map(self, function: Callable[[Tensor], Tensor]) -> Categorical:
        """Apply a rearrangement of elements (reshape, slice, permute) of a tensor with the shape of `mean`."""
        mean = None if self._mean is None else (lambda: function(self.mean))
        var = None if self._var is None else (lambda: function(self.var))
        within = None if self._within is None else (lambda momentum: self._map_within(function, momentum))
        if self._probs is None and self._logits is None:
            return Categorical.of(self._levels, mean=function(self.mean), var=var, within=within)
        return Categorical.of(
            self._levels,
            probs=lambda: torch.stack([function(level) for level in self.probs.unbind(-1)], -1),
            mean=mean,
            var=var,
            within=within,
        )

    def _map_within(self, function: Callable[[Tensor], Tensor], momentum: float | None) -> Gaussian:
        inner = self.within_batch(momentum)
        return Gaussian.of(function(inner.mean), function(inner.var))

    def reshape(self, *shape: int | tuple[int, ...]) -> Categorical:
        target = full_shape(self.shape, shape)
        return self.map(lambda tensor: tensor.reshape(target))

    def flatten(self, start_dim: int = 0, end_dim: int = -1) -> Categorical:
        return self.reshape(flat_shape(self.shape, start_dim, end_dim))

    def __getitem__(self, index: Any) -> Categorical:
        return self.map(lambda tensor: tensor[index])

    def __repr__(self) -> str:
        return (
            f"Categorical(shape={tuple(self.shape)}, levels={self._levels}, dtype={self.dtype}, device={self.device})"
        )


def _require_one_per_level(tensor: Tensor, levels: Levels, name: str) -> None:
    if tensor.dim() == 0 or tensor.shape[-1] != len(levels):
        raise ValueError(
            f"{name} must have one entry per level in its last dimension, {len(levels)}, got shape "
            f"{tuple(tensor.shape)}"
        )


def _one_of(levels: Tensor, upper: Tensor) -> Tensor:
    """The second of two levels where `upper` is true, or 1, else the first.

    `lerp` is exact at both ends, and on a CPU takes a third of the time of `torch.where`.
    """
    return torch.lerp(levels[0], levels[1], upper.to(levels.dtype))


def opposite_pair(upper: Tensor) -> Tensor:
    """`(-upper, upper)` in a new last dimension: the gradient of a function of log-odds by a pair of logits.

    Interleaving two tensors is what complex numbers do, four times as fast on a CPU as `torch.stack`. A compiler would
    compute `upper` twice for a stack.
    """
    if torch.compiler.is_compiling():
        return upper.unsqueeze(-1) * (2 * torch.arange(2, dtype=upper.dtype, device=upper.device) - 1)
    if upper.dtype not in (torch.float32, torch.float64):
        return torch.stack((-upper, upper), -1)
    return torch.view_as_real(torch.complex(-upper, upper))


class _Tilt(torch.autograd.Function):
    """P(upper) - P(lower) from pairs of logits: the tanh of the half log-odds, in as few passes as possible.

    Weights are many and batches small, so on a CPU these passes are a good part of a training step.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(logits: Tensor) -> Tensor:
        return ((logits[..., 1] - logits[..., 0]) * 0.5).tanh()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Tensor:
        (tilt,) = ctx.saved_tensors
        return opposite_pair(torch.ops.aten.tanh_backward(grads[0], tilt).mul_(0.5))
