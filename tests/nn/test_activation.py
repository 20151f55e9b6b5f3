import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torch.testing import assert_close

import bqn
from tests.nn.contract import LayerContract, assert_named_error


class TestSign(LayerContract):
    input_shape = (1, 4)
    input_levels = bqn.TERNARY

    def create_layer(self) -> bqn.nn.Layer:
        return bqn.nn.Sign()


class TestQuantize(LayerContract):
    input_shape = (1, 2, 2)
    input_levels = (-3.0, -0.5, 0.5, 2.0)

    def create_layer(self) -> bqn.nn.Layer:
        return bqn.nn.Quantize((-2.0, 0.0, 1.0), thresholds=(-1.0, 0.5))


class TestRandomThreshold(LayerContract):
    input_shape = (1, 2, 2)
    input_levels = bqn.TERNARY

    def create_layer(self) -> bqn.nn.Layer:
        return bqn.nn.RandomThreshold(2, shifts=(-0.5, 0.0, 1.0))


class TestRandomThresholdManyLevels(LayerContract):
    input_shape = (1, 3)
    input_levels = bqn.QUATERNARY

    def create_layer(self) -> bqn.nn.Layer:
        return bqn.nn.RandomThreshold(3, shifts=(0.0, 2.0), levels=bqn.TERNARY, thresholds=(-2.0, 1.0))


def test_sign_of_zero_is_plus_one() -> None:
    sign = bqn.nn.Sign()
    zero = torch.zeros(1, 1)
    assert sign(zero).item() == 1
    assert sign(-zero).item() == 1
    assert sign(bqn.Gaussian(zero, zero)).mean.item() == 1
    assert_close(sign(bqn.Categorical(torch.tensor([[[0.25, 0.5, 0.25]]]), bqn.TERNARY)).mean, torch.tensor([[0.5]]))


def test_value_on_a_threshold_goes_up() -> None:
    quantize = bqn.nn.Quantize(bqn.QUATERNARY)
    x = torch.tensor([[-2.0, -2.1, 0.0, 2.0, 1.9, 5.0]])
    expected = torch.tensor([[-1.0, -3.0, 1.0, 3.0, 1.0, 3.0]])
    assert_close(quantize(x), expected)
    assert_close(quantize(bqn.Gaussian(x, torch.zeros_like(x))).mean, expected)


def test_gaussian_input_against_scipy() -> None:
    levels, thresholds = (-2.0, 0.0, 0.5, 3.0), (-1.0, 0.2, 2.0)
    mean, var = torch.randn(50, dtype=torch.float64) * 3, torch.rand(50, dtype=torch.float64) * 4 + 1e-3
    result = bqn.nn.Quantize(levels, thresholds)(bqn.Gaussian(mean, var))
    cdf = stats.norm.cdf([[t] for t in thresholds], mean.numpy(), var.sqrt().numpy())
    expected = np.diff(np.vstack([np.zeros(50), cdf, np.ones(50)]), axis=0).T
    assert_close(result.probs, torch.tensor(expected), atol=1e-12, rtol=1e-9)
    assert_close(result.probs.sum(-1), torch.ones(50, dtype=torch.float64))


def test_tail_probabilities_do_not_cancel() -> None:
    """Between two thresholds 8 and 9 deviations up, one minus one would be zero."""
    x = bqn.Gaussian(torch.zeros(1, dtype=torch.float64), torch.ones(1, dtype=torch.float64))
    for sign in (1.0, -1.0):
        thresholds = sorted((8.0 * sign, 9.0 * sign))
        result = bqn.nn.Quantize((-1.0, 0.0, 1.0), thresholds)(x)
        expected = stats.norm.sf(8.0) - stats.norm.sf(9.0)
        assert_close(result.probs[0, 1].item(), expected, rtol=1e-9, atol=0)


