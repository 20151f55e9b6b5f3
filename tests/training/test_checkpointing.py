"""Activation checkpointing in training: the same run bit by bit."""

from __future__ import annotations

import pytest
import torch

from bqn import Network, SoftmaxHead, models, nn
from bqn.propagate import half
from bqn.training import ConfigError, fit, train
from bqn.training.parts import recomputed
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


@pytest.mark.gpu
@pytest.mark.parametrize("model", ["mlp", "cnn"])
def test_gradients_in_half_precision_with_kernels(monkeypatch, model):
    """Triton kernels in all layers, natively or in the interpreter."""
    monkeypatch.setattr(half, "kernels_take", lambda *_: True)
    monkeypatch.setattr(half, "pair_kernels_take", lambda x, weight, geometry: geometry is None)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    shape = (12, 64) if model == "mlp" else (6, 1, 12, 12)
    net = models.mlp(64, 10, hidden=(48, 32)) if model == "mlp" else models.cnn(shape[1:], 10, (8, 16), 32)
    net = net.to(device).train()
    x, y = torch.randn(shape, device=device), torch.randint(10, shape[:1], device=device)

    def gradients(again):
        with half.lowered(), recomputed(net, again):
            loss = -net.elbo_terms(x, y, 100, torch.tensor(1e-4, device=device)).value
            return torch.autograd.grad(loss, tuple(net.parameters()), allow_unused=True)

    for ours, plain in zip(gradients(again=True), gradients(again=False), strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-2, atol=1e-2)


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
