"""The packed network is the float network: every integer before the head is equal, ties included."""

import os

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import bqn
from bqn import nn
from bqn.data import to_input
from tests.deploy.networks import (
    ACTIVATIONS,
    BIAS_LEVELS,
    LEVELS,
    assert_exact,
    disturb,
    image_networks,
    packed_model,
    pixels,
    sampled,
)

# More cases than CI has time for: BQN_FUZZ=2000 pytest tests/deploy
CASES = int(os.environ.get("BQN_FUZZ", "60"))
THOROUGH = settings(deadline=None, max_examples=CASES, suppress_health_check=list(HealthCheck))


@THOROUGH
@given(image_networks(), st.integers(0, 2**16), st.booleans())
def test_image_networks(made, seed, trained):
    net, shape = made
    disturb(net, shape, seed, trained)
    assert_exact([*sampled(net, 2, seed), net.mode()], pixels(5, shape, seed))


@THOROUGH
@given(
    features=st.integers(1, 140),
    hidden=st.lists(st.integers(1, 140), min_size=1, max_size=3),
    levels=st.sampled_from(LEVELS),
    activations=st.sampled_from(ACTIVATIONS),
    batch_norm=st.booleans(),
    seed=st.integers(0, 2**16),
    trained=st.booleans(),
)
def test_vectors(features, hidden, levels, activations, batch_norm, seed, trained):
    net = bqn.models.mlp(features, 3, hidden, levels, activations, batch_norm)
    disturb(net, (features,), seed, trained)
    assert_exact(sampled(net, 2, seed), pixels(7, (features,), seed))


@pytest.mark.parametrize("pool_first", [True, False])
@pytest.mark.parametrize("shape", [(1, 14, 14), (3, 13, 11)])
def test_paper_cnn(pool_first, shape):
    net = disturb(bqn.models.cnn(shape, 5, channels=(6, 70), hidden=33, pool_first=pool_first), shape)
    model = assert_exact(sampled(net, 3), pixels(20, shape), input_shape=shape)
    assert model.input_shape == shape


def test_paper_vgg():
    net = disturb(bqn.models.vgg((3, 16, 16), 5, channels=(8, 66, 12), hidden=40), (3, 16, 16))
    assert_exact(sampled(net, 2), pixels(10, (3, 16, 16)))


def test_resnet_with_a_last_average_over_a_power_of_two():
    net = disturb(bqn.models.resnet((1, 8, 8), 5, channels=(8, 12), blocks=2), (1, 8, 8))
    assert_exact(sampled(net, 2), pixels(10, (1, 8, 8)))


def test_resnet_with_another_last_average_differs_by_rounding_alone():
    """Averages over 49 pixels are rounded in the float network; the integers are what it gives without rounding."""
    net = disturb(bqn.models.resnet((1, 14, 14), 5, channels=(8, 12), blocks=1), (1, 14, 14))
    networks, x = sampled(net, 2), pixels(10, (1, 14, 14))
    model = packed_model(networks)
    assert model.step == 1 / 49
    for network, integers in zip(networks, model.logits(x.numpy()), strict=True):
        expected = network(to_input(x)).double().numpy()
        np.testing.assert_array_equal(np.rint(expected / model.step), integers)
        np.testing.assert_allclose(integers * model.step, expected, atol=1e-5)


@pytest.mark.parametrize("bias_levels", BIAS_LEVELS)
def test_signals(bias_levels):
    """One-dimensional layers."""
    body = nn.Sequential(
        nn.Conv1d(2, 9, 5, stride=2, padding=3, bias_levels=bias_levels), nn.AvgPool1d(2), nn.BatchNorm1d(9), nn.Sign(),
        nn.Conv1d(9, 8, 3, dilation=2), nn.MaxPool1d(3, padding=1), nn.BatchNorm1d(8), nn.Quantize(bqn.TERNARY),
        nn.Flatten(), nn.Linear(16, 3),
    )  # fmt: skip
    net = disturb(bqn.Network(body, bqn.SoftmaxHead(16)), (2, 33))
    assert_exact(sampled(net), pixels(10, (2, 33)))


