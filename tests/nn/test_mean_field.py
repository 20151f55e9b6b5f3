"""`mean_field`: all outputs of a layer are taken for independent, whatever they have in common."""

from __future__ import annotations

import pytest
import torch

from bqn import models, nn
from bqn.beliefs import Categorical, Gaussian
from bqn.network import Network
from bqn.training import TrainConfig, build_model

IMAGE = (1, 8, 8)


def build(name: str, mean_field: bool) -> Network:
    torch.manual_seed(0)
    if name == "mlp":
        return models.mlp(64, 3, hidden=(48, 40), mean_field=mean_field)
    if name == "cnn":
        return models.cnn(IMAGE, 3, channels=(4, 4), hidden=40, mean_field=mean_field)
    if name == "vgg":
        return models.vgg(IMAGE, 3, channels=(4, 4), hidden=40, mean_field=mean_field)
    return models.resnet(IMAGE, 3, channels=(4, 8), blocks=1, mean_field=mean_field)


@pytest.mark.parametrize("name", ["mlp", "cnn", "vgg", "resnet"])
def test_nothing_is_carried(name: str) -> None:
    carried = []

    def look(module: torch.nn.Module, inputs: object, output: object) -> None:
        assert isinstance(output, Gaussian | Categorical | torch.Tensor)
        if not isinstance(output, torch.Tensor):
            carried.append(output.neighbours is not None or output.units is not None)

    net, x = build(name, True), torch.rand(20, *IMAGE)
    for module in net.modules():
        if isinstance(module, nn.Layer):
            module.register_forward_hook(look)
    net(x)
    assert carried
    assert not any(carried)


@pytest.mark.parametrize("name", ["mlp", "cnn", "vgg"])
def test_logits_differ_otherwise(name: str) -> None:
    x = torch.rand(20, *IMAGE)
    together, apart = (build(name, mean_field)(x) for mean_field in (False, True))
    assert isinstance(together, Gaussian)
    assert isinstance(apart, Gaussian)
    assert apart.var.sum() != together.var.sum()


def test_average_of_independent_outputs() -> None:
    torch.manual_seed(0)
    layer, pool = nn.Conv2d(2, 3, 3, padding=1, mean_field=True).double(), nn.AvgPool2d(2)
    x = torch.rand(5, 2, 6, 6, dtype=torch.float64)
    sums = layer(x)
    averages = pool(layer(x))
    assert isinstance(sums, Gaussian)
    assert isinstance(averages, Gaussian)
    expected = torch.nn.functional.avg_pool2d(sums.var, 2) / 4
    torch.testing.assert_close(averages.var, expected)
    within = pool(layer(x)).within_batch(0.1)
    assert within.neighbours is None
    torch.testing.assert_close(within.var, torch.nn.functional.avg_pool2d(layer(x).within_batch(0.1).var, 2) / 4)


def test_logits_of_independent_units() -> None:
    """The last variance by hand: Σ (M² + V) (μ² + ν) - M² μ², where units have nothing in common."""
    torch.manual_seed(0)
    net = models.mlp(20, 3, hidden=(36, 36), batch_norm=False, mean_field=True).double()
    belief = torch.rand(7, 20, dtype=torch.float64)
    layers = list(net.body.children())
    hidden = belief
    for layer in layers[:-1]:
        hidden = layer(hidden)
    last = layers[-1]
    assert isinstance(hidden, Categorical)
    assert isinstance(last, nn.Linear)
    weight, bias = last.weight, last.bias
    assert isinstance(weight, nn.Posterior)
    assert isinstance(bias, nn.Posterior)
    mean, var = weight.mean, 1 - weight.mean.square()
    unit, doubt = hidden.mean, hidden.var
    expected = unit.square() @ var.mT + doubt @ (var + mean.square()).mT + (1 - bias.mean.square())
    output = net(belief)
    assert isinstance(output, Gaussian)
    torch.testing.assert_close(output.var, expected)


def test_a_config_builds_it() -> None:
    config = TrainConfig(data="digits", model="mlp", mean_field=True)
    net = build_model(config, (1, 8, 8), 10)
    assert all(layer.mean_field for layer in net.modules() if isinstance(layer, nn.Linear | nn.Conv2d))
    assert TrainConfig(data="digits").mean_field is False
    assert TrainConfig.from_json(config.to_json()) == config


def test_it_shows_in_print() -> None:
    assert "mean_field=True" in str(build("cnn", True))
    assert "mean_field" not in str(build("cnn", False))
