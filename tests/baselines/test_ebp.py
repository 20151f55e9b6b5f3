"""Expectation backpropagation: one unit against enumeration and quadrature, and learning as a whole."""

import math
from itertools import product

import numpy as np
import pytest
import torch
from scipy import integrate, stats

from bqn.baselines import ebp
from bqn.baselines.adf import SIGN, Pair, condition, forward
from bqn.data import Dataset, Split
from bqn.evaluation import evaluate
from bqn.training import ConfigError, TrainConfig, train
from tests.baselines.test_pbp import CURVE


@pytest.mark.parametrize("answer", [-1.0, 1.0])
def test_a_normal_weight_before_a_sign_gets_the_exact_moments_of_its_posterior(answer: float) -> None:
    """One probit unit with one uncertain weight and normal noise: derivatives of log Z and Bayes against quadrature."""
    x, mean, var, noise = 1.4, 0.3, 0.9, 0.5  # the noise stands for all the other weights
    law = stats.norm(mean, math.sqrt(var))
    z, first, second = (
        integrate.quad(lambda w, n=n: w**n * law.pdf(w) * stats.norm.cdf(answer * w * x / math.sqrt(noise)), -10, 10)[0]
        for n in range(3)
    )
    output = Pair(np.array([[mean * x]]), np.array([[var * x * x + noise]]))
    log_z, by = ebp.observe_signs(np.array([[answer]]), output)
    np.testing.assert_allclose(log_z, math.log(z), rtol=1e-9)
    weights = Pair(np.array([[mean]]), np.array([[var]]))
    condition(weights, Pair(by.mean * x, by.var * x * x))
    np.testing.assert_allclose(weights.mean.item(), first / z, rtol=1e-8)
    np.testing.assert_allclose(weights.var.item(), second / z - (first / z) ** 2, rtol=1e-8)


def test_a_great_surprise_has_finite_derivatives() -> None:
    output = Pair(np.array([[-1e5, 1e5, 40.0]]), np.ones((1, 3)))
    log_z, by = ebp.observe_signs(np.array([[1.0, 1.0, -1.0]]), output)
    assert math.isfinite(log_z)
    np.testing.assert_allclose(by.mean, [[1e5, 0.0, -40.0]], rtol=1e-3)


@pytest.mark.parametrize("answer", [-1.0, 1.0])
def test_log_odds_of_binary_weights_follow_bayes_rule_as_the_fan_in_grows(answer: float) -> None:
    """One unit, all weights enumerated: the step of the log-odds is first order in 1 / √K."""
    errors = []
    for fan_in in (4, 12):
        generator = np.random.default_rng(fan_in)
        x = np.where(generator.random(fan_in - 1) < 0.5, -1.0, 1.0)
        half_odds = generator.normal(size=fan_in) * 0.4
        layer = ebp.binary(half_odds[None])
        tape = forward([layer], SIGN, x[None])
        _, by = ebp.observe_signs(np.array([[answer]]), tape.output)
        (step,) = ebp.steps_of_means([layer], tape, by.mean)
        errors.append(np.abs(step[0] - exact_steps(half_odds, np.append(x, 1.0), answer)).max())
        assert np.sign(step[0]).tolist() == (answer * np.append(x, 1.0)).tolist()
    assert errors[1] < 0.5 * errors[0]
    assert errors[1] < 0.05


def exact_steps(half_odds: np.ndarray, x: np.ndarray, answer: float) -> np.ndarray:
    """Half the change of the log-odds of each weight by Bayes' rule, a sum of zero counted half for either sign."""
    positive = 1 / (1 + np.exp(-2 * half_odds))
    likelihood = np.zeros((len(x), 2))
    for signs in product((0, 1), repeat=len(x)):
        w = np.array(signs)
        total = ((2 * w - 1) * x).sum() * answer
        agrees = 1.0 if total > 0 else 0.5 if total == 0 else 0.0
        probability = np.where(w == 1, positive, 1 - positive)
        joint = probability.prod()
        for n, sign in enumerate(signs):
            likelihood[n, sign] += agrees * joint / probability[n]
    return 0.5 * np.log(likelihood[:, 1] / likelihood[:, 0])


