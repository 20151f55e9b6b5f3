import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

import bqn
from bqn.propagate import pooling
from tests.nn.contract import LayerContract, assert_named_error, random_categorical


class TestAvgPool2d(LayerContract):
    input_shape = (1, 1, 2, 3)

    def create_layer(self) -> bqn.nn.Layer:
        return bqn.nn.AvgPool2d((2, 1))


class TestAvgPool2dPaddedOverlapping(LayerContract):
    input_shape = (1, 1, 3, 2)
    input_levels = bqn.BINARY

    def create_layer(self) -> bqn.nn.Layer:
        return bqn.nn.AvgPool2d(2, stride=1, padding=1)


class TestAvgPool1dClt(LayerContract):
    input_shape = (1, 2, 3)
    moments_only = True

    def create_layer(self) -> bqn.nn.Layer:
        return bqn.nn.AvgPool1d(2, method="clt")


class TestAvgPool1dOffLattice(LayerContract):
    input_shape = (1, 1, 4)
    input_levels = (-1.0, 0.0, 2**0.5)

    def create_layer(self) -> bqn.nn.Layer:
        return bqn.nn.AvgPool1d(2, method="contract")


class TestMaxPool2d(LayerContract):
    input_shape = (1, 1, 2, 4)

    def create_layer(self) -> bqn.nn.Layer:
        return bqn.nn.MaxPool2d(2)


class TestMaxPool2dManyLevelsPadded(LayerContract):
    input_shape = (1, 1, 2, 3)
    input_levels = bqn.TERNARY

    def create_layer(self) -> bqn.nn.Layer:
        return bqn.nn.MaxPool2d(3, stride=1, padding=1)


class TestMaxPool2dBinaryPadded(LayerContract):
    input_shape = (1, 1, 2, 3)

    def create_layer(self) -> bqn.nn.Layer:
        return bqn.nn.MaxPool2d(2, stride=1, padding=1)


class TestMaxPool1d(LayerContract):
    input_shape = (1, 2, 3)
    input_levels = bqn.QUATERNARY

    def create_layer(self) -> bqn.nn.Layer:
        return bqn.nn.MaxPool1d(2, stride=1)


class TestProbPool2d(LayerContract):
    input_shape = (1, 1, 2, 4)

    def create_layer(self) -> bqn.nn.Layer:
        return bqn.nn.ProbPool2d(2)


class TestProbPool1dWeighted(LayerContract):
    input_shape = (1, 1, 4)
    input_levels = bqn.TERNARY

    def create_layer(self) -> bqn.nn.Layer:
        return bqn.nn.ProbPool1d(3, stride=1, weights=(0.2, 0.5, 0.3))


def test_average_of_binary_values_has_five_levels() -> None:
    result = bqn.nn.AvgPool2d(2)(random_categorical((1, 2, 4, 4), bqn.BINARY))
    assert result.level_values == (-1.0, -0.5, 0.0, 0.5, 1.0)


def test_average_of_gaussians_divides_the_variance_twice() -> None:
    x = bqn.Gaussian(torch.randn(2, 3, 4, 4), torch.rand(2, 3, 4, 4))
    result = bqn.nn.AvgPool2d(2)(x)
    assert_close(result.mean, F.avg_pool2d(x.mean, 2))
    assert_close(result.var, F.avg_pool2d(x.var, 2) / 4)


@pytest.mark.parametrize("size", [2, 4, 9])
def test_maximum_of_gaussians_against_samples(size: int) -> None:
    mean, var = torch.randn(20, size, dtype=torch.float64), torch.rand(20, size, dtype=torch.float64) + 0.05
    result = pooling.maximum_gaussian(bqn.Gaussian(mean, var))
    draws = (mean + var.sqrt() * torch.randn(100_000, 20, size, dtype=torch.float64)).amax(-1)
    mean_error = ((result.mean - draws.mean(0)) / draws.std(0)).abs()
    var_error = (result.var / draws.var(0)).log().abs()
    # exact for two; beyond, the chain of normal approximations is off by a few percent (measured, see the docstring)
    allowed_mean, allowed_var, allowed_average = (0.016, 0.04, 0.02) if size == 2 else (0.06, 0.45, 0.15)
    assert mean_error.max() < allowed_mean
    assert var_error.max() < allowed_var
    assert var_error.mean() < allowed_average


def test_maximum_of_gaussians_without_variance_and_with_padding() -> None:
    x = torch.randn(1, 2, 4, 4)
    certain = bqn.Gaussian(x, torch.zeros_like(x))
    for pool in (bqn.nn.MaxPool2d(2), bqn.nn.MaxPool2d(3, stride=2, padding=1)):
        assert_close(pool(certain).mean, pool(x))
        assert_close(pool(certain).var, torch.zeros_like(pool(x)))


def test_maximum_of_gaussians_gradcheck() -> None:
    mean = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    var = (torch.rand(3, 4, dtype=torch.float64) + 0.1).requires_grad_()

    def run(m: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        result = pooling.maximum_gaussian(bqn.Gaussian.of(m, v))
        return result.mean, result.var

    assert torch.autograd.gradcheck(run, (mean, var))


def test_choice_among_gaussians_is_a_mixture() -> None:
    pool = bqn.nn.ProbPool1d(2, weights=(0.3, 0.7)).double()
    x = bqn.Gaussian(torch.randn(2, 1, 4).double(), torch.rand(2, 1, 4).double())
    result = pool(x)
    a, b = x[..., 0::2], x[..., 1::2]
    mean = 0.3 * a.mean + 0.7 * b.mean
    assert_close(result.mean, mean)
    assert_close(result.var, 0.3 * (a.var + a.mean**2) + 0.7 * (b.var + b.mean**2) - mean**2)
    assert_close(pool(x.mean).var, 0.3 * a.mean**2 + 0.7 * b.mean**2 - mean**2)


def test_tensors_pool_as_in_torch() -> None:
    x = torch.randn(2, 3, 6, 6)
    assert_close(bqn.nn.AvgPool2d(2, padding=1)(x), F.avg_pool2d(x, 2, padding=1))
    assert_close(bqn.nn.MaxPool2d(3, 2, 1)(x), F.max_pool2d(x, 3, 2, 1))
    assert_close(bqn.nn.MaxPool1d(2)(x[0]), F.max_pool1d(x[0], 2))
    assert bqn.nn.AvgPool2d(2)(x[:0]).shape == bqn.nn.MaxPool2d(2)(x[:0]).shape == (0, 3, 3, 3)


def test_bad_arguments_are_named() -> None:
    assert_named_error(lambda: bqn.nn.AvgPool2d(0), "kernel_size")
    assert_named_error(lambda: bqn.nn.MaxPool2d(2, padding=2), "padding", "half")
    assert_named_error(lambda: bqn.nn.AvgPool2d(2, method="best"), "method")
    assert_named_error(lambda: bqn.nn.ProbPool2d(2, weights=(0.5, 0.5)), "weights", "4 probabilities")
    assert_named_error(lambda: bqn.nn.ProbPool1d(2, weights=(0.5, 0.6)), "weights", "sum to one")
    assert_named_error(lambda: bqn.nn.AvgPool2d(2)(torch.zeros(2, 3, 4)), "x", "4 dimensions")
    assert_named_error(lambda: bqn.nn.MaxPool2d(5)(torch.zeros(2, 3, 4, 4)), "x", "window")
    gaussian = bqn.Gaussian(torch.zeros(1, 1, 2, 2), torch.ones(1, 1, 2, 2))
    assert_named_error(lambda: bqn.nn.AvgPool2d(2, method="fft")(gaussian), "method", "real-valued")
