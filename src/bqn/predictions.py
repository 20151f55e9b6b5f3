"""Predictions: what a network says about many examples in each of its modes, with its uncertainty taken apart.

Data pass in batches and one network at a time is held, so memory is bounded. The networks of a seed are the same for
every set of examples, and the same that `[net.sample(generator) for _ in range(samples)]` draws with a generator of
that seed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias, cast

import torch
from torch import Tensor

from bqn.beliefs import Belief
from bqn.checks import require_positive
from bqn.data import to_input
from bqn.entropy_integral import entropies
from bqn.heads import GaussianHead, Moments, SoftmaxHead
from bqn.metrics import entropy, to_double
from bqn.network import Network, QuantizedNetwork, evaluating
from bqn.nn import recalibrate, set_generator

RECALIBRATED_MODES = ("mc_recalibrated", "map_recalibrated")
RECALIBRATION_INPUTS = 2000
_RECALIBRATION_BATCH = 100  # at least, lest the statistics of a batch be poor

Prepare: TypeAlias = Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Classified:
    """What one mode says about N examples; all on the host.

    Attributes
    ----------
    probs : Tensor `(N, K)`
    entropy : Tensor `(N,)`
        Of `probs`, in nats: all the uncertainty there is.
    epistemic : Tensor `(N,)` or None
        The part that more data could remove. MC: mutual information between label and network. Analytic: mutual
        information between label and logits under the Gaussian belief about them (`bqn.entropy_integral`). None for a
        single network, which cannot doubt itself.
    bound : Tensor `(N,)` or None
        Analytic mode with labels only: the negative of the log-likelihood bound that training maximizes.
    """

    probs: Tensor
    entropy: Tensor
    epistemic: Tensor | None = None
    bound: Tensor | None = None

    @property
    def aleatoric(self) -> Tensor:
        """The part of the entropy that stays however much data there is: `(N,)`."""
        return self.entropy if self.epistemic is None else self.entropy - self.epistemic


@dataclass(frozen=True, eq=False)
class Regressed:
    """What one mode says about N examples: an equal mixture of S normals, in the units of the targets, on the host.

    Attributes
    ----------
    means, variances : Tensor `(S, N, D)`
    aleatoric : Tensor `(N, D)`
        Variance of the observation noise.
    epistemic : Tensor `(N, D)` or None
        Variance that comes from doubt about the network; None for a single network.
    bound : Tensor `(N,)` or None
        Analytic mode with targets only: the negative of the expected log-likelihood that training maximizes.
    """

    means: Tensor
    variances: Tensor
    aleatoric: Tensor
    epistemic: Tensor | None = None
    bound: Tensor | None = None

    @property
    def mean(self) -> Tensor:
        """Predictive mean `(N, D)`."""
        return self.means.mean(0)

    @property
    def variance(self) -> Tensor:
        """Predictive variance `(N, D)`."""
        return self.aleatoric if self.epistemic is None else self.aleatoric + self.epistemic


class Predictor:
    """Runs a network over sets of examples; deterministic for a seed.

    Parameters
    ----------
    net : Network
    samples : int
        Networks drawn for the MC modes.
    seed : int
    batch_size : int
        Examples at a time.
    prepare : function
        Turns stored examples `(n, ...)`, on the network's device, into network input.
    recalibrate_on : Tensor `(M, ...)` or None
        Stored training examples, at least two; a random choice of at most 2000 serves to estimate batch norm statistics
        for the modes "mc_recalibrated" and "map_recalibrated".
    """

    def __init__(
        self,
        net: Network,
        *,
        samples: int = 5,
        seed: int = 0,
        batch_size: int = 500,
        prepare: Prepare = to_input,
        recalibrate_on: Tensor | None = None,
    ) -> None:
        self.net = net
        self.samples = require_positive(samples, "samples")
        self.seed = seed
        self.batch_size = require_positive(batch_size, "batch_size")
        self.prepare = prepare
        self.device = next((parameter.device for parameter in net.parameters()), torch.device("cpu"))
        again = () if recalibrate_on is None else RECALIBRATED_MODES
        self.modes = net.modes + tuple(mode for mode in again if _plain_mode(mode) in net.modes)
        self.reference = None if recalibrate_on is None else self._choose_reference(recalibrate_on)

    def _choose_reference(self, x: Tensor) -> Tensor:
        if len(x) < 2:
            raise ValueError(f"recalibrate_on must hold at least two examples, got {len(x)}")
        batch = max(self.batch_size, _RECALIBRATION_BATCH)
        count = min(len(x), RECALIBRATION_INPUTS)
        count -= count % batch if count > batch else 0  # whole batches: each counts alike
        chosen = torch.randperm(len(x), generator=torch.Generator().manual_seed(self.seed))[:count]
        return x[chosen.to(x.device)]

    @torch.no_grad()
    def classify(self, mode: str, x: Tensor, y: Tensor | None = None, split: bool = True) -> Classified:
        """Predictions for stored examples.

        Parameters
        ----------
        mode : str
            One of `self.modes`.
        x : Tensor `(N, ...)`
        y : Tensor `(N,)` or None
            Labels, for the bound of the analytic mode.
        split : bool
            Whether to compute the epistemic part, which takes some time in the analytic mode.
        """
        with evaluating(self.net):
            return self._classify_beliefs(x, y, split) if mode == "analytic" else self._classify_by_members(mode, x)

    def _classify_beliefs(self, x: Tensor, y: Tensor | None, split: bool) -> Classified:
        head = cast(SoftmaxHead, self.net.head)
        probs, information, bounds = [], [], []
        for rows, batch in self.batches(x):
            belief = self.net(batch)
            probs.append(head.predict(belief).cpu())
            _require_finite(probs[-1], "analytic")
            if split:
                information.append(_information(belief, head.scale).cpu())
            if y is not None:
                bounds.append(-head.log_likelihood(belief, y[rows].to(self.device)).cpu())
        joined = torch.cat(probs)
        total = entropy(joined)
        # The prediction is an expansion where variances are small; information, a difference, is computed on its own.
        epistemic = torch.minimum(torch.cat(information), total) if split else None
        return Classified(joined, total, epistemic, torch.cat(bounds) if bounds else None)

    def _classify_by_members(self, mode: str, x: Tensor) -> Classified:
        count, dtype = 0, torch.float32
        mixed, within = torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)
        for member in self.members(mode):
            given = torch.cat([cast(Tensor, member.predict(batch)).cpu() for _, batch in self.batches(x)])
            _require_finite(given, mode)
            mixed, within = mixed + given.double(), within + entropy(given)
            count, dtype = count + 1, given.dtype
        probs = (mixed / count).to(dtype)
        total = entropy(probs)
        epistemic = (total - within / count).clamp_min(0) if count > 1 else None
        return Classified(probs, total, epistemic)

    @torch.no_grad()
    def log_probs(self, mode: str, x: Tensor) -> Tensor:
        """Logarithms of the predicted probabilities for stored examples: `(N, K)`, float64, on the host.

        They are exact also where float32 probabilities underflow: those of networks that are too sure of themselves.
        """
        if mode == "analytic":
            probs = self.classify(mode, x, split=False).probs.double()
            return probs.clamp_min(torch.finfo(torch.float32).tiny).log()
        with evaluating(self.net):
            given = [
                torch.cat([_log_softmax(member, batch) for _, batch in self.batches(x)])
                for member in self.members(mode)
            ]
        return torch.logsumexp(torch.stack(given), 0) - math.log(len(given))

    @torch.no_grad()
    def regress(
        self, mode: str, x: Tensor, y: Tensor | None = None, shift: Tensor | float = 0.0, unit: Tensor | float = 1.0
    ) -> Regressed:
        """Predictions for stored examples.

        Parameters
        ----------
        mode : str
            One of `self.modes`.
        x : Tensor `(N, ...)`
        y : Tensor `(N, D)` or None
            Targets in their own units, for the bound of the analytic mode.
        shift, unit : float or Tensor `(D,)`
            The network predicts `(y - shift) / unit`.
        """
        head = cast(GaussianHead, self.net.head)
        shift, unit = (torch.as_tensor(part).double().cpu().expand(head.out_features) for part in (shift, unit))
        with evaluating(self.net):
            if mode == "analytic":
                parts, bound = self._regress_beliefs(x, None if y is None else ((y.cpu() - shift) / unit).to(y.dtype))
            else:
                parts = [
                    _join([cast(Moments, member.predict(batch)) for _, batch in self.batches(x)])
                    for member in self.members(mode)
                ]
                bound = None
        means = torch.stack([mean for mean, _ in parts]) * unit + shift
        variances = torch.stack([var for _, var in parts]) * unit.square()
        _require_finite(means.mean(0), mode)
        noise, epistemic = variances.mean(0), None
        if mode == "analytic":
            noise = (head.noise.cpu().double() * unit.square()).expand(means.shape[1:])
            epistemic = (variances[0] - noise).clamp_min(0)
            bound = None if bound is None else bound + unit.log().sum()
        elif len(parts) > 1:
            epistemic = means.var(0, correction=0) if len(x) else torch.zeros_like(noise)  # torch warns of no numbers
        return Regressed(means, variances, noise, epistemic, bound)

    def _regress_beliefs(self, x: Tensor, y: Tensor | None) -> tuple[list[tuple[Tensor, Tensor]], Tensor | None]:
        head = cast(GaussianHead, self.net.head)
        given, bounds = [], []
        for rows, batch in self.batches(x):
            belief = self.net(batch)
            given.append(head.predict(belief))
            if y is not None:
                bounds.append(-head.log_likelihood(belief, y[rows].to(self.device)).double().cpu())
        return [_join(given)], torch.cat(bounds) if bounds else None

    def members(self, mode: str) -> Iterator[QuantizedNetwork]:
        """The networks of a mode, one after the other."""
        if mode not in self.modes or mode == "analytic":
            raise ValueError(f"mode must be one of {', '.join(self.modes)}, got {mode!r}")
        weights, hidden = (torch.Generator(self.device).manual_seed(self.seed + step) for step in range(2))
        for member in self.net.members(_plain_mode(mode), self.samples, weights):
            # A stream of their own: how often hidden variables are drawn must not change the next network.
            set_generator(member, hidden)
            if mode in RECALIBRATED_MODES:
                recalibrate(
                    member, self.input(cast(Tensor, self.reference)), max(self.batch_size, _RECALIBRATION_BATCH)
                )
            yield member

    def batches(self, x: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """Where a batch lies, and its network input; of no examples one empty batch, which has a shape."""
        for start in range(0, max(len(x), 1), self.batch_size):
            rows = slice(start, start + self.batch_size)
            yield rows, self.input(x[rows])

    def input(self, x: Tensor) -> Tensor:
        """Network input, on the network's device, from stored examples."""
        return self.prepare(x.to(self.device)).to(self.device)


