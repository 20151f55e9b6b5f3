"""Probabilistic backpropagation: the prior's refinement against quadrature, and learning as a whole."""

import math

import numpy as np
import pytest
import torch
from scipy import integrate, stats

from bqn.baselines import pbp
from bqn.baselines.adf import Gamma, Pair
from bqn.data import Dataset, Split
from bqn.evaluation import evaluate
from bqn.training import ConfigError, TrainConfig, load_run, resume, train


def curve(count: int, seed: int) -> Split:
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(count, 2, generator=generator) * 4 - 2
    y = torch.sin(2 * x[:, :1]) + 0.3 * x[:, 1:] + 0.1 * torch.randn(count, 1, generator=generator)
    return Split(x, y)


CURVE = Dataset("curve", "regression", curve(200, 0), curve(100, 1), ())


def config(**settings) -> TrainConfig:
    return TrainConfig.preset({"method": "pbp", "hidden": (20,), "device": "cpu", **settings}, task="regression")


def test_refinement_of_one_weight_has_the_moments_of_the_tilted_distribution() -> None:
    """One weight with a normal cavity, λ with a gamma cavity: moments of N(w; m, v) Gamma(λ) N(w; 0, 1/λ).

    Student's distribution takes part by its variance, as published: the truth to compare with replaces it likewise.
    """
    cavity_mean, cavity_var, cavity = 0.8, 0.5, Gamma(7.0, 5.0)
    prior_var = cavity.rate / (cavity.shape - 1)
    law, prior = stats.norm(cavity_mean, math.sqrt(cavity_var)), stats.norm(0, math.sqrt(prior_var))
    z, first, second = (integrate.quad(lambda w, n=n: w**n * law.pdf(w) * prior.pdf(w), -12, 12)[0] for n in range(3))
    site = 0.3  # what an earlier round has put in, and what is taken out first
    weights = Pair(
        np.array([[(cavity_mean / cavity_var) / (1 / cavity_var + site)]]), np.array([[1 / (1 / cavity_var + site)]])
    )
    sites = np.array([site, 0.0, 0.4, 0.2]).reshape(4, 1, 1)
    precision = pbp.refine(weights, sites, Gamma(cavity.shape + 0.4, cavity.rate + 0.2))
    np.testing.assert_allclose(weights.mean.item(), first / z, rtol=1e-7)
    np.testing.assert_allclose(weights.var.item(), second / z - (first / z) ** 2, rtol=1e-7)
    # The new site times the cavity is the new belief.
    np.testing.assert_allclose(1 / weights.var.item(), 1 / cavity_var + sites[0].item())
    np.testing.assert_allclose(precision.shape, cavity.shape + sites[2].item())
    np.testing.assert_allclose(precision.rate, cavity.rate + sites[3].item())


def test_large_weights_lower_the_belief_about_their_precision() -> None:
    def refined(size: float) -> Gamma:
        weights = Pair(np.full((3, 4), size), np.full((3, 4), 0.1))
        sites = np.zeros((4, 3, 4))
        sites[0] = 1.0
        return pbp.refine(weights, sites, Gamma(6.0, 6.0))

    small, large = refined(0.1), refined(2.0)
    assert small.shape / small.rate > 1 > large.shape / large.rate


def test_it_learns_a_curve_and_knows_its_noise() -> None:
    run = train(config(epochs=20), dataset=CURVE)
    scores = evaluate(
        run.net, CURVE.test, prepare=run.preprocessing.input, target_scale=run.preprocessing.target_scale
    )["analytic"]
    assert scores["rmse"] < 0.35  # the noise is 0.1; the best line leaves 0.66
    assert scores["log_likelihood"] > -0.4
    assert 0.8 < scores["coverage_90"] <= 1.0
    assert [record.epoch for record in run.history.records] == list(range(1, 21))
    assert run.history.records[-1].log_likelihood > run.history.records[0].log_likelihood