def test_steps_through_a_hidden_layer_are_derivatives_with_variances_held() -> None:
    generator = np.random.default_rng(3)
    means = [torch.tensor(generator.normal(size=shape), requires_grad=True) for shape in ((4, 4), (2, 5))]
    x = generator.normal(size=(3, 3))
    layers = [Pair(mean.detach().numpy(), np.ones(mean.shape)) for mean in means]
    tape = forward(layers, SIGN, x)
    g = generator.normal(size=(3, 2))
    ones = torch.ones(3, 1, dtype=torch.float64)
    sums = torch.cat([torch.from_numpy(x), ones], 1) @ means[0].T / 2
    hidden = torch.erf(sums / torch.from_numpy(tape.sums[0].var).sqrt() / math.sqrt(2))
    output = torch.cat([hidden, ones], 1) @ means[1].T / math.sqrt(5)
    expected = torch.autograd.grad((output * torch.from_numpy(g)).sum(), means)
    for got, truth in zip(ebp.steps_of_means(layers, tape, g), expected, strict=True):
        np.testing.assert_allclose(got, truth.numpy(), rtol=1e-9)


def config(**settings) -> TrainConfig:
    return TrainConfig.preset({"method": "ebp", "device": "cpu", "validation_fraction": 0.0, **settings})


@pytest.mark.parametrize(("weights", "rmse"), [("real", 0.4), ("fixed", 0.6), ("binary", 0.7)])
def test_it_learns_a_curve(weights: str, rmse: float) -> None:
    """The targets' deviation is 0.8; the published kinds of weights are the weaker ones."""
    run = train(config(model="regressor", hidden=(30,), epochs=15, weights=weights), dataset=CURVE)
    scale = run.preprocessing.target_scale
    scores = evaluate(run.net, CURVE.test, prepare=run.preprocessing.input, target_scale=scale)["analytic"]
    assert scores["rmse"] < rmse
    assert math.isfinite(scores["log_likelihood"])


@pytest.mark.parametrize("weights", ebp.WEIGHTS)
def test_it_learns_to_classify(weights: str) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(300, 6, generator=generator)
    y = (x[:, :3].sum(1) > 0).long() + (x[:, 3:].sum(1) > 0).long()
    split = Split(x, y)
    blobs = Dataset("blobs", "classification", split, split, ("a", "b", "c"))
    run = train(config(model="mlp", hidden=(30,), epochs=10, batch_size=5, weights=weights), dataset=blobs)
    scores = evaluate(run.net, split, prepare=run.preprocessing.input)["analytic"]
    assert scores["error"] < 0.2
    assert scores["nll"] < math.log(3)
    probs = run.predict(x[:5])
    torch.testing.assert_close(probs.sum(-1), torch.ones(5))


def test_what_it_cannot_do_is_said() -> None:
    with pytest.raises(ConfigError, match="weights must be one of real, fixed, binary, got 'ternary'"):
        config(model="regressor", weights="ternary")
    with pytest.raises(ConfigError, match="model cnn is not for method ebp"):
        config(model="cnn")


@pytest.mark.parametrize("classes", [False, True])
def test_an_empty_batch_teaches_nothing(classes: bool) -> None:
    net = ebp.EBPNetwork([(4, 5), (5, 3 if classes else 1)], "real", classes)
    before = net.state()
    y = torch.zeros(0, dtype=torch.int64) if classes else torch.zeros(0, 1)
    value = net.elbo(torch.zeros(0, 4), y, 10, 1.0)
    assert value.item() == 0
    net.make_optimizer(1.0).step()
    value.backward()
    assert all(np.array_equal(net.state()[key], before[key]) for key in before)
    assert all(bool((parameter.grad == 0).all()) for parameter in net.parameters() if parameter.grad is not None)
