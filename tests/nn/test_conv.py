import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

import bqn
from tests.nn.contract import LayerContract, assert_named_error, random_categorical


class TestConv2dClt(LayerContract):
    input_shape = (1, 1, 2, 3)
    moments_only = True

    def create_layer(self) -> bqn.nn.Layer:
        return bqn.nn.Conv2d(1, 2, 2, padding=(1, 0), stride=(1, 2), method="clt")


class TestConv2dGroupsTernary(LayerContract):
    input_shape = (1, 2, 1, 2)
    input_levels = bqn.TERNARY
    moments_only = True

    def create_layer(self) -> bqn.nn.Layer:
        return bqn.nn.Conv2d(2, 2, (1, 2), groups=2, padding=(0, 1), levels=bqn.TERNARY, bias=False, method="clt")


class TestConv2dTernaryWeightsBinaryInput(LayerContract):
    input_shape = (1, 1, 2, 2)
    moments_only = True

    def create_layer(self) -> bqn.nn.Layer:
        return bqn.nn.Conv2d(1, 1, 2, padding=1, levels=(-1.0, 0.0, 2.0), method="clt")


class TestDepthwiseExact(LayerContract):
    """Small fan-in and discrete input: `auto` is exact, padding included."""

    input_shape = (1, 2, 2, 2)

    def create_layer(self) -> bqn.nn.Layer:
        return bqn.nn.Conv2d(2, 2, (2, 1), groups=2, padding=(1, 0), bias=True)


class TestConv1dFft(LayerContract):
    input_shape = (1, 2, 3)

    def create_layer(self) -> bqn.nn.Layer:
        return bqn.nn.Conv1d(2, 2, 2, dilation=2, padding=1, method="fft")


class TestConv1dContract(LayerContract):
    input_shape = (1, 1, 4)
    input_levels = (-1.0, 0.7)

    def create_layer(self) -> bqn.nn.Layer:
        return bqn.nn.Conv1d(1, 2, 2, stride=2, levels=(-1.0, 2**0.5), method="contract")


@given(
    groups=st.sampled_from([1, 2]),
    kernel=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    stride=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    padding=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    dilation=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    levels=st.sampled_from([bqn.BINARY, (-2.0, 2.0), bqn.TERNARY, (0.0, 1.0)]),
    kind=st.sampled_from(["tensor", "gaussian", "binary", "ternary"]),
)
def test_moments_equal_torch_convolutions(groups, kernel, stride, padding, dilation, levels, kind) -> None:  # type: ignore[no-untyped-def]
    """C.3 written with torch's own convolution: M * μ and M² * ν + V * (μ² + ν), whatever the geometry."""
    torch.manual_seed(0)
    layer = bqn.nn.Conv2d(
        4, 6, kernel, stride, padding, levels=levels, dilation=dilation, groups=groups, method="clt"
    ).double()
    shape = (2, 4, 7, 6)
    x = {
        "tensor": torch.randn(shape, dtype=torch.float64),
        "gaussian": bqn.Gaussian(torch.randn(shape).double(), torch.rand(shape).double()),
        "binary": random_categorical(shape, bqn.BINARY),
        "ternary": random_categorical(shape, bqn.TERNARY),
    }[kind]
    mean, var = (x, torch.zeros_like(x)) if isinstance(x, torch.Tensor) else (x.mean, x.var)
    M, V = layer.weight.mean, layer.weight.var
    how = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    result = layer(x)
    assert_close(result.mean, F.conv2d(mean, M, layer.bias.mean, **how))
    expected = F.conv2d(var, M.square(), layer.bias.var, **how) + F.conv2d(mean.square() + var, V, **how)
    assert_close(result.var, expected, rtol=1e-6, atol=1e-9)


def test_padding_adds_neither_mean_nor_variance() -> None:
    """A border output equals that of a smaller kernel without the padded part."""
    layer = bqn.nn.Conv2d(1, 1, 3, padding=1, bias=False, method="clt").double()
    x = random_categorical((1, 1, 1, 1), bqn.BINARY)
    M, V = layer.weight.mean[0, 0, 1, 1], layer.weight.var[0, 0, 1, 1]
    result = layer(x)
    assert_close(result.mean.squeeze(), M * x.mean.squeeze())
    assert_close(result.var.squeeze(), M**2 * x.var.squeeze() + V)


def test_auto_is_exact_for_depthwise_and_clt_for_large_fan_in() -> None:
    x = random_categorical((1, 4, 5, 5), bqn.BINARY)
    assert isinstance(bqn.nn.Conv2d(4, 4, 3, groups=4).double()(x), bqn.Categorical)
    assert isinstance(bqn.nn.Conv2d(4, 4, 3).double()(x), bqn.Gaussian)
    assert isinstance(bqn.nn.Conv2d(4, 4, 3, groups=4).double()(x.mean), bqn.Gaussian)


def test_saves_no_more_for_backward_than_a_plain_layer_and_the_mean_weights() -> None:
    layer = bqn.nn.Conv2d(3, 5, 3, padding=1, bias=False, method="clt")
    x = bqn.Categorical.of(bqn.BINARY, mean=torch.rand(2, 3, 6, 6, requires_grad=True))
    layer.weight.belief()
    large: list[tuple[int, ...]] = []

    def note(tensor: torch.Tensor) -> torch.Tensor:
        seen.setdefault(tensor.untyped_storage().data_ptr(), tensor)
        return tensor

    seen: dict[int, torch.Tensor] = {}
    with torch.autograd.graph.saved_tensors_hooks(note, lambda t: t):
        layer(x).var.sum()
    large = [tuple(t.shape) for t in seen.values() if t.numel() > 5]
    # the input (as in a plain layer) and the mean weights (the one more); no squares, no variances
    assert sorted(large) == sorted([(2, 3, 6, 6), (5, 3, 3, 3)])


@pytest.mark.parametrize("method", ["auto", "fft"])
def test_off_lattice_levels(method: str) -> None:
    layer = bqn.nn.Conv1d(1, 1, 5, levels=(-1.0, 2**0.5), method=method).double()
    x = random_categorical((1, 1, 6), (-1.0, 3**0.5))
    if method == "fft":
        assert_named_error(lambda: layer(x), "levels", "lattice")
    else:
        assert isinstance(layer(x), bqn.Gaussian)


def test_bad_arguments_are_named() -> None:
    assert_named_error(lambda: bqn.nn.Conv2d(3, 4, 3, groups=2), "groups")
    assert_named_error(lambda: bqn.nn.Conv2d(3, 4, (3, 3, 3)), "kernel_size")
    assert_named_error(lambda: bqn.nn.Conv2d(3, 4, 0), "kernel_size")
    assert_named_error(lambda: bqn.nn.Conv2d(3, 4, 3, stride=0), "stride")
    assert_named_error(lambda: bqn.nn.Conv2d(3, 4, 3, padding=-1), "padding")
    layer = bqn.nn.Conv2d(3, 4, 3)
    assert_named_error(lambda: layer(torch.zeros(2, 4, 5, 5)), "x", "3 features")
    assert_named_error(lambda: layer(torch.zeros(3, 5, 5)), "x", "4 dimensions")
    assert_named_error(lambda: layer(torch.zeros(2, 3, 2, 5)), "x", "kernel")
