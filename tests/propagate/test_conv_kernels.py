"""The pair of products of a convolution in Triton against float64: on a GPU where there is one, else interpreted."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.testing import assert_close

from bqn.propagate import conv_kernels, half, half_kernels
from bqn.propagate.conv_kernels import Plan
from bqn.propagate.pair_kernels import Tiles
from bqn.propagate.products import Geometry
from bqn.propagate.windows import over_places

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
pytestmark = pytest.mark.gpu
SMALL = Tiles(16, 16, 16, 4, 2)
PLAN = Plan(SMALL, SMALL, SMALL)
CASES = {  # input, weight, padding; tiles of 16 × 16 × 16
    "even": ((2, 32, 4, 4), (16, 32, 3, 3), (1, 1)),
    "odd": ((2, 17, 4, 5), (21, 17, 3, 2), (1, 0)),
    "not padded": ((1, 19, 6, 4), (3, 19, 3, 3), (0, 0)),
    "padded by more than the kernel reaches": ((1, 16, 3, 2), (5, 16, 1, 2), (2, 2)),
    "five by five": ((1, 16, 4, 5), (5, 16, 5, 5), (2, 2)),
    "one by one": ((3, 20, 3, 5), (7, 20, 1, 1), (0, 0)),
    "one pixel": ((5, 3, 1, 1), (2, 3, 3, 3), (1, 1)),
    "a long sum": ((3, 16, 9, 12), (4, 16, 1, 1), (0, 0)),
}


def operands(name: str) -> tuple[Tensor, Tensor, Tensor, Geometry]:
    """Weights ±2, so that a² does not hide."""
    x_shape, w_shape, padding = CASES[name]
    generator = torch.Generator().manual_seed(1)
    x = (2 * torch.rand(x_shape, generator=generator) - 1).to(torch.bfloat16)
    weight = 2 * torch.tanh(2 * torch.randn(w_shape, generator=generator))
    centre = 0.3 * torch.randn(w_shape[1:], generator=generator)
    image = x.to(DEVICE).contiguous(memory_format=torch.channels_last)
    return image, weight.to(DEVICE), centre.to(DEVICE), Geometry((1, 1), padding, (1, 1), 1)


def truth(
    x: Tensor, weight: Tensor, centre: Tensor | None, doubt: bool, geometry: Geometry, square: float = 4.0
) -> tuple[Tensor, Tensor]:
    """By the formula of `half`, in the precision of x."""
    noise = square - weight.square()
    squares = x.square()
    constant = x.new_zeros(())
    if centre is not None:
        middle = over_places(centre)
        squares = x * (x - 2 * middle)
        constant = (noise * middle.square()).sum((1, 2, 3)).reshape(-1, 1, 1)
    var = F.conv2d(squares, noise, padding=geometry.padding) + constant
    if doubt:
        ones = square * torch.ones_like(weight[:1])
        var = var + F.conv2d(1 - x.square(), ones, padding=geometry.padding)
    return F.conv2d(x, weight, padding=geometry.padding), var


def relative_error(ours: Tensor, wanted: Tensor) -> float:
    return float(((ours.double() - wanted).norm() / wanted.norm().clamp_min(1e-3)).detach())


def upstream_of(results: tuple[Tensor, Tensor]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(2)
    shape = results[0].shape
    return [
        torch.randn(shape, generator=generator).to(DEVICE, torch.bfloat16).contiguous(memory_format=torch.channels_last)
        for _ in results
    ]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("centred", [True, False])
@pytest.mark.parametrize("doubt", [True, False])
def test_moments_and_gradients(name: str, centred: bool, doubt: bool) -> None:
    x, weight, centre, geometry = operands(name)
    known = centre if centred else None
    wide = [tensor.double().requires_grad_() for tensor in ((x, weight, centre) if centred else (x, weight))]
    expected = truth(wide[0], wide[1], wide[2] if centred else None, doubt, geometry)
    positive = expected[1] > 0  # without doubt, little padding is enough to make the formula negative
    input_square = 1.0 if doubt else None
    got = conv_kernels.forward(x, weight, known, 4.0, input_square, geometry, PLAN)
    for ours, wanted in zip(got, (expected[0], expected[1] * positive), strict=True):
        assert ours.dtype == torch.bfloat16
        assert ours.shape == wanted.shape
        assert ours.is_contiguous(memory_format=torch.channels_last)
        assert relative_error(ours, wanted) < 0.012
    upstream = upstream_of(got)
    wanted_grads = torch.autograd.grad(expected, wide, [grad.double() for grad in upstream])
    grads = conv_kernels.backward(*upstream, x, weight, known, 4.0, input_square, geometry, True, PLAN)
    assert grads[1].dtype == torch.float32
    assert (grads[2] is not None) == centred
    for ours, wanted in zip(grads, wanted_grads, strict=False):
        assert ours is not None
        assert ours.shape == wanted.shape
        assert relative_error(ours, wanted) < 0.015


@pytest.mark.parametrize("name", ["even", "odd"])
@pytest.mark.parametrize("centred", [True, False])
def test_results_are_those_of_the_passes(name: str, centred: bool) -> None:
    """With the tiles that a network takes, on any input they fit."""
    x, weight, centre, geometry = operands(name)
    known = centre if centred else None
    ours = conv_kernels.forward(x, weight, known, 4.0, 1.0, geometry)
    theirs = half_kernels.forward(x, weight, known, 4.0, 1.0, geometry)
    upstream = upstream_of(ours)
    for need_x in (True, False):
        settings = (*upstream, x, weight, known, 4.0, 1.0, geometry, need_x)
        results = zip(
            (*ours, *conv_kernels.backward(*settings)), (*theirs, *half_kernels.backward(*settings)), strict=True
        )
        for mine, wanted in results:
            assert (mine is None) == (wanted is None)
            if mine is not None and wanted is not None:
                assert mine.dtype == wanted.dtype
                assert relative_error(mine, wanted.double()) < 0.012


def test_a_split_sum_is_the_whole() -> None:
    """Of many rows for few weights; parts of which the last is shorter."""
    rows = 3 * 9 * 12
    assert conv_kernels._parts(1, rows, SMALL) == 5
    assert conv_kernels._parts(264, rows, SMALL) == 1
    assert conv_kernels._parts(1, 0, SMALL) == 1


def test_parts_fill_the_gpu() -> None:
    """The gradient by the weight of three layers of the VGG at batch 100."""
    large = conv_kernels.CHOICES[0]
    assert [conv_kernels._parts(*sizes, large) for sizes in ((9, 102_400), (36, 25_600), (144, 6_400))] == [14, 7, 3]


def test_input_and_gradients_of_any_strides() -> None:
    x, weight, centre, geometry = operands("odd")
    turned = x.contiguous()
    assert not turned.is_contiguous(memory_format=torch.channels_last)
    column = weight.mT.contiguous().mT
    straight = conv_kernels.forward(x, weight, centre, 4.0, 1.0, geometry, PLAN)
    both = conv_kernels.forward(turned, column, centre, 4.0, 1.0, geometry, PLAN)
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(both, straight, strict=True))
    grad = upstream_of(straight)[0][:1, :, :1, :1].expand_as(straight[0])
    flat = grad.contiguous(memory_format=torch.channels_last)
    ours = conv_kernels.backward(grad, grad, turned, column, centre, 4.0, 1.0, geometry, True, PLAN)
    theirs = conv_kernels.backward(flat, flat, x, weight, centre, 4.0, 1.0, geometry, True, PLAN)
    for mine, wanted in zip(ours, theirs, strict=True):
        assert mine is not None
        assert wanted is not None
        assert torch.equal(mine, wanted)


def test_no_examples() -> None:
    x, weight, centre, geometry = operands("odd")
    mean, var = conv_kernels.forward(x[:0], weight, centre, 4.0, 1.0, geometry)
    assert mean.shape == var.shape == (0, 21, 4, 4)
    grad_x, grad_weight, grad_centre = conv_kernels.backward(mean, var, x[:0], weight, centre, 4.0, 1.0, geometry, True)
    assert grad_x is not None
    assert grad_x.shape == (0, 17, 4, 5)
    assert grad_weight.shape == weight.shape
    assert not grad_weight.any()
    assert grad_centre is not None
    assert not grad_centre.any()


def test_a_nearly_certain_weight_keeps_its_variance() -> None:
    """Rounded to bfloat16 first, these weights would be 1 and have none."""
    x = torch.ones(1, 16, 2, 2, device=DEVICE, dtype=torch.bfloat16)
    weight = torch.full((1, 16, 2, 2), 0.999, device=DEVICE)
    _, var = conv_kernels.forward(x, weight, None, 1.0, None, Geometry((1, 1), (0, 0), (1, 1), 1), PLAN)
    assert float(var) == pytest.approx(64 * (1 - 0.999**2), rel=1e-2)


def test_which_layers_fit() -> None:
    x, weight, _, geometry = operands("odd")
    assert conv_kernels.fits(x, weight, geometry)
    assert not conv_kernels.fits(x, weight, geometry._replace(stride=(1, 2)))
    assert not conv_kernels.fits(x, weight, geometry._replace(dilation=(2, 1)))
    assert not conv_kernels.fits(x, weight, geometry._replace(groups=17))
    assert not conv_kernels.fits(x[:, :, :, :1], weight, geometry)
    assert not conv_kernels.fits(torch.empty(2**15, 64, 32, 32, device="meta"), weight, geometry)


def test_every_shape_has_a_plan() -> None:
    for rows in (1, 6_400, 102_400, 524_288):
        for units, channels in ((16, 64), (64, 64), (128, 128), (512, 256)):
            assert set(conv_kernels.plan(rows, units, channels)) <= set(conv_kernels.CHOICES)


@pytest.mark.parametrize("centred", [True, False])
def test_layers_that_use_them_agree_with_those_that_do_not(monkeypatch: pytest.MonkeyPatch, centred: bool) -> None:
    x, weight, centre, geometry = operands("even")

    def run(use: bool) -> list[Tensor]:
        monkeypatch.setattr(half, "conv_kernels_take", lambda *_: use)
        inputs = [x.float().requires_grad_(), weight.clone().requires_grad_(), centre.clone().requires_grad_()]
        with half.lowered():
            mean, var = half.moments(inputs[0], inputs[1], inputs[2] if centred else None, 4.0, 1.0, geometry)
        weights = torch.linspace(-1, 1, mean.numel(), device=DEVICE).reshape(mean.shape)
        loss = (mean.float() * weights).sum() + var.float().square().mean()
        return [mean, var, *torch.autograd.grad(loss, inputs if centred else inputs[:2])]

    for ours, theirs in zip(run(True), run(False), strict=True):
        assert ours.dtype == theirs.dtype
        assert_close(ours.float(), theirs.float(), rtol=0.03, atol=0.03 * float(theirs.detach().abs().max()))


def test_the_library_takes_what_does_not_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bqn.propagate.normalized_sign.fused", lambda _: True)
    x, weight, _, geometry = operands("odd")
    monkeypatch.setattr(conv_kernels, "pays", lambda *_: True)
    assert half.conv_kernels_take(x, weight, geometry)
    assert not half.conv_kernels_take(x, weight, None)
    assert not half.conv_kernels_take(x, weight, geometry._replace(stride=(2, 1)))
    monkeypatch.setattr(conv_kernels, "pays", lambda *_: False)
    assert not half.conv_kernels_take(x, weight, geometry)
    monkeypatch.setattr(half, "CONV_KERNELS", False)
    monkeypatch.setattr(conv_kernels, "pays", lambda *_: True)
    assert not half.conv_kernels_take(x, weight, geometry)
