"""ensemble and e-qnn: what the bootstrap draws, members that learn apart, logits and probabilities averaged."""

import math

import pytest
import torch

from bqn.heads import Moments
from bqn.training import fit
from bqn.training.models import build_model
from tests.training import tiny


def network(method="e-qnn", **options):
    return build_model(tiny.config(method=method, members=3, **options), (1, 6, 6), 3)


def test_bootstrap_draws_what_it_says():
    """N draws with replacement for each member: all N equally often, 1 - 1/e of them at least once, the same again."""
    net = network()
    size = 5000
    draws = net.draw_examples(size)
    assert draws.shape == (3, size)
    assert torch.equal(draws, net.draw_examples(size))
    counts = torch.stack([row.bincount(minlength=size) for row in draws]).double()
    assert counts.sum(1).tolist() == [size] * 3
    present = (counts > 0).double().mean(1)
    spread = math.sqrt((math.exp(-1) - 2 * math.exp(-2)) / size)
    assert ((present - (1 - math.exp(-1))).abs() < 5 * spread).all()
    assert counts.var().item() == pytest.approx(1, abs=0.05)  # counts are Poisson, nearly
    assert torch.corrcoef(counts)[0, 1].abs() < 5 / math.sqrt(size)
    other = build_model(tiny.config(method="e-qnn", members=3, seed=1), (1, 6, 6), 3)
    assert not torch.equal(other.draw_examples(size), draws)


def test_an_epoch_shows_each_member_its_own_examples():
    net = network()
    order = torch.randperm(100)
    seen = torch.cat([net.choose_examples(batch, 100) for batch in order.split(30)], 1)
    assert torch.equal(seen.sort(1).values, net.draw_examples(100).sort(1).values)
    shuffled = network("ensemble")
    seen = torch.cat([shuffled.choose_examples(batch, 100) for batch in order.split(30)], 1)
    assert all(sorted(row.tolist()) == list(range(100)) for row in seen)
    assert not torch.equal(seen[0], seen[1])


def test_a_member_learns_from_its_draws_alone():
    net = network("e-qnn")
    x = torch.randn(3, 7, 1, 6, 6)
    y = torch.randint(3, (3, 7))
    apart = net.elbo_terms(x, y, 100, 0.0)
    alone = [member.elbo_terms(x[k], y[k], 100, 0.0).value for k, member in enumerate(net.networks)]
    torch.testing.assert_close(apart.value, torch.stack(alone).mean())
    (gradient,) = torch.autograd.grad(apart.value, net.networks[1].body[1].weight.latent)
    (own,) = torch.autograd.grad(net.networks[1].elbo(x[1], y[1], 100, 0.0), net.networks[1].body[1].weight.latent)
    torch.testing.assert_close(gradient, own / 3)
    together = net.elbo_terms(x[0], y[0], 100, 0.0).value
    shared = [member.elbo(x[0], y[0], 100, 0.0) for member in net.networks]
    torch.testing.assert_close(together, torch.stack(shared).mean())


def test_logits_and_probabilities_are_averaged():
    net = network().eval()
    with torch.no_grad():
        net.networks[0].head.log_scale.fill_(0.3)  # each member has a scale of its own
    x = torch.randn(5, 1, 6, 6)
    logits = torch.stack([member.mode()(x) / member.head.scale for member in net.networks])
    assert net.modes == ("logits", "members")
    torch.testing.assert_close(net.predict(x), torch.softmax(logits.mean(0), -1))
    torch.testing.assert_close(net.predict(x, "members"), torch.softmax(logits, -1).mean(0))
    torch.testing.assert_close(net(x), logits.mean(0))
    assert len(list(net.members("members"))) == 3
    assert network("ensemble").modes == ("members", "logits")


def test_members_start_apart():
    for method in ("e-qnn", "ensemble"):
        first, second, *_ = network(method).networks
        weights = [next(member.parameters()) for member in (first, second)]
        assert not torch.equal(*weights)


def test_regression_is_a_mixture():
    config = tiny.regression_config(method="ensemble", members=3)
    net = build_model(config, (4,), 1)
    data = tiny.table(80)
    fit(net, data, tiny.table(30, seed=1), config)
    assert net.modes == ("members",)
    x = torch.randn(6, 4)
    parts = [member.predict(x) for member in net.members("members")]
    mixed = net.predict(x)
    assert isinstance(mixed, Moments)
    means = torch.stack([part.mean for part in parts])
    torch.testing.assert_close(mixed.mean, means.mean(0))
    variance = torch.stack([part.var for part in parts]).mean(0) + means.var(0, correction=0)
    torch.testing.assert_close(mixed.var, variance)


def test_data_of_another_size_are_drawn_anew():
    net = network()
    assert net.choose_examples(torch.arange(4), 10).max() < 10
    assert net.choose_examples(torch.arange(400), 1000).max() >= 10
