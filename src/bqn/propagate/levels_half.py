"""Moments of a sum in half precision for weights or inputs of more than two levels, or inputs that are normal.

With M and V the moments of the weights, S = V + M², and x and ν those of the inputs (`clt`),

    mean = M x,        var = V (x - c)² + S ν

takes three products, where weights ±a need two (`half`): S is no constant. Again every term is positive, so that the
variance keeps its digits, but for the centre c of a convolution, which `half` speaks of. Backward keeps x, M, V and c
alone, and ν where it does not follow from x; squares, S and rounded operands are formed again.

There are three forms, chosen as in `half`: plain torch, here; library products with Triton passes (`levels_kernels`);
products in Triton too (`triple_kernels`).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bqn.propagate import half
from bqn.propagate.products import Geometry


def moments_of_levels(
    x: Tensor, var: Tensor | None, input_square: float | None, weight_mean: Tensor, weight_var: Tensor,
    centre: Tensor | None, geometry: Geometry | None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Mean and variance of `weight · x`, both of the dtype of the weights.

    Parameters
    ----------
    x : Tensor `(N, in_features)` or `(N, C, H, W)`, mean of the inputs
    var : Tensor like x, their variance; None for inputs that are known or ±b
    input_square : b² for inputs ±b, whose variance is b² - x²; else None
    weight_mean, weight_var : Tensor `(O, in_features)` or `(O, C, *kernel)`
    centre : Tensor like one row of the weight, or None
        The centre that the inputs of a batch have in common.
    """
    low = _dense_low(x, geometry)
    doubt = None if var is None or input_square is not None else _dense_low(var, geometry)
    both: tuple[Tensor, Tensor] = _MomentsOfLevels.apply(  # type: ignore[no-untyped-call]
        low, doubt, weight_mean, weight_var, centre, input_square, geometry
    )
    return both


def _dense_low(x: Tensor, geometry: Geometry | None) -> Tensor:
    layout = torch.contiguous_format if geometry is None else torch.channels_last
    return x.to(half.working_dtype(x)).contiguous(memory_format=layout)


