"""Probabilistic backpropagation (Hernández-Lobato and Adams 2015): Gaussian weights, ReLU, one example at a time.

The posterior of each weight is normal. The precisions of the noise and of the weights' prior are unknown, with gamma
posteriors. A pass over the data conditions on each example by moment matching; after it the factors of the prior, which
were put in with a guess of their precision, are refined by expectation propagation. There is nothing to tune.

As published it is for regression. Classification, our addition, has one sign unit a class behind the last layer, as in
expectation backpropagation, and takes in labels ten at a time by adding up what each says; the prior stays as it is put
in, since its refinement fails numerically there.
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
    RELU,
    Array,
    Gamma,
    Pair,
    backward,
    condition,
    forward,
    learn_labels,
    log_normal,
    observe,
)

_TOGETHER = 10  # labels
_PRIOR = Gamma(6.0, 6.0)  # for the precision of the noise and that of the weights, as published


class PBPNetwork(FilteredNetwork):
    """A ReLU network for one real target, or for classes.

    Parameters
    ----------
    sizes : inputs and units of each layer
    classes : bool
        Whether the outputs are classes; otherwise there is one, a real number.

    Attributes
    ----------
    means, variances : of the weights, `(out, in + 1)` a layer, the bias last
    precision : shape and rate of the belief about the precision of the weights' prior
    sites : what the prior's factor says about each weight, `(4, out, in + 1)` a layer: precision and precision times
        mean of the weight, shape and rate that it adds to the belief about the prior's precision
    """

    training_only = ("sites.", "precision", "seen")
    seen: Tensor

    def __init__(self, sizes: list[tuple[int, int]], classes: bool = False) -> None:
        super().__init__(RELU, ProbitHead(sizes[-1][0] + 1) if classes else GammaNoiseHead(_PRIOR))
        self.classes = classes
        shapes = [(units, inputs + 1) for inputs, units in sizes]
        start, _, _ = _PRIOR.variances()
        self.means = nn.ParameterList([doubles(torch.randn(shape) / math.sqrt(shape[1])) for shape in shapes])
        self.variances = nn.ParameterList([doubles(torch.full(shape, start)) for shape in shapes])
        self.precision = doubles([_PRIOR.shape, _PRIOR.rate])
        self.sites = nn.ParameterList([doubles(torch.zeros(4, *shape)) for shape in shapes])
        for site in self.sites:
            site.data[0] = 1 / start
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def layers(self, state: State) -> list[Pair]:
        return [Pair(state[f"means.{n}"], state[f"variances.{n}"]) for n in range(len(self.means))]

    def learn(self, state: State, x: Array, y: Array, data_size: int) -> float:
        layers = self.layers(state)
        evidence = learn_labels(layers, RELU, x, y, _TOGETHER) if self.classes else _learn_targets(layers, state, x, y)
        self.seen += len(x)
        if int(self.seen) >= data_size and not self.classes:  # the end of a pass
            self.seen.zero_()
            precision = Gamma(*state["precision"])
            for n, weights in enumerate(layers):
                precision = refine(weights, state[f"sites.{n}"], precision)
            state["precision"][:] = precision.shape, precision.rate
        return evidence / max(len(x), 1)

    def kl(self) -> Tensor:
        """KL of the weights' posterior to their prior at its expected precision, in nats."""
        shape, rate = self.precision.detach().unbind()
        prior = rate / (shape - 1)
        parts = [
            0.5 * ((var + mean.square()) / prior - 1 - (var / prior).log()).sum()
            for mean, var in zip(self.means, self.variances, strict=True)
        ]
        return torch.stack(parts).sum().detach()


def _learn_targets(layers: list[Pair], state: State, x: Array, y: Array) -> float:
    noise, evidence = Gamma(*state["head.gamma"]), 0.0
    for features, target in zip(x, y[:, 0].tolist(), strict=True):
        noise, log_z = absorb(layers, noise, features, target)
        evidence += log_z
    state["head.gamma"][:] = noise.shape, noise.rate
    return evidence


def absorb(layers: list[Pair], noise: Gamma, features: Array, target: float) -> tuple[Gamma, float]:
    """Condition on one example, `features` `(in,)`: weights in place, noise returned, with the log-evidence."""
    tape = forward(layers, RELU, features[None])
    mean, var = tape.output.mean.item(), tape.output.var.item()
    log_z = log_normal(target, mean, var + noise.variances()[0])
    noise, by_mean, by_var = observe(noise, target, mean, var)
    gradient = Pair(np.full((1, 1), by_mean), np.full((1, 1), by_var))
    for weights, by in zip(layers, backward(layers, RELU, tape, gradient), strict=True):
        condition(weights, by)
    return noise, log_z


def refine(weights: Pair, sites: Array, precision: Gamma) -> Gamma:
    """One round of expectation propagation over the prior's factors of a layer, all at once.

    The factor of weight w is N(w; 0, 1/λ) with the gamma belief `precision` about λ. `weights` and `sites` change in
    place; the new belief about λ is returned. A factor whose cavity or update is no distribution is left alone.
    """
    mean, var = weights
    site_precision, site_pull, site_shape, site_rate = sites
    shape, rate = precision.shape - site_shape, precision.rate - site_rate
    sound = (1 / var > site_precision) & (shape > 1) & (rate > 0)
    shape, rate = np.where(sound, shape, 2.0), np.where(sound, rate, 1.0)
    rest = 1 / np.where(sound, 1 / var - site_precision, 1.0)
    pull = rest * (mean / var - site_pull)
    totals = [rest + expected for expected in (rate / (shape - 1), rate / shape, rate / (shape + 1))]
    log_z, log_z1, log_z2 = (-0.5 * (np.log(total) + pull * pull / total) for total in totals)
    by_mean = -pull / totals[0]
    by_var = 0.5 * (by_mean * by_mean - 1 / totals[0])
    new_mean = pull + rest * by_mean
    new_var = rest - rest * rest * (by_mean * by_mean - 2 * by_var)
    first, second = np.exp(log_z1 - log_z), np.exp(log_z2 - log_z1)
    inverse_shape = second / first * (shape + 1) / shape - 1
    inverse_rate = second * (shape + 1) / rate - first * shape / rate
    sound &= (new_var > 0) & (inverse_shape > 0) & (inverse_shape < 1) & (inverse_rate > 0)
    old_shape, old_rate = site_shape.sum(), site_rate.sum()
    with np.errstate(divide="ignore", invalid="ignore"):  # what is divided by zero is not taken
        new_site = (
            1 / new_var - 1 / rest,
            new_mean / new_var - pull / rest,
            1 / inverse_shape - shape,
            1 / inverse_rate - rate,
        )
    np.copyto(sites, np.stack(new_site), where=sound)
    np.copyto(mean, new_mean, where=sound)
    np.copyto(var, new_var, where=sound)
    return Gamma(
        precision.shape + float(site_shape.sum() - old_shape), precision.rate + float(site_rate.sum() - old_rate)
    )


def build(plan: Plan) -> PBPNetwork:
    classes = plan.model != "regressor"
    if not classes and plan.outputs != 1:
        raise ValueError(f"method pbp predicts one target, got {plan.outputs}")
    return PBPNetwork(layer_sizes(math.prod(plan.input_shape), plan.options["hidden"], plan.outputs), classes)


PBP = Method(
    "probabilistic backpropagation: Gaussian weights, ReLU",
    build=build,
    models=("regressor", "mlp"),
    model_options=("hidden",),
)