def _log_softmax(member: QuantizedNetwork, x: Tensor) -> Tensor:
    logits = to_double(member(x)) / to_double(cast(SoftmaxHead, member.head).scale)
    return torch.log_softmax(logits, -1).cpu()


def _plain_mode(mode: str) -> str:
    return mode.removesuffix("_recalibrated")


def _information(belief: Belief, scale: Tensor) -> Tensor:
    """Mutual information between the label and the logits `belief / scale`: `(N,)`, float64."""
    mean, var = (belief, torch.zeros_like(belief)) if isinstance(belief, Tensor) else (belief.mean, belief.var)
    total, expected = entropies(to_double(mean / scale), to_double(var / scale.square()))
    return total - expected


def _join(parts: list[Moments]) -> tuple[Tensor, Tensor]:
    """Means and variances `(N, D)` of all batches, float64 on the host."""
    return torch.cat([part.mean.cpu().double() for part in parts]), torch.cat(
        [part.var.cpu().double() for part in parts]
    )


def _require_finite(values: Tensor, mode: str) -> None:
    if not bool(torch.isfinite(values).all()):
        bad = int((~torch.isfinite(values)).flatten(1).any(-1).sum())
        raise ValueError(f"net gives NaN or infinite predictions in mode {mode!r}, for {bad} of {len(values)} examples")
