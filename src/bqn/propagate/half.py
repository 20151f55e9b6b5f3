"""Moments of a sum in half precision, for mixed-precision training.

With float32 the variance may be formed as a difference of two large numbers; with bfloat16 nothing would be left of it.
For weights ±a of mean M and variance V = a² - M², and inputs of mean μ and variance ν, it is formed as

    var = a² Σ ν + V μ²

where every term is positive, so that its relative error is that of bfloat16, under one percent. The sum of ν needs no
product: it is a sum over channels and over the window. Products accumulate in float32. Weights or inputs of more levels
take a third product in its place, S ν with S = E[θ²], and hand on float32 (`levels_half`).

Batch norm's question for the noise within the batch takes a centre c out of μ. In a matrix product that happens before
squaring, and every term stays positive. In a convolution V (μ - c)² is V μ (μ - 2c) with V c² as a constant (`clt`), so
that the zeros of the padding stay zeros; what the examples have in common cancels there. Measured against float64 over
random layers of 16 to 256 channels behind batch norm and sign, with the formula of three products that stood here
before and cancels alike, its variance is off by

    typical inputs                          0.2 % in the median, 0.6 % at worst
    nearly certain, alike in all examples   0.3 to 3 % in the median, 1 to 24 % at worst; without padding over 100 %

where the second kind has little variance left to be off by. Behind average pooling (`averaged`) the centre of each
channel is taken out before squaring, which leaves 0.2 % and 2 % of the second kind (without padding 0.6 % and 5 %),
as long as bfloat16 can tell the inputs from ±a at all.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bqn.beliefs import Belief, Categorical, Gaussian
from bqn.propagate import cpu_cnn, devices
from bqn.propagate.products import Geometry, per_unit
from bqn.propagate.windows import over_places, padded

_LOW = (torch.bfloat16, torch.float16)
# Which Triton kernels a GPU uses: those for all that is done element by element, and those for matrix products, where
# they pay. benchmarks/pair_of_products.py switches them to compare.
KERNELS = True
PAIR_KERNELS = True
_lowered_to: torch.dtype | None = None


@contextmanager
def lowered(dtype: torch.dtype = torch.bfloat16) -> Iterator[None]:
    """Products in `dtype` inside the block, where that is safe. `torch.autocast` would lower the rest too."""
    global _lowered_to
    if dtype not in _LOW:
        raise ValueError(f"dtype must be torch.bfloat16 or torch.float16, got {dtype}")
    before, _lowered_to = _lowered_to, dtype
    try:
        yield
    finally:
        _lowered_to = before


def lowered_to() -> torch.dtype | None:
    """The dtype of products here, inside `lowered`; None outside."""
    return _lowered_to


def working_dtype(tensor: Tensor) -> torch.dtype:
    """The dtype of products inside `lowered`, else the tensor's own."""
    return tensor.dtype if _lowered_to is None or tensor.dtype == torch.float64 else _lowered_to


def is_low(x: Belief) -> bool:
    """Whether `x` is in half precision."""
    return x.dtype in _LOW


def raised(x: Belief, dtype: torch.dtype) -> Belief:
    """The belief in the precision of the weights, where it was lowered."""
    if x.dtype == dtype or not is_low(x):
        return x
    if isinstance(x, Tensor):
        return x.to(dtype)
    if isinstance(x, Categorical):
        if len(x.level_values) == 2:
            return Categorical.of(x.level_values, mean=x.mean.to(dtype), neighbours=x.neighbours)
        return Categorical.of(x.level_values, probs=x.probs.to(dtype), neighbours=x.neighbours)
    return Gaussian.of(x.mean.to(dtype), x.var.to(dtype), x.neighbours)


def prepared(x: Tensor | Categorical, geometry: Geometry | None) -> Tensor | Categorical:
    """Inputs as `moments` takes them, for all who read them: one copy is kept for backward, not two."""
    if isinstance(x, Categorical):
        return Categorical.of(x.level_values, mean=_low(x.mean, geometry), neighbours=x.neighbours)
    return _low(x, geometry)


