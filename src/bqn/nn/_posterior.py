"""Posteriors: the categorical distribution that a network learns over each of its weights."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache, partial
from typing import Any, NamedTuple, TypeAlias, cast

import torch
from torch import Tensor, nn

from bqn.beliefs import Belief, Categorical, opposite_pair
from bqn.levels import BINARY, Levels, as_levels, level_tensor
from bqn.propagate import compiled, cpu

# The share of a weight's second moment that its mean carries at the start. Chosen by experiment: see docs/start.md.
DEFAULT_RHO = 0.54


class Weight(nn.Module):
    """What a layer knows about one of its weight tensors, and how it is learned.

    A layer reads it through `belief_of`; `Network.sample` and `Network.mode` replace it by a plain tensor. Where the
    belief is a tensor the layer is an ordinary one: so are built the networks that BQNs are compared with.

    Attributes
    ----------
    on_levels : bool
        Whether a weight that is known lies on one of a few levels.
    """

    on_levels: bool = False

    @property
    def shape(self) -> torch.Size:
        """Shape of the weight tensor."""
        raise NotImplementedError

    def belief(self) -> Belief:
        raise NotImplementedError

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """One draw of the weights."""
        raise NotImplementedError

    def mode(self) -> Tensor:
        """The most probable weights."""
        raise NotImplementedError

    def kl(self) -> Tensor:
        """What the objective charges for these weights, in nats: a scalar."""
        raise NotImplementedError


class Posterior(Weight):
    """A learnable categorical distribution for every element of a weight tensor.

    Parameters
    ----------
    shape : shape of the weight tensor
    levels : ascending sequence of D values
    prior : sequence of D probabilities, or a Tensor broadcastable to `shape + (D,)`; uniform by default

    Attributes
    ----------
    logits : Parameter `shape + (D,)`
        Unnormalized log-probabilities.
    """

    on_levels = True
    log_prior_per_weight: Tensor | None

    def __init__(
        self,
        shape: Iterable[int],
        levels: Iterable[float] | Tensor = BINARY,
        prior: Iterable[float] | Tensor | None = None,
    ) -> None:
        super().__init__()
        self.level_values: Levels = as_levels(levels, at_least=2)
        full_shape = (*shape, len(self.level_values))
        self.logits = nn.Parameter(torch.zeros(full_shape))
        log_prior = _log_prior(prior, full_shape)
        # One prior for all weights is kept as numbers, exact in any dtype; one per weight is a buffer.
        self.common_log_prior: tuple[float, ...] | None = tuple(log_prior.tolist()) if log_prior.dim() == 1 else None
        per_weight = None if log_prior.dim() == 1 else log_prior.to(torch.get_default_dtype())
        self.register_buffer("log_prior_per_weight", per_weight)
        self.uniform_prior = prior is None
        self._shared: tuple[Categorical, Tensor] | None = None
        self._drawn: Tensor | None = None

    @property
    def levels(self) -> Tensor:
        """The D levels, shape `(D,)`."""
        return level_tensor(self.level_values, self.logits)

    @property
    def shape(self) -> torch.Size:
        """Shape of the weight tensor."""
        return self.logits.shape[:-1]

    def belief(self) -> Belief:
        """The posterior itself, or inside of `drawn` what was drawn from it."""
        return self.law() if self._drawn is None else self._drawn

    def law(self) -> Categorical:
        """The posterior."""
        return Categorical.of_logits(self.logits, self.level_values) if self._shared is None else self._shared[0]

    def kl(self) -> Tensor:
        """KL(Q ‖ prior) in nats, summed over all weights: a scalar, in closed form."""
        return self._belief_and_kl()[1] if self._shared is None else self._shared[1]

    def _belief_and_kl(self) -> tuple[Categorical, Tensor]:
        if self.uniform_prior and len(self.level_values) == 2:
            if cpu.usable(self.logits):
                tilt, noise, divergence = compiled.tilt_and_kl(self.logits)
                return Categorical.of_logits(self.logits, self.level_values, tilt, noise), divergence
            tilt, divergence = _TiltAndKL.apply(self.logits)  # type: ignore[no-untyped-call]
            return Categorical.of_logits(self.logits, self.level_values, tilt), divergence
        if self.common_log_prior is not None:
            mean, var, divergence = _MomentsAndKL.apply(self.logits, self.levels, self.log_prior)  # type: ignore[no-untyped-call]
            logits = self.logits  # not self, which the belief must not hold on to
            probs = partial(torch.softmax, logits, -1)
            return Categorical.of(self.level_values, probs=probs, logits=logits, mean=mean, var=var), divergence
        log_q = torch.log_softmax(self.logits, -1)
        belief = Categorical.of(self.level_values, probs=log_q.exp(), logits=self.logits)
        return belief, (belief.probs * (log_q - self.log_prior)).sum()

    @property
    def log_prior(self) -> Tensor:
        """Log-probabilities of the prior, `(D,)` or broadcastable to `shape + (D,)`."""
        if self.common_log_prior is not None:
            return level_tensor(self.common_log_prior, self.logits)
        return cast(Tensor, self.log_prior_per_weight)

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """One draw of the weights."""
        with torch.no_grad():
            return self.law().sample(generator)

    def mode(self) -> Tensor:
        """The most probable weights."""
        with torch.no_grad():
            return self.law().mode()

    @property
    def mean(self) -> Tensor:
        return self.law().mean

    @property
    def var(self) -> Tensor:
        return self.law().var

    def entropy(self) -> Tensor:
        """Entropy per weight, in nats."""
        return self.law().entropy()

    @torch.no_grad()
    def signal_init_(self, rho: float = DEFAULT_RHO, generator: torch.Generator | None = None) -> Posterior:
        """Start with mean weights large enough that a signal survives many layers.

        Logits are drawn from a normal distribution whose width makes E[mean²] = `rho` · E[θ²]. With q = E[h²] of the
        mean activations, the next layer then has (2/π) arcsin(ρ q): the smaller ρ, the faster a deep network
        forgets its input.
        """
        if not 0 <= rho < 1:
            raise ValueError(f"rho must be at least 0 and below 1, got {rho}")
        self.logits.normal_(generator=generator).mul_(logit_width(self.level_values, rho))
        return self

    @torch.no_grad()
    def xavier_init_(self, fan_in: int, fan_out: int, generator: torch.Generator | None = None) -> Posterior:
        """The paper's start: logits uniform within ±√(6 / (fan_in + fan_out)). All weights are nearly undecided."""
        bound = math.sqrt(6 / (fan_in + fan_out))
        self.logits.uniform_(-bound, bound, generator=generator)
        return self

    def extra_repr(self) -> str:
        return f"{tuple(self.shape)}, levels={self.level_values}"


