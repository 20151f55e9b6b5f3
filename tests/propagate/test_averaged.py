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
from bqn.propagate import averaged, clt, half, products
from bqn.propagate.windows import over_places


def _pooled(x: Categorical | Tensor, conv: bqn.nn.Conv2d, window: int = 2, stride: int | None = None) -> Gaussian:
    result = bqn.nn.AvgPool2d(window, stride)(conv(x))
    assert isinstance(result, Gaussian)
    return result


def _enumerated(x: Categorical, conv: bqn.nn.Conv2d, window: int, stride: int) -> tuple[Tensor, Tensor]:
    """Mean and variance over all weights, biases and inputs of one example."""
    assert conv.geometry is not None
    assert conv.bias is not None
    (weights, weight_chance), (biases, bias_chance), (inputs, chance) = (
        _outcomes(law) for law in (conv.weight.belief(), conv.bias.belief(), x)
    )
    first = second = torch.zeros(())
    for (weight, of_weight), (bias, of_bias) in product(
        zip(weights, weight_chance, strict=True), zip(biases, bias_chance, strict=True)
    ):
        y = F.avg_pool2d(F.conv2d(inputs.flatten(0, 1), weight, bias, padding=conv.geometry.padding), window, stride)
        share = (of_weight * of_bias * chance).reshape(-1, 1, 1, 1)
        first = first + (share * y).sum(0, keepdim=True)
        second = second + (share * y.square()).sum(0, keepdim=True)
    return first, second - first.square()


def _outcomes(law: Categorical) -> tuple[Tensor, Tensor]:
    """All values that a tensor can take, one by one, and their probabilities."""
    probs, levels = law.probs.flatten(0, -2), len(law.level_values)
    chosen = torch.cartesian_prod(*[torch.arange(levels)] * len(probs)).reshape(-1, len(probs))
    chance = probs[torch.arange(len(probs)), chosen].prod(1)
    return law.levels[chosen].reshape(-1, *law.shape), chance


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


def _by_the_formula(
    x: Categorical | Gaussian | Tensor,
    weight: Categorical,
    centre: Tensor | None,
    padding: int,
    window: int,
    stride: int,
) -> tuple[Tensor, Tensor]:
    """The moments as the module's docstring has them, in plain torch."""
    pool, convolve, dims = (F.avg_pool2d, F.conv2d, 2) if weight.mean.dim() == 4 else (F.avg_pool1d, F.conv1d, 1)
    mean = x if isinstance(x, Tensor) else x.mean
    var = torch.zeros_like(mean) if isinstance(x, Tensor) else x.var
    mean, var = (F.pad(part, [padding] * 2 * dims) for part in (mean, var))
    box, noise = pool(mean, window, 1), weight.var  # type: ignore[operator]
    squares = box.square() + pool(var, window, 1) / window**dims  # type: ignore[operator]
    joint = pool(F.pad(weight.mean, [window - 1] * 2 * dims), window, 1).square()  # type: ignore[operator]
    result = convolve(squares, noise, stride=stride) + convolve(var, joint, stride=stride)
    if centre is not None:
        middle = over_places(centre)
        constant = (noise * middle.square()).flatten(1).sum(1).reshape(-1, *(1 for _ in range(dims)))
        result = result - 2 * convolve(box, noise * middle, stride=stride) + constant
    return convolve(box, weight.mean, stride=stride), result


