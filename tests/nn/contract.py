"""The contract that every layer keeps, inherited by each layer's tests.

A test class supplies `create_layer()` and `input_shape`, and if its result is not exact in probability says so. The
truth comes from `bqn.exact.law`, which enumerates all weights, hidden variables and inputs through the layer's plain
quantized counterpart, so a layer's analytic rule and its sampled rule are held against each other.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import bqn
from bqn import exact
from bqn.nn import fix, set_generator


def random_categorical(
    shape: tuple[int, ...], levels: tuple[float, ...], dtype: torch.dtype = torch.float64
) -> bqn.Categorical:
    return bqn.Categorical.from_logits(torch.randn(*shape, len(levels), dtype=dtype) * 1.5, levels)


class LayerContract:
    """Inherit, and define the first three."""

    input_shape: tuple[int, ...]  # with a batch of one; few elements, they are enumerated
    input_levels: tuple[float, ...] = bqn.BINARY
    inputs: int = 1  # how many beliefs the layer takes
    moments_only: bool = False  # whether only mean and variance are exact, as for sums by the CLT

    def create_layer(self) -> bqn.nn.Layer:
        raise AssertionError("a test class must say how to make its layer")

    # --- tools ---------------------------------------------------------------------------------------------------

    def layer(self, dtype: torch.dtype = torch.float64) -> bqn.nn.Layer:
        layer = self.create_layer().to(dtype)
        for posterior in (m for m in layer.modules() if isinstance(m, bqn.nn.Posterior)):
            with torch.no_grad():
                posterior.logits.normal_().mul_(1.5)
        return layer.eval()

    def beliefs(self, batch: int = 1, dtype: torch.dtype = torch.float64) -> tuple[bqn.Categorical, ...]:
        shape = (batch, *self.input_shape[1:])
        return tuple(random_categorical(shape, self.input_levels, dtype) for _ in range(self.inputs))

    # --- what holds for every layer ------------------------------------------------------------------------------

    def test_moments_are_those_of_the_enumerated_truth(self) -> None:
        layer, inputs = self.layer(), self.beliefs()
        truth = exact.law(layer, *inputs).moments()
        result = layer(*inputs)
        torch.testing.assert_close(result.mean, truth.mean, rtol=1e-9, atol=1e-10)
        torch.testing.assert_close(result.var, truth.var, rtol=1e-8, atol=1e-9)

    def test_probabilities_are_those_of_the_enumerated_truth(self) -> None:
        layer, inputs = self.layer(), self.beliefs()
        result = layer(*inputs)
        if self.moments_only:
            assert isinstance(result, bqn.Gaussian)
            return
        assert isinstance(result, bqn.Categorical)
        truth = exact.law(layer, *inputs).marginals(result.levels)
        torch.testing.assert_close(truth.sum(-1), torch.ones_like(truth[..., 0]))  # the support is complete
        torch.testing.assert_close(result.probs, truth, rtol=1e-8, atol=1e-9)

    def test_mean_and_variance_agree_with_the_probabilities(self) -> None:
        result = self.layer()(*self.beliefs(batch=3))
        if isinstance(result, bqn.Categorical):
            mean = (result.probs * result.levels).sum(-1)
            torch.testing.assert_close(result.mean, mean)
            square = (result.probs * result.levels.square()).sum(-1)
            torch.testing.assert_close(result.var, square - mean.square(), atol=1e-9, rtol=1e-7)
        assert bool((result.var >= 0).all())

    def test_gradcheck(self) -> None:
        layer = self.layer()
        names = [name for name, _ in layer.named_parameters()]
        logits = [
            torch.randn(*self.input_shape, len(self.input_levels), dtype=torch.float64, requires_grad=True)
            for _ in range(self.inputs)
        ]

        def run(*tensors: Tensor) -> tuple[Tensor, Tensor]:
            given = [bqn.Categorical.from_logits(t, self.input_levels) for t in tensors[: self.inputs]]
            params = dict(zip(names, tensors[self.inputs :], strict=True))
            result = torch.func.functional_call(layer, params, tuple(given))
            return result.mean, result.var

        params = [p.detach().clone().requires_grad_() for p in layer.parameters()]
        assert torch.autograd.gradcheck(run, (*logits, *params), atol=1e-6)

    def test_gaussian_input_has_the_moments_of_its_kind(self) -> None:
        """Where only moments matter, a Gaussian with the moments of a Categorical gives the same result."""
        layer, inputs = self.layer(), self.beliefs(batch=2)
        if not self.moments_only:
            return
        gaussians = [bqn.Gaussian(x.mean.detach(), x.var.detach()) for x in inputs]
        one, other = layer(*inputs), layer(*gaussians)
        torch.testing.assert_close(one.mean, other.mean)
        torch.testing.assert_close(one.var, other.var)

    def test_examples_do_not_see_each_other(self) -> None:
        layer, inputs = self.layer(), self.beliefs(batch=3)
        whole = layer(*inputs)
        for i in range(3):
            alone = layer(*(x[i : i + 1] for x in inputs))
            torch.testing.assert_close(whole.mean[i : i + 1], alone.mean)
            torch.testing.assert_close(whole.var[i : i + 1], alone.var)

    def test_empty_batch_gives_an_empty_result(self) -> None:
        layer = self.layer()
        full = layer(*self.beliefs(batch=2))
        empty = layer(*(x[:0] for x in self.beliefs(batch=2)))
        assert tuple(empty.mean.shape) == (0, *full.mean.shape[1:])
        assert tuple(empty.var.shape) == (0, *full.var.shape[1:])

    @pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-5), (torch.float64, 1e-10)])
    def test_dtypes(self, dtype: torch.dtype, tolerance: float) -> None:
        layer, inputs = self.layer(), self.beliefs(batch=2)
        expected = layer(*inputs)
        result = copy.deepcopy(layer).to(dtype)(
            *(bqn.Categorical(x.probs.to(dtype), self.input_levels) for x in inputs)
        )
        assert result.mean.dtype == result.var.dtype == dtype
        torch.testing.assert_close(result.mean.double(), expected.mean, rtol=tolerance, atol=tolerance)
        torch.testing.assert_close(result.var.double(), expected.var, rtol=tolerance, atol=tolerance)

    def test_state_dict_round_trip(self) -> None:
        layer, inputs = self.layer(), self.beliefs()
        other = self.create_layer().double().eval()
        other.load_state_dict(layer.state_dict())
        torch.testing.assert_close(other(*inputs).mean, layer(*inputs).mean, rtol=0, atol=0)

    def test_fixed_layer_is_plain(self) -> None:
        layer = self.layer()
        values = tuple(x.sample(torch.Generator().manual_seed(1)) for x in self.beliefs(batch=2))
        posteriors = sum(isinstance(m, bqn.nn.Posterior) for m in layer.modules())
        for choose in (lambda p: p.sample(torch.Generator().manual_seed(2)), lambda p: p.mode()):
            plain = fix(layer, choose)
            assert not any(isinstance(m, bqn.nn.Posterior) for m in plain.modules())
            assert sum(isinstance(m, bqn.nn.Posterior) for m in layer.modules()) == posteriors  # the original stays
            assert isinstance(plain(*values), Tensor)

    def test_mode_agrees_with_a_certain_posterior(self) -> None:
        """As the posterior and the inputs become certain, the analytic result becomes that of the MAP network."""
        layer = self.layer()
        if any(isinstance(m, bqn.nn.HiddenVariableLayer) for m in layer.modules()):
            return  # their randomness is not in the weights
        for posterior in (m for m in layer.modules() if isinstance(m, bqn.nn.Posterior)):
            with torch.no_grad():
                posterior.logits.copy_(torch.where(posterior.logits == posterior.logits.amax(-1, True), 40.0, -40.0))
        values = tuple(x.mode() for x in self.beliefs(batch=2))
        result = layer(*(bqn.Categorical.certain(v, self.input_levels) for v in values))
        torch.testing.assert_close(result.mean, fix(layer, lambda p: p.mode())(*values))
        torch.testing.assert_close(result.var, torch.zeros_like(result.var), atol=1e-9, rtol=0)

    def test_samples_have_the_analytic_moments(self) -> None:
        """Mean of drawn layers within five standard errors, element by element."""
        layer, inputs = self.layer(), self.beliefs()
        expected = layer(*inputs)
        generator, count = torch.Generator().manual_seed(0), 600
        draws = torch.stack([_draw(layer, inputs, generator) for _ in range(count)])
        error = (expected.var / count).sqrt()
        rare = 10 / count  # a handful of rare events is far from normal
        assert bool(((draws.mean(0) - expected.mean).abs() <= 5 * error + rare).all())
        fourth = (draws - expected.mean).pow(4).mean(0)
        var_error = (fourth - expected.var.square()).clamp_min(0).div(count).sqrt()
        spread = (draws - expected.mean).square().mean(0)
        assert bool(((spread - expected.var).abs() <= 6 * var_error + 2 * rare).all())

    def test_works_inside_vmap(self) -> None:
        """Replicas: stacked parameters and inputs through `vmap` give what each replica gives alone."""
        layers = [self.layer() for _ in range(2)]
        state = torch.func.stack_module_state(layers)
        logits = [torch.randn(2, *self.input_shape, len(self.input_levels), dtype=torch.float64)] * self.inputs

        def run(params: dict[str, Tensor], buffers: dict[str, Tensor], *tensors: Tensor) -> tuple[Tensor, Tensor]:
            given = tuple(bqn.Categorical.from_logits(t, self.input_levels) for t in tensors)
            result = torch.func.functional_call(layers[0], (params, buffers), given)
            return result.mean, result.var

        mean, var = torch.func.vmap(run)(*state, *logits)
        for i, layer in enumerate(layers):
            alone = layer(*(bqn.Categorical.from_logits(t[i], self.input_levels) for t in logits))
            torch.testing.assert_close(mean[i], alone.mean)
            torch.testing.assert_close(var[i], alone.var)

    def test_one_hot_beliefs_have_finite_gradients(self) -> None:
        layer = self.layer()
        for posterior in (m for m in layer.modules() if isinstance(m, bqn.nn.Posterior)):
            with torch.no_grad():
                posterior.logits.copy_(one_hot_logits(posterior.logits))
        logits = [
            one_hot_logits(torch.randn(*self.input_shape, len(self.input_levels))).requires_grad_()
            for _ in range(self.inputs)
        ]
        layer = layer.float()
        result = layer(*(bqn.Categorical.from_logits(t, self.input_levels) for t in logits))
        (result.mean.sum() + result.var.sum()).backward()
        for tensor in (*logits, *layer.parameters()):
            assert tensor.grad is None or bool(torch.isfinite(tensor.grad).all())
        assert bool(torch.isfinite(result.mean).all())
        assert bool(torch.isfinite(result.var).all())


def one_hot_logits(scores: Tensor) -> Tensor:
    """+40 at the largest score, -40 elsewhere."""
    return torch.where(scores == scores.amax(-1, keepdim=True), 40.0, -40.0).to(scores.dtype)


def _draw(layer: bqn.nn.Layer, inputs: tuple[bqn.Categorical, ...], generator: torch.Generator) -> Tensor:
    plain = fix(layer, lambda posterior: posterior.sample(generator))
    set_generator(plain, generator)
    return plain(*(x.sample(generator) for x in inputs))


def assert_named_error(call: Callable[[], object], *words: str, kind: type[Exception] = ValueError) -> None:
    """The call fails with a message that contains all words."""
    with pytest.raises(kind) as caught:
        call()
    for word in words:
        assert word in str(caught.value), f"{word!r} not in {caught.value!s}"
