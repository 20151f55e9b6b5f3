"""The pair of products in Triton against float64: on a GPU where there is one, else in Triton's interpreter."""

import json
import re
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from bqn.propagate import half, pair_kernels
from bqn.propagate.pair_kernels import Plan, Tiles

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
pytestmark = pytest.mark.gpu
SMALL = Tiles(16, 16, 16, 4, 2)
RECORD = Path(__file__).resolve().parents[2] / "results/benchmarks/pair_of_products.json"
SHAPES = [(5, 7, 3), (33, 17, 40), (16, 16, 16), (1, 1, 1), (20, 3, 150)]


def operands(rows: int, units: int, inputs: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(rows)
    x = (2 * torch.rand(rows, inputs, generator=generator) - 1).to(torch.bfloat16)
    weight = torch.tanh(2 * torch.randn(units, inputs, generator=generator))
    return x.to(DEVICE), weight.to(DEVICE), (0.3 * torch.randn(inputs, generator=generator)).to(DEVICE)


def truth(x: Tensor, weight: Tensor, centre: Tensor | None, square: float, doubt: bool) -> tuple[Tensor, Tensor]:
    squares = (x if centre is None else x - centre).square()
    var = squares @ (square - weight.square()).mT
    return x @ weight.mT, var + square * (1 - x.square()).sum(-1, keepdim=True) if doubt else var


def relative_error(ours: Tensor, wanted: Tensor) -> float:
    return float(((ours.double() - wanted).norm() / wanted.norm().clamp_min(1e-6)).detach())


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("centred", [True, False])
@pytest.mark.parametrize("doubt", [True, False])
@pytest.mark.parametrize("rounded", [True, False])
def test_moments_and_gradients(shape: tuple[int, int, int], centred: bool, doubt: bool, rounded: bool) -> None:
    """Weights ±2, so that a² does not hide; the last shape splits its sum."""
    x, weight, centre = operands(*shape)
    weight, square, plan = 2 * weight, 4.0, Plan(SMALL, SMALL, SMALL, rounded)
    wide = [x.double().requires_grad_(), weight.double().requires_grad_()]
    wide += [centre.double().requires_grad_()] if centred else []
    expected = truth(wide[0], wide[1], wide[2] if centred else None, square, doubt)
    known = centre if centred else None
    got = pair_kernels.forward(x, weight, known, square, 1.0 if doubt else None, plan)
    for ours, wanted in zip(got, expected, strict=True):
        assert ours.dtype == torch.bfloat16
        assert relative_error(ours, wanted) < 0.01
    upstream = [torch.randn(shape[0], shape[1]).to(DEVICE, torch.bfloat16) for _ in range(2)]
    wanted_grads = torch.autograd.grad(expected, wide, [grad.double() for grad in upstream])
    grad_x, grad_centre = pair_kernels.by_input(*upstream, x, weight, known, square, doubt, plan)
    grad_weight = pair_kernels.by_weight(*upstream, x, weight, known, plan)
    assert grad_weight.dtype == torch.float32
    assert (grad_centre is not None) == centred
    for ours, wanted in zip((grad_x, grad_weight, grad_centre), wanted_grads, strict=False):
        assert ours is not None
        assert relative_error(ours, wanted) < 0.015


def test_input_and_gradients_of_any_strides() -> None:
    x, weight, centre = operands(12, 9, 20)
    spread = torch.stack((x.mT.contiguous(), x.mT.contiguous()), -1)[..., 0].mT
    assert not spread.is_contiguous()
    plan = Plan(SMALL, SMALL, SMALL, False)
    for ours, straight in zip(
        pair_kernels.forward(spread, weight.mT.contiguous().mT, centre, 1.0, 1.0, plan),
        pair_kernels.forward(x, weight, centre, 1.0, 1.0, plan),
        strict=True,
    ):
        assert torch.equal(ours, straight)
    grad = torch.randn(1, 9).to(DEVICE, torch.bfloat16).expand(12, 9)
    straight_grad = grad.contiguous()
    for turned, flat in ((spread, x),):
        ours = pair_kernels.by_input(grad, grad, turned, weight, centre, 1.0, True, plan)
        theirs = pair_kernels.by_input(straight_grad, straight_grad, flat, weight, centre, 1.0, True, plan)
        assert torch.equal(ours[0], theirs[0])
        assert torch.equal(
            pair_kernels.by_weight(grad, grad, turned, weight, centre, plan),
            pair_kernels.by_weight(straight_grad, straight_grad, flat, weight, centre, plan),
        )


@pytest.mark.parametrize("shape", [(0, 5, 6), (4, 5, 0)])
def test_nothing_to_add_up(shape: tuple[int, int, int]) -> None:
    """No examples, or no inputs: the sum of nothing is a known zero."""
    x, weight, centre = operands(*shape)
    mean, var = pair_kernels.forward(x, weight, centre, 1.0, 1.0)
    assert mean.shape == var.shape == (shape[0], 5)
    assert not mean.any()
    assert not var.any()
    grad = torch.ones(shape[0], 5, device=DEVICE, dtype=torch.bfloat16)
    grad_x, grad_centre = pair_kernels.by_input(grad, grad, x, weight, centre, 1.0, True)
    assert grad_x.shape == x.shape
    assert grad_centre is not None
    assert not grad_centre.any()
    assert not pair_kernels.by_weight(grad, grad, x, weight, centre).any()


def test_a_nearly_certain_weight_keeps_its_variance() -> None:
    """Rounded to bfloat16 first, these weights would be 1 and have none."""
    x = torch.ones(1, 64, device=DEVICE, dtype=torch.bfloat16)
    weight = torch.full((1, 64), 0.999, device=DEVICE)
    for rounded in (True, False):
        _, var = pair_kernels.forward(x, weight, None, 1.0, None, Plan(SMALL, SMALL, SMALL, rounded))
        assert float(var) == pytest.approx(64 * (1 - 0.999**2), rel=1e-2)


def test_every_shape_has_a_plan() -> None:
    for rows in (1, 100, 512, 4096):
        for units, inputs in ((10, 256), (512, 784), (1024, 8192), (4096, 4096)):
            plan = pair_kernels.plan(rows, units, inputs)
            assert set(plan[:3]) <= set(pair_kernels.CHOICES)


def test_they_are_used_where_they_were_faster() -> None:
    """By five percent, between two runs, a time may change; of those that gain more, some must be used."""
    gains = {True: [], False: []}
    for row in json.loads(RECORD.read_text())["rows"]:
        sizes = re.search(r"(\d+) → (\d+), batch (\d+)$", row["what"])
        if sizes is None or "pair" not in row["ms"] or row["pass"] == "forward":
            continue
        inputs, units, rows = map(int, sizes.groups())
        used = pair_kernels.pays(torch.empty(rows, inputs, device="meta"), torch.empty(units, inputs, device="meta"))
        gains[used].append(row["ms"]["kernels"] / row["ms"]["pair"])
    assert min(gains[True]) > 0.95
    assert max(gains[True]) > 1.3
    assert sorted(gains[False])[len(gains[False]) // 2] < 1.05


@pytest.mark.parametrize("centred", [True, False])
@pytest.mark.parametrize("doubt", [True, False])
def test_layers_that_use_them_agree_with_those_that_do_not(
    monkeypatch: pytest.MonkeyPatch, centred: bool, doubt: bool
) -> None:
    x, weight, centre = operands(24, 10, 30)

    def run(use: bool) -> list[Tensor]:
        monkeypatch.setattr(half, "pair_kernels_take", lambda *_: use)
        inputs = [x.float().requires_grad_(), weight.clone().requires_grad_(), centre.clone().requires_grad_()]
        known = inputs[2] if centred else None
        with half.lowered():
            mean, var = half.moments(inputs[0], inputs[1], known, 1.0, 1.0 if doubt else None, None)
        loss = (mean.float() * torch.linspace(-1, 1, 10, device=DEVICE)).sum() + var.float().square().sum()
        return [mean, var, *torch.autograd.grad(loss, inputs if centred else inputs[:2])]

    for ours, theirs in zip(run(True), run(False), strict=True):
        assert ours.dtype == theirs.dtype
        assert_close(ours.float(), theirs.float(), rtol=0.03, atol=0.03 * float(theirs.detach().abs().max()))
