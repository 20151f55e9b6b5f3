"""Assumed density filtering: beliefs about independent weights, and what one example at a time does to them.

A layer maps means and variances of its inputs to those of its outputs; the log-evidence log Z of an example then has
derivatives by the weights' means and variances, and Minka's formulas turn these into the moments of the new posterior.
Arrays are of numpy and float64: an example is a handful of small products, where torch spends more on each call than on
the arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

Array: TypeAlias = npt.NDArray[np.float64]

_SMALLEST_VARIANCE = 1e-100  # of a posterior: an update that would go below is not made


class Pair(NamedTuple):
    """Means and variances of the same shape, or the derivatives by them."""

    mean: Array
    var: Array


class Tape(NamedTuple):
    """What a pass through the network leaves behind: `inputs[i]` entered layer i, `sums[i]` are its weighted sums."""

    inputs: list[Pair]
    sums: list[Pair]

    @property
    def output(self) -> Pair:
        """Moments of the network's output `(N, out)`."""
        return self.sums[-1]


Activation: TypeAlias = Callable[[Pair], Pair]
Slope: TypeAlias = Callable[[Pair, Pair, Pair], Pair]


class Nonlinearity(NamedTuple):
    """Moments of f(a) for normal a, and how derivatives by them become derivatives by the moments of a.

    `back` takes the moments of a, those of f(a), and the derivatives by the latter.
    """

    forward: Activation
    back: Slope


def normal_cdf(z: Array) -> Array:
    """Φ(z), any shape."""
    erfc: Array = torch.special.erfc(torch.from_numpy(z * -math.sqrt(0.5))).numpy()
    return 0.5 * erfc


def normal_pdf(z: Array) -> Array:
    """φ(z), any shape."""
    return np.exp(-0.5 * z * z) * (1 / math.sqrt(2 * math.pi))


def _relu(a: Pair) -> Pair:
    root = np.sqrt(a.var)
    z = a.mean / root
    above, density = normal_cdf(z), normal_pdf(z)
    mean = a.mean * above + root * density
    second = (a.mean * a.mean + a.var) * above + a.mean * root * density
    return Pair(np.maximum(mean, 0.0), np.maximum(second - mean * mean, 0.0))


def _relu_back(a: Pair, h: Pair, g: Pair) -> Pair:
    root = np.sqrt(a.var)
    z = a.mean / root
    above, density = normal_cdf(z), normal_pdf(z)
    by_root = density / root
    return Pair(
        g.mean * above + g.var * (2 * h.mean * (1 - above)),
        g.mean * (0.5 * by_root) + g.var * (above - h.mean * by_root),
    )


def _sign(a: Pair) -> Pair:
    mean = 2 * normal_cdf(a.mean / np.sqrt(a.var)) - 1
    return Pair(mean, 1 - mean * mean)


def _sign_back(a: Pair, h: Pair, g: Pair) -> Pair:
    root = np.sqrt(a.var)
    z = a.mean / root
    along = (g.mean - 2 * h.mean * g.var) * (2 * normal_pdf(z) / root)
    return Pair(along, along * (-0.5 * z / root))


RELU = Nonlinearity(_relu, _relu_back)
SIGN = Nonlinearity(_sign, _sign_back)


def with_bias(inputs: Pair) -> Pair:
    """One input more, which is always 1: `(N, in)` to `(N, in + 1)`."""
    rows, columns = inputs.mean.shape
    mean, var = np.ones((rows, columns + 1)), np.zeros((rows, columns + 1))
    mean[:, :-1], var[:, :-1] = inputs
    return Pair(mean, var)


def weighted_sum(weights: Pair, inputs: Pair) -> Pair:
    """Moments of W x / √K for independent W `(out, K)` and x `(N, K)`: `(N, out)`."""
    mean, var = weights
    scale = 1 / mean.shape[1]
    square = inputs.mean * inputs.mean + inputs.var
    return Pair(
        inputs.mean @ mean.T * math.sqrt(scale),
        (inputs.var @ (mean * mean).T + square @ var.T) * scale,
    )


