"""Half-precision moments of more than two levels on a GPU: library products, and Triton kernels for the rest.

The formulas are those of `levels_half.py`, the layout that of `half_kernels.py`: rows of channels in memory, a matrix
product as the convolution with a kernel of one element.

- `_inputs_kernel` reads x and writes it rounded, if it is not, what meets V, and ν for inputs ±b;
- `_weights_kernel` reads M and V and writes them and S rounded, and what V makes of the constant square;
- `_finish_kernel` raises the mean, and adds up the variance;
- `_by_input_kernel` and `_by_weight_kernel` put the gradients together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from torch import Tensor

from bqn.propagate import half
from bqn.propagate.half_kernels import BLOCK, CHUNKS, centres, dense, like, sums, tile_for
from bqn.propagate.levels_half import needs_noise

if TYPE_CHECKING:
    from bqn.propagate.products import Geometry


@triton.jit
def _inputs_kernel(
    x_ptr, centre_ptr, low_ptr, noise_ptr, doubt_ptr, size, channels, input_square, ROUNDED: tl.constexpr,
    SHIFTED: tl.constexpr, PADDED: tl.constexpr, SIGNS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = index < size
    x = tl.load(x_ptr + index, mask=mask, other=0.0).to(tl.float32)
    if not ROUNDED:
        tl.store(low_ptr + index, x, mask=mask)
    noise = x * x
    if SHIFTED:
        centre = tl.load(centre_ptr + index % channels, mask=mask, other=0.0)
        noise = x * (x - 2 * centre) if PADDED else (x - centre) * (x - centre)
    tl.store(noise_ptr + index, noise, mask=mask)
    if SIGNS:
        tl.store(doubt_ptr + index, tl.maximum(input_square - x * x, 0.0), mask=mask)


@triton.jit
def _weights_kernel(
    weight_ptr, noise_ptr, square_ptr, low_ptr, low_noise_ptr, second_ptr, constant_ptr, channels, kernel,
    DOUBT: tl.constexpr, ALONE: tl.constexpr, CENTRED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    size = channels * kernel
    start_of_unit = tl.program_id(0).to(tl.int64) * size
    constant = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, size, BLOCK):
        index = start + tl.arange(0, BLOCK)  # as the library wants it, channels last
        mask = index < size
        source = (index % channels) * kernel + index // channels
        weight = tl.load(weight_ptr + start_of_unit + source, mask=mask, other=0.0)
        noise = tl.load(noise_ptr + start_of_unit + source, mask=mask, other=0.0)
        tl.store(low_ptr + start_of_unit + index, weight, mask=mask)
        tl.store(low_noise_ptr + start_of_unit + index, noise, mask=mask)
        if DOUBT:
            second = weight * weight
            if not ALONE:
                second += noise
            tl.store(second_ptr + start_of_unit + index, second, mask=mask)
        if CENTRED:
            constant += noise * tl.load(square_ptr + source, mask=mask, other=0.0)
    if CENTRED:
        tl.store(constant_ptr + tl.program_id(0), tl.sum(constant, 0))


@triton.jit
def _finish_kernel(
    low_ptr, noise_ptr, doubt_ptr, constant_ptr, mean_ptr, var_ptr, size, channels, DOUBT: tl.constexpr,
    CENTRED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = index < size
    tl.store(mean_ptr + index, tl.load(low_ptr + index, mask=mask, other=0.0).to(tl.float32), mask=mask)
    var = tl.load(noise_ptr + index, mask=mask, other=0.0).to(tl.float32)
    if DOUBT:
        var += tl.load(doubt_ptr + index, mask=mask, other=0.0).to(tl.float32)
    if CENTRED:
        var += tl.load(constant_ptr + index % channels, mask=mask, other=0.0)
    tl.store(var_ptr + index, tl.maximum(var, 0.0), mask=mask)


@triton.jit
def _by_input_kernel(
    through_mean_ptr, through_noise_ptr, through_second_ptr, x_ptr, centre_ptr, out_ptr, down_ptr, rows, channels,
    SHIFTED: tl.constexpr, PADDED: tl.constexpr, SIGNS: tl.constexpr, ROWS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    mask = (row < rows)[:, None] & (channel < channels)[None, :]
    where = row.to(tl.int64)[:, None] * channels + channel[None, :]
    x = tl.load(x_ptr + where, mask=mask, other=0.0).to(tl.float32)
    grad = tl.load(through_mean_ptr + where, mask=mask, other=0.0).to(tl.float32)
    if SHIFTED:
        centre = tl.load(centre_ptr + channel, mask=channel < channels, other=0.0)[None, :]
        through_noise = tl.load(through_noise_ptr + where, mask=mask, other=0.0).to(tl.float32)
        by_middle = 2 * (x if PADDED else x - centre) * through_noise  # zero beyond the edge, as through_noise is
        tl.store(down_ptr + tl.program_id(0) * channels + channel, -tl.sum(by_middle, 0), mask=channel < channels)
        grad += 2 * ((0.0 - centre) if SIGNS else (x - centre)) * through_noise
    elif not SIGNS:
        grad += 2 * x * tl.load(through_noise_ptr + where, mask=mask, other=0.0).to(tl.float32)
    if SIGNS:
        grad -= 2 * x * tl.load(through_second_ptr + where, mask=mask, other=0.0).to(tl.float32)
    tl.store(out_ptr + where, grad, mask=mask)


@triton.jit
def _by_weight_kernel(
    by_weight_ptr, by_noise_ptr, by_doubt_ptr, weight_ptr, noise_ptr, square_ptr, unit_ptr, out_ptr, noise_out_ptr,
    down_ptr, units, channels, kernel, each, DOUBT: tl.constexpr, CENTRED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    chunk, size = tl.program_id(1), channels * kernel
    mask = index < size
    source = (index % kernel) * channels + index // kernel
    constant, down = tl.zeros((BLOCK,), tl.float32), tl.zeros((BLOCK,), tl.float32)
    if CENTRED:
        constant = tl.load(square_ptr + index, mask=mask, other=0.0)
    for unit in range(chunk * each, tl.minimum((chunk + 1) * each, units)):
        start = unit * size
        grad = tl.load(by_weight_ptr + start + source, mask=mask, other=0.0).to(tl.float32)
        by_noise = tl.load(by_noise_ptr + start + source, mask=mask, other=0.0).to(tl.float32)
        if DOUBT:
            by_doubt = tl.load(by_doubt_ptr + start + source, mask=mask, other=0.0).to(tl.float32)
            grad += 2 * tl.load(weight_ptr + start + index, mask=mask, other=0.0) * by_doubt
            by_noise += by_doubt
        if CENTRED:
            in_all = tl.load(unit_ptr + unit)
            by_noise += in_all * constant
            down += in_all * tl.load(noise_ptr + start + index, mask=mask, other=0.0)
        tl.store(out_ptr + start + index, grad, mask=mask)
        tl.store(noise_out_ptr + start + index, by_noise, mask=mask)
    if CENTRED:
        tl.store(down_ptr + chunk * size + index, down, mask=mask)


def _inputs(
    x: Tensor, var: Tensor | None, input_square: float | None, middle: Tensor | None, geometry: Geometry | None,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor | None]:  # fmt: skip
    """x, what meets V and ν, rounded."""
    low = x if x.dtype == dtype else torch.empty_like(x, dtype=dtype)
    noise = torch.empty_like(low)
    doubt = var if input_square is None else torch.empty_like(low)
    _inputs_kernel[(triton.cdiv(x.numel(), BLOCK),)](
        x, x if middle is None else middle, low, noise, low if doubt is None else doubt, x.numel(), x.shape[1],
        input_square or 0.0, ROUNDED=low is x, SHIFTED=middle is not None, PADDED=geometry is not None,
        SIGNS=input_square is not None, BLOCK=BLOCK,
    )  # fmt: skip
    return low, noise, doubt


def _weights(
    weight: Tensor, noise: Tensor, constant_square: Tensor | None, dtype: torch.dtype, doubt: bool, alone: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """M, V, and S or M² `alone`, rounded; and per unit what V makes of the constant square (empty without one)."""
    centred = constant_square is not None
    low, low_noise = (like(tuple(weight.shape), dtype, weight.device) for _ in range(2))
    second = torch.empty_like(low) if doubt else low
    constant = torch.empty(weight.shape[0] if centred else 0, device=weight.device)
    _weights_kernel[(weight.shape[0],)](
        weight, noise, weight if constant_square is None else constant_square, low, low_noise, second, constant,
        weight.shape[1], weight.shape[2:].numel(), DOUBT=doubt, ALONE=alone, CENTRED=centred, BLOCK=BLOCK,
    )  # fmt: skip
    return low, low_noise, second, constant


def forward(
    x: Tensor, var: Tensor | None, input_square: float | None, weight: Tensor, noise: Tensor, centre: Tensor | None,
    geometry: Geometry | None, dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """As `levels_half.moments_of_levels` with products in `dtype`, from inputs that are contiguous or channels last."""
    middle, constant_square = centres(centre, geometry)
    known, noise_input, doubt = _inputs(x, var, input_square, middle, geometry, dtype)
    low, low_noise, second, constant = _weights(
        weight.contiguous(), noise.contiguous(), constant_square, dtype, doubt is not None, False
    )
    products = [half.product(known, low, geometry), half.product(noise_input, low_noise, geometry)]
    products += [] if doubt is None else [half.product(doubt, second, geometry)]
    products = [dense(each, geometry) for each in products]
    mean, total = (torch.empty_like(products[0], dtype=torch.float32) for _ in range(2))
    _finish_kernel[(triton.cdiv(mean.numel(), BLOCK),)](
        products[0], products[1], products[-1], constant, mean, total, mean.numel(), mean.shape[1],
        DOUBT=doubt is not None, CENTRED=constant_square is not None, BLOCK=BLOCK,
    )  # fmt: skip
    return mean, total


def backward(
    grad_mean: Tensor, grad_var: Tensor, x: Tensor, var: Tensor | None, input_square: float | None, weight: Tensor,
    noise: Tensor, centre: Tensor | None, geometry: Geometry | None, dtype: torch.dtype, of_inputs: bool,
    of_weights: bool,
) -> tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None, Tensor | None]:  # fmt: skip
    """Gradients by x, ν, M, V and the centre, as far as asked for."""
    weight, noise, signs = weight.contiguous(), noise.contiguous(), input_square is not None
    middle, constant_square = centres(centre, geometry)
    known, noise_input, doubt = _inputs(x, var, input_square, middle, geometry, dtype)
    low, low_noise, second, _ = _weights(weight, noise, constant_square, dtype, doubt is not None, signs)
    grad_mean, low_var = dense(grad_mean.to(dtype), geometry), dense(grad_var.to(dtype), geometry)
    through_mean, by_weight = half.transposed_as_needed(grad_mean, known, low, geometry, of_inputs, of_weights)
    through_noise, by_noise = half.transposed_as_needed(
        low_var, noise_input, low_noise, geometry, of_inputs and needs_noise(centre, signs), of_weights
    )
    through_second = by_doubt = grad_x = grad_centre = shared = by_unit = None
    if doubt is not None:
        through_second, by_doubt = half.transposed_as_needed(low_var, doubt, second, geometry, of_inputs, of_weights)
    if constant_square is not None:
        by_unit = sums(dense(grad_var, geometry), True)[1]
    if through_mean is not None:
        grad_x, grad_centre = _by_input(through_mean, through_noise, through_second, x, middle, signs, geometry)
    if by_weight is not None and by_noise is not None:
        by_doubt = None if by_doubt is None else dense(by_doubt, geometry)
        by_weight, by_noise, shared = _by_weight(
            dense(by_weight, geometry), dense(by_noise, geometry), by_doubt, weight, noise, constant_square, by_unit
        )
    if grad_centre is not None and by_unit is not None and centre is not None:
        if shared is None:
            shared = (by_unit.reshape(-1, 1, 1, 1) * noise).sum(0)
        grad_centre = half.by_centre(grad_centre, shared, centre)
    return grad_x, None if signs else through_second, by_weight, by_noise, grad_centre


def _by_input(
    through_mean: Tensor, through_noise: Tensor | None, through_second: Tensor | None, x: Tensor,
    middle: Tensor | None, signs: bool, geometry: Geometry | None,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """By x, and by the centre of each channel through the inputs."""
    channels = x.shape[1]
    rows = x.numel() // channels
    tile = tile_for(channels, rows)
    blocks = triton.cdiv(rows, tile["ROWS"])
    down = torch.empty((blocks, channels) if middle is not None else 0, device=x.device)
    out = torch.empty_like(x)
    _by_input_kernel[(blocks, triton.cdiv(channels, tile["CHANNELS"]))](
        *(x if each is None else dense(each, geometry) for each in (through_mean, through_noise, through_second)), x,
        x if middle is None else middle, out, down, rows, channels, SHIFTED=middle is not None,
        PADDED=geometry is not None, SIGNS=signs, **tile,
    )  # fmt: skip
    return out, None if middle is None else down.sum(0)


def _by_weight(
    by_weight: Tensor, by_noise: Tensor, by_doubt: Tensor | None, weight: Tensor, noise: Tensor,
    constant_square: Tensor | None, by_unit: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor | None]:  # fmt: skip
    """By M, by V, and by the constant square; `by_unit` is by the variance of each unit in all rows together."""
    units, channels, size = weight.shape[0], weight.shape[1], weight.shape[1:].numel()
    centred = constant_square is not None
    chunks = CHUNKS if centred else min(units, 128)
    down = torch.empty((chunks, *weight.shape[1:]) if centred else 0, device=weight.device)
    out, noise_out = torch.empty_like(weight), torch.empty_like(weight)
    _by_weight_kernel[(triton.cdiv(size, 256), chunks)](
        by_weight, by_noise, by_noise if by_doubt is None else by_doubt, weight, noise,
        weight if constant_square is None else constant_square, weight if by_unit is None else by_unit, out, noise_out,
        down, units, channels, weight.shape[2:].numel(), triton.cdiv(units, chunks), DOUBT=by_doubt is not None,
        CENTRED=centred, BLOCK=256,
    )  # fmt: skip
    return out, noise_out, down.sum(0) if centred else None