@contextmanager
def computed_once(module: nn.Module) -> Iterator[None]:
    """Inside the block every posterior below `module` computes its belief and its KL once and together.

    For one evaluation of the objective: the weights must not change within the block.
    """
    posteriors = [child for child in module.modules() if isinstance(child, Posterior)]
    try:
        for posterior in posteriors:
            posterior._shared = posterior._belief_and_kl()
        yield
    finally:
        for posterior in posteriors:
            posterior._shared = None


class _Handed(NamedTuple):
    """What a posterior hands out instead of working it out: belief and KL inside of `computed_once`, and a draw."""

    shared: tuple[Categorical, Tensor] | None
    draw: Tensor | None


Handed: TypeAlias = dict[Posterior, _Handed]


def handed_out(modules: Iterable[nn.Module]) -> Handed:
    """What the posteriors below `modules` hand out at this moment, whatever their beliefs work out later."""
    posteriors = [child for module in modules for child in module.modules() if isinstance(child, Posterior)]
    return {posterior: _Handed(_copied(posterior._shared), posterior._drawn) for posterior in posteriors}


def _copied(shared: tuple[Categorical, Tensor] | None) -> tuple[Categorical, Tensor] | None:
    return None if shared is None else (copy.copy(shared[0]), shared[1])


@contextmanager
def handing_out(handed: Handed) -> Iterator[None]:
    """Inside the block posteriors hand out this; of beliefs copies that have worked out nothing yet."""
    before = [(posterior, posterior._shared, posterior._drawn) for posterior in handed]
    try:
        for posterior, (shared, draw) in handed.items():
            posterior._shared, posterior._drawn = _copied(shared), draw
        yield
    finally:
        for posterior, own, drawn in before:
            posterior._shared, posterior._drawn = own, drawn