def test_a_sum_on_the_threshold_goes_up():
    """Sums of an even number of signs are often zero, and batch norm around an integer hits its zero exactly."""
    body = nn.Sequential(
        nn.Flatten(), nn.Sign(), nn.Linear(6, 40, bias=False), nn.Sign(), nn.Linear(40, 8, bias=False),
        nn.BatchNorm1d(8), nn.Sign(), nn.Linear(8, 3),
    )  # fmt: skip
    net = bqn.Network(body, bqn.SoftmaxHead(8)).eval()
    norm = body[5]
    with torch.no_grad():
        norm.running_mean.copy_(torch.tensor([-4.0, -2, 0, 0, 2, 4, 6, 8]))
        norm.running_var.fill_(3.0)
        norm.weight.copy_(torch.tensor([1.0, -1, 1, -1, 2, -0.5, 1, 0]))
    networks, x = sampled(net, 3), pixels(200, (6,))
    inside = networks[0].body[:5](to_input(x))
    assert bool((inside == norm.running_mean).any(0).all()), "no tie was met"
    assert_exact(networks, x, input_shape=(6,))


def test_a_network_with_a_forward_of_its_own():
    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(30, 20), nn.Linear(20, 20)
            self.norm, self.sign = nn.BatchNorm1d(20), nn.Sign()

        def forward(self, x):
            y = self.sign(self.first(x.flatten(1)))
            return self.sign(self.norm(self.second(y)) + y)

    body = nn.Sequential(Block(), nn.Linear(20, 3))
    net = disturb(bqn.Network(body, bqn.SoftmaxHead(20)), (1, 5, 6), trained=False)
    assert_exact(sampled(net), pixels(30, (1, 5, 6)))


def test_a_layer_that_is_used_twice():
    class Twice(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.sign, self.last = nn.Linear(12, 12), nn.Sign(), nn.Linear(12, 3)

        def forward(self, x):
            return self.last(self.sign(self.layer(self.sign(self.layer(x)))))

    net = bqn.Network(Twice(), bqn.SoftmaxHead(12)).eval()
    model = assert_exact(sampled(net), pixels(20, (12,)))
    assert [op.name for op in model.program.ops].count("layer") == 1


def test_shortcuts_of_integers_add_up():
    body = nn.Sequential(nn.Linear(10, 9), nn.Sign(), nn.Shortcut(nn.Linear(9, 9)), nn.Shortcut(nn.Linear(9, 9)))
    net = bqn.Network(nn.Sequential(body, nn.Sign(), nn.Linear(9, 2)), bqn.SoftmaxHead(9)).eval()
    assert_exact(sampled(net), pixels(30, (10,)))


def test_any_size_that_the_layers_allow():
    """Without input_shape a packed network takes what the float network takes."""
    net = disturb(bqn.models.cnn((1, 12, 12), 3, channels=(5, 40), hidden=9), (1, 12, 12))
    networks = sampled(net)
    model = packed_model(networks)
    for shape in ((1, 12, 12), (1, 13, 15)):
        x = pixels(6, shape)
        for network, integers in zip(networks, model.logits(x.numpy()), strict=True):
            np.testing.assert_array_equal(integers * model.step, network(to_input(x)).double().numpy())


def test_batches_of_any_length_give_the_same():
    net = disturb(bqn.models.cnn((1, 9, 9), 3, channels=(5, 6), hidden=9), (1, 9, 9))
    model = packed_model(net.mode())
    x = pixels(9, (1, 9, 9)).numpy()
    (whole,) = model.logits(x)
    plan = model._plans_for((1, 9, 9))[0]
    assert plan.batch > 9
    plan.batch = 4
    np.testing.assert_array_equal(model.logits(x)[0], whole)
    assert model.logits(x[:0])[0].shape == (0, 3)
    np.testing.assert_array_equal(np.concatenate([model.logits(x[n : n + 1])[0] for n in range(9)]), whole)


def test_recalibrated_networks():
    net = disturb(bqn.models.mlp(20, 3, (17,)), (20,))
    networks = [bqn.recalibrate(network, to_input(pixels(40, (20,)))) for network in sampled(net)]
    assert_exact(networks, pixels(30, (20,), seed=5))