def test_far_from_the_data_it_is_less_certain() -> None:
    run = train(config(epochs=10), dataset=CURVE)
    near, far = (run.net.predict(torch.full((1, 2), value)).var.item() for value in (0.0, 8.0))
    assert far > 3 * near


def test_a_batch_is_taken_in_one_example_after_the_other() -> None:
    """The step does not depend on how the examples are cut into batches."""
    split = curve(6, 2)
    nets = []
    for size in (6, 2):
        torch.manual_seed(0)
        net = pbp.PBPNetwork([(2, 5), (5, 1)])
        optimizer = net.make_optimizer(1.0)
        for x, y in zip(split.x.split(size), split.y.split(size), strict=True):
            optimizer.zero_grad()
            (-net.elbo_terms(x, y, 6, 1.0).value).backward()
            optimizer.step()
        nets.append(net)
    for one, other in zip(nets[0].parameters(), nets[1].parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


def test_a_run_is_kept_and_continues_to_the_same_bits(tmp_path) -> None:
    whole = train(config(epochs=3), dataset=CURVE, out=tmp_path / "whole")

    class StopError(Exception):
        pass

    def stop(record) -> None:
        if record.epoch == 2:
            raise StopError

    with pytest.raises(StopError):
        train(config(epochs=3), dataset=CURVE, out=tmp_path / "cut", report=stop)
    resume(tmp_path / "cut", train=CURVE.train)
    again = load_run(tmp_path / "cut")
    for name, tensor in whole.net.state_dict().items():
        assert torch.equal(tensor, again.net.state_dict()[name]), name


def test_what_it_cannot_do_is_said() -> None:
    with pytest.raises(ConfigError, match="model cnn is not for method pbp"):
        TrainConfig(method="pbp", model="cnn")
    with pytest.raises(ConfigError, match="levels is not an option"):
        config(levels=(-1.0, 1.0))
    split = Split(torch.randn(9, 2), torch.randn(9, 2))
    with pytest.raises(ValueError, match="pbp predicts one target, got 2"):
        train(config(), dataset=Dataset("two", "regression", split, split, ()))


def test_classification() -> None:
    """Three clouds of points, one sign unit a class."""
    generator = torch.Generator().manual_seed(0)
    centres = torch.tensor([[2.0, 0.0], [-1.0, 1.7], [-1.0, -1.7]])

    def draw(count: int) -> Split:
        y = torch.randint(3, (count,), generator=generator)
        return Split(centres[y] + 0.5 * torch.randn(count, 2, generator=generator), y)

    data = Dataset("clouds", "classification", draw(300), draw(200), ("a", "b", "c"))
    settings = {"method": "pbp", "model": "mlp", "hidden": (20,), "epochs": 3, "device": "cpu"}
    run = train(TrainConfig.preset(settings), dataset=data)
    probs = run.predict(data.test.x)
    torch.testing.assert_close(probs.sum(-1), torch.ones(200))
    assert float((probs.argmax(-1) != data.test.y).float().mean()) < 0.05
    far = run.predict(torch.tensor([[0.0, 0.0]]))  # between all three
    assert float(far.max()) < float(probs.max(-1).values.mean())


@pytest.mark.parametrize("classes", [False, True])
def test_an_empty_batch_teaches_nothing(classes: bool) -> None:
    net = pbp.PBPNetwork([(4, 5), (5, 3 if classes else 1)], classes)
    before = net.state()
    y = torch.zeros(0, dtype=torch.int64) if classes else torch.zeros(0, 1)
    value = net.elbo(torch.zeros(0, 4), y, 10, 1.0)
    assert value.item() == 0
    net.make_optimizer(1.0).step()
    value.backward()
    assert all(np.array_equal(net.state()[key], before[key]) for key in before)
    assert all(bool((parameter.grad == 0).all()) for parameter in net.parameters() if parameter.grad is not None)
