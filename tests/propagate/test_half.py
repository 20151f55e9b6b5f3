"""Half-precision moments against the float64 ones, on any device."""

import copy
from contextlib import nullcontext

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

import bqn
from bqn.propagate import clt, devices, half, normalized_sign, products

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
pytestmark = pytest.mark.gpu
CONV = [products.Geometry((1, 1), (1, 1), (1, 1), 1), products.Geometry((2, 1), (0, 2), (1, 1), 1)]


def operands(geometry: products.Geometry | None, doubt: bool) -> tuple[list[Tensor], bool]:
    generator = torch.Generator().manual_seed(0)
    x_shape, w_shape = ((6, 40), (7, 40)) if geometry is None else ((3, 16, 6, 5), (4, 16, 3, 3))
    x = torch.rand(x_shape, generator=generator, dtype=torch.float64) * 2 - 1
    logits = 3 * torch.randn((*w_shape, 2), generator=generator, dtype=torch.float64)
    centre = 0.3 * torch.randn(w_shape[1:], generator=generator, dtype=torch.float64)
    return [tensor.to(DEVICE) for tensor in (x, logits, centre)], doubt


def moments(x: Tensor, logits: Tensor, centre: Tensor | None, geometry: products.Geometry | None, doubt: bool):
    belief = bqn.Categorical.of(bqn.BINARY, mean=x) if doubt else x
    weight = bqn.Categorical.of_logits(logits, bqn.BINARY)
    return clt._moments_in_working_precision(belief, weight, None, geometry, centre)


@pytest.fixture(params=["passes", "passes, products in full", "kernels", "pair"])
def _kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """In plain torch, or in Triton element by element, or matrix products too; without a GPU in its interpreter.

    Plain torch as this CPU has it and as one without products in bfloat16.
    """
    monkeypatch.setattr(half, "kernels_take", lambda *_: not request.param.startswith("passes"))
    monkeypatch.setattr(half, "pair_kernels_take", lambda x, weight, geometry: request.param == "pair" and not geometry)
    if request.param.endswith("in full"):
        monkeypatch.setattr(devices, "CPU_HAS_BFLOAT16", False)


@pytest.mark.usefixtures("_kernels")
@pytest.mark.parametrize("geometry", [None, *CONV])
@pytest.mark.parametrize("doubt", [True, False])
@pytest.mark.parametrize("centred", [True, False])
def test_moments_and_gradients_within_a_percent(geometry: products.Geometry | None, doubt: bool, centred: bool) -> None:
    (x, logits, centre), _ = operands(geometry, doubt)
    wide = [x.clone().requires_grad_(), logits.clone().requires_grad_()]
    wide_centre = centre.clone().requires_grad_() if centred else None
    expected = moments(*wide, wide_centre, geometry, doubt)
    low = [x.float().requires_grad_(), logits.float().requires_grad_()]
    low_centre = centre.float().requires_grad_() if centred else None
    with half.lowered():
        assert half.applies(geometry, low[0])
        got = moments(*low, low_centre, geometry, doubt)
    upstream = [torch.randn_like(tensor) for tensor in expected]
    names = wide + ([wide_centre] if centred else [])
    truth = torch.autograd.grad(expected, names, upstream)
    ours = torch.autograd.grad(
        got, low + ([low_centre] if centred else []), [u.to(g.dtype) for u, g in zip(upstream, got, strict=True)]
    )
    for mine, wanted in zip((*got, *ours), (*expected, *truth), strict=True):
        error = (mine.double() - wanted).square().mean().sqrt() / wanted.square().mean().sqrt()
        assert error < 0.012
    assert bool((got[1] >= 0).all())
    assert got[0].dtype == got[1].dtype == torch.bfloat16