def _low(x: Tensor, geometry: Geometry | None) -> Tensor:
    layout = torch.contiguous_format if geometry is None else torch.channels_last
    return x.to(dtype=working_dtype(x), memory_format=layout)


def applies(geometry: Geometry | None, x: Tensor) -> bool:
    """Whether products of this kind are done in half precision here.

    Inputs of few channels, such as images, stay in full precision: they cost little, and cancel most.
    """
    if working_dtype(x) not in _LOW:
        return False
    if geometry is None:
        return x.dim() == 2
    return len(geometry.stride) == 2 and geometry.groups == 1 and geometry.dilation == (1, 1) and x.shape[1] >= 16


def of_known(x: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry | None) -> Tensor:
    """The sums of a layer whose inputs and weights are known. Levels such as ±1 are exact, the sums rounded."""
    low = _low(x, geometry)
    result = product(low, low_weight(weight, low, geometry), geometry)
    return result if bias is None else result + per_unit(bias, geometry).to(result.dtype)


def moments(
    x: Tensor, weight: Tensor, centre: Tensor | None, weight_square: float, input_square: float | None,
    geometry: Geometry | None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Mean and variance of `weight · x`, both of the working dtype.

    Parameters
    ----------
    x : Tensor `(N, in_features)` or `(N, C, H, W)`, mean of the inputs
    weight : Tensor `(O, in_features)` or `(O, C, *kernel)` in float32, mean of the weights
    centre : Tensor like one row of the weight, or None
        The centre that the inputs of a batch have in common.
    weight_square, input_square : float
        The squares of the weights and of the inputs; None for inputs that are known.
    """
    both: tuple[Tensor, Tensor] = _HalfMoments.apply(  # type: ignore[no-untyped-call]
        _low(x, geometry), weight, centre, weight_square, input_square, geometry
    )
    return both


class _HalfMoments(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, centre: Tensor | None, weight_square: float, input_square: float | None,
        geometry: Geometry | None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        ctx.save_for_backward(x, weight, centre)
        ctx.settings = weight_square, input_square, geometry
        if pair_kernels_take(x, weight, geometry):
            from bqn.propagate import pair_kernels

            return pair_kernels.forward(x, weight, centre, weight_square, input_square)
        if kernels_take(x, weight):
            from bqn.propagate import half_kernels

            return half_kernels.forward(x, weight, centre, weight_square, input_square, geometry)
        low, low_noise = _low_weights(weight, weight_square, x, geometry)
        mean = product(x, low, geometry)
        var = product(_noise_input(x, centre, geometry), low_noise, geometry)
        if centre is not None and geometry is not None:
            noise = weight_square - weight.square()
            constant = (noise * square_of_centre(centre)).flatten(1).sum(-1)
            var = var + constant.reshape(-1, 1, 1).to(var.dtype)
        if input_square is not None:
            channels = 1 if geometry is not None else -1
            doubt = input_square * x.shape[channels] - x.square().sum(channels, keepdim=True, dtype=torch.float32)
            var = var + (weight_square * window_sum(doubt, weight, geometry)).to(var.dtype)
        return mean, var.clamp_min(0)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        x, weight, centre = ctx.saved_tensors
        weight_square, input_square, geometry = ctx.settings
        grad_mean, grad_var = grads
        if pair_kernels_take(x, weight, geometry):
            return _pair_backward(ctx, x, weight, centre, grad_mean, grad_var)
        if kernels_take(x, weight):
            from bqn.propagate import half_kernels

            return *half_kernels.backward(
                grad_mean, grad_var, x, weight, centre, weight_square, input_square, geometry, ctx.needs_input_grad[0]
            ), None, None, None  # fmt: skip
        need = ctx.needs_input_grad
        low, low_noise = _low_weights(weight, weight_square, x, geometry)
        grad_x, grad_weight = transposed(grad_mean, x, low, geometry, need[0])
        grad_noise, by_noise = transposed(grad_var, _noise_input(x, centre, geometry), low_noise, geometry, need[0])
        grad_centre = shared = None
        if centre is not None and geometry is not None:
            noise, by_noise = weight_square - weight.square(), by_noise.float()
            per_unit = grad_var.sum((0, 2, 3), dtype=torch.float32).reshape(-1, 1, 1, 1)
            by_noise = by_noise + per_unit * square_of_centre(centre)
            shared = (per_unit * noise).sum(0)
        if grad_x is not None and grad_noise is not None:
            middle = None if centre is None else middle_of(centre, geometry).to(x.dtype)
            pull = 2 * (x if middle is None else x - middle) * grad_noise
            if centre is not None and geometry is None:
                grad_centre = -pull.sum(0, dtype=torch.float32)
            elif centre is not None and shared is not None:
                by_middle = (-2 * x * grad_noise).sum((0, 2, 3), dtype=torch.float32)
                grad_centre = by_centre(by_middle, shared, centre)
            if input_square is not None:
                per_row = grad_var.sum(1, keepdim=True, dtype=torch.float32)
                doubt = spread_over_inputs(per_row, x, weight, geometry).to(x.dtype)
                pull = pull - (2 * weight_square) * doubt * x
            grad_x = grad_x + pull
        if _rounds_weights(weight, x, geometry):
            return grad_x, cpu_cnn.through_square(grad_weight, by_noise, weight, -2.0), grad_centre, None, None, None
        return grad_x, grad_weight.float() - 2 * weight * by_noise.float(), grad_centre, None, None, None


def _low_weights(weight: Tensor, square: float, x: Tensor, geometry: Geometry | None) -> tuple[Tensor, Tensor]:
    """Means of weights of this square and their variances, as operands for `x`."""
    if _rounds_weights(weight, x, geometry):
        return cpu_cnn.low_weights(weight, square)
    return low_weight(weight, x, geometry), low_weight(square - weight.square(), x, geometry)


def _rounds_weights(weight: Tensor, x: Tensor, geometry: Geometry | None) -> bool:
    """Whether both are formed in one pass: for a matrix, which is large, in bfloat16 on a CPU."""
    return geometry is None and x.dtype == torch.bfloat16 and cpu_cnn.rounds(weight)


def middle_of(centre: Tensor, geometry: Geometry | None) -> Tensor:
    """The centre of a channel: that of a feature, or the mean over the kernel, `(C, 1, 1)`."""
    return centre if geometry is None else over_places(centre)


def _noise_input(x: Tensor, centre: Tensor | None, geometry: Geometry | None) -> Tensor:
    """What meets the noise of the weights: (μ - c)², but for the constant c² of a convolution."""
    if centre is None:
        return x.square()
    middle = middle_of(centre, geometry).to(x.dtype)
    return (x - middle).square() if geometry is None else x * (x - 2 * middle)


def square_of_centre(centre: Tensor) -> Tensor:
    """c² of each channel, for each place of the kernel: `(C, *kernel)`."""
    return over_places(centre).square().expand_as(centre)


def by_centre(by_middle: Tensor, shared: Tensor, centre: Tensor) -> Tensor:
    """The gradient by the centre of a convolution, `(C, *kernel)`, of which the channel's mean counts alone.

    Parameters
    ----------
    by_middle : Tensor `(C,)`, by that mean through the inputs
    shared : Tensor `(C, *kernel)`, by the constant square
    centre : Tensor `(C, *kernel)`
    """
    through = 2 * over_places(centre) * shared.sum((1, 2), keepdim=True)
    return ((by_middle.reshape(-1, 1, 1) + through) / centre[0].numel()).expand_as(centre)


def kernels_take(x: Tensor, weight: Tensor) -> bool:
    """Whether Triton kernels (`half_kernels`) do what is done element by element."""
    from bqn.propagate.normalized_sign import fused

    return KERNELS and fused(x) and weight.numel() > 0 and weight.dtype == torch.float32


def pair_kernels_take(x: Tensor, weight: Tensor, geometry: Geometry | None) -> bool:
    """Whether Triton kernels (`pair_kernels`) do the products of this layer too."""
    from bqn.propagate.normalized_sign import fused

    if not (PAIR_KERNELS and geometry is None and fused(x) and weight.numel() and weight.dtype == torch.float32):
        return False
    from bqn.propagate import pair_kernels

    return pair_kernels.fits(x, weight) and pair_kernels.pays(x, weight)


def _pair_backward(
    ctx: Any, x: Tensor, weight: Tensor, centre: Tensor | None, grad_mean: Tensor, grad_var: Tensor
) -> tuple[Tensor | None, ...]:
    from bqn.propagate import pair_kernels

    weight_square, input_square, _ = ctx.settings
    need_x, need_weight, need_centre = ctx.needs_input_grad[:3]
    grad_x = grad_centre = grad_weight = None
    if need_x or need_centre:
        grad_x, grad_centre = pair_kernels.by_input(
            grad_mean, grad_var, x, weight, centre, weight_square, input_square is not None
        )
    if need_weight:
        grad_weight = pair_kernels.by_weight(grad_mean, grad_var, x, weight, centre)
    return grad_x if need_x else None, grad_weight, grad_centre, None, None, None


def low_weight(weight: Tensor, x: Tensor, geometry: Geometry | None) -> Tensor:
    layout = torch.contiguous_format if geometry is None else torch.channels_last
    return weight.to(dtype=x.dtype, memory_format=layout)


def _operand(tensor: Tensor) -> Tensor:
    """Where there are no products in half precision, the rounded numbers are multiplied in full."""
    return tensor if devices.multiplies(tensor) else tensor.float()


def product(x: Tensor, weight: Tensor, geometry: Geometry | None) -> Tensor:
    """The linear map of a layer, of operands in half precision; so is its result."""
    if geometry is None:
        result = F.linear(_operand(x), _operand(weight))
    else:
        result = F.conv2d(_operand(x), _operand(weight), None, geometry.stride, geometry.padding)
    return result if result.dtype == x.dtype else result.to(x.dtype)


def transposed(
    grad: Tensor, x: Tensor, weight: Tensor, geometry: Geometry | None, need_x: bool
) -> tuple[Tensor | None, Tensor]:
    """Gradients of the product by x and by the weight."""
    grad_x, grad_weight = transposed_as_needed(grad, x, weight, geometry, need_x, True)
    assert grad_weight is not None
    return grad_x, grad_weight


def transposed_as_needed(
    grad: Tensor, x: Tensor, weight: Tensor, geometry: Geometry | None, need_x: bool, need_weight: bool
) -> tuple[Tensor | None, Tensor | None]:
    if not need_x and not need_weight:
        return None, None
    grad, known, low = _operand(grad.to(x.dtype)), _operand(x), _operand(weight)
    if geometry is None:
        return (grad @ low).to(x.dtype) if need_x else None, (grad.mT @ known).to(x.dtype) if need_weight else None
    grad, need = grad.contiguous(memory_format=torch.channels_last), (need_x, need_weight, False)
    grad_x, grad_weight, _ = torch.ops.aten.convolution_backward(
        grad, known, low, None, geometry.stride, geometry.padding, (1, 1), False, (0, 0), 1, need
    )
    return grad_x.to(x.dtype) if need_x else None, grad_weight.to(x.dtype) if need_weight else None


def window_sum(doubt: Tensor, weight: Tensor, geometry: Geometry | None) -> Tensor:
    if geometry is None:
        return doubt
    return F.avg_pool2d(padded(doubt, geometry.padding), tuple(weight.shape[2:]), geometry.stride, divisor_override=1)


def spread_over_inputs(per_row: Tensor, x: Tensor, weight: Tensor, geometry: Geometry | None) -> Tensor:
    """What each input's doubt does to all outputs that read it, `(N, 1)` or `(N, 1, H, W)`, from what it does to all
    units of one row or place."""
    if geometry is None:
        return per_row
    (top, left), (height, width) = geometry.padding, x.shape[2:]
    like = per_row.new_empty((x.shape[0], 1, height + 2 * top, width + 2 * left))
    whole: Tensor = torch.ops.aten.avg_pool2d_backward(
        per_row, like, tuple(weight.shape[2:]), geometry.stride, (0, 0), False, True, 1
    )
    return whole[..., top : top + height, left : left + width]
