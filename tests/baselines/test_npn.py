"""Natural-parameter networks: moments against a million samples, and learning as a whole."""

import math

import pytest
import torch

from bqn.baselines import npn
from bqn.beliefs import Gaussian
from bqn.data import Dataset, Split
from bqn.evaluation import evaluate
from bqn.training import ConfigError, TrainConfig, train
from tests.baselines.test_pbp import CURVE

SAMPLES = 1_000_000
FUNCTIONS = {"relu": torch.relu, "tanh": torch.tanh, "sigmoid": torch.sigmoid}
# ReLU's moments are exact; the others are approximations.
TOLERANCE = {"relu": 0.006, "tanh": 0.04, "sigmoid": 0.01}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize(("mean", "var"), [(0.0, 1.0), (0.7, 0.2), (-1.5, 2.0)])
def test_moments_of_a_unit_are_those_of_a_million_samples(name: str, mean: float, var: float) -> None:
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(SAMPLES, generator=generator, dtype=torch.float64) * math.sqrt(var) + mean
    drawn = FUNCTIONS[name](a)
    got_mean, got_var = npn.NONLINEARITIES[name](torch.tensor(mean).double(), torch.tensor(var).double())
    assert got_mean.item() == pytest.approx(drawn.mean().item(), abs=TOLERANCE[name])
    assert got_var.item() == pytest.approx(drawn.var().item(), abs=TOLERANCE[name])


def test_moments_of_a_layer_are_those_of_a_million_samples() -> None:
    generator = torch.Generator().manual_seed(1)
    torch.manual_seed(1)
    layer = npn.GaussianLinear(3, 2).double()
    torch.nn.init.normal_(layer.raw_var, generator=generator)
    torch.nn.init.normal_(layer.bias_mean, generator=generator)
    mean, var = torch.tensor([[0.5, -1.0, 2.0]]).double(), torch.tensor([[0.3, 0.0, 1.2]]).double()
    x = torch.randn(SAMPLES, 3, generator=generator).double() * var.sqrt() + mean
    w, b = (
        torch.randn(SAMPLES, *moment.shape, generator=generator).double() * spread.sqrt() + moment
        for moment, spread in ((layer.mean, layer.var), (layer.bias_mean, layer.bias_var))
    )
    sums = ((w * x.unsqueeze(1)).sum(-1) + b).detach()
    got_mean, got_var = layer(mean, var)
    torch.testing.assert_close(got_mean[0], sums.mean(0), rtol=0, atol=0.01)
    torch.testing.assert_close(got_var[0], sums.var(0), rtol=0.01, atol=0)
    known_mean, known_var = layer(mean, None)
    torch.testing.assert_close((known_mean, known_var), layer(mean, torch.zeros_like(mean)))


def test_the_divergence_to_the_prior_is_that_of_torch() -> None:
    torch.manual_seed(0)
    layer = npn.GaussianLinear(4, 3)
    prior = torch.distributions.Normal(0.0, 0.7)
    expected = sum(
        torch.distributions.kl_divergence(torch.distributions.Normal(mean, var.sqrt()), prior).sum()
        for mean, var in ((layer.mean, layer.var), (layer.bias_mean, layer.bias_var))
    )
    torch.testing.assert_close(layer.kl(0.49), expected)


def test_gradients_in_the_tail_of_a_relu_are_finite() -> None:
    mean = torch.tensor([-40.0, -8.0, 0.0, 50.0], requires_grad=True)
    var = torch.full((4,), 0.5, requires_grad=True)
    first, spread = npn.relu_moments(mean, var)
    (first.sum() + spread.sum()).backward()
    assert torch.isfinite(mean.grad).all()
    assert torch.isfinite(var.grad).all()
    assert (spread >= 0).all()


def config(**settings) -> TrainConfig:
    return TrainConfig.preset({"method": "npn", "device": "cpu", "validation_fraction": 0.0, **settings})


@pytest.mark.parametrize("nonlinearity", ["relu", "tanh"])
def test_it_learns_a_curve(nonlinearity: str) -> None:
    settings = {"model": "regressor", "hidden": (30,), "epochs": 60, "learning_rate": 3e-2, "lam": 0.01}
    run = train(config(**settings, nonlinearity=nonlinearity), dataset=CURVE)
    scale = run.preprocessing.target_scale
    scores = evaluate(run.net, CURVE.test, prepare=run.preprocessing.input, target_scale=scale)["analytic"]
    assert scores["rmse"] < 0.5  # the best line leaves 0.66
    assert scores["log_likelihood"] > -0.5
    assert scores["aleatoric"] == 0  # one variance tells all


def test_it_learns_to_classify() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(300, 4, generator=generator)
    split = Split(x, (x[:, 0] > 0).long() + (x[:, 1] > 0).long())
    blobs = Dataset("blobs", "classification", split, split, ("a", "b", "c"))
    run = train(config(model="mlp", hidden=(30,), epochs=30, learning_rate=3e-2, lam=0.1), dataset=blobs)
    scores = evaluate(run.net, split, prepare=run.preprocessing.input)["analytic"]
    assert scores["error"] < 0.1
    assert scores["nll"] < scores["bound"]  # that of one class given that one is right


def test_the_classifier_has_the_odds_of_a_vote() -> None:
    head = npn.LogisticHead(5)
    belief = Gaussian(torch.tensor([[2.0, -1.0, 0.0]]), torch.tensor([[1e-9, 1e-9, 1e-9]]))
    yes = torch.sigmoid(belief.mean)
    joint = torch.stack([yes[0, c] * (1 - yes[0, [k for k in range(3) if k != c]]).prod() for c in range(3)])
    torch.testing.assert_close(head.predict(belief)[0], joint / joint.sum())
    torch.testing.assert_close(head.log_likelihood(belief, torch.tensor([1])), joint[1:2].log())


def test_what_it_cannot_do_is_said() -> None:
    with pytest.raises(ConfigError, match="nonlinearity must be one of relu, tanh, sigmoid, got 'sine'"):
        config(model="regressor", nonlinearity="sine")
    with pytest.raises(ConfigError, match="model cnn is not for method npn"):
        config(model="cnn")