@pytest.mark.usefixtures("_kernels")
@pytest.mark.parametrize("geometry", [None, CONV[0]])
def test_backward_asks_once_for_what_it_keeps(geometry: products.Geometry | None) -> None:
    """Activation checkpointing, which makes it again at that moment, does not give it out twice."""
    (x, logits, centre), _ = operands(geometry, True)
    x, logits, centre = (tensor.float().requires_grad_() for tensor in (x, logits, centre))
    with half.lowered():
        kept = moments(x, logits, centre, geometry, True)
        again = checkpoint(moments, x, logits, centre, geometry, True, use_reentrant=False)
        upstream = [torch.randn_like(tensor) for tensor in kept]
        expected, ours = (torch.autograd.grad(got, (x, logits, centre), upstream) for got in (kept, again))
    assert_close(ours, expected, rtol=1e-2, atol=1e-2)


@pytest.mark.usefixtures("_kernels")
def test_a_small_variance_keeps_its_digits() -> None:
    """Nearly certain weights and inputs: a difference of two sums of a thousand would leave nothing in bfloat16."""
    x = torch.full((1, 1000), 1.0, device=DEVICE)
    logits = torch.zeros(1, 1000, 2, device=DEVICE)
    logits[..., 1] = 7
    with half.lowered():
        _, var = moments(x, logits, None, None, False)
    tilt = torch.tanh(torch.tensor(3.5, dtype=torch.float64))
    assert float(var) == pytest.approx(1000 * (1 - tilt.item() ** 2), rel=1e-2)


@pytest.mark.parametrize("dims", [0, 2])
def test_a_belief_says_the_precision_of_its_moments(dims: int) -> None:
    """So that a layer which needs more can raise it: a sum, behind a sum, of known inputs in float32."""
    torch.manual_seed(0)
    first, second = (
        (bqn.nn.Linear(16, 12), bqn.nn.Linear(12, 3))
        if dims == 0
        else (bqn.nn.Conv2d(16, 12, 3), bqn.nn.Conv2d(12, 3, 2))
    )
    x = torch.where(torch.rand(4, 16, *(6,) * dims) < 0.5, -1.0, 1.0).to(DEVICE)
    first, second = first.to(DEVICE), second.to(DEVICE)
    full = second(first(x))
    with half.lowered():
        inner = first(x)
        assert inner.dtype == inner.mean.dtype == inner.var.dtype == torch.bfloat16
        low = second(inner)
    assert low.dtype == low.mean.dtype == low.var.dtype == torch.float32
    assert_close(low.var, full.var, rtol=0.02, atol=0)


@pytest.mark.usefixtures("_kernels")
@pytest.mark.parametrize("around", [0.0, 0.9])
def test_moments_of_an_image_are_kept_rounded_around_their_centre(around: float, monkeypatch) -> None:
    """They are worked out in float32 and are the largest tensors of a network; images may be far from zero."""
    torch.manual_seed(0)
    monkeypatch.setattr(
        normalized_sign, "fused", lambda tensor: half.kernels_take(tensor, tensor) and tensor.dtype != torch.float64
    )
    net = bqn.nn.Sequential(bqn.nn.Conv2d(3, 8, 3), bqn.nn.BatchNorm2d(8), bqn.nn.Sign()).to(DEVICE)
    x = around + 0.01 * torch.randn(16, 3, 8, 8, device=DEVICE)
    kept: list[Tensor] = []

    def gradient(dtype: torch.dtype, low: bool) -> Tensor:
        kept.clear()
        layers = copy.deepcopy(net).to(dtype)
        noted = torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t)
        with noted, half.lowered() if low else nullcontext():
            mean = layers(x.to(dtype)).mean
        assert mean.dtype == (torch.bfloat16 if low else dtype)
        weights = torch.linspace(-1, 1, mean.numel(), dtype=dtype, device=DEVICE).reshape(mean.shape)
        return torch.autograd.grad((mean * weights).sum(), layers[0].weight.logits)[0].double()

    expected, ours = gradient(torch.float64, False), gradient(torch.float32, True)
    images = [tensor.dtype for tensor in kept if tensor.shape == (16, 8, 6, 6)]
    assert images == [torch.bfloat16] * 2
    assert float((ours - expected).norm() / expected.norm()) < 0.01


