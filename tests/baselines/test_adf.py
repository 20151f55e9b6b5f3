"""Assumed density filtering against quadrature, sampling and automatic differentiation."""

import math
from itertools import pairwise

import numpy as np
import pytest
from scipy import integrate, stats

from bqn.baselines import adf
from bqn.baselines.adf import RELU, SIGN, Gamma, Nonlinearity, Pair

FUNCTIONS = {"relu": (RELU, lambda a: np.maximum(a, 0)), "sign": (SIGN, lambda a: np.where(a >= 0, 1.0, -1.0))}


def moments_by_quadrature(function, mean: float, var: float) -> tuple[float, float]:
    law = stats.norm(mean, math.sqrt(var))
    low, high = law.ppf([1e-14, 1 - 1e-14])
    points = [0.0] if low < 0 < high else None
    first, second = (
        integrate.quad(lambda a, n=n: function(a) ** n * law.pdf(a), low, high, points=points, limit=200)[0]
        for n in (1, 2)
    )
    return first, second - first**2


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize(("mean", "var"), [(0.3, 0.5), (-1.0, 2.0), (3.0, 0.1), (-2.0, 0.4)])
def test_moments_of_a_unit_are_those_of_quadrature(name: str, mean: float, var: float) -> None:
    nonlinearity, function = FUNCTIONS[name]
    got = nonlinearity.forward(Pair(np.array([mean]), np.array([var])))
    expected = moments_by_quadrature(function, mean, var)
    np.testing.assert_allclose([got.mean[0], got.var[0]], expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("mean", [-8.0, -30.0, -200.0])
def test_moments_far_in_the_tail_are_finite_and_not_negative(mean: float) -> None:
    a = Pair(np.array([mean]), np.array([1.0]))
    h = RELU.forward(a)
    back = RELU.back(a, h, Pair(np.ones(1), np.ones(1)))
    assert h.mean[0] >= 0
    assert h.var[0] >= 0
    assert np.isfinite([back.mean[0], back.var[0]]).all()


def random_layers(generator: np.random.Generator, sizes: list[int]) -> list[Pair]:
    shapes = [(units, inputs + 1) for inputs, units in pairwise(sizes)]
    return [Pair(generator.normal(size=shape), generator.uniform(0.2, 1.5, shape)) for shape in shapes]


@pytest.mark.parametrize("nonlinearity", [RELU, SIGN], ids=["relu", "sign"])
def test_derivatives_are_those_of_finite_differences(nonlinearity: Nonlinearity) -> None:
    generator = np.random.default_rng(0)
    layers = random_layers(generator, [3, 4, 3, 2])
    x = generator.normal(size=(5, 3))
    g = Pair(generator.normal(size=(5, 2)), generator.normal(size=(5, 2)))

    def objective() -> float:
        out = adf.forward(layers, nonlinearity, x).output
        return float((g.mean * out.mean + g.var * out.var).sum())

    got = adf.backward(layers, nonlinearity, adf.forward(layers, nonlinearity, x), g)
    for weights, derivatives in zip(layers, got, strict=True):
        for values, derivative in zip(weights, derivatives, strict=True):
            expected = np.zeros_like(values)
            for place in np.ndindex(values.shape):
                kept = values[place]
                values[place] = kept + 1e-6
                above = objective()
                values[place] = kept - 1e-6
                expected[place] = (above - objective()) / 2e-6
                values[place] = kept
            np.testing.assert_allclose(derivative, expected, rtol=1e-5, atol=1e-7)


def test_moments_of_a_layer_are_those_of_samples() -> None:
    generator = np.random.default_rng(1)
    (weights,) = random_layers(generator, [3, 2])
    inputs = adf.with_bias(Pair(generator.normal(size=(1, 3)), generator.uniform(0.1, 1.0, (1, 3))))
    count = 400_000
    drawn = generator.normal(size=(count, *weights.mean.shape)) * np.sqrt(weights.var) + weights.mean
    x = generator.normal(size=(count, 1, 4)) * np.sqrt(inputs.var) + inputs.mean
    sums = (drawn * x).sum(-1) / 2  # the root of the fan-in, 4
    got = adf.weighted_sum(weights, inputs)
    np.testing.assert_allclose(got.mean[0], sums.mean(0), atol=0.02)
    np.testing.assert_allclose(got.var[0], sums.var(0), rtol=0.02)


@pytest.mark.parametrize("target", [-1.0, 0.5, 4.0])
def test_a_weight_behind_a_relu_gets_the_exact_moments_of_its_posterior(target: float) -> None:
    """One unit, one uncertain weight: log Z by quadrature, its derivatives by differences, the posterior by Bayes."""
    x, noise, mean, var = 1.3, 0.3, 0.4, 0.8

    def likelihood(w: float) -> float:
        return float(stats.norm.pdf(target, max(w * x, 0.0), math.sqrt(noise)))

    def expectation(function, m: float, v: float) -> float:
        law = stats.norm(m, math.sqrt(v))
        low, high = m - 12 * math.sqrt(v), m + 12 * math.sqrt(v)
        points = [0.0, target / x]
        return float(integrate.quad(lambda w: function(w) * likelihood(w) * law.pdf(w), low, high, points=points)[0])

    def log_z(m: float, v: float) -> float:
        return math.log(expectation(lambda w: 1.0, m, v))

    z = expectation(lambda w: 1.0, mean, var)
    first = expectation(lambda w: w, mean, var) / z
    second = expectation(lambda w: w * w, mean, var) / z
    step = 1e-4
    by_mean = (log_z(mean + step, var) - log_z(mean - step, var)) / (2 * step)
    by_var = (log_z(mean, var + step) - log_z(mean, var - step)) / (2 * step)
    weights = Pair(np.full((1, 1), mean), np.full((1, 1), var))
    adf.condition(weights, Pair(np.full((1, 1), by_mean), np.full((1, 1), by_var)))
    np.testing.assert_allclose([weights.mean.item(), weights.var.item()], [first, second - first**2], rtol=1e-4)


def test_a_linear_unit_with_known_noise_is_conditioned_exactly() -> None:
    """A linear output and one weight: the whole chain against the closed form of a normal posterior."""
    x, target, noise, mean, var = 0.7, 1.9, 0.25, -0.3, 0.6
    weights = Pair(np.array([[mean]]), np.array([[var]]))
    inputs = Pair(np.array([[x]]), np.zeros((1, 1)))
    out = adf.weighted_sum(weights, inputs)
    sharp = Gamma(1e9 + 1, noise * 1e9)  # a precision that is all but known
    _, by_mean, by_var = adf.observe(sharp, target, out.mean.item(), out.var.item())
    by_weights, _ = adf.weighted_sum_back(weights, inputs, Pair(np.array([[by_mean]]), np.array([[by_var]])))
    adf.condition(weights, by_weights)
    precision = 1 / var + x * x / noise
    np.testing.assert_allclose(weights.var.item(), 1 / precision, rtol=1e-6)
    np.testing.assert_allclose(weights.mean.item(), (mean / var + x * target / noise) / precision, rtol=1e-6)


def test_many_examples_at_once_add_up_what_each_says() -> None:
    """Against one example after the other, for so many weights that one example says little about any of them."""
    generator = np.random.default_rng(5)
    (start,) = random_layers(generator, [400, 2])
    start = Pair(start.mean, np.full_like(start.var, 0.05))
    x = adf.with_bias(Pair(generator.normal(size=(3, 400)), generator.uniform(0, 0.2, (3, 400))))
    g = Pair(generator.normal(size=(3, 2)), -generator.uniform(0.2, 0.5, (3, 2)))
    one_by_one, together = (Pair(start.mean.copy(), start.var.copy()) for _ in range(2))
    squares = np.zeros_like(start.mean)
    for row in range(3):
        inputs, own = (Pair(each.mean[row : row + 1], each.var[row : row + 1]) for each in (x, g))
        by, _ = adf.weighted_sum_back(start, inputs, own)
        squares += by.mean**2
        adf.condition(one_by_one, by)
    by, _ = adf.weighted_sum_back(start, x, g)
    np.testing.assert_allclose(adf.squared_back(start, x, g), squares, rtol=1e-9)
    adf.condition_on_all(together, by, squares)
    np.testing.assert_allclose(together.mean, one_by_one.mean, atol=1e-4)
    np.testing.assert_allclose(together.var, one_by_one.var, atol=1e-5)


def test_an_update_that_is_no_distribution_is_not_made() -> None:
    weights = Pair(np.array([[1.0, 2.0]]), np.array([[1.0, 1.0]]))
    adf.condition(weights, Pair(np.array([[2.0, 0.5]]), np.array([[0.0, 0.0]])))
    np.testing.assert_allclose(weights.mean, [[1.0, 2.5]])
    np.testing.assert_allclose(weights.var, [[1.0, 0.75]])
    adf.condition(weights, Pair(np.array([[np.nan, 0.0]]), np.array([[0.0, np.inf]])))
    np.testing.assert_allclose(weights.mean, [[1.0, 2.5]])
    np.testing.assert_allclose(weights.var, [[1.0, 0.75]])


@pytest.mark.parametrize("gap", [0.0, 0.7, 3.0])
def test_belief_about_the_precision_has_the_moments_of_its_posterior(gap: float) -> None:
    """Posterior of a gamma precision after one normal observation, by quadrature.

    Z of a normal with gamma precision is Student's distribution. `conditioned` is exact for the true Z.
    """
    belief = Gamma(6.0, 5.0)

    def log_z(shape: float) -> float:
        return float(stats.t.logpdf(gap, 2 * shape, scale=math.sqrt(belief.rate / shape)))

    got = belief.conditioned(log_z(6.0), log_z(7.0), log_z(8.0))
    exact = stats.gamma(6.5, scale=1 / (5.0 + 0.5 * gap**2))  # conjugate
    np.testing.assert_allclose(got.shape / got.rate, exact.mean(), rtol=1e-9)
    np.testing.assert_allclose(got.shape / got.rate**2, exact.var(), rtol=1e-9)


def test_a_surprising_target_makes_the_noise_larger_and_an_expected_one_smaller() -> None:
    before = Gamma(6.0, 6.0)
    calm, _, _ = adf.observe(before, 0.0, 0.0, 0.1)
    shaken, _, _ = adf.observe(before, 4.0, 0.0, 0.1)
    assert calm.variances()[0] < before.variances()[0] < shaken.variances()[0]


def test_normal_cdf_is_accurate_in_both_tails() -> None:
    z = np.array([-30.0, -8.0, -1.0, 0.0, 2.0, 9.0])
    np.testing.assert_allclose(adf.normal_cdf(z), stats.norm.cdf(z), rtol=1e-12)
