"""`ensemble` and `e-qnn`: several networks trained side by side, which doubt where they disagree.

A deep ensemble (Lakshminarayanan et al. 2017) has real-valued members that differ in their start and in the order of
their examples. The E-QNN of Su et al. (2020) is a bootstrap ensemble: each member is a `qnn` that learns from its own N
examples, drawn with replacement from the N there are. The logits of all members are averaged, as the paper does (mode
"logits"), or their probabilities (mode "members").
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import cast

import torch
from torch import Tensor, nn

from bqn.baselines import qnn
from bqn.baselines._heads import NoiseHead, plain_head, plain_softmax
from bqn.baselines._layers import real_body
from bqn.baselines._method import SIZES, Method, Plan
from bqn.beliefs import Belief
from bqn.heads import GaussianHead, SoftmaxHead
from bqn.network import Network, QuantizedNetwork
from bqn.objective import ElboTerms


class PointNetwork(Network):
    """A real-valued network without doubt; its one mode is "map"."""

    modes = ("map",)


class Ensemble(Network):
    """Networks that learn side by side, each from examples of its own.

    Parameters
    ----------
    networks : sequence of Network
        The members, for the same task.
    seed : int
        Decides which examples a member sees.
    bootstrap : bool
        Whether a member's examples are drawn with replacement; otherwise it sees all, in an order of its own.
    logits_first : bool
        Whether to average logits rather than probabilities where nothing else is said.
    """

    def __init__(
        self, networks: Sequence[Network], seed: int, bootstrap: bool = False, logits_first: bool = False
    ) -> None:
        head = networks[0].head
        regression = isinstance(head, GaussianHead)
        own = NoiseHead(head.out_features) if isinstance(head, GaussianHead) else plain_softmax(head.fan_in)
        super().__init__(nn.ModuleList(networks), own.requires_grad_(False))
        ways = ("logits", "members") if logits_first else ("members", "logits")
        self.modes = ("members",) if regression else ways
        self.seed, self.bootstrap = seed, bootstrap
        self._draws = torch.empty(0, 0, dtype=torch.long)

    @property
    def networks(self) -> list[Network]:
        return cast(list[Network], list(cast(nn.ModuleList, self.body)))

    def forward(self, x: Tensor) -> Belief:
        """The mean over the members of their logits, or of their outputs: `(N, K)`."""
        return torch.stack([_output(net, net(x)) for net in self._members_as_checked()]).mean(0)

    def _members_as_checked(self) -> list[Network]:
        for net in self.networks:
            net.validate = self.validate
        return self.networks

    def elbo_terms(
        self, x: Tensor, y: Tensor, data_size: int, lam: float | Tensor, **options: str | float
    ) -> ElboTerms:
        """The mean over the members of their objectives.

        Parameters
        ----------
        x, y : Tensor
            `(N, ...)` and `(N,)` or `(N, out_features)` for all members, or with a leading dimension for the members.
        """
        apart = y.dim() > (2 if isinstance(self.head, GaussianHead) else 1)
        parts = [
            net.elbo_terms(x[k] if apart else x, y[k] if apart else y, data_size, lam, **options)
            for k, net in enumerate(self._members_as_checked())
        ]
        return ElboTerms(*(torch.stack(part).mean() for part in zip(*parts, strict=True)))

    def choose_examples(self, batch: Tensor, data_size: int) -> Tensor:
        """Each member's own examples: `(members, B)`."""
        if self._draws.shape[1] != data_size or self._draws.device != batch.device:
            self._draws = self.draw_examples(data_size).to(batch.device)
        return self._draws[:, batch]

    def draw_examples(self, data_size: int) -> Tensor:
        """Which example each member sees at each place of an epoch: `(members, data_size)`, the same at every call."""
        generator = torch.Generator().manual_seed(self.seed)
        count = len(self.networks)
        if self.bootstrap:
            return torch.randint(data_size, (count, data_size), generator=generator)
        return torch.stack([torch.randperm(data_size, generator=generator) for _ in range(count)])

    def make_optimizer(self, learning_rate: float) -> torch.optim.Optimizer:
        return type(self.networks[0]).make_optimizer(self, learning_rate)  # each parameter is updated on its own

    def _members(self, mode: str, samples: int, generator: torch.Generator | None) -> Iterator[QuantizedNetwork]:
        if mode == "members":
            for net in self.networks:
                yield net.mode(generator)
        else:
            plain = [net.mode(generator) for net in self.networks]
            yield QuantizedNetwork(_MeanOutput(plain), self.head).eval()


class _MeanOutput(nn.Module):
    """The mean of what several plain networks say, before the softmax: `(N, K)`."""

    def __init__(self, networks: Sequence[QuantizedNetwork]) -> None:
        super().__init__()
        self.networks = nn.ModuleList(networks)

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([_output(net, net(x)) for net in cast(list[QuantizedNetwork], self.networks)]).mean(0)


def _output(net: Network | QuantizedNetwork, value: Belief) -> Tensor:
    assert isinstance(value, Tensor)
    return value / net.head.scale if isinstance(net.head, SoftmaxHead) else value


def _build_members(plan: Plan) -> Ensemble:
    return Ensemble([point_network(plan) for _ in range(plan.options["members"])], plan.seed)


def point_network(plan: Plan) -> PointNetwork:
    """A real-valued network with the layers of the plan."""
    net = plan.blank()
    return PointNetwork(real_body(net, plan.outputs), plain_head(net, plan.outputs))


def _build_bootstrap(plan: Plan) -> Ensemble:
    members = [qnn.build(plan) for _ in range(plan.options["members"])]
    return Ensemble(members, plan.seed, bootstrap=True, logits_first=True)


ENSEMBLE = Method(
    "deep ensemble of real-valued networks",
    _build_members,
    models=("mlp", "cnn", "vgg", "resnet", "regressor"),
    options={"members": 5},
)
EQNN = Method(
    "bootstrap ensemble of qnn", _build_bootstrap, models=qnn.QNN.models, options={"members": 10}, model_options=SIZES
)