class _MomentsOfLevels(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, var: Tensor | None, weight: Tensor, noise: Tensor, centre: Tensor | None,
        input_square: float | None, geometry: Geometry | None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        ctx.save_for_backward(x, var, weight, noise, centre)
        ctx.settings = input_square, geometry
        operands = x, var, input_square, weight, noise, centre
        if half.pair_kernels_take(x, weight, geometry):
            from bqn.propagate import triple_kernels

            return triple_kernels.forward(*operands)
        if half.kernels_take(x, weight):
            from bqn.propagate import levels_kernels

            return levels_kernels.forward(*operands, geometry)
        return _plain_forward(*operands, geometry)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        # A clamped entry is a zero variance met with rounding error: its gradient passes.
        x, var, weight, noise, centre = ctx.saved_tensors
        input_square, geometry = ctx.settings
        need = ctx.needs_input_grad
        of_inputs, of_weights = need[0] or need[1] or need[4], need[2] or need[3]
        grad_mean, grad_var = grads
        operands = grad_mean, grad_var, x, var, input_square, weight, noise, centre
        if half.pair_kernels_take(x, weight, geometry):
            from bqn.propagate import triple_kernels

            found = triple_kernels.backward(*operands, of_inputs, of_weights)
        elif half.kernels_take(x, weight):
            from bqn.propagate import levels_kernels

            found = levels_kernels.backward(*operands, geometry, of_inputs, of_weights)
        else:
            found = _plain_backward(*operands, geometry, of_inputs, of_weights)
        return *(grad if needed else None for grad, needed in zip(found, need, strict=False)), None, None


def _noise_input(x: Tensor, middle: Tensor | None, geometry: Geometry | None) -> Tensor:
    """What meets V, rounded once; a convolution leaves out c², so that the zeros of its padding stay zeros."""
    wide = x.float()
    if middle is None:
        return wide.square().to(x.dtype)
    return ((wide - middle).square() if geometry is None else wide * (wide - 2 * middle)).to(x.dtype)


def _doubt(x: Tensor, var: Tensor | None, input_square: float | None) -> Tensor | None:
    """The variance of the inputs; None if they are known."""
    return var if input_square is None else (input_square - x.float().square()).clamp_min(0).to(x.dtype)


def _plain_forward(
    x: Tensor, var: Tensor | None, input_square: float | None, weight: Tensor, noise: Tensor, centre: Tensor | None,
    geometry: Geometry | None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    middle = None if centre is None else half._middle(centre, geometry)
    mean = half.product(x, half.low_weight(weight, x, geometry), geometry).to(weight.dtype)
    total = half.product(_noise_input(x, middle, geometry), half.low_weight(noise, x, geometry), geometry)
    total, doubt = total.to(weight.dtype), _doubt(x, var, input_square)
    if doubt is not None:
        total = total + half.product(doubt, half.low_weight(weight.square() + noise, x, geometry), geometry)
    if centre is not None and geometry is not None:
        total = total + (noise * half._constant_square(centre)).flatten(1).sum(-1).reshape(-1, 1, 1)
    return mean, total.clamp_min(0)


def _plain_backward(
    grad_mean: Tensor, grad_var: Tensor, x: Tensor, var: Tensor | None, input_square: float | None, weight: Tensor,
    noise: Tensor, centre: Tensor | None, geometry: Geometry | None, of_inputs: bool, of_weights: bool,
) -> tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None, Tensor | None]:  # fmt: skip
    middle = None if centre is None else half._middle(centre, geometry)
    doubt, signs = _doubt(x, var, input_square), input_square is not None
    low, low_noise = half.low_weight(weight, x, geometry), half.low_weight(noise, x, geometry)
    through_mean, by_weight = half.transposed_as_needed(grad_mean, x, low, geometry, of_inputs, of_weights)
    through_noise, by_noise = half.transposed_as_needed(
        grad_var, _noise_input(x, middle, geometry), low_noise, geometry, of_inputs and needs_noise(centre, signs),
        of_weights,
    )  # fmt: skip
    through_second = by_doubt = grad_x = grad_centre = per_unit = None
    if doubt is not None:
        second = weight.square() if signs else weight.square() + noise
        through_second, by_doubt = half.transposed_as_needed(
            grad_var, doubt, half.low_weight(second, x, geometry), geometry, of_inputs, of_weights
        )
    if centre is not None and geometry is not None:
        per_unit = grad_var.sum((0, 2, 3)).reshape(-1, 1, 1, 1)
    if through_mean is not None:
        wide = x.float()
        base = wide if middle is None else wide - middle
        grad_x = through_mean.float()
        if signs and through_second is not None:
            grad_x = grad_x - 2 * wide * through_second
        if through_noise is not None:
            grad_x = grad_x + 2 * (base - wide if signs else base) * through_noise
        if centre is not None and through_noise is not None:
            by_middle = -2 * (base if geometry is None else wide) * through_noise
            grad_centre = by_middle.sum(0) if geometry is None else by_middle.sum((0, 2, 3))
            if per_unit is not None:
                grad_centre = half.by_centre(grad_centre, (per_unit * noise).sum(0), centre)
        grad_x = grad_x.to(x.dtype)
    if by_weight is not None and by_noise is not None:
        by_weight, by_noise = by_weight.to(weight.dtype), by_noise.to(weight.dtype)
        if by_doubt is not None:
            by_weight, by_noise = by_weight + 2 * weight * by_doubt, by_noise + by_doubt
        if per_unit is not None and centre is not None:
            by_noise = by_noise + per_unit * half._constant_square(centre)
    return grad_x, None if signs else through_second, by_weight, by_noise, grad_centre


def needs_noise(centre: Tensor | None, signs: bool) -> bool:
    """Whether gᵛ V is needed for the inputs: of ±b, uncentred, b² - x² leaves nothing of it.

    For inputs ±b the gradient by x is gᵐ M + 2 (x - c) gᵛ V - 2 x gᵛ S, that is gᵐ M - 2 c gᵛ V - 2 x gᵛ M²; only
    the second form does not take a difference of two rounded products.
    """
    return centre is not None or not signs
