"""Half-precision moments on a GPU: two library products, and Triton kernels for all that is done element by element.

The formulas are those of `half.py`. Inputs and outputs are rows of channels in memory, `(N, C)` or channels last
`(N, H, W, C)`; weights come as `(O, C, *kernel)` and go to the library as `(O, *kernel, C)`. So a matrix product is the
convolution with a kernel of one element, and each kernel here serves both:

- `_inputs_kernel` reads the inputs and writes what meets the noise of the weights, and the doubt of each row;
- `_weights_kernel` reads the means of the weights and writes them rounded, their noise rounded, and its constant part;
- `_finish_kernel` adds doubt and constant to the variance;
- `_sums_kernel` adds up the gradients by the variance, over the units of a row and over the rows of a unit;
- `_by_input_kernel` and `_by_weight_kernel` put the gradients together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from torch import Tensor

from bqn.propagate import half

if TYPE_CHECKING:
    from bqn.propagate.products import Geometry

BLOCK = 1024
CHUNKS = 16  # partial sums over the units, for the gradient of the centre


@triton.jit
def _inputs_kernel(
    x_ptr, centre_ptr, noise_ptr, doubt_ptr, rows, channels, square, input_square,
    SHIFTED: tl.constexpr, PADDED: tl.constexpr, DOUBT: tl.constexpr, ROWS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    known = tl.zeros((ROWS,), tl.float32)
    for start in range(0, channels, CHANNELS):
        channel = start + tl.arange(0, CHANNELS)
        mask = (row < rows)[:, None] & (channel < channels)[None, :]
        where = row.to(tl.int64)[:, None] * channels + channel[None, :]
        x = tl.load(x_ptr + where, mask=mask, other=0.0).to(tl.float32)
        known += tl.sum(x * x, 1)
        if SHIFTED:
            centre = tl.load(centre_ptr + channel, mask=channel < channels, other=0.0)[None, :]
            noise = x * (x - 2 * centre) if PADDED else (x - centre) * (x - centre)
        else:
            noise = x * x
        tl.store(noise_ptr + where, noise, mask=mask)
    if DOUBT:
        tl.store(doubt_ptr + row, square * (input_square * channels - known), mask=row < rows)


@triton.jit
def _weights_kernel(
    weight_ptr, square_ptr, mean_ptr, noise_ptr, constant_ptr, channels, kernel, square,
    CENTRED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    unit = tl.program_id(0)
    size = channels * kernel
    constant = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, size, BLOCK):
        index = start + tl.arange(0, BLOCK)  # as the library wants it, channels last
        mask = index < size
        channel, offset = index % channels, index // channels
        source = channel * kernel + offset
        mean = tl.load(weight_ptr + unit * size + source, mask=mask, other=0.0)
        noise = tl.where(mask, square - mean * mean, 0.0)
        tl.store(mean_ptr + unit * size + index, mean, mask=mask)
        tl.store(noise_ptr + unit * size + index, noise, mask=mask)
        if CENTRED:
            constant += noise * tl.load(square_ptr + source, mask=mask, other=0.0)
    if CENTRED:
        tl.store(constant_ptr + unit, tl.sum(constant, 0))


@triton.jit
def _finish_kernel(
    var_ptr, doubt_ptr, constant_ptr, size, channels, DOUBT: tl.constexpr, CENTRED: tl.constexpr, BLOCK: tl.constexpr
):
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = index < size
    var = tl.load(var_ptr + index, mask=mask, other=0.0).to(tl.float32)
    if DOUBT:
        var += tl.load(doubt_ptr + index // channels, mask=mask, other=0.0)
    if CENTRED:
        var += tl.load(constant_ptr + index % channels, mask=mask, other=0.0)
    tl.store(var_ptr + index, tl.maximum(var, 0.0), mask=mask)


@triton.jit
def _sums_kernel(
    grad_ptr, row_ptr, down_ptr, rows, units, OVER_ROWS: tl.constexpr, ROWS: tl.constexpr, CHANNELS: tl.constexpr
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    whole = tl.zeros((ROWS,), tl.float32)
    for start in range(0, units, CHANNELS):
        unit = start + tl.arange(0, CHANNELS)
        mask = (row < rows)[:, None] & (unit < units)[None, :]
        where = row.to(tl.int64)[:, None] * units + unit[None, :]
        grad = tl.load(grad_ptr + where, mask=mask, other=0.0).to(tl.float32)
        whole += tl.sum(grad, 1)
        if OVER_ROWS:
            tl.store(down_ptr + tl.program_id(0) * units + unit, tl.sum(grad, 0), mask=unit < units)
    tl.store(row_ptr + row, whole, mask=row < rows)


@triton.jit
def _by_input_kernel(
    by_mean_ptr, by_noise_ptr, x_ptr, centre_ptr, doubt_ptr, out_ptr, down_ptr, rows, channels, square,
    SHIFTED: tl.constexpr, PADDED: tl.constexpr, DOUBT: tl.constexpr, ROWS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    mask = (row < rows)[:, None] & (channel < channels)[None, :]
    where = row.to(tl.int64)[:, None] * channels + channel[None, :]
    x = tl.load(x_ptr + where, mask=mask, other=0.0).to(tl.float32)
    by_noise = tl.load(by_noise_ptr + where, mask=mask, other=0.0).to(tl.float32)
    grad = tl.load(by_mean_ptr + where, mask=mask, other=0.0).to(tl.float32)
    if SHIFTED:
        centre = tl.load(centre_ptr + channel, mask=channel < channels, other=0.0)[None, :]
        pull = tl.where(mask, 2 * (x - centre) * by_noise, 0.0)
        by_centre = tl.where(mask, 2 * x * by_noise, 0.0) if PADDED else pull
        tl.store(down_ptr + tl.program_id(0) * channels + channel, -tl.sum(by_centre, 0), mask=channel < channels)
    else:
        pull = 2 * x * by_noise
    if DOUBT:
        pull -= 2 * square * x * tl.load(doubt_ptr + row, mask=row < rows, other=0.0)[:, None]
    tl.store(out_ptr + where, grad + pull, mask=mask)


@triton.jit
def _by_weight_kernel(
    by_mean_ptr, by_noise_ptr, weight_ptr, square_ptr, unit_ptr, out_ptr, down_ptr, units, channels, kernel,
    square, each, CENTRED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    chunk, size = tl.program_id(1), channels * kernel
    mask = index < size
    channel, offset = index // kernel, index % kernel
    constant, down = tl.zeros((BLOCK,), tl.float32), tl.zeros((BLOCK,), tl.float32)
    if CENTRED:
        constant = tl.load(square_ptr + index, mask=mask, other=0.0)
    for unit in range(chunk * each, tl.minimum((chunk + 1) * each, units)):
        start = unit * size
        mean = tl.load(weight_ptr + start + index, mask=mask, other=0.0)
        where = start + offset * channels + channel
        grad = tl.load(by_mean_ptr + where, mask=mask, other=0.0).to(tl.float32)
        by_noise = tl.load(by_noise_ptr + where, mask=mask, other=0.0).to(tl.float32)
        if CENTRED:
            in_all = tl.load(unit_ptr + unit)
            by_noise += in_all * constant
            down += in_all * (square - mean * mean)
        tl.store(out_ptr + start + index, grad - 2 * mean * by_noise, mask=mask)
    if CENTRED:
        tl.store(down_ptr + chunk * size + index, down, mask=mask)


def tile_for(channels: int, rows: int, elements: int = 2048) -> dict[str, int]:
    """About so many elements, whole rows if they are short; few rows where there are few."""
    width = min(BLOCK, triton.next_power_of_2(channels))
    return {"ROWS": max(1, min(elements // width, triton.next_power_of_2(max(rows // 256, 1)))), "CHANNELS": width}


def like(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    layout = torch.channels_last if len(shape) == 4 else torch.contiguous_format
    return torch.empty(shape, dtype=dtype, device=device, memory_format=layout)


def _noise_inputs(
    x: Tensor, middle: Tensor | None, weight_square: float, input_square: float | None, geometry: Geometry | None
) -> tuple[Tensor, Tensor]:
    """What meets the noise of the weights, and per row a² Σ ν (empty for inputs that are known)."""
    channels = x.shape[1]
    rows = x.numel() // channels
    noise = torch.empty_like(x)
    doubt = torch.empty((x.shape[0], 1, *x.shape[2:]) if input_square is not None else 0, device=x.device)
    tile = tile_for(channels, rows)
    _inputs_kernel[(triton.cdiv(rows, tile["ROWS"]),)](
        x, x if middle is None else middle, noise, doubt, rows, channels, weight_square,
        0.0 if input_square is None else input_square, SHIFTED=middle is not None, PADDED=geometry is not None,
        DOUBT=input_square is not None, **tile,
    )  # fmt: skip
    return noise, doubt


def _noise_weights(
    weight: Tensor, constant_square: Tensor | None, weight_square: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """M rounded, V rounded, and per unit what V makes of the constant square (empty without one)."""
    centred = constant_square is not None
    mean, noise = (like(tuple(weight.shape), dtype, weight.device) for _ in range(2))
    constant = torch.empty(weight.shape[0] if centred else 0, device=weight.device)
    _weights_kernel[(weight.shape[0],)](
        weight, weight if constant_square is None else constant_square, mean, noise, constant, weight.shape[1],
        weight.shape[2:].numel(), weight_square, CENTRED=centred, BLOCK=BLOCK,
    )  # fmt: skip
    return mean, noise, constant


def centres(centre: Tensor | None, geometry: Geometry | None) -> tuple[Tensor | None, Tensor | None]:
    """The centre of each channel, and the constant square of a convolution."""
    if centre is None or geometry is None:
        return None if centre is None else centre.contiguous(), None
    return half.middle_of(centre, geometry).contiguous(), half.square_of_centre(centre).contiguous()


def forward(
    x: Tensor, weight: Tensor, centre: Tensor | None, weight_square: float, input_square: float | None,
    geometry: Geometry | None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """As `half.moments`, from an x of half precision, contiguous or channels last, and a float32 weight and centre."""
    weight = weight.contiguous()
    middle, constant_square = centres(centre, geometry)
    noise_input, doubt = _noise_inputs(x, middle, weight_square, input_square, geometry)
    low, noise_weight, constant = _noise_weights(weight, constant_square, weight_square, x.dtype)
    mean, var = half.product(x, low, geometry), half.product(noise_input, noise_weight, geometry)
    if input_square is not None:
        doubt = half.window_sum(doubt, weight, geometry).contiguous()
    var = dense(var, geometry)
    _finish_kernel[(triton.cdiv(var.numel(), BLOCK),)](
        var, doubt, constant, var.numel(), var.shape[1], DOUBT=input_square is not None, CENTRED=constant.numel() > 0,
        BLOCK=BLOCK,
    )  # fmt: skip
    return mean, var


def backward(
    grad_mean: Tensor, grad_var: Tensor, x: Tensor, weight: Tensor, centre: Tensor | None, weight_square: float,
    input_square: float | None, geometry: Geometry | None, need_x: bool,
) -> tuple[Tensor | None, Tensor, Tensor | None]:  # fmt: skip
    """Gradients by x, by the weight in float32, and by the centre."""
    weight = weight.contiguous()
    middle, constant_square = centres(centre, geometry)
    noise_input, _ = _noise_inputs(x, middle, weight_square, None, geometry)
    low, noise_weight, _ = _noise_weights(weight, constant_square, weight_square, x.dtype)
    by_mean, mean_weight = half.transposed(grad_mean, x, low, geometry, need_x)
    by_noise, var_weight = half.transposed(grad_var, noise_input, noise_weight, geometry, need_x)
    by_row = by_unit = grad_x = grad_centre = None
    if constant_square is not None or (need_x and input_square is not None):
        by_row, by_unit = sums(dense(grad_var, geometry), constant_square is not None)
    if by_mean is not None and by_noise is not None:
        by_mean, by_noise = dense(by_mean, geometry), dense(by_noise, geometry)
        doubt = None
        if input_square is not None and by_row is not None:
            doubt = half.spread_over_inputs(by_row, x, weight, geometry).contiguous()
        grad_x, grad_centre = _by_input(by_mean, by_noise, x, middle, doubt, weight_square, geometry)
    grad_weight, shared = _by_weight(
        dense(mean_weight, geometry), dense(var_weight, geometry), weight, constant_square, by_unit, weight_square
    )
    if grad_centre is not None and shared is not None and centre is not None:
        grad_centre = half.by_centre(grad_centre, shared, centre)
    return grad_x, grad_weight, grad_centre


def sums(grad_var: Tensor, over_rows: bool) -> tuple[Tensor, Tensor | None]:
    """The gradients by the variance, added up over the units, `(N, 1, ...)`, and over all rows of a unit if asked."""
    units = grad_var.shape[1]
    rows = grad_var.numel() // units
    tile = tile_for(units, rows, 8192)
    blocks = triton.cdiv(rows, tile["ROWS"])
    by_row = torch.empty((grad_var.shape[0], 1, *grad_var.shape[2:]), device=grad_var.device)
    down = torch.empty((blocks, units) if over_rows else 0, device=grad_var.device)
    _sums_kernel[(blocks,)](grad_var, by_row, down, rows, units, OVER_ROWS=over_rows, **tile)
    return by_row, down.sum(0) if over_rows else None


def _by_input(
    by_mean: Tensor, by_noise: Tensor, x: Tensor, middle: Tensor | None, doubt: Tensor | None, weight_square: float,
    geometry: Geometry | None,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """By x, and by the centre of each channel through the inputs; `doubt` is by the doubt of each row."""
    channels = x.shape[1]
    rows, tile = x.numel() // channels, tile_for(channels, x.numel() // channels)
    blocks = triton.cdiv(rows, tile["ROWS"])
    down = torch.empty((blocks, channels) if middle is not None else 0, device=x.device)
    out = torch.empty_like(x)
    _by_input_kernel[(blocks, triton.cdiv(channels, tile["CHANNELS"]))](
        by_mean, by_noise, x, x if middle is None else middle, x if doubt is None else doubt, out, down, rows, channels,
        weight_square, SHIFTED=middle is not None, PADDED=geometry is not None, DOUBT=doubt is not None, **tile,
    )  # fmt: skip
    return out, None if middle is None else down.sum(0)


def _by_weight(
    by_mean: Tensor, by_noise: Tensor, weight: Tensor, constant_square: Tensor | None, by_unit: Tensor | None,
    weight_square: float,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """By the weight, and by the constant square; `by_unit` is by the variance of each unit in all rows together."""
    units, channels, size = weight.shape[0], weight.shape[1], weight.shape[1:].numel()
    centred = constant_square is not None
    chunks = CHUNKS if centred else min(units, 128)
    down = torch.empty((chunks, *weight.shape[1:]) if centred else 0, device=weight.device)
    out = torch.empty_like(weight)
    _by_weight_kernel[(triton.cdiv(size, 256), chunks)](
        by_mean, by_noise, weight, weight if constant_square is None else constant_square,
        weight if by_unit is None else by_unit, out, down, units, channels, weight.shape[2:].numel(), weight_square,
        triton.cdiv(units, chunks), CENTRED=centred, BLOCK=256,
    )  # fmt: skip
    return out, down.sum(0) if centred else None


def dense(tensor: Tensor, geometry: Geometry | None) -> Tensor:
    layout = torch.contiguous_format if geometry is None else torch.channels_last
    return tensor.contiguous(memory_format=layout)
