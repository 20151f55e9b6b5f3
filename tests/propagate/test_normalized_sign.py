"""Batch norm and sign in one step, against the two steps one after the other; Triton kernels in its interpreter."""

import math

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

import bqn
from bqn.propagate.normalization import Normalization, coefficients, normalized_moments
from bqn.propagate.normalized_sign import normalized_sign, statistics
from bqn.propagate.threshold import standardize

SHAPES = [(7, 3), (5, 4, 6), (3, 5, 4, 7), (2, 1, 1, 1)]
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
pytestmark = pytest.mark.gpu


def moments(shape: tuple[int, ...], dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(math.prod(shape))
    mean = 3 * torch.randn(shape, generator=generator, dtype=torch.float64) + 1
    var = 4 * torch.rand(shape, generator=generator, dtype=torch.float64) + 0.01
    return mean.to(dtype), var.to(dtype)


def source(mean: Tensor, var: Tensor, weight: Tensor | None, bias: Tensor | None, from_batch: bool) -> Normalization:
    centre, total = statistics(mean.detach(), var.detach())
    if not from_batch:
        centre, total = centre + 0.3, total * 1.7
    return Normalization(mean, var, centre, total + 1e-5, weight, bias, from_batch)


def affine(channels: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(channels)
    weight = torch.randn(channels, generator=generator, dtype=torch.float64)
    bias = torch.randn(channels, generator=generator, dtype=torch.float64)
    return weight.to(dtype), bias.to(dtype)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("from_batch", [True, False])
@pytest.mark.parametrize("with_affine", [True, False])
def test_equals_batch_norm_then_sign(shape: tuple[int, ...], from_batch: bool, with_affine: bool) -> None:
    """Values, and gradients by everything, also through the statistics."""
    inputs = [tensor.requires_grad_() for tensor in moments(shape)]
    if with_affine:
        inputs += [tensor.requires_grad_() for tensor in affine(shape[1])]
    mean, var, *rest = inputs
    weight, bias = rest or (None, None)
    together = normalized_sign(source(mean, var, weight, bias, from_batch))
    apart = torch.erf(
        standardize(*normalized_moments(source(mean, var, weight, bias, from_batch), 1e-5)) * math.sqrt(0.5)
    )
    assert_close(together, apart)
    upstream = torch.randn(shape, dtype=torch.float64)
    for ours, theirs in zip(
        torch.autograd.grad(together, inputs, upstream), torch.autograd.grad(apart, inputs, upstream), strict=True
    ):
        assert_close(ours, theirs)


def test_a_weight_of_zero_leaves_the_sign_of_the_bias() -> None:
    mean, var = moments((6, 3))
    weight = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    bias = torch.tensor([0.5, -0.5, 0.0], dtype=torch.float64, requires_grad=True)
    result = normalized_sign(source(mean.requires_grad_(), var, weight, bias, True))
    assert_close(result, torch.tensor([1.0, -1.0, 1.0], dtype=torch.float64).expand(6, 3))
    for grad in torch.autograd.grad(result.sum(), (mean, weight, bias)):
        assert bool((grad == 0).all())


def test_no_variance_is_certainty_and_zero_goes_up() -> None:
    mean = torch.tensor([[1.0, 0.0], [-1.0, 0.0]], requires_grad=True)
    var = torch.zeros(2, 2, requires_grad=True)
    result = normalized_sign(Normalization(mean, var, torch.zeros(2), torch.ones(2), None, None, False))
    assert_close(result, torch.tensor([[1.0, 1.0], [-1.0, 1.0]]))
    for grad in torch.autograd.grad(result.sum(), (mean, var)):
        assert bool((grad == 0).all())


def test_layers_use_it_and_agree_with_their_parts() -> None:
    """BatchNorm then Sign on a Gaussian, against a Quantize that asks for the moments."""
    norm, mirror = bqn.nn.BatchNorm1d(4), bqn.nn.BatchNorm1d(4)
    mean, var = moments((9, 4), torch.float32)
    fused = bqn.nn.Sign()(norm(bqn.Gaussian(mean, var)))
    behind = mirror(bqn.Gaussian(mean, var))
    assert_close(fused.mean, torch.erf(behind.mean / behind.var.sqrt() * math.sqrt(0.5)))
    assert_close(norm.running_mean, mirror.running_mean)
    assert_close(norm.running_var, mirror.running_var)
    moved = bqn.nn.Quantize((-1.0, 1.0), thresholds=(0.25,))(behind)  # another threshold: no short cut
    assert_close(moved.mean, torch.erf((behind.mean - 0.25) / behind.var.sqrt() * math.sqrt(0.5)))


@pytest.fixture
def kernels():
    """The Triton kernels: on a GPU where there is one, else in Triton's interpreter (tests/conftest.py)."""
    from bqn.propagate import normalized_sign_kernels

    return normalized_sign_kernels


@pytest.mark.parametrize("shape", [*SHAPES, (33, 70), (3, 65, 5, 9)])
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_kernels_against_float64(kernels, shape: tuple[int, ...], channels_last: bool, dtype: torch.dtype) -> None:
    if channels_last and len(shape) != 4:
        channels_last = False
    layout = torch.channels_last if channels_last else torch.contiguous_format
    mean, var = (tensor.to(DEVICE).to(memory_format=layout) for tensor in moments(shape, dtype))
    weight, bias = (tensor.to(DEVICE) for tensor in affine(shape[1], torch.float32))
    tight = {"rtol": 1e-4, "atol": 1e-4} if dtype == torch.float32 else {"rtol": 2e-2, "atol": 2e-2}

    centre, total = kernels.statistics(mean, var)
    wide_mean, wide_var = mean.double().requires_grad_(), var.double().requires_grad_()
    wide_weight, wide_bias = weight.double().requires_grad_(), bias.double().requires_grad_()
    reference = source(wide_mean, wide_var, wide_weight, wide_bias, True)
    assert_close(centre.double(), reference.centre, rtol=1e-4, atol=1e-4)
    assert_close((total + 1e-5).double(), reference.total, rtol=1e-4, atol=1e-4)

    sign, offset = coefficients(total + 1e-5, weight, bias)
    shift = offset - sign * centre
    expected = normalized_sign(reference)
    assert_close(kernels.forward(mean, var, sign, shift, dtype).double(), expected, **tight)

    upstream = torch.randn(shape).to(DEVICE, dtype).to(memory_format=layout)
    count = mean.numel() // shape[1]
    got = kernels.backward(upstream, mean, var, sign, offset, shift, centre, total + 1e-5, count, dtype)
    wanted = torch.autograd.grad(expected, (wide_mean, wide_var), upstream.double())
    for ours, theirs in zip(got, wanted, strict=False):
        assert ours.dtype == dtype
        assert_close(ours.double(), theirs, **tight)


def test_kernels_take_a_gradient_in_another_layout(kernels) -> None:
    mean, var = (tensor.to(DEVICE) for tensor in moments((2, 3, 4, 5), torch.float32))
    sign, offset = torch.ones(3, device=DEVICE), torch.zeros(3, device=DEVICE)
    upstream = torch.randn(2, 3, 4, 5).to(DEVICE)
    arguments = (mean, var, sign, offset, offset, offset, sign, math.inf, torch.float32)
    straight = kernels.backward(upstream, *arguments)
    turned = kernels.backward(upstream.to(memory_format=torch.channels_last), *arguments)
    for a, b in zip(straight, turned, strict=True):
        assert_close(a, b)
