"""Moments of a sum in half precision for weights or inputs of more than two levels, or inputs that are normal.

With M and V the moments of the weights, S = V + M², and x and ν those of the inputs (`clt`),

    mean = M x,        var = V (x - c)² + S ν

takes three products, where weights ±a need two (`half`): S is no constant. Again every term is positive, so that the
variance keeps its digits, but for the centre c of a convolution, which `half` speaks of. Backward keeps x, M, V and c
alone, and ν where it does not follow from x; squares, S and rounded operands are formed again.

There are three forms, chosen as in `half`: plain torch, here; library products with Triton passes (`levels_kernels`);
products in Triton too (`triple_kernels`). Inputs may be in full precision, as beliefs of more than two levels are:
(x - c)² and ν are formed from them before anything is rounded.
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
    low = half.working_dtype(x)
    doubt = None if var is None or input_square is not None else _dense(var.to(low), geometry)
    both: tuple[Tensor, Tensor] = _MomentsOfLevels.apply(  # type: ignore[no-untyped-call]
        _dense(x, geometry), doubt, weight_mean, weight_var, centre, input_square, geometry, low
    )
    return both


def _dense(x: Tensor, geometry: Geometry | None) -> Tensor:
    return x.contiguous(memory_format=torch.contiguous_format if geometry is None else torch.channels_last)


class _MomentsOfLevels(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(
        x: Tensor, var: Tensor | None, weight: Tensor, noise: Tensor, centre: Tensor | None,
        input_square: float | None, geometry: Geometry | None, low: torch.dtype,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        operands = x, var, input_square, weight, noise, centre
        if _products_are_fused(x, weight, geometry):
            from bqn.propagate import triple_kernels

            return triple_kernels.forward(*operands)
        if half.kernels_take(x, weight):
            from bqn.propagate import levels_kernels

            return levels_kernels.forward(*operands, geometry, low)
        return _plain_forward(*operands, geometry, low)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        *tensors, ctx.input_square, ctx.geometry, ctx.low = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        # A clamped entry is a zero variance met with rounding error: its gradient passes.
        x, var, weight, noise, centre = ctx.saved_tensors
        geometry, need = ctx.geometry, ctx.needs_input_grad
        of_inputs, of_weights = need[0] or need[1] or need[4], need[2] or need[3]
        grad_mean, grad_var = grads
        operands = grad_mean, grad_var, x, var, ctx.input_square, weight, noise, centre
        if _products_are_fused(x, weight, geometry):
            from bqn.propagate import triple_kernels

            found = triple_kernels.backward(*operands, of_inputs, of_weights)
        elif half.kernels_take(x, weight):
            from bqn.propagate import levels_kernels

            found = levels_kernels.backward(*operands, geometry, ctx.low, of_inputs, of_weights)
        else:
            found = _plain_backward(*operands, geometry, ctx.low, of_inputs, of_weights)
        return *(grad if needed else None for grad, needed in zip(found, need, strict=False)), None, None, None


def _products_are_fused(x: Tensor, weight: Tensor, geometry: Geometry | None) -> bool:
    """Whether `triple_kernels` do it: of inputs in half precision. Tiles of others would be twice as large, and what is
    formed from them must be formed before they are rounded."""
    return half.is_low(x) and half.pair_kernels_take(x, weight, geometry)


def _noise_input(x: Tensor, middle: Tensor | None, geometry: Geometry | None) -> Tensor:
    """What meets V; a convolution leaves out c², so that the zeros of its padding stay zeros."""
    wide = x.float()
    if middle is None:
        return wide.square()
    return (wide - middle).square() if geometry is None else wide * (wide - 2 * middle)


def _rounded_inputs(
    x: Tensor, var: Tensor | None, input_square: float | None, middle: Tensor | None, geometry: Geometry | None,
    low: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor | None]:  # fmt: skip
    """x, what meets V and ν, all formed before they are rounded; ν is None for inputs that are known."""
    doubt = var if input_square is None else (input_square - x.float().square()).clamp_min(0).to(low)
    return x.to(low), _noise_input(x, middle, geometry).to(low), doubt


def _plain_forward(
    x: Tensor, var: Tensor | None, input_square: float | None, weight: Tensor, noise: Tensor, centre: Tensor | None,
    geometry: Geometry | None, low: torch.dtype,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    middle = None if centre is None else half.middle_of(centre, geometry)
    known, noise_input, doubt = _rounded_inputs(x, var, input_square, middle, geometry, low)
    mean = half.product(known, half.low_weight(weight, known, geometry), geometry).to(weight.dtype)
    total = half.product(noise_input, half.low_weight(noise, known, geometry), geometry).to(weight.dtype)
    if doubt is not None:
        total = total + half.product(doubt, half.low_weight(weight.square() + noise, known, geometry), geometry)
    if centre is not None and geometry is not None:
        total = total + (noise * half.square_of_centre(centre)).flatten(1).sum(-1).reshape(-1, 1, 1)
    return mean, total.clamp_min(0)


def _plain_backward(
    grad_mean: Tensor, grad_var: Tensor, x: Tensor, var: Tensor | None, input_square: float | None, weight: Tensor,
    noise: Tensor, centre: Tensor | None, geometry: Geometry | None, low: torch.dtype, of_inputs: bool,
    of_weights: bool,
) -> tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None, Tensor | None]:  # fmt: skip
    middle, signs = None if centre is None else half.middle_of(centre, geometry), input_square is not None
    known, noise_input, doubt = _rounded_inputs(x, var, input_square, middle, geometry, low)
    low_weight, low_noise = half.low_weight(weight, known, geometry), half.low_weight(noise, known, geometry)
    through_mean, by_weight = half.transposed_as_needed(grad_mean, known, low_weight, geometry, of_inputs, of_weights)
    through_noise, by_noise = half.transposed_as_needed(
        grad_var, noise_input, low_noise, geometry, of_inputs and needs_noise(centre, signs), of_weights
    )
    through_second = by_doubt = grad_x = grad_centre = per_unit = None
    if doubt is not None:
        second = weight.square() if signs else weight.square() + noise
        through_second, by_doubt = half.transposed_as_needed(
            grad_var, doubt, half.low_weight(second, known, geometry), geometry, of_inputs, of_weights
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
            by_noise = by_noise + per_unit * half.square_of_centre(centre)
    return grad_x, None if signs else through_second, by_weight, by_noise, grad_centre


def needs_noise(centre: Tensor | None, signs: bool) -> bool:
    """Whether gᵛ V is needed for the inputs: of ±b, uncentred, b² - x² leaves nothing of it.

    For inputs ±b the gradient by x is gᵐ M + 2 (x - c) gᵛ V - 2 x gᵛ S, that is gᵐ M - 2 c gᵛ V - 2 x gᵛ M²; only
    the second form does not take a difference of two rounded products.
    """
    return centre is not None or not signs
