"""What mean field misses in a layer, against enumeration and against correlations known by hand."""

import itertools
import math
from collections.abc import Iterator

import pytest
import torch

import bqn
from bqn.exact import law
from bqn.faithfulness import LayerTally
from bqn.network import QuantizedNetwork
from bqn.nn import fix

ONE = torch.ones(1)  # a factor more, so that a product of one set is a table too


def undecided(net: bqn.Network) -> bqn.Network:
    """Each weight -1 or 1 with equal probability, so that all networks are equally probable."""
    for _, posterior in net.posteriors():
        torch.nn.init.zeros_(posterior.logits)
    return net.eval()


def settle(posterior: bqn.nn.Posterior, *index: int) -> None:
    """Some weights, all by default, are 1 for sure."""
    with torch.no_grad():
        posterior.logits[..., 1][index] = 100.0


def every_network(net: bqn.Network) -> Iterator[QuantizedNetwork]:
    """All networks that the posteriors allow."""
    posteriors = {id(posterior): posterior for _, posterior in net.posteriors()}
    states = [
        torch.cartesian_prod(*([torch.tensor([-1.0, 1.0]) if odds < 1 else torch.ones(1) for odds in row] + [ONE]))
        for row in (p.logits[..., 1].detach().flatten().tolist() for p in posteriors.values())
    ]
    for values in itertools.product(*states):
        chosen = {key: value[:-1].reshape(p.shape) for (key, p), value in zip(posteriors.items(), values, strict=True)}
        yield QuantizedNetwork(fix(net.body, lambda posterior: chosen[id(posterior)]), net.head)  # noqa: B023


def tally_of(net: bqn.Network, x: torch.Tensor, times: int = 20) -> list[dict]:
    """All networks, each added so often that the corrections for few draws do not matter."""
    tally = LayerTally(net, x)
    for network in list(every_network(net)) * times:
        tally.add(network)
    return tally.table()


@torch.no_grad()
def test_moments_and_correlations_are_those_of_enumeration():
    layers = (bqn.nn.Linear(3, 2, bias=False), bqn.nn.Sign(), bqn.nn.Linear(2, 2, bias=False))
    net = undecided(bqn.Network(bqn.nn.Sequential(*layers), bqn.SoftmaxHead(2)))
    settle(layers[0].weight, 0, 0)
    settle(layers[0].weight, 1, 0)
    settle(layers[2].weight)  # both logits are the sum of the same two units
    x = torch.tensor([[0.9, 0.4, -0.8]])
    belief = x
    for position, row in enumerate(tally_of(net, x)):
        truth = law(net.body[: position + 1], x)
        exact, belief = truth.moments(), layers[position](belief)
        spread = exact.var.mean()
        assert row["variance_ratio"] == pytest.approx(float(belief.var.mean() / spread), rel=0.02)
        offset = ((exact.mean - belief.mean).square().mean() / spread).sqrt()
        assert row["mean_error"] == pytest.approx(float(offset), abs=0.03)
        centred = truth.values[:, 0] - exact.mean
        correlation = float((truth.joint * centred[:, 0] * centred[:, 1]).sum() / exact.var.prod().sqrt())
        assert row["correlation"]["unit"]["mean"] == pytest.approx(correlation, abs=0.02)
        assert row["correlation"]["unit"]["rms"] == pytest.approx(abs(correlation), abs=0.05)
        assert row["correlation"]["neighbour"] is None
        assert row["correlation"]["channel"] is None
    assert correlation == pytest.approx(1)


@torch.no_grad()
def test_units_that_read_the_same_uncertain_units():
    """Two units that always agree: mean field halves the variance of their sum, as it does not know it."""
    layers = (bqn.nn.Linear(1, 1, bias=False), bqn.nn.Sign(), bqn.nn.Linear(1, 2, bias=False), bqn.nn.Sign(),
              bqn.nn.Linear(2, 2, bias=False))  # fmt: skip
    net = undecided(bqn.Network(bqn.nn.Sequential(*layers), bqn.SoftmaxHead(2)))
    settle(layers[2].weight)
    settle(layers[4].weight)
    rows = tally_of(net, torch.ones(1, 1), times=200)
    assert [row["correlation"]["unit"] is None for row in rows] == [True, True, False, False, False]
    for row in rows[2:]:
        assert row["correlation"]["unit"]["mean"] == pytest.approx(1, abs=1e-6)
    assert rows[3]["variance_ratio"] == pytest.approx(1, rel=0.01)
    assert rows[4]["variance_ratio"] == pytest.approx(0.5, rel=0.01)


def test_correlation_along_a_channel_known_by_hand():
    net = undecided(bqn.Network(bqn.nn.Sequential(bqn.nn.Conv2d(2, 3, 1, bias=False)), bqn.SoftmaxHead(2)))
    # One filter w reads (1, 0) and (1, 1): outputs w₁ and w₁ + w₂, of variances 1 and 2 and covariance 1.
    x = torch.tensor([[[[1.0, 1.0]], [[0.0, 1.0]]]])
    (row,) = tally_of(net, x)
    for kind in ("neighbour", "channel"):
        assert row["correlation"][kind]["mean"] == pytest.approx(math.sqrt(0.5), abs=1e-4)
        assert row["correlation"][kind]["rms"] == pytest.approx(math.sqrt(0.5), abs=1e-2)
    assert row["correlation"]["unit"]["mean"] == pytest.approx(0, abs=1e-6)  # filters are drawn independently
    assert row["correlation"]["unit"]["rms"] == pytest.approx(0, abs=1e-6)
    assert row["variance_ratio"] == pytest.approx(1, rel=1e-2)
    assert row["mean_error"] == pytest.approx(0, abs=1e-6)
    assert (row["layer"], row["kind"], row["shape"]) == ("0", "Conv2d", [3, 1, 2])