class _TiltAndKL(torch.autograd.Function):
    """For two levels and a uniform prior: the tilt m = P(upper) - P(lower) = tanh(o/2) of the log-odds o, and the KL.

    The KL of a weight is log(1 + |m|) - |o| (1 - |m|) / 2, its derivative by o is o (1 - m²) / 4. Weights are many and
    batches small, so the passes over the weights are a good part of a training step: there are few of them. On a CPU
    `compiled.tilt_and_kl` does the same.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(logits: Tensor) -> tuple[Tensor, Tensor]:
        odds = logits[..., 1] - logits[..., 0]
        tilt = (0.5 * odds).tanh()
        size = tilt.abs()
        # Summed only after the subtraction: the terms nearly cancel where the posterior is close to the prior.
        doubt = (1 - size) * odds.abs()
        return tilt, torch.sub(size.log1p(), doubt, alpha=0.5).sum()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs, output[0])
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Tensor | None:
        logits, tilt = ctx.saved_tensors
        grad_tilt, grad_kl = grads
        if grad_kl is None:
            return None if grad_tilt is None else opposite_pair(torch.ops.aten.tanh_backward(grad_tilt, tilt).mul_(0.5))
        inner = (logits[..., 1] - logits[..., 0]) * (0.25 * grad_kl)
        if grad_tilt is not None:
            inner = torch.add(inner, grad_tilt, alpha=0.5)
        return opposite_pair(torch.ops.aten.tanh_backward(inner, tilt))


class _MomentsAndKL(torch.autograd.Function):
    """Mean and variance of weights on D levels, and their KL from a prior that is the same for all.

    With p the probabilities and t the gradient by them, that by the logits is p (t - Σ p t). Keeps the logits alone, of
    which backward forms the probabilities anew: tensors with a few numbers in the last dimension are slow to work on.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(logits: Tensor, levels: Tensor, log_prior: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if len(levels) <= cpu.MOST_LEVELS and cpu.usable(logits, levels, log_prior):
            return cpu.moments_and_kl(logits, levels, log_prior)
        log_q = torch.log_softmax(logits, -1)
        probs = log_q.exp()
        mean = probs @ levels
        var = (probs * (levels - mean.unsqueeze(-1)).square()).sum(-1)
        return mean, var, (probs * (log_q - log_prior)).sum()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, None, None]:
        logits, levels, log_prior = ctx.saved_tensors
        by_mean, by_var, by_kl = grads
        known = [tensor for tensor in grads if tensor is not None]
        if not known:
            return None, None, None
        once = not torch.is_grad_enabled()  # C has no second derivative
        if once and len(levels) <= cpu.MOST_LEVELS and cpu.usable(logits, levels, log_prior, *known):
            weight = 0.0 if by_kl is None else float(by_kl)
            return cpu.moments_and_kl_backward(logits, levels, log_prior, by_mean, by_var, weight), None, None
        log_q = torch.log_softmax(logits, -1)
        probs = log_q.exp()
        distance = levels - (probs @ levels).unsqueeze(-1)
        by_probs = torch.zeros_like(probs)
        if by_mean is not None:
            by_probs = by_probs + by_mean.unsqueeze(-1) * distance
        if by_var is not None:
            by_probs = by_probs + by_var.unsqueeze(-1) * distance.square()
        if by_kl is not None:
            by_probs = by_probs + by_kl * (log_q - log_prior)
        return probs * (by_probs - (probs * by_probs).sum(-1, keepdim=True)), None, None


def belief_of(weight: Weight | Tensor | None) -> Belief | None:
    """What is known about a weight: its posterior's belief, or the tensor that a sampled network holds."""
    return weight.belief() if isinstance(weight, Weight) else weight


def _log_prior(prior: Iterable[float] | Tensor | None, full_shape: tuple[int, ...]) -> Tensor:
    if prior is None:
        return torch.full((full_shape[-1],), -math.log(full_shape[-1]), dtype=torch.float64)
    probs = torch.as_tensor(prior if isinstance(prior, Tensor) else list(prior), dtype=torch.float64)
    try:
        fits = torch.broadcast_shapes(probs.shape, full_shape) == torch.Size(full_shape)
    except RuntimeError:
        fits = False
    if probs.dim() == 0 or not fits:
        raise ValueError(
            f"prior must hold {full_shape[-1]} probabilities or broadcast to {full_shape}, got {tuple(probs.shape)}"
        )
    if not bool((probs > 0).all()) or not bool(torch.isfinite(probs).all()):
        raise ValueError("prior must be positive everywhere: a level of prior probability zero makes the KL infinite")
    if bool(((probs.sum(-1) - 1).abs() > 1e-6).any()):
        raise ValueError(f"prior must sum to one, got {probs.sum(-1).tolist()}")
    return probs.log()


@lru_cache(maxsize=256)
def logit_width(levels: Levels, rho: float) -> float:
    """The standard deviation of normal logits at which the mean carries the share `rho` of the second moment."""
    generator = torch.Generator().manual_seed(0)
    draws = torch.randn(20_000, len(levels), generator=generator, dtype=torch.float64)
    values = torch.tensor(levels, dtype=torch.float64)

    def share(width: float) -> float:
        probs = torch.softmax(width * draws, -1)
        return float((probs @ values).square().mean() / (probs @ values.square()).mean())

    low, high = 0.0, 1.0
    if share(low) >= rho:
        return low
    while share(high) < rho:
        if high > 1e4:
            raise ValueError(f"rho={rho} cannot be reached with the levels {levels}")
        high *= 2
    for _ in range(50):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if share(middle) < rho else (low, middle)
    return 0.5 * (low + high)