def test_random_threshold_on_gaussian_and_tensor_is_a_mixture() -> None:
    layer = bqn.nn.RandomThreshold(3, shifts=(-1.0, 0.5)).double()
    x = bqn.Gaussian(torch.randn(4, 3).double(), torch.rand(4, 3).double())
    q = layer.shift.belief().probs
    expected = sum(q[:, i] * torch.special.ndtr((x.mean - shift) / x.var.sqrt()) for i, shift in enumerate((-1.0, 0.5)))
    assert_close(layer(x).probs[..., 1], expected)
    known = torch.tensor([[-1.0, 0.0, 0.5]], dtype=torch.float64)
    assert_close(layer(known).probs[0, :, 1], torch.stack([q[0, 0], q[1, 0], torch.ones((), dtype=torch.float64)]))


@given(mean=st.floats(-1e6, 1e6), var=st.one_of(st.just(0.0), st.floats(1e-38, 1e6)), threshold=st.floats(-10, 10))
def test_gaussian_input_is_finite_with_finite_gradients(mean: float, var: float, threshold: float) -> None:
    for levels, thresholds in ((bqn.BINARY, (threshold,)), (bqn.TERNARY, (threshold, threshold + 1))):
        m = torch.tensor([[mean]], dtype=torch.float32, requires_grad=True)
        v = torch.tensor([[var]], dtype=torch.float32, requires_grad=True)
        result = bqn.nn.Quantize(levels, thresholds)(bqn.Gaussian(m, v))
        (result.mean.sum() + result.var.sum() + result.probs.sum()).backward()
        for value in (result.mean, result.var, result.probs, m.grad, v.grad):
            assert bool(torch.isfinite(value).all())
        assert bool((result.probs >= 0).all())


def test_bad_arguments_are_named() -> None:
    assert_named_error(lambda: bqn.nn.Quantize((1.0, -1.0)), "levels", "ascending")
    assert_named_error(lambda: bqn.nn.Quantize((1.0,)), "levels", "at least 2")
    assert_named_error(lambda: bqn.nn.Quantize((-1.0, 1.0), thresholds=(0.0, 1.0)), "thresholds", "one fewer")
    assert_named_error(lambda: bqn.nn.Quantize((-1.0, 0.0, 1.0), thresholds=(1.0, 0.0)), "thresholds", "ascending")
    assert_named_error(lambda: bqn.nn.Sign()(torch.zeros(2, dtype=torch.int32)), "x", "floating", kind=TypeError)
    assert_named_error(lambda: bqn.nn.RandomThreshold(0), "num_features")
    assert_named_error(lambda: bqn.nn.RandomThreshold(3)(torch.zeros(2, 4)), "x", "3 features")


def test_levels_keep_their_digits_in_float64() -> None:
    x = torch.tensor([[-1.0, 1.0]], dtype=torch.float64)
    assert bqn.nn.Quantize((0.1, 0.7))(x).tolist() == [[0.1, 0.7]]
    layer = bqn.nn.RandomThreshold(2, levels=(0.1, 0.7)).double()
    assert_close(layer(x).probs.sum(-1), torch.ones(1, 2, dtype=torch.float64))


def test_rounding_never_makes_a_negative_probability_or_variance() -> None:
    mean = torch.linspace(-5, 5, 101).reshape(1, 1, 101)
    result = bqn.nn.Quantize((0.1, 0.3))(bqn.Gaussian(mean, torch.zeros_like(mean)))
    pooled = bqn.nn.MaxPool1d(2)(result)
    for belief in (result, pooled):
        assert bool((belief.probs >= 0).all())
        assert bool((belief.var >= 0).all())


def test_what_a_quantizer_does_is_in_its_name() -> None:
    """Packing tells architectures apart by it."""
    assert "5, levels=(-0.5, 0.5), thresholds=(0.25,)" in repr(
        bqn.nn.RandomThreshold(5, levels=(-0.5, 0.5), thresholds=(0.25,))
    )
    assert "levels=(-1.0, 1.0), thresholds=(0.5,)" in repr(bqn.nn.Quantize((-1, 1), (0.5,)))
