"""Each compiled part of a training step against the same in plain torch, in float64: values and all gradients."""

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

import bqn
from bqn.beliefs import Categorical, Gaussian
from bqn.heads import SoftmaxHead
from bqn.levels import BINARY
from bqn.propagate import clt, compiled, cpu, together, units
from bqn.propagate.normalization import Normalization
from bqn.propagate.normalized_sign import normalized_sign
from bqn.propagate.threshold import quantize
from tests.propagate.test_normalized_sign import SHAPES, affine, moments, source

Outputs = Sequence[Tensor | None]


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def agree(
    fast: Callable[..., Outputs], plain: Callable[..., Outputs], inputs: Sequence[Tensor], tolerance: float = 2e-5
) -> None:
    """`fast` on inputs in float32 and `plain` on the same in float64 have the same values and gradients."""
    found, wanted = [], []
    for function, dtype, results in ((fast, torch.float32, found), (plain, torch.float64, wanted)):
        given = [tensor.detach().to(dtype).requires_grad_() for tensor in inputs]
        values = [value for value in function(*given) if value is not None]
        generator = torch.Generator().manual_seed(1)
        total = sum(
            (value * torch.randn(value.shape, generator=generator, dtype=torch.float64).to(dtype)).sum()
            for value in values
        )
        results += [value.detach().double() for value in values]
        results += [grad.double() for grad in torch.autograd.grad(total, given)]
    for ours, theirs in zip(found, wanted, strict=True):
        scale = float(theirs.abs().max()) if theirs.numel() else 0.0
        assert_close(ours, theirs, rtol=tolerance, atol=tolerance * scale + 1e-12)


def without_kernels(function: Callable[..., Outputs], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Outputs]:
    def plain(*inputs: Tensor) -> Outputs:
        with monkeypatch.context() as patch:
            patch.setattr(cpu, "_library", None)
            return function(*inputs)

    return plain


@pytest.mark.parametrize("levels", [BINARY, (-0.5, 0.5)])
@pytest.mark.parametrize("sizes", [(1, 1, 1), (5, 7, 3), (33, 65, 17)])
@pytest.mark.parametrize("inputs", ["known", "signs"])
@pytest.mark.parametrize("centred", [True, False])
@pytest.mark.parametrize("with_bias", [True, False])
def test_moments(
    levels: tuple[float, float], sizes: tuple[int, int, int], inputs: str, centred: bool, with_bias: bool
) -> None:
    """The whole layer, by its posterior, in front of batch norm and elsewhere."""
    examples, width, units = sizes
    x = 2 * torch.rand(examples, width) - 1 if inputs == "signs" else 3 * torch.randn(examples, width)

    def layer(x: Tensor, logits: Tensor, bias: Tensor) -> Outputs:
        kernels = x.dtype == torch.float32
        half, (tilt, noise) = levels[1], compiled.tilt_and_kl(logits)[:2] if kernels else (None, None)
        weight = Categorical.of_logits(logits, levels, tilt, noise)
        if half != 1:
            weight.var  # noqa: B018 - so that it is at hand
        assert weight.var_at_hand == kernels or half != 1
        belief = Categorical.of(BINARY, mean=x) if inputs == "signs" else x
        statistics = clt.BatchStatistics(lambda mean, _: mean.mean(0), lambda measure, _: measure())
        known = bias if with_bias else None
        result = clt.linear(belief, weight, known, statistics=statistics)
        result = result.within_batch(0.1) if centred else result
        assert (result.var.grad_fn.name() == "_MomentsBackward") == kernels  # type: ignore[union-attr]
        return result.mean, result.var, 0 * bias

    agree(layer, layer, [x, torch.randn(units, width, 2), torch.randn(units)])


def test_moments_of_what_is_certain_have_no_variance() -> None:
    x, weight = torch.ones(4, 5), torch.ones(3, 5)
    mean, var = compiled.moments(x, None, weight, torch.zeros(3, 5), None, 1.0, 1.0)
    assert_close(mean, torch.full((4, 3), 5.0))
    assert_close(var, torch.zeros(4, 3))
    _, var = compiled.moments(1.0001 * x, None, weight, torch.zeros(3, 5), None, 1.0, 1.0)
    assert bool((var >= 0).all())  # a rounded mean may lie a hair outside


