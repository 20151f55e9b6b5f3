"""Expectation backpropagation (Soudry, Hubara and Meir 2014): sign units, weights that are real or ±1.

A sign unit's output is ±1 with a probability that follows from mean and variance of its weighted sum. Three kinds of
weights:

"binary"  ±1, with a log-odds each (half of it is kept), as published
"fixed"   normal with a variance of one that is never updated, as published
"real"    normal, mean and variance both updated by moment matching, which the others leave out

The published rules follow the derivative of log Z by the means alone: terms through the variances are smaller by the
root of the fan-in. Regression, which Ghosh, Delle Fave and Yedidia (2016) added, has a real output with gamma noise;
classification has one sign unit a class. Targets of a regression are taken in one by one; labels ten at a time, by
adding up what each says.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn

from bqn.baselines._filtered import FilteredNetwork, GammaNoiseHead, State, doubles, layer_sizes
from bqn.baselines._method import Method, Plan
from bqn.baselines._votes import ProbitHead
from bqn.baselines.adf import (
    SIGN,
    Array,
    Gamma,
    Pair,
    Tape,
    forward,
    log_normal,
    normal_pdf,
    observe,
    observe_signs,
    one_versus_rest,
    take_in,
)

WEIGHTS = ("real", "fixed", "binary")
_NOISE = Gamma(6.0, 6.0)
_TOGETHER = 10  # labels: fifty made the steps of a small network so long that it did not recover


class EBPNetwork(FilteredNetwork):
    """A network of sign units.

    Parameters
    ----------
    sizes : inputs and units of each layer
    weights : "real", "fixed" or "binary"
    classes : bool
        Whether the outputs are classes; otherwise there is one, a real number.

    Attributes
    ----------
    means : of the weights, `(out, in + 1)` a layer, the bias last; for binary weights what tanh makes the mean of
    variances : likewise, of "real" weights only
    """

    def __init__(self, sizes: list[tuple[int, int]], weights: str, classes: bool) -> None:
        super().__init__(SIGN, ProbitHead(sizes[-1][0] + 1) if classes else GammaNoiseHead(_NOISE))
        self.weights, self.classes = weights, classes
        shapes = [(units, inputs + 1) for inputs, units in sizes]
        # Means must be a fair part of what weights are, or the signal is lost in the noise of the second hidden layer.
        spread = 1.0 if weights == "binary" else 0.5
        self.means = nn.ParameterList([doubles(torch.randn(shape) * spread) for shape in shapes])
        self.variances = nn.ParameterList([doubles(torch.ones(shape)) for shape in shapes if weights == "real"])

    def layers(self, state: State) -> list[Pair]:
        means = [state[f"means.{n}"] for n in range(len(self.means))]
        if self.weights == "real":
            return [Pair(mean, state[f"variances.{n}"]) for n, mean in enumerate(means)]
        return [binary(mean) if self.weights == "binary" else Pair(mean, np.ones_like(mean)) for mean in means]

    def learn(self, state: State, x: Array, y: Array, data_size: int) -> float:
        if self.classes:
            return self._learn_labels(state, x, y)
        noise = Gamma(*state["head.gamma"])
        evidence = 0.0
        for row in range(len(x)):
            tape = forward(self.layers(state), SIGN, x[row : row + 1])
            mean, var, target = tape.output.mean.item(), tape.output.var.item(), y[row, 0].item()
            evidence += log_normal(target, mean, var + noise.variances()[0])
            noise, by_mean, by_var = observe(noise, target, mean, var)
            self._take(state, tape, Pair(np.full((1, 1), by_mean), np.full((1, 1), by_var)))
        state["head.gamma"][:] = noise.shape, noise.rate
        return evidence / max(len(x), 1)

    def _learn_labels(self, state: State, x: Array, y: Array) -> float:
        evidence = 0.0
        for start in range(0, len(x), _TOGETHER):
            rows = slice(start, start + _TOGETHER)
            tape = forward(self.layers(state), SIGN, x[rows])
            log_z, by = observe_signs(one_versus_rest(y[rows], tape.output), tape.output)
            evidence += log_z
            self._take(state, tape, by)
        return evidence / max(len(x), 1)

    def _take(self, state: State, tape: Tape, by: Pair) -> None:
        """Let the weights follow what the output's derivatives say."""
        layers = self.layers(state)
        if self.weights != "real":
            for n, step in enumerate(steps_of_means(layers, tape, by.mean)):
                state[f"means.{n}"] += step  # the variance of fixed weights is one; the log-odds of binary ones add up
            return
        take_in(layers, SIGN, tape, by)

    def kl(self) -> Tensor:
        """KL of the weights' posterior to a standard normal prior, or to fair coins, in nats."""
        return torch.stack([self._kl(n) for n in range(len(self.means))]).sum().detach()

    def _kl(self, n: int) -> Tensor:
        mean: Tensor = self.means[n]
        if self.weights == "binary":
            shares = torch.stack([torch.sigmoid(2 * mean), torch.sigmoid(-2 * mean)])
            negative_entropy: Tensor = torch.special.xlogy(shares, shares).sum()
            return mean.numel() * math.log(2) + negative_entropy
        var: Tensor = self.variances[n] if self.weights == "real" else torch.ones_like(mean)
        return 0.5 * (var + mean.square() - 1 - var.log()).sum()


def binary(half_log_odds: Array) -> Pair:
    """Moments of weights ±1."""
    mean = np.tanh(half_log_odds)
    return Pair(mean, 1 - mean * mean)


def steps_of_means(layers: list[Pair], tape: Tape, by_output: Array) -> list[Array]:
    """Derivatives of log Z by the weights' means, along means alone: `(out, in + 1)` a layer, summed over examples."""
    result: list[Array] = []
    along = by_output
    for n in reversed(range(len(layers))):
        mean, _ = layers[n]
        root = math.sqrt(mean.shape[1])
        result.append(along.T @ tape.inputs[n].mean / root)
        if n:
            below = tape.sums[n - 1]
            deviation = np.sqrt(below.var)
            along = (along @ mean / root)[:, :-1] * (2 * normal_pdf(below.mean / deviation) / deviation)
    return result[::-1]


def build(plan: Plan) -> EBPNetwork:
    classes = plan.model != "regressor"
    if not classes and plan.outputs != 1:
        raise ValueError(f"method ebp predicts one target, got {plan.outputs}")
    sizes = layer_sizes(math.prod(plan.input_shape), plan.options["hidden"], plan.outputs)
    return EBPNetwork(sizes, plan.options["weights"], classes)


EBP = Method(
    "expectation backpropagation: sign units, real or binary weights",
    build=build,
    models=("mlp", "regressor"),
    options={"weights": "real"},
    model_options=("hidden",),
)
