"""Average pooling behind a convolution: the noise of a shared weight does not average out."""

from __future__ import annotations

from itertools import product

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.testing import assert_close

import bqn
from bqn.beliefs import Categorical, Gaussian
from bqn.propagate import half


def _pooled(x: Categorical | Tensor, conv: bqn.nn.Conv2d, window: int = 2, stride: int | None = None) -> Gaussian:
    result = bqn.nn.AvgPool2d(window, stride)(conv(x))
    assert isinstance(result, Gaussian)
    return result


def _enumerated(x: Categorical, conv: bqn.nn.Conv2d, window: int, stride: int) -> tuple[Tensor, Tensor]:
    """Mean and variance over all weights, biases and inputs of one example."""
    assert conv.geometry is not None
    assert conv.bias is not None
    laws = [conv.weight.belief(), conv.bias.belief(), x]
    flat = [law.probs.reshape(-1, len(law.level_values)) for law in laws]
    values = [law.levels for law in laws]
    sizes = [len(part) for part in flat]
    first = second = torch.zeros(())
    choices = [range(len(values[kind])) for kind in range(3) for _ in range(sizes[kind])]
    for chosen in product(*choices):
        parts = torch.tensor(chosen).split(sizes)
        weight, bias, inputs = (values[k][parts[k]].reshape(laws[k].shape) for k in range(3))
        chance = torch.stack([flat[k].gather(1, parts[k].unsqueeze(1)).prod() for k in range(3)]).prod()
        y = F.avg_pool2d(F.conv2d(inputs, weight, bias, padding=conv.geometry.padding), window, stride)
        first, second = first + chance * y, second + chance * y.square()
    return first, second - first.square()


@pytest.mark.parametrize("levels", [(-1.0, 1.0), (0.0, 1.0, 3.0)])
@pytest.mark.parametrize(("size", "padding", "window", "stride"), [((3, 3), 0, 2, 2), ((2, 2), 1, 2, 1)])
def test_moments_are_those_of_the_enumerated_network(
    levels: tuple[float, ...], size: tuple[int, int], padding: int, window: int, stride: int
) -> None:
    torch.manual_seed(0)
    conv = bqn.nn.Conv2d(1, 1, 2, padding=padding, levels=levels, method="clt").double()
    x = Categorical(torch.rand(1, 1, *size, 2).double().softmax(-1), (-1.0, 1.0))
    mean, var = _enumerated(x, conv, window, stride)
    belief = _pooled(x, conv, window, stride)
    assert_close(belief.mean, mean)
    assert_close(belief.var, var)


def test_noise_within_the_batch_leaves_out_what_all_examples_share() -> None:
    """Equal images differ by nothing: behind batch norm their weights make no noise at all."""
    torch.manual_seed(0)
    conv = bqn.nn.Conv2d(2, 3, 3, padding=0, bias=False).double()
    x = torch.randn(1, 2, 1, 1).double().expand(4, 2, 8, 8)
    belief = bqn.nn.AvgPool2d(2)(conv(x)).within_batch(0.1)
    assert_close(belief.var, torch.zeros_like(belief.var), atol=1e-12, rtol=0)
    assert float(_pooled(x, conv).var.detach().min()) > 0.1


def test_variance_is_that_of_sampled_networks() -> None:
    torch.manual_seed(0)
    conv = bqn.nn.Conv2d(3, 4, 5, padding=2, method="clt").requires_grad_(False)
    x = torch.randn(2, 3, 12, 12).cumsum(-1).cumsum(-2) * 0.2  # smooth, as images are
    belief = _pooled(x, conv)
    draws = torch.stack(
        [
            F.avg_pool2d(F.conv2d(x, conv.weight.sample(), conv.bias.sample(), padding=2), 2)  # type: ignore[union-attr]
            for _ in range(4000)
        ]
    )
    assert_close(draws.mean(0), belief.mean, atol=0.15 * float(belief.var.max().sqrt()), rtol=0)
    assert_close(draws.var(0), belief.var, rtol=0.15, atol=0)
    independent = bqn.nn.AvgPool2d(2)(Gaussian.of(conv(x).mean, conv(x).var))
    assert float((independent.var / belief.var).mean()) < 0.4


def test_half_precision_is_close() -> None:
    torch.manual_seed(0)
    conv = bqn.nn.Conv2d(16, 8, 3, padding=1, bias=False)
    x = Categorical.of((-1.0, 1.0), mean=torch.rand(4, 16, 8, 8) * 2 - 1)
    full = bqn.nn.AvgPool2d(2)(conv(x)).within_batch(0.1)
    with half.lowered():
        low = bqn.nn.AvgPool2d(2)(conv(x)).within_batch(0.1)
    assert low.mean.dtype == low.var.dtype == torch.bfloat16
    assert_close(low.var.float(), full.var, rtol=0.03, atol=0)
    assert_close(low.mean.float(), full.mean, rtol=0.02, atol=0.05)
    slopes = [
        torch.autograd.grad(b.var.float().log().sum() + b.mean.float().sum(), conv.weight.logits)[0]
        for b in (low, full)
    ]
    assert float((slopes[0] - slopes[1]).norm() / slopes[1].norm()) < 0.03


def test_gathered_windows_of_a_known_image(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    conv = bqn.nn.Conv2d(1, 4, 5, padding=2, bias=False).double()
    x = torch.randn(3, 1, 9, 10).double()
    plain = bqn.nn.AvgPool2d(2)(conv(x)).within_batch(0.1)
    monkeypatch.setattr("bqn.propagate.clt.gathers", lambda *arguments: True)
    gathered = bqn.nn.AvgPool2d(2)(conv(x)).within_batch(0.1)
    assert_close(gathered.mean, plain.mean)
    assert_close(gathered.var, plain.var)


def test_other_poolings_do_as_before() -> None:
    """Padded windows, and strides in the convolution, are averaged as if their outputs were independent."""
    conv = bqn.nn.Conv2d(2, 3, 3, stride=2, bias=False)
    x = torch.randn(2, 2, 9, 9)
    belief, plain = _pooled(x, conv), conv(x)
    assert_close(belief.var, F.avg_pool2d(plain.var, 2) / 4)