@pytest.mark.parametrize("geometry", [None, *CONV])
@pytest.mark.parametrize("weights", [(-1.0, 1.0), (-1.0, 0.0, 1.0)])
@pytest.mark.parametrize("centred", [False, True])
def test_more_than_two_levels_take_three_products_in_half_precision(
    geometry: products.Geometry | None, weights: tuple[float, ...], centred: bool, monkeypatch
) -> None:
    monkeypatch.setattr(half, "PAIR_KERNELS", False)  # which would not ask the library
    (x, _, centre), _ = operands(geometry, True)
    generator = torch.Generator().manual_seed(1)
    shape = (7, 40) if geometry is None else (4, 16, 3, 3)
    logits = 2 * torch.randn((*shape, len(weights)), generator=generator, dtype=torch.float64)
    inputs = torch.randn((*x.shape, 3), generator=generator, dtype=torch.float64)
    multiplied: list[torch.dtype] = []
    plain = half.product

    def product(x: Tensor, weight: Tensor, geometry: products.Geometry | None) -> Tensor:
        multiplied.append(x.dtype)
        return plain(x, weight, geometry)

    def both(dtype: torch.dtype) -> tuple[Tensor, ...]:
        leaves = [tensor.to(DEVICE, dtype).requires_grad_() for tensor in (inputs, logits)]
        belief = bqn.Categorical.of_logits(leaves[0], (-1.0, 0.0, 1.0))
        weight = bqn.Categorical.of_logits(leaves[1], weights)
        middle = centre.to(DEVICE, dtype) if centred else None
        mean, var = clt._moments_in_working_precision(belief, weight, None, geometry, middle)
        assert mean.dtype == var.dtype == dtype
        gradients = torch.autograd.grad((mean.sin() + mean * var.log()).sum(), leaves)
        return mean.detach(), var.detach(), *gradients

    expected = both(torch.float64)
    monkeypatch.setattr(half, "product", product)
    with half.lowered():
        ours = both(torch.float32)
    assert multiplied == [torch.bfloat16] * 3
    for low, full in zip(ours, expected, strict=True):
        assert float((low.double() - full).norm() / full.norm()) < 0.015


def test_half_precision_does_not_begin_by_itself() -> None:
    """An image in bfloat16 is raised where the network is in float32."""
    net = bqn.models.cnn((1, 8, 8), 3, (16, 16), 32).to(DEVICE)
    x = torch.rand(4, 1, 8, 8, device=DEVICE).bfloat16()
    assert net(x).mean.dtype == torch.float32


@pytest.mark.usefixtures("_kernels")
@pytest.mark.parametrize(
    "make",
    [
        lambda: bqn.models.mlp(20, 3, (40, 30)),
        lambda: bqn.models.cnn((1, 8, 8), 3, (16, 16), 32),
        lambda: bqn.models.mlp(20, 3, (40, 30), levels=bqn.TERNARY, activations=bqn.TERNARY),
        lambda: bqn.models.cnn((1, 8, 8), 3, (16, 16), 32, levels=bqn.TERNARY, activations=bqn.TERNARY),
    ],
)
def test_a_whole_network_trains_alike(make) -> None:
    """The objective in mixed precision is that of full precision within a percent; its gradient points the same way."""
    torch.manual_seed(0)
    net = make().to(DEVICE)
    shape = (32, 20) if isinstance(net.body[0], bqn.nn.Flatten) else (32, 1, 8, 8)
    x, y = torch.rand(shape, device=DEVICE) * 2 - 1, torch.randint(3, (32,), device=DEVICE)
    state = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    full = net.elbo(x, y, 1000, 1e-2)
    full_grads = torch.autograd.grad(full, list(net.parameters()))
    net.load_state_dict(state)
    with half.lowered():
        mixed = net.elbo(x, y, 1000, 1e-2)
    mixed_grads = torch.autograd.grad(mixed, list(net.parameters()))
    assert_close(mixed, full, rtol=1e-2, atol=0)
    for ours, theirs in zip(mixed_grads, full_grads, strict=True):
        assert ours.dtype == theirs.dtype == torch.float32
        if theirs.numel() > 100:
            assert float(torch.cosine_similarity(ours.flatten(), theirs.flatten(), 0)) > 0.995
