"""gaussian-bnn: drawn sums against drawn weights, the KL against torch's, and beliefs that become plain networks."""

import math

import pytest
import torch

from bqn.baselines.gaussian_bnn import GaussianWeight, LocallyDrawn
from bqn.nn import Conv2d, Linear
from bqn.training.models import build_model
from tests.training import tiny


def drawn(layer):
    for name in ("weight", "bias"):
        old = getattr(layer, name)
        weight = GaussianWeight(old.shape, 4, prior_std=0.7)
        with torch.no_grad():
            weight.mean.normal_()
            weight.log_std.uniform_(-1.5, 0.2)
        setattr(layer, name, weight)
    return LocallyDrawn(layer)


@pytest.mark.parametrize(
    ("make", "shape"),
    [(lambda: Linear(5, 3), (2, 5)), (lambda: Conv2d(2, 3, 3, padding=1, stride=2), (2, 2, 5, 5))],
    ids=["linear", "convolution"],
)
def test_moments_of_the_sums_are_those_of_sampled_weights(make, shape):
    torch.manual_seed(0)
    local, x = drawn(make()), torch.randn(shape)
    layer = local.layer
    generator = torch.Generator().manual_seed(1)
    count = 6_000
    outputs = []
    for _ in range(count // 1000):
        weights = torch.stack([layer.weight.sample(generator) for _ in range(1000)])
        biases = torch.stack([layer.bias.sample(generator) for _ in range(1000)])
        if layer.geometry is None:
            outputs.append(torch.einsum("soi,ni->sno", weights, x) + biases.unsqueeze(1))
        else:
            run = torch.nn.functional.conv2d
            outputs.append(torch.stack([run(x, w, b, 2, 1) for w, b in zip(weights, biases, strict=True)]))
    sampled = torch.cat(outputs)
    mean, var = local.moments(x)
    error = sampled.std(0) / math.sqrt(count)
    assert ((sampled.mean(0) - mean).abs() < 5 * error).all()
    assert (sampled.var(0) / var - 1).abs().max() < 6 * math.sqrt(2 / count)
    many = torch.stack([local(x) for _ in range(2000)])
    assert ((many.mean(0) - mean).abs() < 5 * var.sqrt() / math.sqrt(2000)).all()
    assert (many.var(0) / var - 1).abs().max() < 6 * math.sqrt(2 / 2000)


def test_examples_do_not_share_their_noise():
    local = drawn(Linear(4, 2))
    x = torch.ones(1000, 4)
    out = local(x)
    assert out.std(0).min() > 0.1  # with one draw of the weights all rows would be alike


def test_kl_is_that_of_torch():
    weight = GaussianWeight(torch.Size((3, 4)), 4, prior_std=0.3)
    q = torch.distributions.Normal(weight.mean, weight.log_std.exp())
    expected = torch.distributions.kl_divergence(q, torch.distributions.Normal(0.0, 0.3)).sum()
    torch.testing.assert_close(weight.kl(), expected)


def test_map_has_the_mean_weights_and_mc_differs():
    net = build_model(tiny.config(method="gaussian-bnn", prior_std=0.5), (1, 6, 6), 3).eval()
    means = [weight.mean for weight in net.modules() if isinstance(weight, GaussianWeight)]
    assert torch.equal(net.mode().body[0][1].layer.weight, means[0])
    x = torch.randn(6, 1, 6, 6)
    first, second = (net.predict(x, "mc", 3, torch.Generator().manual_seed(seed)) for seed in (0, 0))
    assert torch.equal(first, second)
    assert not torch.equal(first, net.predict(x, "mc", 3, torch.Generator().manual_seed(1)))
    assert torch.equal(net.predict(x, "map"), net.predict(x, "map"))
    assert all(weight.prior_std == 0.5 for weight in net.modules() if isinstance(weight, GaussianWeight))
