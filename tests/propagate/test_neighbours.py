"""What neighbouring positions have in common: against enumeration of covariances, quadrature and drawn filters."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.testing import assert_close

import bqn
from bqn.beliefs import Categorical, Gaussian
from bqn.propagate import averaged, clt, half, neighbours, pooling, products
from bqn.propagate.neighbours import Neighbours, Reading

R = torch.tensor(0.7, dtype=torch.float64)


def covariances(sizes: tuple[int, ...], correlation: float) -> Tensor:
    """Of all positions of an image, row-major: unit variances, r^d at distance d."""
    places = list(itertools.product(*(range(size) for size in sizes)))
    return torch.tensor([[correlation ** math.dist(a, b) for b in places] for a in places], dtype=torch.float64)


def windows_of(sizes: tuple[int, ...], kernel: tuple[int, ...], stride: tuple[int, ...]) -> Tensor:
    """One row a window, with a one for each position that it reads."""
    marks = torch.eye(math.prod(sizes), dtype=torch.float64).reshape(-1, 1, *sizes)
    box = torch.ones(1, 1, *kernel, dtype=torch.float64)
    return (F.conv2d if len(sizes) == 2 else F.conv1d)(marks, box, stride=stride).flatten(1).mT


@pytest.mark.parametrize(("sizes", "kernel"), [((6, 6), (2, 2)), ((9,), (3,)), ((6, 8), (2, 4))])
def test_pools_have_the_covariances_of_averages(sizes: tuple[int, ...], kernel: tuple[int, ...]) -> None:
    rows = windows_of(sizes, kernel, kernel) / math.prod(kernel)
    truth = rows @ covariances(sizes, 0.7) @ rows.mT
    assert_close(neighbours.of_average(R, kernel), truth[0, 0])
    across = sizes[-1] // kernel[-1]
    beside = [truth[0, 1]] if len(sizes) == 1 else [truth[0, 1], truth[0, across]]
    assert_close(neighbours.behind_pooling(R, kernel, kernel), torch.stack(beside).mean() / truth[0, 0])


def test_pair_of_a_window_is_the_mean_over_its_pairs() -> None:
    every = covariances((2, 3), 0.7)
    apart = every[~torch.eye(6, dtype=torch.bool)]
    assert_close(neighbours.of_pair(R, (2, 3)), apart.mean())
    assert float(neighbours.of_pair(R, (1, 1))) == 0.7


@pytest.mark.parametrize("correlation", [0.0, 0.3, 0.8, 0.99])
def test_signs_by_quadrature(correlation: float) -> None:
    """E[sgn a sgn b] = E[sgn(a) erf(r a / √(2 (1 - r²)))], a standard normal."""
    a = torch.linspace(-10, 10, 200_001, dtype=torch.float64)
    inner = torch.erf(correlation * a / math.sqrt(2 * (1 - correlation**2)))
    truth = torch.trapezoid(a.sign() * inner * torch.exp(-a.square() / 2) / math.sqrt(2 * math.pi), a)
    assert float(neighbours.behind_sign(torch.tensor(correlation).double())) == pytest.approx(float(truth), abs=1e-6)


def smooth_images(examples: int, channels: int, side: int) -> Tensor:
    noise = torch.randn(examples, channels, side + 4, side + 4, dtype=torch.float64)
    images = F.avg_pool2d(noise, 5, stride=1)
    return images / images.std()


@torch.no_grad()
def test_sums_of_drawn_filters_have_that_correlation() -> None:
    x = smooth_images(20, 3, 12)
    conv = bqn.nn.Conv2d(3, 200, 3, bias=False).double()
    conv.reset_parameters()
    found = float(conv(x).within_batch(1.0).neighbours.correlation)
    assert float(conv.noise_correlation) == pytest.approx(found)
    weight = conv.weight
    drawn = torch.stack([weight.belief().sample() for _ in range(40)])
    noise = torch.stack([F.conv2d(x, draw - weight.mean) for draw in drawn])
    noise = noise - noise.mean((1, 3, 4), keepdim=True)  # batch norm takes out what all positions have in common
    beside = (noise[..., 1:] * noise[..., :-1]).mean() + (noise[..., 1:, :] * noise[..., :-1, :]).mean()
    assert found == pytest.approx(float(beside / 2 / noise.square().mean()), abs=0.03)
    assert found > 0.6


def test_known_inputs_that_are_alike_everywhere() -> None:
    """No deviation, no noise to correlate: zero, and no division by it."""
    conv = bqn.nn.Conv2d(1, 2, 3, bias=False)
    assert float(conv(torch.ones(4, 1, 5, 5)).within_batch(1.0).neighbours.correlation) == 0
    assert float(bqn.nn.Conv2d(1, 2, 1)(torch.ones(4, 1, 1, 1)).within_batch(1.0).neighbours.correlation) == 0


def told(centre: Tensor) -> clt.BatchStatistics:
    return clt.BatchStatistics(lambda *_: centre, lambda *_: torch.zeros((), dtype=torch.float64))


@pytest.mark.parametrize("kind", ["signs", "normal", "ternary"])
@pytest.mark.parametrize(("stride", "dilation", "groups"), [(1, 1, 1), (2, 1, 1), (1, 2, 1), (1, 1, 2)])
def test_variance_of_a_convolution(kind: str, stride: int, dilation: int, groups: int) -> None:
    """Inputs of equal variances and covariances r^d: the covariance matrix gives the variance of M · x exactly."""
    sizes, doubt = (5, 6), 0.4
    shape = (2, 4, *sizes)
    mean = torch.full(shape, math.sqrt(1 - doubt), dtype=torch.float64)
    known = Neighbours(R)
    if kind == "signs":
        x: Gaussian | Categorical = Categorical.of(bqn.BINARY, mean=mean, neighbours=known)
    elif kind == "normal":
        x = Gaussian.of(mean, torch.full_like(mean, doubt), known)
    else:
        probs = torch.tensor([0.2, 0.6, 0.2], dtype=torch.float64).expand(*shape, 3)
        x = Categorical.of(bqn.TERNARY, probs=probs, neighbours=known)
        assert_close(x.var, torch.full_like(mean, doubt))
    logits = torch.randn(6, 4 // groups, 2, 3, 2, dtype=torch.float64)
    weight = Categorical.of_logits(logits, bqn.BINARY)
    geometry = products.Geometry((stride, stride), (0, 0), (dilation, dilation), groups)
    centre = mean_centre = clt.batch_centre(x.mean, (2, 3), geometry)
    got = clt.linear(x, weight, None, geometry, told(centre)).within_batch(0.1)
    plain = Categorical.of(bqn.BINARY, mean=mean) if kind == "signs" else Gaussian.of(x.mean, x.var)
    independent = clt.linear(plain, weight, None, geometry, told(mean_centre)).within_batch(0.1)
    marks = torch.eye(30, dtype=torch.float64).reshape(30, 1, *sizes).expand(30, 4 // groups, *sizes)
    truth = torch.zeros_like(independent.var[0])
    apart = covariances(sizes, 0.7) - torch.eye(30, dtype=torch.float64)
    for unit, channel in itertools.product(range(6), range(4 // groups)):
        filters = weight.mean[unit : unit + 1, channel : channel + 1]
        spread = F.conv2d(marks[:, :1], filters, stride=stride, dilation=dilation).flatten(1)  # (positions, outputs)
        truth[unit] += (spread * (apart @ spread)).sum(0).reshape(truth.shape[1:]) * doubt
    assert_close(got.var - independent.var, truth.expand_as(got.var))
    assert_close(got.mean, independent.mean)


def test_variance_of_a_matrix_product_behind_flatten() -> None:
    places, doubt = (2, 3), 0.4
    mean = torch.full((3, 4, *places), math.sqrt(1 - doubt), dtype=torch.float64)
    x = bqn.nn.Flatten()(Categorical.of(bqn.BINARY, mean=mean, neighbours=Neighbours(R)))
    assert x.neighbours == Neighbours(R, places)
    weight = Categorical.of_logits(torch.randn(5, 24, 2, dtype=torch.float64), bqn.BINARY)
    centre = x.mean.mean(0)
    got = clt.linear(x, weight, None, None, told(centre)).within_batch(0.1)
    plain = clt.linear(Categorical.of(bqn.BINARY, mean=x.mean), weight, None, None, told(centre)).within_batch(0.1)
    rows = weight.mean.reshape(5, 4, 6)
    apart = covariances(places, 0.7) - torch.eye(6, dtype=torch.float64)
    truth = doubt * torch.einsum("ock,kl,ocl->o", rows, apart, rows)
    assert_close(got.var - plain.var, truth.expand_as(got.var))


def test_variance_of_convolution_and_average_pooling() -> None:
    """Of Σ (M + δ) B h, with h of equal variances and covariances r^d: once more by the covariance matrix."""
    sizes, doubt = (6, 6), 0.4
    mean = torch.full((1, 2, *sizes), math.sqrt(1 - doubt), dtype=torch.float64)
    x = Categorical.of(bqn.BINARY, mean=mean, neighbours=Neighbours(R))
    weight = Categorical.of_logits(torch.randn(3, 2, 3, 3, 2, dtype=torch.float64), bqn.BINARY)
    geometry = products.Geometry((1, 1), (0, 0), (1, 1), 1)
    centre = torch.randn(2, 3, 3, dtype=torch.float64)
    source = averaged.Convolution(x, weight, None, geometry, told(centre))
    got = averaged.average(source, torch.Size((1, 3, 2, 2)), (2, 2), (2, 2)).within_batch(0.1)
    boxes = windows_of(sizes, (2, 2), (1, 1)) / 4  # 5 × 5 averages
    joint = boxes @ covariances(sizes, 0.7) @ boxes.mT * doubt
    marks = torch.eye(25, dtype=torch.float64).reshape(25, 1, 5, 5)
    truth = torch.zeros(3, 4, dtype=torch.float64)
    for unit, channel in itertools.product(range(3), range(2)):
        kernel = weight.mean[unit : unit + 1, channel : channel + 1]
        spread = F.conv2d(marks, kernel, stride=2).flatten(1)
        truth[unit] += (spread * (joint @ spread)).sum(0)  # M · Bh
        base = math.sqrt(1 - doubt) - centre[channel].mean()
        noise = weight.var[unit, channel]
        truth[unit] += (noise * (base.square() + joint[0, 0])).sum()  # V ((Bμ - c)² + Var Bh)
    assert_close(got.var[0].flatten(1), truth)


@pytest.mark.parametrize(("dims", "padding", "stride"), [(2, 1, 1), (2, 0, 2), (2, 2, 2), (1, 1, 3)])
@pytest.mark.parametrize("two_levels", [True, False])
@pytest.mark.parametrize("groups", [1, 2])
def test_common_noise_and_its_gradients(dims: int, padding: int, stride: int, two_levels: bool, groups: int) -> None:
    sizes = (7, 6)[:dims]
    mean = (torch.rand(2, 4, *sizes, dtype=torch.float64) * 1.8 - 0.9).requires_grad_()
    var = None if two_levels else torch.rand_like(mean).requires_grad_()
    weight = torch.randn(6, 4 // groups, dtype=torch.float64).requires_grad_()
    reading = Reading((3, 2)[:dims], (padding,) * dims, (stride,) * dims, bqn.BINARY if two_levels else None)
    pool, convolve = (F.avg_pool2d, F.conv2d) if dims == 2 else (F.avg_pool1d, F.conv1d)
    image = F.pad((1 - mean.square()) if var is None else var, [padding, padding] * dims)
    places = weight.reshape(*weight.shape, *(1 for _ in sizes))
    truth = convolve(pool(image, reading.kernel, reading.stride), places, groups=groups)
    assert_close(neighbours.common_noise(mean, var, weight, reading, groups), truth)
    leaf = mean if var is None else var

    def noise(leaf: Tensor, weight: Tensor) -> Tensor:
        given = (leaf, None) if two_levels else (mean.detach(), leaf)
        return neighbours.common_noise(*given, weight, reading, groups)

    assert torch.autograd.gradcheck(noise, (leaf, weight))


@pytest.mark.parametrize("levels", [bqn.BINARY, bqn.TERNARY])
def test_maximum_from_independent_to_identical(levels: tuple[float, ...]) -> None:
    probs = torch.softmax(torch.randn(5, 4, len(levels), dtype=torch.float64), -1)
    x = Categorical.of(levels, probs=probs)
    cumulative = probs.cumsum(-1)
    for share in (0.0, 0.4, 1.0):
        together = torch.tensor(share, dtype=torch.float64)
        got = pooling.maximum_categorical(x, None, together).probs.cumsum(-1)
        assert_close(got, (1 - share) * cumulative.prod(-2) + share * cumulative.amin(-2))


def test_maximum_of_signs_keeps_the_pairwise_law() -> None:
    """Two signs of mean zero and correlation r: both are below with probability (1 + r) / 4."""
    x = Categorical.of(bqn.BINARY, mean=torch.zeros(1, 2, dtype=torch.float64))
    got = pooling.maximum_categorical(x, None, R).mean
    assert_close(got, 1 - 2 * (1 + R.reshape(1)) / 4)


def test_gradient_of_the_maximum() -> None:
    mean = (torch.rand(3, 4, dtype=torch.float64) * 1.8 - 0.9).requires_grad_()
    absent = torch.tensor([[False, False, False, True]])

    def largest(mean: Tensor) -> Tensor:
        return pooling.maximum_categorical(Categorical.of(bqn.BINARY, mean=mean), absent, R).mean

    assert torch.autograd.gradcheck(largest, (mean,))


def test_maximum_of_correlated_normals_against_samples() -> None:
    mean, var = torch.tensor([0.3, -0.2]).double(), torch.tensor([1.0, 0.5]).double()
    both = torch.randn(400_000, 2, dtype=torch.float64)
    second = R * both[:, 0] + (1 - R**2).sqrt() * both[:, 1]
    drawn = torch.maximum(mean[0] + both[:, 0], mean[1] + var[1].sqrt() * second)
    got = pooling.maximum_gaussian(Gaussian.of(mean.reshape(1, 2), var.reshape(1, 2)), None, R)
    assert float(got.mean) == pytest.approx(float(drawn.mean()), abs=5e-3)
    assert float(got.var) == pytest.approx(float(drawn.var()), rel=1e-2)


def test_sampled_networks_have_the_variance_that_the_pass_says() -> None:
    """Behind sign, max pooling and a second convolution mean field alone is far off, and with r it is not."""
    torch.manual_seed(0)
    x = smooth_images(40, 2, 16).float()
    net = bqn.nn.Sequential(
        bqn.nn.Conv2d(2, 24, 3, padding=1, bias=False), bqn.nn.BatchNorm2d(24), bqn.nn.Sign(), bqn.nn.MaxPool2d(2),
        bqn.nn.Conv2d(24, 24, 3, padding=1, bias=False), bqn.nn.BatchNorm2d(24), bqn.nn.Sign(),
    )  # fmt: skip
    whole = bqn.Network(bqn.nn.Sequential(net, bqn.nn.Flatten(), bqn.nn.Linear(24 * 64, 3)), bqn.SoftmaxHead(24 * 64))
    whole.train()
    for _ in range(40):
        whole(x)
    whole.eval()
    second = net[4]
    with torch.no_grad():
        signs = net[3](net[2](net[1](net[0](x))))
        ours = second(signs).within_batch(None).var.mean()
        alone = bqn.nn.MaxPool2d(2)(Categorical.of(bqn.BINARY, mean=net[2](net[1](net[0](x))).mean))
        mean_field = second(alone).within_batch(None).var.mean()
        total = square = torch.zeros(())
        for seed in range(100):
            member = whole.sample(generator=torch.Generator().manual_seed(seed)).body[0]
            out = member[4](member[3](member[2](member[1](member[0](x)))))
            total, square = total + out, square + out.square()
        truth = ((square - total.square() / 100) / 99).mean()
    assert float(ours / truth) == pytest.approx(1, abs=0.1)
    assert float(mean_field / truth) < 0.75


def test_shortcuts_take_the_mean_of_both() -> None:
    a = Gaussian.of(torch.zeros(2, 1, 2, 2), torch.full((2, 1, 2, 2), 3.0), Neighbours(torch.tensor(0.8)))
    b = Gaussian.of(torch.zeros(2, 1, 2, 2), torch.full((2, 1, 2, 2), 1.0), Neighbours(torch.tensor(0.4)))
    assert float(bqn.nn.Add()(a, b).neighbours.correlation) == pytest.approx(0.6)
    assert float(bqn.nn.Add()(a, torch.ones(2, 1, 2, 2)).neighbours.correlation) == pytest.approx(0.8)
    assert float(bqn.nn.Add()(a, Gaussian.of(b.mean, b.var)).neighbours.correlation) == pytest.approx(0.4)
    assert bqn.nn.Add()(Gaussian.of(a.mean, a.var), Gaussian.of(b.mean, b.var)).neighbours is None


def test_predictions_do_not_depend_on_the_rest_of_the_batch() -> None:
    torch.manual_seed(0)
    net = bqn.models.resnet((1, 8, 8), 3, channels=(4, 6), blocks=1).double()
    x = smooth_images(12, 1, 8)
    net.train()
    for _ in range(5):
        net(x)
    net.eval()
    with torch.no_grad():
        assert_close(net(x[:1]).mean, net(x).mean[:1])
        assert_close(net(x[:1]).var, net(x).var[:1])


@pytest.mark.parametrize("size", [1, 2, 5])
@pytest.mark.parametrize("dilation", [1, 2])
def test_pairs_in_the_padding_have_nothing_in_common(size: int, dilation: int) -> None:
    """Filters that are alike at all places, of which some read the padding: again by the covariance matrix."""
    doubt, places = 0.4, size * size
    mean = torch.full((1, 2, size, size), math.sqrt(1 - doubt), dtype=torch.float64)
    weight = Categorical.of_logits(torch.randn(3, 2, 1, 1, 2).double().expand(3, 2, 3, 3, 2), bqn.BINARY)
    geometry = products.Geometry((1, 1), (dilation, dilation), (dilation, dilation), 1)
    centre = torch.zeros(2, 3, 3, dtype=torch.float64)

    def variance(known: Neighbours | None) -> Tensor:
        x = Categorical.of(bqn.BINARY, mean=mean, neighbours=known)
        return clt.linear(x, weight, None, geometry, told(centre)).within_batch(0.1).var[0]

    marks = torch.eye(places, dtype=torch.float64).reshape(places, 1, size, size)
    apart = covariances((size, size), 0.7) - torch.eye(places, dtype=torch.float64)
    truth = torch.zeros(3, places, dtype=torch.float64)
    for unit, channel in itertools.product(range(3), range(2)):
        kernel = weight.mean[unit : unit + 1, channel : channel + 1]
        spread = F.conv2d(marks, kernel, padding=dilation, dilation=dilation).flatten(1)
        truth[unit] += (spread * (apart @ spread)).sum(0) * doubt
    assert_close((variance(Neighbours(R)) - variance(None)).flatten(1), truth)


def test_average_of_signs_against_sampled_networks() -> None:
    torch.manual_seed(0)
    x = smooth_images(40, 2, 12).float()
    body = bqn.nn.Sequential(
        bqn.nn.Conv2d(2, 24, 3, padding=1, bias=False), bqn.nn.BatchNorm2d(24), bqn.nn.Sign(), bqn.nn.AvgPool2d(2)
    )
    whole = bqn.Network(bqn.nn.Sequential(body, bqn.nn.Flatten(), bqn.nn.Linear(864, 3)), bqn.SoftmaxHead(864))
    whole.train()
    for _ in range(40):
        whole(x)
    whole.eval()
    with torch.no_grad():
        belief = body(x)
        members = [whole.sample(generator=torch.Generator().manual_seed(seed)).body[0](x) for seed in range(100)]
    truth = torch.stack(members).var(0).mean()
    assert isinstance(belief, Gaussian)
    # Units that are nearly decided have less in common than the arc sine says, so this is too much, by a quarter here.
    assert float(belief.var.mean() / truth) == pytest.approx(1.15, abs=0.15)
    signs = body[2](body[1](body[0](x)))
    exact = bqn.nn.AvgPool2d(2, method="fft")(signs)  # asked for by name: the law of independent inputs
    assert isinstance(exact, Categorical)
    assert float(exact.var.detach().mean() / truth) < 0.5


@pytest.mark.parametrize("dilation", [1, 2])
def test_half_precision(dilation: int) -> None:
    torch.manual_seed(0)
    conv = bqn.nn.Conv2d(16, 8, 3, padding=dilation, dilation=dilation, bias=False)
    x = Categorical.of(bqn.BINARY, mean=torch.rand(4, 16, 9, 9) * 2 - 1, neighbours=Neighbours(R.float()))
    full = conv(x).within_batch(0.1)
    with half.lowered():
        low = conv(x).within_batch(0.1)
    assert_close(low.var.double(), full.var.double(), rtol=0.03, atol=0)


@pytest.mark.parametrize("kind", ["signs", "normal"])
def test_gradients_of_convolution_and_average_pooling(kind: str) -> None:
    mean = (torch.rand(2, 2, 6, 6, dtype=torch.float64) * 1.6 - 0.8).requires_grad_()
    var = torch.rand_like(mean).requires_grad_()
    logits = torch.randn(3, 2, 3, 3, 2, dtype=torch.float64).requires_grad_()
    centre = (0.1 * torch.randn(2, 3, 3, dtype=torch.float64)).requires_grad_()
    geometry = products.Geometry((1, 1), (1, 1), (1, 1), 1)

    def moments(mean: Tensor, var: Tensor, logits: Tensor, centre: Tensor) -> tuple[Tensor, Tensor]:
        known = Neighbours(R)
        signs = Categorical.of(bqn.BINARY, mean=mean, neighbours=known)
        x = signs if kind == "signs" else Gaussian.of(mean, var, known)
        source = averaged.Convolution(x, Categorical.of_logits(logits, bqn.BINARY), None, geometry, told(centre))
        belief = averaged.average(source, torch.Size((2, 3, 3, 3)), (2, 2), (2, 2)).within_batch(0.1)
        return belief.mean, belief.var + 0 * var.sum()

    assert torch.autograd.gradcheck(moments, (mean, var, logits, centre), fast_mode=True)


def test_an_empty_batch_teaches_nothing() -> None:
    conv = bqn.nn.Conv2d(1, 2, 3, bias=False)
    conv(torch.randn(0, 1, 5, 5)).within_batch(0.1)
    assert float(conv.noise_correlation) == 0


def test_the_gradient_of_what_a_weight_makes_of_common_noise() -> None:
    correlation = torch.tensor(0.4, dtype=torch.float64)
    weight = torch.randn(3, 2, 9, dtype=torch.float64, requires_grad=True)
    near = neighbours.matrix_of_pairs(correlation, (3, 3))
    grad = torch.randn(3, 2, dtype=torch.float64)
    (found,) = torch.autograd.grad(neighbours.common_weight(weight, correlation, (3, 3)), weight, grad)
    (expected,) = torch.autograd.grad(neighbours.over_pairs(weight, near), weight, grad)
    assert_close(found, expected)


@pytest.mark.parametrize("shape", [(3, 2, 9), (3, 8, 49), (5, 7, 16), (2, 3, 64, 16), (1, 300), (9,)])
@pytest.mark.parametrize("way", [neighbours._beside_by_blocks, neighbours._beside_as_sum])
def test_ways_to_what_stands_beside_a_place(way: Any, shape: tuple[int, ...]) -> None:
    weight = torch.randn(shape, dtype=torch.float64)
    near = neighbours.matrix_of_pairs(torch.tensor(0.4, dtype=torch.float64), shape[-1:])
    assert_close(way(weight, near), weight @ near)


@pytest.mark.parametrize(
    ("places", "device", "compiling", "way"),
    [
        (9, "cuda", True, neighbours._beside_as_sum),
        (9, "cuda", False, torch.matmul),
        (16, "cuda", True, neighbours._beside_by_blocks),
        (16, "cuda", False, neighbours._beside_by_blocks),
        (16, "cpu", True, torch.matmul),
        (9, "cpu", False, torch.matmul),
    ],
)
def test_the_way_is_chosen_by_places_and_device(places: int, device: str, compiling: bool, way: Any) -> None:
    assert neighbours._way_beside(places, device, compiling) is way
