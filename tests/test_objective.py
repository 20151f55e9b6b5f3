import itertools

import pytest
import torch
from torch.testing import assert_close

import bqn
from bqn import objective
from tests.nn.contract import assert_named_error


def test_terms_add_up() -> None:
    net = bqn.models.mlp(4, 3, hidden=(5,))
    x, y = torch.randn(7, 4), torch.randint(3, (7,))
    net.eval()
    terms = net.elbo_terms(x, y, data_size=70, lam=0.5)
    expected = net.head.log_likelihood(net(x), y).mean()
    assert_close(terms.log_likelihood, expected)
    assert_close(terms.kl, sum(p.kl() for _, p in net.posteriors()))
    assert_close(terms.value, expected - 0.5 / 70 * terms.kl)
    assert_close(net.elbo(x, y, 70, 0.5), terms.value)
    jensen = net.elbo(x, y, 70, 0.5, bound="jensen")
    assert jensen < terms.value


def test_mean_is_over_the_batch_and_the_kl_over_the_data() -> None:
    """Summed over the batches of an epoch, N times the batch means is the whole objective."""
    net = bqn.models.mlp(4, 3, hidden=(5,), batch_norm=False)
    x, y = torch.randn(8, 4), torch.randint(3, (8,))
    whole = 8 * net.elbo(x, y, 8, 0.3)
    parts = 4 * net.elbo(x[:4], y[:4], 8, 0.3) + 4 * net.elbo(x[4:], y[4:], 8, 0.3)
    assert_close(whole, parts)


def test_empty_batch_leaves_the_divergence() -> None:
    net = bqn.models.mlp(4, 3, hidden=(5,)).eval()
    value = net.elbo(torch.zeros(0, 4), torch.zeros(0).long(), 10, 1.0)
    assert_close(value, -net.kl() / 10)


def test_schedules() -> None:
    assert objective.constant(1e-3)(7) == 1e-3
    paper = objective.warm_up(1e-3)
    assert [paper(epoch) for epoch in (0, 4.9, 5, 99)] == [-1e-4, -1e-4, 1e-3, 1e-3]
    for shape in ("linear", "cosine", "exponential"):
        fall = objective.decay(1e-2, 1e-4, 10, shape)
        values = [fall(epoch) for epoch in range(12)]
        assert values[0] == pytest.approx(1e-2)
        assert values[10] == values[11] == pytest.approx(1e-4)
        assert all(b < a for a, b in itertools.pairwise(values[:11]))
    assert objective.decay(1e-2, 1e-4, 10, "exponential")(5) == pytest.approx(1e-3)
    assert objective.decay(1.0, 0.0, 10, "linear")(5) == pytest.approx(0.5)
    chained = objective.warm_up(objective.decay(1.0, 0.5, 2, "linear"), epochs=3, start=-1.0)
    assert [chained(e) for e in (0, 3, 4, 5)] == [-1.0, 1.0, 0.75, 0.5]


def test_bad_arguments_are_named() -> None:
    assert_named_error(lambda: objective.constant(float("nan")), "lam")
    assert_named_error(lambda: objective.warm_up(1.0, epochs=0), "epochs")
    assert_named_error(lambda: objective.decay(1.0, 0.1, 10, "steep"), "shape")
    assert_named_error(lambda: objective.decay(1.0, -0.1, 10, "exponential"), "same sign")
    net = bqn.models.mlp(4, 3, hidden=(5,))
    x, y = torch.randn(7, 4), torch.randint(3, (7,))
    assert_named_error(lambda: net.elbo(x, y, 0, 1.0), "data_size")
