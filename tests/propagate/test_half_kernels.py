"""The Triton passes of half-precision moments against the plain ones, on shapes that fit no block."""

import pytest
import torch
from torch import Tensor

from bqn.propagate import half, half_kernels
from bqn.propagate.products import Geometry

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
pytestmark = pytest.mark.gpu
CASES = {
    "one": ((1, 1), (1, 1), None),
    "odd": ((5, 3), (7, 3), None),
    "wide": ((3, 1030), (2, 1030), None),
    "convolution": ((2, 17, 5, 6), (21, 17, 3, 2), Geometry((1, 2), (1, 0), (1, 1), 1)),
    "no padding": ((2, 18, 4, 4), (3, 18, 4, 4), Geometry((1, 1), (0, 0), (1, 1), 1)),
    "by one": ((3, 16, 2, 2), (5, 16, 1, 1), Geometry((1, 1), (0, 0), (1, 1), 1)),
}


@pytest.fixture(autouse=True)
def _products_by_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU `pair_kernels` would take the small layers of these tests."""
    monkeypatch.setattr(half, "PAIR_KERNELS", False)


def moments_and_gradients(name: str, centred: bool, doubt: bool, turned: bool = False) -> list[Tensor | None]:
    x_shape, w_shape, geometry = CASES[name]
    generator = torch.Generator().manual_seed(0)
    x = (torch.rand(x_shape, generator=generator) * 2 - 1).to(DEVICE)
    weight = (2 * torch.tanh(torch.randn(w_shape, generator=generator))).to(DEVICE)
    centre = (0.3 * torch.randn(w_shape[1:], generator=generator)).to(DEVICE)
    if turned:
        x, weight, centre = (tensor.mT.contiguous().mT for tensor in (x, weight, centre.unsqueeze(0)))
        centre = centre.squeeze(0)
    inputs = [tensor.requires_grad_() for tensor in ((x, weight, centre) if centred else (x, weight))]
    with half.lowered():
        both = half.moments(x, weight, centre if centred else None, 4.0, 1.0 if doubt else None, geometry)
    upstream = [torch.randn(both[0].shape, generator=generator).to(DEVICE, both[0].dtype) for _ in both]
    if turned:
        upstream = [grad.mT.contiguous().mT for grad in upstream]
    return [*both, *torch.autograd.grad(both, inputs, upstream)]


def assert_alike(ours: list[Tensor | None], theirs: list[Tensor | None]) -> None:
    for mine, wanted in zip(ours, theirs, strict=True):
        assert mine is not None
        assert wanted is not None
        assert mine.dtype == wanted.dtype
        assert mine.shape == wanted.shape
        gap = (mine.double() - wanted.double()).norm() / wanted.double().norm().clamp_min(1e-3)
        assert float(gap.detach()) < 0.012


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("centred", [True, False])
@pytest.mark.parametrize("doubt", [True, False])
def test_kernels_are_the_passes(monkeypatch: pytest.MonkeyPatch, name: str, centred: bool, doubt: bool) -> None:
    monkeypatch.setattr(half, "kernels_take", lambda *_: True)
    ours = moments_and_gradients(name, centred, doubt)
    monkeypatch.setattr(half, "kernels_take", lambda *_: False)
    assert_alike(ours, moments_and_gradients(name, centred, doubt))


@pytest.mark.parametrize("name", ["odd", "convolution"])
def test_tiles_of_several_rows(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(half, "kernels_take", lambda *_: True)
    alone = moments_and_gradients(name, True, True)
    monkeypatch.setattr(half_kernels, "tile_for", lambda *_: {"ROWS": 4, "CHANNELS": 8})
    assert_alike(moments_and_gradients(name, True, True), alone)


def test_tiles_suit_the_shape() -> None:
    assert half_kernels.tile_for(128, 102_400) == {"ROWS": 16, "CHANNELS": 128}
    assert half_kernels.tile_for(8192, 100) == {"ROWS": 1, "CHANNELS": 1024}


@pytest.mark.parametrize("name", ["odd", "convolution"])
def test_any_strides(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(half, "kernels_take", lambda *_: True)
    assert_alike(moments_and_gradients(name, True, True, turned=True), moments_and_gradients(name, True, True))


def test_an_empty_batch_is_left_to_the_plain_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(half, "KERNELS", True)
    x = torch.zeros(0, 4, device=DEVICE, dtype=torch.bfloat16)
    assert not half.kernels_take(x, torch.zeros(3, 4, device=DEVICE))
