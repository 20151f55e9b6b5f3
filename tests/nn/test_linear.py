import pytest
import torch
from torch.testing import assert_close

import bqn
from bqn.propagate import clt
from tests.nn.contract import LayerContract, assert_named_error, random_categorical


class TestLinearClt(LayerContract):
    input_shape = (1, 4)
    moments_only = True

    def create_layer(self) -> bqn.nn.Layer:
        return bqn.nn.Linear(4, 2, method="clt")


class TestLinearCltTernary(LayerContract):
    input_shape = (1, 3)
    input_levels = bqn.TERNARY
    moments_only = True

    def create_layer(self) -> bqn.nn.Layer:
        return bqn.nn.Linear(3, 2, levels=bqn.TERNARY, bias_levels=(-0.5, 0.25, 2.0), method="clt")


class TestLinearCltTernaryWeightsBinaryInput(LayerContract):
    input_shape = (1, 3)
    moments_only = True

    def create_layer(self) -> bqn.nn.Layer:
        return bqn.nn.Linear(3, 2, levels=(-1.0, 0.5, 3.0), bias=False, method="clt")


class TestLinearFft(LayerContract):
    input_shape = (1, 4)

    def create_layer(self) -> bqn.nn.Layer:
        return bqn.nn.Linear(4, 2, method="fft")


class TestLinearFftQuaternary(LayerContract):
    input_shape = (1, 3)
    input_levels = bqn.TERNARY

    def create_layer(self) -> bqn.nn.Layer:
        return bqn.nn.Linear(3, 1, levels=bqn.QUATERNARY, bias_levels=(-0.5, 0.5), method="fft")


class TestLinearContractOffLattice(LayerContract):
    input_shape = (1, 3)
    input_levels = (-1.0, 2**0.5)

    def create_layer(self) -> bqn.nn.Layer:
        return bqn.nn.Linear(3, 2, levels=(-(3**0.5), 1.0), bias=False, method="contract")


def _two_products(layer: bqn.nn.Linear, x: bqn.Belief) -> tuple[torch.Tensor, torch.Tensor]:
    """C.3 as printed: M μ + b and M² ν + V (μ² + ν)."""
    M, V = layer.weight.mean, layer.weight.var
    mean, var = (x, torch.zeros_like(x)) if isinstance(x, torch.Tensor) else (x.mean, x.var)
    return mean @ M.T + layer.bias.mean, var @ M.square().T + (mean.square() + var) @ V.T + layer.bias.var


@pytest.mark.parametrize("levels", [bqn.BINARY, (-2.0, 2.0), (0.0, 1.0), bqn.TERNARY, (-1.0, 0.3, 4.0)])
@pytest.mark.parametrize("kind", ["tensor", "gaussian", "binary", "quaternary"])
def test_clt_equals_the_formula_for_every_pair_of_kinds(levels: tuple[float, ...], kind: str) -> None:
    layer = bqn.nn.Linear(40, 7, levels=levels, method="clt").double()
    x = {
        "tensor": torch.randn(5, 40, dtype=torch.float64),
        "gaussian": bqn.Gaussian(torch.randn(5, 40).double(), torch.rand(5, 40).double()),
        "binary": random_categorical((5, 40), (-2.0, 2.0)),
        "quaternary": random_categorical((5, 40), bqn.QUATERNARY),
    }[kind]
    mean, var = _two_products(layer, x)
    result = layer(x)
    assert isinstance(result, bqn.Gaussian)
    assert_close(result.mean, mean)
    assert_close(result.var, var)


def test_leading_replica_dimension_without_vmap() -> None:
    layer = bqn.nn.Linear(6, 3, method="clt").double()
    replicas = torch.randn(4, 3, 6, 2, dtype=torch.float64)
    bias = torch.randn(4, 3, 2, dtype=torch.float64)
    x = random_categorical((4, 5, 6), bqn.BINARY)
    state = {"weight.logits": replicas, "bias.logits": bias}
    result = torch.func.functional_call(layer, state, (x,))
    for i in range(4):
        alone = torch.func.functional_call(layer, {"weight.logits": replicas[i], "bias.logits": bias[i]}, (x[i],))
        assert_close(result.mean[i], alone.mean)
        assert_close(result.var[i], alone.var)


def test_extra_leading_dimensions() -> None:
    layer = bqn.nn.Linear(6, 3).double()
    x = torch.randn(2, 5, 6, dtype=torch.float64)
    whole, rows = layer(x), layer(x.reshape(10, 6))
    assert_close(whole.mean.reshape(10, 3), rows.mean)
    assert_close(whole.var.reshape(10, 3), rows.var)


