"""Networks that learn by assumed density filtering, in the clothes of a `bqn.Network`."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from bqn.baselines._heads import NoiseHead
from bqn.baselines.adf import Array, Gamma, Nonlinearity, Pair, forward
from bqn.beliefs import Belief, Gaussian
from bqn.heads import Head
from bqn.network import Network
from bqn.objective import ElboTerms

State: TypeAlias = dict[str, Array]


class FilteredNetwork(Network):
    """A network with independent beliefs about its weights that takes in one example after the other.

    All that is learned are parameters, in float64. A step of training runs over the batch and finds new beliefs; the
    objective is then the log-evidence of the batch with a gradient by each parameter that leads exactly there, and the
    optimizer takes that step. At learning rate 1 the beliefs are those of the filter; below 1 it is damped.

    Parameters
    ----------
    nonlinearity : of the hidden units
    head : what the moments of the output mean

    Attributes
    ----------
    training_only : tuple of str
        How the names of those tensors begin that a prediction does not need.
    """

    modes = ("analytic",)
    training_only: tuple[str, ...] = ()

    def __init__(self, nonlinearity: Nonlinearity, head: Head) -> None:
        super().__init__(nn.Identity(), head)
        self.nonlinearity = nonlinearity

    def layers(self, state: State) -> list[Pair]:
        """Means and variances `(out, in + 1)` of the weights of each layer, the bias last, out of `state`."""
        raise NotImplementedError

    def learn(self, state: State, x: Array, y: Array, data_size: int) -> float:
        """Take in examples `(N, in)` with targets `(N, 1)` or labels `(N,)`: change `state` in place.

        Returns the mean log-evidence, each example's before it was learned from.
        """
        raise NotImplementedError

    def state(self) -> State:
        """Copies of all parameters by name."""
        return {name: parameter.detach().cpu().numpy().copy() for name, parameter in self.named_parameters()}

    def forward(self, x: Tensor) -> Belief:
        """Moments of the output for inputs `(N, ...)`."""
        state = {name: parameter.detach().cpu().numpy() for name, parameter in self.named_parameters()}
        output = forward(self.layers(state), self.nonlinearity, to_array(x.flatten(1))).output
        return Gaussian(*(torch.from_numpy(part).to(x) for part in output))

    def elbo_terms(
        self, x: Tensor, y: Tensor, data_size: int, lam: float | Tensor, **options: str | float
    ) -> ElboTerms:
        """The mean log-evidence of the batch, with the step that the filter takes as its gradient; λ plays no part."""
        state = self.state()
        evidence = self.learn(state, to_array(x.flatten(1)), to_array(y), data_size)
        value = torch.tensor(evidence, dtype=torch.float64, device=x.device)
        for name, parameter in self.named_parameters():
            step = torch.from_numpy(state[name]).to(parameter) - parameter.detach()
            value = value + (step * (parameter - parameter.detach())).sum()
        return ElboTerms(value, value.detach(), self.kl())

    def make_optimizer(self, learning_rate: float) -> torch.optim.Optimizer:
        return _Steps(self.parameters(), lr=learning_rate)


class _Steps(torch.optim.SGD):
    """Plain gradient steps, without a memory."""

    def state_names(self, parameter: Tensor) -> tuple[str, ...]:
        return ()


class GammaNoiseHead(NoiseHead):
    """The output itself with noise of an uncertain precision; `gamma` holds shape and rate of the belief about it."""

    def __init__(self, start: Gamma) -> None:
        nn.Module.__init__(self)
        self.in_features = self.out_features = 1
        self.gamma = doubles([start.shape, start.rate])

    @property
    def noise(self) -> Tensor:
        """Expected variance of the noise, `(1,)`."""
        shape, rate = self.gamma.detach().unbind()
        return (rate / (shape - 1)).reshape(1)

    @property
    def log_noise(self) -> Tensor:  # type: ignore[override]
        return self.noise.log()


def layer_sizes(inputs: int, hidden: Sequence[int], outputs: int) -> list[tuple[int, int]]:
    """Inputs and units of each layer."""
    widths = [inputs, *hidden, outputs]
    return list(pairwise(widths))


def doubles(values: Any) -> nn.Parameter:
    """A parameter in float64."""
    return nn.Parameter(torch.as_tensor(values, dtype=torch.float64))


def to_array(tensor: Tensor) -> Array:
    """On the host, as numpy's float64."""
    array: Array = tensor.detach().cpu().double().numpy()
    return array