@pytest.mark.parametrize(("stride", "ratio"), [(1, 1.0), (2, 0.25)])
def test_average_pooling_of_equal_patches(stride: int, ratio: float):
    """Four equal values are one. Behind a convolution of stride 1 that is known; elsewhere mean field says 1/4."""
    layers = (bqn.nn.Conv2d(1, 2, 1, stride=stride, bias=False), bqn.nn.AvgPool2d(2), bqn.nn.Flatten())
    net = undecided(bqn.Network(bqn.nn.Sequential(*layers), bqn.SoftmaxHead(1)))
    convolved, pooled = tally_of(net, torch.ones(1, 1, 2 * stride, 2 * stride), times=100)  # Flatten has no row
    assert convolved["correlation"]["neighbour"]["mean"] == pytest.approx(1, abs=1e-6)
    assert convolved["variance_ratio"] == pytest.approx(1, rel=1e-2)
    assert pooled["variance_ratio"] == pytest.approx(ratio, rel=1e-2)


def test_neighbours_are_neighbours_and_not_any_positions():
    net = undecided(bqn.Network(bqn.nn.Sequential(bqn.nn.Conv2d(2, 1, 1, bias=False)), bqn.SoftmaxHead(2)))
    # Rows (a, a), (b, b) with a and b read by different weights: equal within a row, independent across.
    x = torch.tensor([[[[1.0, 1.0], [0.0, 0.0]], [[0.0, 0.0], [1.0, 1.0]]]])
    (row,) = tally_of(net, x)
    assert row["correlation"]["neighbour"]["mean"] == pytest.approx(1, abs=1e-6)
    assert row["correlation"]["channel"]["mean"] == pytest.approx(1 / 3, abs=0.02)


def test_sums_before_batch_norm_are_compared_without_their_common_shift():
    generator = torch.Generator().manual_seed(1)
    net = bqn.Network(
        bqn.nn.Sequential(bqn.nn.Linear(12, 40), bqn.nn.BatchNorm1d(40), bqn.nn.Sign(), bqn.nn.Linear(40, 3)),
        bqn.SoftmaxHead(40),
    )
    x = torch.rand(200, 12, generator=generator) + 1.0  # far from zero: most of the noise is common to all examples
    net.train()
    with torch.no_grad():
        for _ in range(60):
            net(x).mean.sum()
    net.eval().requires_grad_(False)
    tally = LayerTally(net, x[:30])
    for _ in range(400):
        tally.add(net.sample(generator))
    rows = tally.table()
    total = net.body[0](x[:30])
    assert float(total.var.mean() / total.within_batch(None).var.mean()) > 3
    assert [row["kind"] for row in rows] == ["Linear", "BatchNorm1d", "Sign", "Linear"]
    for row in rows[:3]:
        assert row["variance_ratio"] == pytest.approx(1, abs=0.06), row
        assert row["mean_error"] < 0.12, row  # the CLT of twelve inputs, seen by the sign


def test_a_network_without_doubt():
    net = bqn.Network(bqn.nn.Sequential(bqn.nn.Linear(2, 2, bias=False), bqn.nn.Sign()), bqn.SoftmaxHead(2)).eval()
    with torch.no_grad():
        for _, posterior in net.posteriors():
            posterior.logits[..., 1] = 200.0
    tally = LayerTally(net, torch.tensor([[1.0, 0.5]]))
    for _ in range(3):
        tally.add(net.mode())
    for row in tally.table():
        assert row["variance_ratio"] is None
        assert row["mean_error"] is None
        assert row["correlation"] == {"neighbour": None, "channel": None, "unit": None}


def test_too_few_networks():
    net = bqn.models.mlp(2, 2, (2,)).eval()
    tally = LayerTally(net, torch.ones(1, 2))
    tally.add(net.mode())
    with pytest.raises(ValueError, match="at least three networks must be added, got 1"):
        tally.table()


def test_hooks_are_gone_afterwards():
    net = bqn.models.mlp(2, 2, (2,)).eval()
    LayerTally(net, torch.ones(1, 2))
    assert not any(module._forward_hooks for module in net.modules())


@torch.no_grad()
def test_where_all_networks_say_the_same_nothing_varies():
    """The sign is +1 in every network, the belief only nearly: what rounding leaves must not pass for a spread."""
    layers = (bqn.nn.Linear(4, 8, bias=False), bqn.nn.Sign(), bqn.nn.Linear(8, 2, bias=False))
    net = undecided(bqn.Network(bqn.nn.Sequential(*layers), bqn.SoftmaxHead(2)))
    for unit in range(8):
        settle(layers[0].weight, unit, 0)
    tally = LayerTally(net, torch.tensor([[0.9, 0.3, 0.2, 0.1]]))
    generator = torch.Generator().manual_seed(0)
    for _ in range(101):
        tally.add(net.sample(generator))
    sign = tally.table()[1]
    assert sign["kind"] == "Sign"
    assert sign["mean_error"] is sign["variance_ratio"] is sign["correlation"]["unit"] is None
