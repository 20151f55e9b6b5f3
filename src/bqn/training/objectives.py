"""What a step maximizes: the objective of a network that the kind of the step asks for, plain or compiled."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import cached_property
from typing import Literal

from torch import Tensor

from bqn.data import to_input
from bqn.heads import GaussianHead
from bqn.network import Network
from bqn.nn import Draws
from bqn.objective import ElboTerms
from bqn.propagate import half
from bqn.training.compiler import compiled
from bqn.training.config import TrainConfig
from bqn.training.errors import ConfigError
from bqn.training.parts import recomputed

StepKind = Literal["analytic", "drawn", "both"]


def step_kind(config: TrainConfig, epoch: int, steps_done: int) -> StepKind:
    """What a step trains: the posterior, a network drawn from it, or both."""
    if epoch < config.epochs - config.drawn_epochs:
        return "analytic"
    if not config.drawn_alone:
        return "both"
    return "drawn" if steps_done % (config.drawn_alone + 1) else "analytic"


class Objectives:
    """The objectives of a network, with the bound and the precision of a run.

    Parameters
    ----------
    net : Network
    config : TrainConfig
    count : int, number of training examples
    """

    def __init__(self, net: Network, config: TrainConfig, count: int) -> None:
        self.net, self.config, self.count = net, config, count
        options: dict[str, str | float] = {} if isinstance(net.head, GaussianHead) else {"bound": config.bound}
        if config.label_smoothing:
            if isinstance(net.head, GaussianHead):
                raise ConfigError(f"label_smoothing is for classification, got {config.label_smoothing}")
            options["smoothing"] = config.label_smoothing
        self._options = options

    def __call__(
        self, kind: StepKind, x: Tensor, y: Tensor, lam: float | Tensor, draws: Draws | None, compiles: bool
    ) -> ElboTerms:
        """The objective of a kind of step on some examples as stored, with the network that the step has drawn."""
        objective = (self._compiled if compiles else self._plain)[kind]
        # What is computed again in a compiled step the compiler decides, see `compiler.compiled`.
        whole = compiles and self.config.checkpoint_activations
        precision = half.lowered() if self.config.mixed_precision else nullcontext()
        with precision, recomputed(self.net, False) if whole else nullcontext():
            if kind == "analytic":
                return objective(to_input(x), y, self.count, lam, **self._options)
            assert draws is not None, kind
            return objective(to_input(x), y, self.count, lam, draws, **self._options)

    @cached_property
    def _plain(self) -> dict[StepKind, Callable[..., ElboTerms]]:
        net = self.net
        return {"analytic": net.elbo_terms, "drawn": net.drawn_elbo_terms, "both": net.half_drawn_elbo_terms}

    @cached_property
    def _compiled(self) -> dict[StepKind, Callable[..., ElboTerms]]:
        """The same, compiled when they are called; see `compiler.compiled`."""
        frugal = self.config.checkpoint_activations
        return {kind: compiled(objective, frugal) for kind, objective in self._plain.items()}