@pytest.mark.parametrize("levels", [(-1.0, 1.0), (0.0, 1.0, 3.0)])
@pytest.mark.parametrize("kind", ["known", "signs", "bits", "normal"])
@pytest.mark.parametrize("centred", [True, False])
@pytest.mark.parametrize(
    ("dims", "padding", "window", "stride"), [(1, 0, 3, 2), (1, 2, 2, 1), (2, 1, 2, 2), (2, 3, 3, 1)]
)
def test_gradients(
    levels: tuple[float, ...], kind: str, centred: bool, dims: int, padding: int, window: int, stride: int
) -> None:
    torch.manual_seed(0)
    image, kernel = ((2, 2, 7), (2, 2, 3)) if dims == 1 else ((2, 2, 4, 3), (2, 2, 2, 3))
    mean, var = torch.rand(image).double() * 0.8 + 0.1, torch.rand(image).double()
    centre = torch.randn(kernel[1:]).double() if centred else None
    geometry = products.Geometry((1,) * dims, (padding,) * dims, (1,) * dims, 1)
    sizes = [(size + 2 * padding - k - window + 1) // stride + 1 for size, k in zip(image[2:], kernel[2:], strict=True)]

    def beliefs(mean: Tensor, var: Tensor, logits: Tensor) -> tuple[Categorical | Gaussian | Tensor, Categorical]:
        x: Categorical | Gaussian | Tensor = mean
        if kind == "normal":
            x = Gaussian.of(mean, var)
        elif kind != "known":
            x = Categorical.of((-1.0, 1.0) if kind == "signs" else (0.0, 1.0), mean=mean)
        return x, Categorical.of_logits(logits, levels)

    def moments(mean: Tensor, var: Tensor, logits: Tensor, bias: Tensor, centre: Tensor | None) -> tuple[Tensor, ...]:
        x, weight = beliefs(mean, var, logits)
        told = None if centre is None else clt.BatchStatistics(lambda *_: centre, lambda *_: torch.zeros(()))
        source = averaged.Convolution(x, weight, Categorical.of_logits(bias, levels), geometry, told)
        belief = averaged.average(source, torch.Size((2, 2, *sizes)), (window,) * dims, (stride,) * dims)
        assert belief.mean.shape == belief.shape
        if centre is not None:
            belief = belief.within_batch(0.1)
        return belief.mean, belief.var

    logits, bias = (torch.randn(*shape, len(levels)).double() for shape in (kernel, kernel[:1]))
    told = Categorical.of_logits(bias, levels)
    first, second = _by_the_formula(*beliefs(mean, var, logits), centre, padding, window, stride)
    column = (-1, *(1 for _ in range(dims)))
    got = moments(mean, var, logits, bias, centre)
    assert_close(got[0], first + told.mean.reshape(column))
    assert_close(got[1], second if centred else second + told.var.reshape(column))
    leaves = [None if leaf is None else leaf.requires_grad_() for leaf in (mean, var, logits, bias, centre)]
    assert torch.autograd.gradcheck(moments, leaves, fast_mode=True)


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


def test_windows_are_gathered_in_the_precision_of_the_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    conv = bqn.nn.Conv2d(16, 4, 3, padding=1, bias=False)
    x = torch.randn(3, 16, 6, 6)
    full = bqn.nn.AvgPool2d(2)(conv(x)).within_batch(0.1)
    monkeypatch.setattr("bqn.propagate.clt.gathers", lambda *arguments: True)
    with half.lowered():
        low = bqn.nn.AvgPool2d(2)(conv(x)).within_batch(0.1)
    assert low.dtype == low.mean.dtype == torch.bfloat16
    assert_close(low.var.float(), full.var, rtol=0.03, atol=0)


@pytest.mark.parametrize(
    "behind", [("conv", "flatten"), ("flatten", "linear"), ("flatten",)], ids=["conv", "linear", "head"]
)
@pytest.mark.parametrize("bias", [True, False])
def test_layers_behind_read_what_comes_out_in_half_precision(behind: tuple[str, ...], bias: bool) -> None:
    torch.manual_seed(0)
    nn = bqn.nn
    last = {"conv": nn.Conv2d(16, 4, 4), "linear": nn.Linear(16 * 16, 4), "flatten": nn.Flatten()}
    pooled = [nn.Conv2d(16, 16, 3, padding=1, bias=bias), nn.AvgPool2d(2)]
    net = bqn.Network(
        nn.Sequential(nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.Sign(), *pooled,
                      *(last[name] for name in behind)),
        bqn.SoftmaxHead(16),
    )  # fmt: skip
    x, y = torch.rand(4, 1, 8, 8), torch.tensor([0, 1, 2, 3])
    full = net.elbo(x, y, 100, 1e-4)
    with half.lowered():
        belief = net.body[:5](x)
        assert belief.dtype == belief.mean.dtype == belief.var.dtype == torch.bfloat16
        low = net.elbo(x, y, 100, 1e-4)
    low.backward()
    assert_close(low, full, rtol=0.02, atol=0)


def test_half_precision_of_inputs_that_are_nearly_certain_and_alike() -> None:
    """Nearly all of their squares is common to the batch, and is taken out before they are squared."""
    torch.manual_seed(0)
    conv = bqn.nn.Conv2d(32, 8, 5, padding=2, bias=False)
    channel = torch.randn(1, 32, 1, 1)
    x = torch.erf(9 * (channel + 0.15 * channel.sign()) + 0.45 * torch.randn(16, 32, 12, 12))
    full = bqn.nn.AvgPool2d(2)(conv.double()(Categorical.of((-1.0, 1.0), mean=x.double()))).within_batch(0.1)
    with half.lowered():
        low = bqn.nn.AvgPool2d(2)(conv.float()(Categorical.of((-1.0, 1.0), mean=x))).within_batch(0.1)
    assert_close(low.var.double(), full.var, rtol=0.02, atol=0)


def test_other_poolings_do_as_before() -> None:
    """Padded windows, and strides in the convolution, are averaged as if their outputs were independent."""
    conv = bqn.nn.Conv2d(2, 3, 3, stride=2, bias=False)
    x = torch.randn(2, 2, 9, 9)
    belief, plain = _pooled(x, conv), conv(x)
    assert_close(belief.var, F.avg_pool2d(plain.var, 2) / 4)
