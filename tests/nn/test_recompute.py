"""Activation checkpointing against the ordinary pass: the same gradients and buffers bit by bit, fewer bytes kept."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor

from bqn import models, nn
from bqn.network import Network
from bqn.propagate import half

TERNARY = (-1.0, 0.0, 1.0)
NETWORKS = {
    "mlp": (lambda: models.mlp(20, 3, hidden=(16, 12)), (20,)),
    "mlp, other levels": (lambda: models.mlp(20, 3, hidden=(16, 12), levels=TERNARY, activations=TERNARY), (20,)),
    "mlp without batch norm": (lambda: models.mlp(20, 3, hidden=(16, 12), batch_norm=False), (20,)),
    "cnn": (lambda: models.cnn((1, 8, 8), 3, channels=(4, 6), hidden=10), (1, 8, 8)),
    "cnn, pooled last": (lambda: models.cnn((1, 8, 8), 3, channels=(4, 6), hidden=10, pool_first=False), (1, 8, 8)),
    "vgg": (lambda: models.vgg((3, 8, 8), 3, channels=(4, 6), hidden=10), (3, 8, 8)),
    "resnet": (lambda: models.resnet((3, 8, 8), 3, channels=(4, 6), blocks=1), (3, 8, 8)),
}


def examples(shape: tuple[int, ...], count: int = 9) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(count, *shape, generator=generator), torch.randint(3, (count,), generator=generator)


def step(net: Network, x: Tensor, y: Tensor, recompute: bool) -> tuple[list[Tensor], dict[str, Tensor]]:
    net = copy.deepcopy(net).train()
    net.body.recompute = recompute
    (-net.elbo(x, y, 100, 0.1)).backward()
    return [parameter.grad for parameter in net.parameters()], dict(net.named_buffers())


@pytest.mark.parametrize("name", NETWORKS)
def test_gradients_and_statistics_are_those_of_an_ordinary_pass(name):
    make, shape = NETWORKS[name]
    net, (x, y) = make(), examples(shape)
    plain, again = step(net, x, y, False), step(net, x, y, True)
    assert all(torch.equal(a, b) for a, b in zip(plain[0], again[0], strict=True))
    assert all(torch.equal(plain[1][key], again[1][key]) for key in plain[1])
    counted = {key: int(value) for key, value in again[1].items() if "batches" in key}
    assert set(counted.values()) <= {0, 1}
    assert any(counted.values()) or name == "mlp without batch norm"


def test_also_in_half_precision():
    """The second pass lies outside the block that lowers the precision."""
    net, (x, y) = models.mlp(20, 3, hidden=(40, 40)), examples((20,))
    with half.lowered():
        assert net.train()(x).mean.dtype == torch.bfloat16
    results = []
    for recompute in (False, True):
        twin = copy.deepcopy(net)
        twin.body.recompute = recompute
        with half.lowered():
            loss = -twin.elbo(x, y, 100, 0.1)
        loss.backward()
        results.append([parameter.grad for parameter in twin.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


class LayersBehind(nn.Layer):
    """A batch norm of known numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(20)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x)


def test_batch_norm_of_a_tensor_is_counted_once():
    net = models.mlp(20, 3, hidden=(8,))
    net.body = nn.Sequential(LayersBehind(), *net.body)
    x, y = examples((20,))
    plain, again = step(net, x, y, False), step(net, x, y, True)
    assert int(again[1]["body.0.norm.num_batches_tracked"]) == 1
    assert all(torch.equal(plain[1][key], again[1][key]) for key in plain[1])
    assert all(torch.equal(a, b) for a, b in zip(plain[0], again[0], strict=True))


def kept_bytes(net: Network, x: Tensor, y: Tensor) -> int:
    """What a forward pass leaves behind for the backward pass: saved tensors, and what enters the segments."""
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    def enter(layer: torch.nn.Module, inputs: tuple[object, ...], output: object) -> None:
        if isinstance(layer, nn.Sign):
            keep(output.mean)  # type: ignore[attr-defined]

    handles = [layer.register_forward_hook(enter) for layer in net.body]
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        terms = net.elbo_terms(x, y, 100, 0.1)
    for handle in handles:
        handle.remove()
    assert terms.value.requires_grad
    return sum(kept.values())


@pytest.mark.parametrize("name", ["mlp", "vgg"])
def test_less_is_kept(name):
    make, shape = NETWORKS[name]
    net, (x, y) = make().train(), examples(shape, 500)
    ordinary = kept_bytes(net, x, y)
    net.body.recompute = True
    assert kept_bytes(net, x, y) < 0.5 * ordinary


def test_outside_of_training_nothing_is_computed_twice(monkeypatch):
    net, (x, _) = models.mlp(20, 3, hidden=(8,)), examples((20,))
    net.body.recompute = True
    calls = []
    net.body[1].register_forward_hook(lambda *arguments: calls.append(1))
    net.eval()(x).mean.sum().backward()
    with torch.no_grad():
        net.train()(x)
    assert len(calls) == 2
    net(x).mean.sum().backward()
    assert len(calls) == 4
