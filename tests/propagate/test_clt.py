"""Moments of large sums: the ways to form them agree, and compilers can follow them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from bqn.beliefs import Categorical
from bqn.beliefs._categorical import _Tilt
from bqn.nn._layer import _StraightThrough
from bqn.nn._posterior import _TiltAndKL
from bqn.propagate import clt, products
from bqn.propagate.half import _HalfMoments
from bqn.propagate.levels_half import _MomentsOfLevels
from bqn.propagate.normalized_sign import _NormalizedSign

GEOMETRIES = (
    (1, (5, 5), products.Geometry((1, 1), (2, 2), (1, 1), 1)),
    (3, (5, 3), products.Geometry((2, 1), (1, 0), (1, 2), 1)),
    (2, (4,), products.Geometry((1,), (1,), (1,), 1)),
)
LINE = products.Geometry((1,), (0,), (1,), 1)


@pytest.mark.parametrize(("channels", "kernel", "geometry"), GEOMETRIES)
@pytest.mark.parametrize("levels", [(-1.0, 1.0), (-1.0, 0.0, 1.0)])
def test_gathered_windows_give_what_the_convolution_gives(
    channels: int, kernel: tuple[int, ...], geometry: products.Geometry, levels: tuple[float, ...]
) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(4, channels, *(11, 9)[: len(kernel)], dtype=torch.float64, generator=generator)
    shape = (6, channels, *kernel, len(levels))
    logits = torch.randn(shape, dtype=torch.float64, generator=generator).requires_grad_()
    bias = torch.randn(6, dtype=torch.float64, generator=generator)
    centre = clt.batch_centre(x, kernel, geometry)

    def both(moments: object) -> tuple[Tensor, Tensor, Tensor]:
        mean, var = moments(x, Categorical.of_logits(logits, levels), bias, geometry, centre)  # type: ignore[operator]
        (gradient,) = torch.autograd.grad((mean.sin() + mean * var).sum(), logits)
        return mean, var, gradient

    for gathered, expected in zip(both(clt.moments_of_windows), both(clt._moments_within_batch), strict=True):
        assert_close(gathered, expected)


def test_gathered_windows_have_second_derivatives() -> None:
    _, kernel, geometry = GEOMETRIES[2]
    x = torch.randn(2, 2, 6, dtype=torch.float64)
    mean, var = (torch.rand(3, 8, dtype=torch.float64).requires_grad_() for _ in range(2))

    def product_of_both(mean: Tensor, var: Tensor) -> Tensor:
        one, other = clt._OfWindows.apply(x, torch.zeros(8, dtype=torch.float64), mean, var, kernel, geometry)
        return one * other

    assert torch.autograd.gradcheck(product_of_both, (mean, var))
    assert torch.autograd.gradgradcheck(product_of_both, (mean, var))


def test_gathered_windows_are_not_kept_for_backward() -> None:
    channels, kernel, geometry = GEOMETRIES[0]
    x, kept = torch.randn(4, channels, 11, 9), 0
    weight = Categorical.of_logits(torch.randn(6, channels, *kernel, 2).requires_grad_(), (-1.0, 1.0))
    assert weight.mean.shape == weight.var.shape  # formed here: what they keep is not asked for

    def note(tensor: Tensor) -> Tensor:
        nonlocal kept
        kept += tensor.numel()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        clt.moments_of_windows(x, weight, None, geometry, clt.batch_centre(x, kernel, geometry))
    assert x.numel() <= kept < 2 * x.numel()


def test_no_output_of_a_function_is_written_in_place() -> None:
    """torch.compile, as of torch 2.11, gives such an output no gradient and says nothing."""
    x, weight = torch.rand(4, 6), torch.rand(3, 6)
    column = torch.ones(6)
    outputs = (
        *clt._TwoProducts.forward(x, None, weight, None, 6.0, None),
        *clt._OfWindows.forward(x[:, None], torch.rand(3), weight[:, :3], weight[:, :3], (3,), LINE),
        *_TiltAndKL.forward(torch.rand(5, 2).double()),
        _Tilt.forward(torch.rand(5, 2)),
        _StraightThrough.forward(weight, weight),
        _NormalizedSign.forward(x.double(), x.double(), column, column, None, None, True),
        *_HalfMoments.forward(_Context(), x.bfloat16(), weight, None, 1.0, 1.0, None),
        *_MomentsOfLevels.forward(x, None, weight, weight, None, 1.0, None, torch.bfloat16),
    )
    for output in outputs:
        assert output._version == 0
        assert not output._is_view()


class _Context:
    def save_for_backward(self, *tensors: Tensor | None) -> None:
        pass