def weighted_sum_back(weights: Pair, inputs: Pair, g: Pair) -> tuple[Pair, Pair]:
    """Derivatives by the moments of the weights `(out, K)`, summed over examples, and of the inputs `(N, K)`."""
    mean, var = weights
    scale = 1 / mean.shape[1]
    root = math.sqrt(scale)
    square = inputs.mean * inputs.mean + inputs.var
    by_weights = Pair(
        g.mean.T @ inputs.mean * root + mean * (g.var.T @ inputs.var) * (2 * scale),
        g.var.T @ square * scale,
    )
    through_var = g.var @ var
    by_inputs = Pair(
        g.mean @ mean * root + inputs.mean * through_var * (2 * scale),
        (g.var @ (mean * mean) + through_var) * scale,
    )
    return by_weights, by_inputs


def forward(layers: list[Pair], nonlinearity: Nonlinearity, x: Array) -> Tape:
    """Moments through the whole network for examples `(N, in)`; the last layer has no nonlinearity."""
    inputs, sums = [with_bias(Pair(x, np.zeros_like(x)))], []
    for position, weights in enumerate(layers):
        sums.append(weighted_sum(weights, inputs[-1]))
        if position + 1 < len(layers):
            inputs.append(with_bias(nonlinearity.forward(sums[-1])))
    return Tape(inputs, sums)


def backward(layers: list[Pair], nonlinearity: Nonlinearity, tape: Tape, g: Pair) -> list[Pair]:
    """Derivatives by the moments of all weights, from those by the moments of the output, `(N, out)`."""
    return [by_weights for by_weights, _ in walk_back(layers, nonlinearity, tape, g)][::-1]


def walk_back(layers: list[Pair], nonlinearity: Nonlinearity, tape: Tape, g: Pair) -> Iterator[tuple[Pair, Pair]]:
    """From the last layer to the first: derivatives by the weights' moments, and by those of the layer's sums."""
    for position in reversed(range(len(layers))):
        inputs = tape.inputs[position]
        by_weights, by_inputs = weighted_sum_back(layers[position], inputs, g)
        yield by_weights, g
        if position:
            hidden, along = (Pair(each.mean[:, :-1], each.var[:, :-1]) for each in (inputs, by_inputs))
            g = nonlinearity.back(tape.sums[position - 1], hidden, along)


def condition(weights: Pair, by: Pair) -> None:
    """Bayes' rule for normal weights, in place, from the derivatives of log Z; where it fails they stay as they are.

    It is exact for a normal prior and the true Z. A variance can come out negative only because Z is not the true one.
    """
    mean, var = weights
    new = var - var * var * (by.mean * by.mean - 2 * by.var)
    sound = np.isfinite(new) & (new > _SMALLEST_VARIANCE) & np.isfinite(by.mean)
    np.add(mean, var * by.mean, out=mean, where=sound)
    np.copyto(var, new, where=sound)


def squared_back(weights: Pair, inputs: Pair, g: Pair) -> Array:
    """The squares of the derivatives by the weights' means, one example at a time, summed over examples: `(out, K)`."""
    mean, _ = weights
    root = math.sqrt(mean.shape[1])
    straight, through = g.mean / root, g.var * (2 / mean.shape[1])
    squares: Array = (
        (straight * straight).T @ (inputs.mean * inputs.mean)
        + 2 * mean * ((straight * through).T @ (inputs.mean * inputs.var))
        + mean * mean * ((through * through).T @ (inputs.var * inputs.var))
    )
    return squares


def condition_on_all(weights: Pair, by: Pair, squares: Array) -> None:
    """Bayes' rule for several examples at once, in place: what each says about precision and mean is added up.

    `by` are derivatives of log Z summed over the examples, `squares` the sums of the squares of those by the means. For
    one example among many weights it is `condition`, to first order in what the example says.
    """
    mean, var = weights
    new = 1 / (1 / var + np.maximum(squares - 2 * by.var, 0.0))
    sound = np.isfinite(new) & (new > _SMALLEST_VARIANCE) & np.isfinite(by.mean)
    np.add(mean, new * by.mean, out=mean, where=sound)
    np.copyto(var, new, where=sound)