def test_moments_of_rows_that_are_not_contiguous() -> None:
    layer = bqn.nn.Linear(6, 3)
    x = torch.randn(6, 5).mT
    with bqn.nn.computed_once(layer):
        apart, together = layer(x), layer(x.contiguous())
        assert_close(apart.mean, together.mean)
        assert_close(apart.var, together.var)


@pytest.mark.parametrize("shape", [*SHAPES, (33, 70), (3, 65, 5, 9)])
@pytest.mark.parametrize("from_batch", [True, False])
@pytest.mark.parametrize("with_affine", [True, False])
def test_normalized_sign(
    shape: tuple[int, ...], from_batch: bool, with_affine: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sign(mean: Tensor, var: Tensor, *affine: Tensor) -> Outputs:
        weight, bias = affine or (None, None)
        return [normalized_sign(source(mean, var, weight, bias, from_batch))]

    inputs = [*moments(shape), *(affine(shape[1]) if with_affine else ())]
    agree(sign, without_kernels(sign, monkeypatch), inputs, 1e-4)


@pytest.mark.parametrize("shape", [(1, 1), (7, 3), (33, 70)])
@pytest.mark.parametrize("levels", [BINARY, (0.0, 3.0)])
@pytest.mark.parametrize("from_batch", [True, False])
def test_slopes_of_signs(
    shape: tuple[int, ...], levels: tuple[float, float], from_batch: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They come with the sign, where plain torch finds them from its mean when they are asked for."""

    def slopes(mean: Tensor, var: Tensor, weight: Tensor, bias: Tensor) -> Outputs:
        belief = Gaussian.of(mean, var, units=units.that_read(Gaussian.of(mean, var), weight))
        belief.origin = source(mean, var, weight, bias, from_batch)
        result = quantize(belief, levels, (0.0,))
        assert isinstance(result, Categorical)
        assert result.units is not None
        assert result.units.slope is not None
        assert result.units.from_batch == from_batch
        return result.mean, result.units.slope()

    mean, var = moments(shape)
    inputs = [0.3 * mean, var + 1, *affine(shape[1])]  # far from certain, where plain torch cuts the slopes off
    agree(slopes, without_kernels(slopes, monkeypatch), inputs, 1e-4)


def test_a_sign_whose_batch_norm_has_no_weight_left_is_that_of_the_bias() -> None:
    mean, var = torch.randn(4, 3), torch.rand(4, 3)
    weight, bias = torch.zeros(3), torch.tensor([1.0, -1.0, 0.0])
    inputs = [tensor.requires_grad_() for tensor in (mean, var, weight, bias)]
    known = Normalization(*inputs[:2], torch.zeros(3), torch.ones(3), *inputs[2:], True)
    tilt, slope = compiled.normalized_sign_and_slope(known)
    assert_close(tilt, torch.tensor([1.0, -1.0, 1.0]).expand(4, 3))
    assert_close(slope, torch.zeros(4, 3))
    for grad in torch.autograd.grad(tilt.sum() + slope.sum(), inputs):
        assert_close(grad, torch.zeros_like(grad))


@pytest.mark.parametrize("sizes", [(1, 1, 2, 1), (5, 12, 7, 3), (33, 65, 17, 32)])
@pytest.mark.parametrize("levels", [BINARY, (0.0, 3.0)])
def test_common_noise(
    sizes: tuple[int, int, int, int], levels: tuple[float, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    examples, inputs, width, outputs = sizes
    low, high = levels
    read = low + (high - low) * torch.rand(examples, inputs, dtype=torch.float64)

    def noise(outer: Tensor, slope: Tensor, inner: Tensor, read: Tensor) -> Outputs:
        belief = Categorical.of(levels, mean=read)
        known = units.that_read(belief, inner)._replace(slope=lambda: slope, from_batch=True)
        return [units.common_noise(known, outer)]

    slope = torch.randn(examples, width) + 0.2
    agree(
        noise,
        without_kernels(noise, monkeypatch),
        [torch.randn(outputs, width), slope, torch.randn(width, inputs), read],
        1e-4,
    )


def test_common_noise_without_slopes_is_nothing() -> None:
    """Where all units are certain."""
    inputs = [tensor.requires_grad_() for tensor in (torch.randn(3, 4), torch.zeros(5, 4), torch.randn(4, 6))]
    noise = compiled.common_noise(*inputs, torch.rand(5, 6), BINARY)
    assert_close(noise, torch.zeros(5, 3))
    for grad in torch.autograd.grad(noise.sum(), inputs):
        assert_close(grad, torch.zeros_like(grad))


@pytest.mark.parametrize("shape", [(1, 1), (5, 3), (33, 17)])
def test_with_noise(shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Some of it takes more away than may be taken."""

    def whole(var: Tensor, noise: Tensor) -> Outputs:
        return [together.with_common_noise(var, [None, noise])]

    agree(whole, without_kernels(whole, monkeypatch), [torch.rand(shape) + 0.1, 2 * torch.randn(shape)])


@pytest.mark.parametrize("classes", [1, 2, 10, 37])
@pytest.mark.parametrize(("spread", "doubt"), [(1.0, 0.0), (1.0, 1.0), (30.0, 3.0), (3.0, 100.0)])
def test_tilted_likelihood(classes: int, spread: float, doubt: float, monkeypatch: pytest.MonkeyPatch) -> None:
    y = torch.randint(classes, (21,))

    def likelihood(mean: Tensor, var: Tensor, log_scale: Tensor) -> Outputs:
        head = SoftmaxHead(1).to(mean.dtype)
        del head.log_scale
        head.log_scale = log_scale
        return [head.log_likelihood(Gaussian.of(mean, var), y)]

    inputs = [spread * torch.randn(21, classes), doubt * torch.rand(21, classes), torch.tensor(0.3)]
    agree(likelihood, without_kernels(likelihood, monkeypatch), inputs, 1e-4)


def test_labels_out_of_range_are_refused_though_nobody_looked_at_them() -> None:
    head, belief = SoftmaxHead(4), Gaussian.of(torch.zeros(3, 2), torch.ones(3, 2))
    for label in (-1, 2):
        with pytest.raises(IndexError, match=f"labels from 0 to 1, got {label}"):
            head.log_likelihood(belief, torch.tensor([0, 1, label]), validate=False)


def test_labels_of_other_integers_and_strides() -> None:
    head, belief = SoftmaxHead(4), Gaussian.of(torch.randn(3, 2), torch.ones(3, 2))
    y = torch.tensor([[0, 5], [1, 5], [1, 5]])
    wanted = head.log_likelihood(belief, y[:, 0].contiguous())
    assert_close(head.log_likelihood(belief, y[:, 0]), wanted)
    assert_close(head.log_likelihood(belief, y[:, 0].to(torch.int32)), wanted)


@pytest.mark.parametrize("hidden", [(17, 9), (33,), (40, 30, 20)])
@pytest.mark.parametrize("options", [{}, {"mean_field": True}, {"batch_norm": False}, {"levels": (-0.5, 0.5)}])
def test_a_whole_step(hidden: tuple[int, ...], options: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    """Terms of the objective, gradients and running statistics of an MLP, against plain torch in float64."""
    net = bqn.models.mlp(13, 3, hidden, **options)  # type: ignore[arg-type]
    for norm in net.modules():
        if isinstance(norm, bqn.nn.BatchNorm1d):
            torch.nn.init.uniform_(norm.weight, 0.5, 1.5)
            torch.nn.init.normal_(norm.bias)
    x, y = torch.rand(37, 13), torch.randint(3, (37,))
    state = {name: tensor.double() for name, tensor in net.state_dict().items()}
    wide = bqn.models.mlp(13, 3, hidden, **options).double()  # type: ignore[arg-type]
    wide.load_state_dict(state)
    terms = net.elbo_terms(x, y, 37, 0.1)
    terms.value.backward()
    with monkeypatch.context() as patch:
        patch.setattr(cpu, "_library", None)
        wanted = wide.elbo_terms(x.double(), y, 37, 0.1)
        wanted.value.backward()
    assert_close(torch.stack(terms).double(), torch.stack(wanted), rtol=3e-5, atol=1e-6)
    for ours, theirs in zip(net.parameters(), wide.parameters(), strict=True):
        assert ours.grad is not None
        assert theirs.grad is not None
        assert float((ours.grad - theirs.grad).norm()) <= 1e-3 * float(theirs.grad.norm())
    for ours, theirs in zip(net.buffers(), wide.buffers(), strict=True):
        assert_close(ours.double(), theirs.double(), rtol=1e-5, atol=1e-5)


def test_the_same_step_twice_is_the_same_bit_by_bit() -> None:
    x, y = torch.rand(37, 13), torch.randint(3, (37,))
    found = []
    for _ in range(2):
        torch.manual_seed(3)
        net = bqn.models.mlp(13, 3, (17, 9))
        net.elbo(x, y, 37, 0.1).backward()
        found.append([parameter.grad for parameter in net.parameters()])
    assert all(torch.equal(first, second) for first, second in zip(*found, strict=True))


def test_gradients_of_gradients_are_refused() -> None:
    logits = torch.randn(5, 2, requires_grad=True)
    tilt = compiled.tilt_and_kl(logits)[0]
    with pytest.raises(RuntimeError, match="BQN_CPU_KERNELS=torch"):
        torch.autograd.grad(tilt.sum(), logits, create_graph=True)


def examples() -> tuple[Tensor, Tensor]:
    return torch.rand(12, 9, generator=torch.Generator().manual_seed(2)), torch.arange(12) % 3


def gradients(net: bqn.Network, value: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(value, list(net.parameters())))


def test_backward_under_autocast() -> None:
    """Its products would be in half precision, and C would read past their ends."""
    net = bqn.models.mlp(9, 3, hidden=(7, 5)).train()
    x, y = examples()
    expected = gradients(net, net.elbo(x, y, 12, 0.1))
    value = net.elbo(x, y, 12, 0.1)
    with torch.autocast("cpu", torch.bfloat16):
        assert not cpu.usable(x)
        found = gradients(net, value)
    assert_close(found, expected)


def test_another_default_device() -> None:
    net = bqn.models.mlp(9, 3, hidden=(7, 5), levels=(-1.0, 0.0, 1.0)).train()
    x, y = examples()
    expected = net.elbo(x, y, 12, 0.1)
    cpu._scratch.memory = torch.empty(0, dtype=torch.float64)
    with torch.device("meta"):
        found = net.elbo(x, y, 12, 0.1)
    assert_close(found, expected)


def test_labels_of_another_device_are_not_read() -> None:
    belief = Gaussian.of(torch.zeros(3, 2), torch.ones(3, 2))
    labels = torch.zeros(3, dtype=torch.long, device="meta")
    with pytest.raises(ValueError, match="y must be on the device of the logits, cpu, got meta"):
        SoftmaxHead(4).log_likelihood(belief, labels, validate=False)
    with pytest.raises(TypeError, match="y must be an integer tensor"):
        SoftmaxHead(4).log_likelihood(belief, [0, 1, 0])  # type: ignore[arg-type]


def test_values_that_are_not_what_memory_holds() -> None:
    assert not cpu.usable(torch._neg_view(torch.ones(3)))


@pytest.mark.parametrize("missing", ["weight", "bias"])
def test_batch_norm_with_one_of_weight_and_bias(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mean, var = moments((6, 4), torch.float64)
    weight, bias = affine(4, torch.float64)
    given = [mean, var, weight if missing == "bias" else bias]

    def sign(mean: Tensor, var: Tensor, known: Tensor) -> Outputs:
        pair = (known, None) if missing == "bias" else (None, known)
        centre, total = mean.detach().mean(0), mean.detach().var(0) + 1
        return (normalized_sign(Normalization(mean, var, centre, total, *pair, False)),)

    def by_hand(mean: Tensor, var: Tensor, known: Tensor) -> Outputs:
        centre, total = mean.detach().mean(0), mean.detach().var(0) + 1
        gain, shift = (known, 0.0) if missing == "bias" else (torch.ones_like(known), known)
        moved = gain * (mean - centre) / total.sqrt() + shift
        return (torch.erf(moved / (gain.abs() * (var / total).sqrt()) * 0.5**0.5),)

    agree(sign, by_hand, given)


def test_an_infinite_logit_is_no_gain() -> None:
    logits = torch.zeros(3, 2)
    logits[1, 0] = torch.inf
    assert bool(compiled.tilt_and_kl(logits)[2].isnan())


def test_second_derivatives_of_several_levels_are_those_of_plain_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    def curvature() -> Tensor:
        torch.manual_seed(0)
        posterior = bqn.nn.Posterior((4, 3), (-1.0, 0.0, 1.0)).signal_init_()
        (slope,) = torch.autograd.grad(posterior.kl(), posterior.logits, create_graph=True)
        return torch.autograd.grad(slope.square().sum(), posterior.logits)[0]

    found = curvature()
    monkeypatch.setattr(cpu, "_library", None)
    assert_close(found, curvature())
