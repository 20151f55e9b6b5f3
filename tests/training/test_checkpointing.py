"""Activation checkpointing in training: the same run bit by bit."""

from __future__ import annotations

import pytest
import torch

from bqn import Network, SoftmaxHead, nn
from bqn.training import ConfigError, fit, train
from bqn.training.run import RunFolder
from tests.training import tiny

CONFIGS = [
    {"hidden": (12, 8), "shift": 1},
    {"hidden": (48, 48, 32)},  # so wide that sums are normal, so narrow that they know what units have in common
    {"hidden": (48, 48, 32), "batch_norm": False, "activations": "ternary"},
    {"model": "cnn", "channels": (3, 4), "hidden": (6,)},
    {"accumulate": 2, "levels": "ternary", "activations": "ternary"},
]


@pytest.mark.parametrize("values", CONFIGS)
def test_a_run_is_the_same_bit_by_bit(tmp_path, values):
    for again in (False, True):
        config = tiny.config(**values, checkpoint_activations=again)
        run = train(config, dataset=tiny.dataset(), out=tmp_path / str(again))
        assert not run.net.body.recompute
    plain, ours = (RunFolder(tmp_path / str(again)).read_checkpoint().tensors for again in (False, True))
    assert plain.keys() == ours.keys()
    assert all(torch.equal(plain[name], ours[name]) for name in plain)


def test_layers_run_twice_a_step():
    config = tiny.config(epochs=1, validation_fraction=0.0, checkpoint_activations=True)
    net = nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.BatchNorm1d(8), nn.Sign(), nn.Linear(8, 3))
    calls = []
    net[1].register_forward_hook(lambda *arguments: calls.append(1))
    whole = Network(net, SoftmaxHead(8))
    fit(whole, tiny.images(), None, config)
    assert len(calls) == 1 + 2 * 4 + 1  # one to count the classes, one for the statistics in the end
    assert int(net[2].num_batches_tracked) == 4 + 1


def test_other_bodies_are_refused():
    config = tiny.config(checkpoint_activations=True)
    net = Network(torch.nn.Sequential(nn.Flatten(), nn.Linear(36, 3)), SoftmaxHead(36))
    with pytest.raises(
        ConfigError, match=r"checkpoint_activations needs a network whose body is a bqn\.nn\.Sequential"
    ):
        fit(net, tiny.images(), None, config)


def test_other_methods_are_refused():
    with pytest.raises(ConfigError, match="checkpoint_activations is for method bqn, got qnn"):
        tiny.config(checkpoint_activations=True, method="qnn", lam=0.0)