def test_variance_stays_exactly_zero_for_certain_weights_and_inputs() -> None:
    layer = bqn.nn.Linear(1001, 3)
    with torch.no_grad():
        layer.weight.logits[..., 1] = torch.randn(3, 1001).sign() * 40
        layer.weight.logits[..., 0] = -layer.weight.logits[..., 1]
        layer.bias.logits[..., 0] = -40
        layer.bias.logits[..., 1] = 40
    x = bqn.Categorical.certain(torch.randn(4, 1001).sign(), bqn.BINARY)
    result = layer(x)
    assert_close(result.var, torch.zeros(4, 3), atol=1e-30, rtol=0)


def test_saves_no_more_for_backward_than_a_plain_layer_and_the_mean_weights() -> None:
    layer = bqn.nn.Linear(50, 20, bias=False)
    x = bqn.Categorical.of(bqn.BINARY, mean=torch.rand(8, 50, requires_grad=True))
    weight = layer.weight.belief()
    weight.mean.sum()  # the mean weights are computed outside, once
    saved: set[int] = set()

    def note(tensor: torch.Tensor) -> torch.Tensor:
        saved.add(tensor.untyped_storage().data_ptr())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda t: t):
        result = clt.linear(x, weight, None)
        result.var.sum()
    allowed = {x.mean.untyped_storage().data_ptr(), weight.mean.untyped_storage().data_ptr()}
    assert saved <= allowed


def test_prior_and_bias_prior() -> None:
    layer = bqn.nn.Linear(3, 2, levels=bqn.TERNARY, prior=(0.25, 0.5, 0.25))
    q = torch.softmax(layer.bias.logits, -1)
    expected = (q * (q.log() - torch.tensor([0.25, 0.5, 0.25]).log())).sum()
    assert_close(layer.bias.kl(), expected)


def test_bad_arguments_are_named() -> None:
    assert_named_error(lambda: bqn.nn.Linear(0, 2), "in_features")
    assert_named_error(lambda: bqn.nn.Linear(3, -1), "out_features")
    assert_named_error(lambda: bqn.nn.Linear(3, 2, levels=(1, -1)), "levels", "ascending")
    assert_named_error(lambda: bqn.nn.Linear(3, 2, levels=(1, 1)), "levels", "duplicate")
    assert_named_error(lambda: bqn.nn.Linear(3, 2, bias_levels=(1,)), "at least 2")
    assert_named_error(lambda: bqn.nn.Linear(3, 2, method="exact"), "method", "contract")
    assert_named_error(lambda: bqn.nn.Linear(3, 2, init="kaiming"), "init", "xavier")
    assert_named_error(lambda: bqn.nn.Linear(3, 2, prior=(0.3, 0.3)), "prior", "sum to one")
    assert_named_error(lambda: bqn.nn.Linear(3, 2, prior=(0.0, 1.0)), "prior", "positive")
    assert_named_error(lambda: bqn.nn.Linear(3, 2, prior=(0.2, 0.3, 0.5)), "prior", "2 probabilities")
    layer = bqn.nn.Linear(3, 2)
    assert_named_error(lambda: layer(torch.zeros(5, 4)), "x", "3 features", "(5, 4)")
    assert_named_error(lambda: layer(torch.zeros(3)), "x", "batch")
    assert_named_error(lambda: layer(torch.zeros(5, 3, dtype=torch.int64)), "x", "floating", kind=TypeError)
    for method in ("fft", "contract"):
        exact = bqn.nn.Linear(3, 2, method=method)
        assert_named_error(lambda exact=exact: exact(torch.zeros(5, 3)), "method", "discrete", "real-valued")
        gaussian = bqn.Gaussian(torch.zeros(5, 3), torch.ones(5, 3))
        assert_named_error(lambda exact=exact, g=gaussian: exact(g), "method", "real-valued")


def test_correction_of_a_sampled_layer_is_coarse_enough_for_exact_sums() -> None:
    """A multiple of a power of two, no further from the true shift than a hundred-thousandth of the largest sum."""
    layer = bqn.nn.Linear(50, 40)
    layer.input_centre.normal_(generator=torch.Generator().manual_seed(0))
    layer.centred_batches.add_(1)
    drawn = bqn.Network(bqn.nn.Sequential(layer), bqn.SoftmaxHead(50)).sample(torch.Generator().manual_seed(1)).body[0]
    correction = drawn._correction()
    assert_close(correction, drawn._shift() - drawn.expected_shift, atol=50 * 1e-5, rtol=0)
    grid = 64 * 2.0**-18  # the largest sum is 50
    assert bool(((correction / grid) == (correction / grid).round()).all())
    assert bool((correction != 0).any())