def observe_signs(answers: Array, output: Pair) -> tuple[float, Pair]:
    """log Z of outputs whose signs are to be `answers`, ±1 `(N, K)`, and its derivatives by the output's moments."""
    root = np.sqrt(output.var)
    z = output.mean / root
    log_z: Array = torch.special.log_ndtr(torch.from_numpy(answers * z)).numpy()
    # φ/Φ by the scaled error function: both vanish where the answer is a surprise.
    scaled: Array = torch.special.erfcx(torch.from_numpy(answers * z * -math.sqrt(0.5))).numpy()
    by_z = answers * math.sqrt(2 / math.pi) / scaled
    by_mean = by_z / root
    return float(log_z.sum()), Pair(by_mean, -0.5 * by_mean * z / root)


def take_in(layers: list[Pair], nonlinearity: Nonlinearity, tape: Tape, by: Pair) -> None:
    """Condition all weights, in place, on what the derivatives of log Z by the output's moments say."""
    found = list(walk_back(layers, nonlinearity, tape, by))[::-1]
    for weights, inputs, (by_weights, by_sums) in zip(layers, tape.inputs, found, strict=True):
        if len(inputs.mean) == 1:
            condition(weights, by_weights)
        else:
            condition_on_all(weights, by_weights, squared_back(weights, inputs, by_sums))


def learn_labels(layers: list[Pair], nonlinearity: Nonlinearity, x: Array, y: Array, together: int) -> float:
    """Take in labels `(N,)`, one sign unit a class, `together` at a time by adding up what each says.

    Returns the sum of the log-evidence, each example's before it was learned from.
    """
    evidence = 0.0
    for start in range(0, len(x), together):
        rows = slice(start, start + together)
        tape = forward(layers, nonlinearity, x[rows])
        log_z, by = observe_signs(one_versus_rest(y[rows], tape.output), tape.output)
        evidence += log_z
        take_in(layers, nonlinearity, tape, by)
    return evidence


def one_versus_rest(y: Array, output: Pair) -> Array:
    """The signs that the outputs should have: `(N, K)`."""
    return np.where(np.arange(output.mean.shape[1]) == y[:, None], 1.0, -1.0)


@dataclass
class Gamma:
    """A belief about a precision: density ∝ x^(shape - 1) exp(-rate x)."""

    shape: float
    rate: float

    def variances(self) -> tuple[float, float, float]:
        """Expected variance under this belief, and under those with one and two more observations of the precision."""
        return self.rate / (self.shape - 1), self.rate / self.shape, self.rate / (self.shape + 1)

    def conditioned(self, log_z: float, log_z1: float, log_z2: float) -> Gamma:
        """The gamma with the first two moments of the posterior.

        `log_z1` and `log_z2` are log Z with the shape raised by one and two. What fails stays as it is.
        """
        first, second = math.exp(log_z1 - log_z), math.exp(log_z2 - log_z1)
        shape = second / first * (self.shape + 1) / self.shape - 1
        rate = second * (self.shape + 1) / self.rate - first * self.shape / self.rate
        if not (0 < shape < 1 and 0 < rate < math.inf):  # a variance must exist
            return self
        return Gamma(1 / shape, 1 / rate)


def log_normal(y: float, mean: float, var: float) -> float:
    """log N(y; mean, var)."""
    return -0.5 * (math.log(2 * math.pi * var) + (y - mean) ** 2 / var)


def observe(noise: Gamma, y: float, mean: float, var: float) -> tuple[Gamma, float, float]:
    """What a target tells: the new belief about the noise, and the derivatives of log Z by `mean` and `var`.

    The target is normal about an output with these moments. The noise's variance enters by its expectation, so that
    Student's distribution is replaced by a normal one.
    """
    log_z, log_z1, log_z2 = (log_normal(y, mean, var + each) for each in noise.variances())
    total = var + noise.variances()[0]
    gap = (y - mean) / total
    return noise.conditioned(log_z, log_z1, log_z2), gap, 0.5 * (gap * gap - 1 / total)
