"""bayesbinn: the rule on problems with a known posterior, the formulas of the update, and both predictions."""

import math

import pytest
import torch

from bqn.baselines.bayesbinn import BernoulliWeight, NaturalDescent
from bqn.training.models import build_model
from tests.training import tiny


def follow(weight, loss, rate, steps):
    """The mean natural parameter over the second half of a run of the rule with N = 1."""
    optimizer = NaturalDescent([weight.natural], lr=rate)
    total = torch.zeros_like(weight.natural)
    for step in range(steps):
        optimizer.zero_grad()
        (loss(weight.belief()) + weight.kl()).backward()
        optimizer.step()
        if step >= steps // 2:
            total += weight.natural.detach()
    return total / (steps - steps // 2)


def test_known_posterior_of_a_linear_loss():
    """With the loss -c·w the posterior is Bernoulli with λ = c exactly, for a uniform prior.

    Relaxed draws know it only up to an error that vanishes with the temperature.
    """
    torch.manual_seed(0)
    wanted = torch.tensor([-0.8, -0.4, 0.0, 0.3, 0.7])
    errors = []
    for temperature in (1.0, 0.2):
        weight = BernoulliWeight(torch.Size((200, 5)), temperature)
        with torch.no_grad():
            weight.natural.zero_()
        found = follow(weight, lambda w: -(w * wanted).sum(), rate=0.01, steps=1400).mean(0)
        errors.append((found - wanted).abs().max().item())
    assert errors[0] < 0.25
    assert errors[1] < 0.03
    assert errors[1] < errors[0]


def test_known_best_factorized_posterior_of_two_coupled_weights():
    """For the loss -a w₁ - b w₁ w₂ the best factorized posterior solves λ₁ = a + b μ₂, λ₂ = b μ₁."""
    torch.manual_seed(0)
    a, b = 0.5, 0.4
    first, second = 0.5, 0.0
    for _ in range(200):
        first, second = a + b * math.tanh(second), b * math.tanh(first)
    weight = BernoulliWeight(torch.Size((200, 2)), temperature=0.2)
    with torch.no_grad():
        weight.natural.zero_()

    def loss(w):
        return -(a * w[:, 0] + b * w[:, 0] * w[:, 1]).sum()

    found = follow(weight, loss, rate=0.01, steps=1400).mean(0)
    assert found.tolist() == pytest.approx([first, second], abs=0.04)


def test_one_update_by_the_formula():
    weight = BernoulliWeight(torch.Size((4,)), temperature=0.5)
    with torch.no_grad():
        weight.natural.copy_(torch.tensor([0.2, -0.6, 1.0, 0.0]))
    before = weight.natural.detach().clone()
    torch.manual_seed(3)
    uniform = torch.rand(4).clamp(1e-7, 1 - 1e-7)
    draw = torch.tanh((before + 0.5 * torch.log(uniform / (1 - uniform))) / 0.5)
    gradient = torch.tensor([1.0, -2.0, 0.5, 3.0])
    torch.manual_seed(3)
    optimizer = NaturalDescent([weight.natural], lr=0.1)
    ((weight.belief() * gradient).sum() + 0.7 * weight.kl()).backward()
    optimizer.step()
    natural = gradient * (1 - draw**2) / (0.5 * (1 - torch.tanh(before) ** 2))
    torch.testing.assert_close(weight.natural.detach(), (1 - 0.1 * 0.7) * before - 0.1 * natural)


def test_kl_is_that_of_two_point_laws():
    weight = BernoulliWeight(torch.Size((3,)), 1.0)
    with torch.no_grad():
        weight.natural.copy_(torch.tensor([0.4, -3.0, 50.0]))
    q = torch.sigmoid(2 * weight.natural.double())
    terms = torch.special.xlogy(q, 2 * q) + torch.special.xlogy(1 - q, 2 * (1 - q))
    assert weight.kl().item() == pytest.approx(terms.sum().item(), rel=1e-5)
    with torch.no_grad():
        weight.natural.fill_(1e30)
    assert weight.kl().item() == pytest.approx(3 * math.log(2))


def test_draws_have_the_means_and_the_mode_is_the_sign():
    weight = BernoulliWeight(torch.Size((3,)), 1.0)
    with torch.no_grad():
        weight.natural.copy_(torch.tensor([0.5, -1.0, 0.0]))
    generator = torch.Generator().manual_seed(0)
    draws = torch.stack([weight.sample(generator) for _ in range(20_000)])
    assert set(draws.unique().tolist()) == {-1.0, 1.0}
    torch.testing.assert_close(draws.mean(0), torch.tanh(weight.natural.detach()), atol=0.03, rtol=0)
    assert weight.mode().tolist() == [1.0, -1.0, 1.0]


def test_in_double_precision():
    net = build_model(tiny.config(method="bayesbinn"), (1, 6, 6), 3)
    x = torch.randn(5, 1, 6, 6)
    wanted = net.predict(x, "map")
    net.double()
    assert net.predict(x.double(), "mc").dtype == torch.float64
    torch.testing.assert_close(net.predict(x.double(), "map").float(), wanted)


def test_network_as_the_authors_build_it():
    net = build_model(tiny.config(method="bayesbinn"), (1, 6, 6), 3)
    learned = {name for name, parameter in net.named_parameters() if parameter.requires_grad}
    assert all(name.endswith("natural") for name in learned)
    assert len(learned) == 2  # no biases, no scales, nothing learned in batch norm
    assert net.body(torch.randn(50, 1, 6, 6)).std(0).tolist() == pytest.approx([1.0] * 3, abs=0.05)
    x = torch.randn(5, 1, 6, 6)
    net.eval()
    assert torch.equal(net.mode()(x), net.mode()(x))  # dropout is for training only
    assert torch.equal(net.sample(torch.Generator().manual_seed(0))(x), net.sample(torch.Generator().manual_seed(0))(x))
