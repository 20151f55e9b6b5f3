"""Half-precision moments on a GPU: two library products, and Triton kernels for all that is done element by element.

The formulas are those of `half.py`. Inputs and outputs are rows of channels in memory, `(N, C)` or channels last
`(N, H, W, C)`; weights come as `(O, C, *kernel)` and go to the library as `(O, *kernel, C)`. So a matrix product is the
convolution with a kernel of one element, and each kernel here serves both:

- `_inputs_kernel` reads the inputs and writes what meets the noise of the weights, and the doubt of each row;
- `_weights_kernel` reads the means of the weights and writes them rounded, their noise rounded, and its constant part;
- `_finish_kernel` adds doubt and constant to the variance;
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
    from bqn.propagate.clt import Geometry

_BLOCK = 1024
_CHUNKS = 16  # partial sums over the units, for the gradient of the centre


@triton.jit
def _inputs_kernel(
    x_ptr, centre_ptr, noise_ptr, doubt_ptr, rows, channels, width, square, input_square,
    SHIFTED: tl.constexpr, DOUBLED: tl.constexpr, DOUBT: tl.constexpr, ROWS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    known = tl.zeros((ROWS,), tl.float32)
    for start in range(0, channels, CHANNELS):
        channel = start + tl.arange(0, CHANNELS)
        mask = (row < rows)[:, None] & (channel < channels)[None, :]
        read = tl.load(x_ptr + row.to(tl.int64)[:, None] * channels + channel[None, :], mask=mask, other=0.0)
        x = read.to(tl.float32)
        known += tl.sum(x * x, 1)
        out = noise_ptr + row.to(tl.int64)[:, None] * width + channel[None, :]
        if SHIFTED:
            x -= tl.load(centre_ptr + channel, mask=channel < channels, other=0.0)[None, :]
        tl.store(out, x * x, mask=mask)
        if DOUBLED:
            tl.store(out + channels, read, mask=mask)
    if DOUBT:
        tl.store(doubt_ptr + row, square * (input_square * channels - known), mask=row < rows)


@triton.jit
def _weights_kernel(
    weight_ptr, centre_ptr, mean_ptr, noise_ptr, constant_ptr, channels, kernel, width, square,
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
        out = noise_ptr + (unit * kernel + offset) * width + channel
        tl.store(out, noise, mask=mask)
        if CENTRED:
            centre = tl.load(centre_ptr + source, mask=mask, other=0.0)
            tl.store(out + channels, -2 * noise * centre, mask=mask)
            constant += noise * centre * centre
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
def _by_input_kernel(
    by_mean_ptr, by_noise_ptr, x_ptr, centre_ptr, doubt_ptr, out_ptr, down_ptr, rows, channels, width, square,
    SHIFTED: tl.constexpr, DOUBLED: tl.constexpr, DOUBT: tl.constexpr, ROWS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    mask = (row < rows)[:, None] & (channel < channels)[None, :]
    where = row.to(tl.int64)[:, None] * channels + channel[None, :]
    noise_where = by_noise_ptr + row.to(tl.int64)[:, None] * width + channel[None, :]
    x = tl.load(x_ptr + where, mask=mask, other=0.0).to(tl.float32)
    by_noise = tl.load(noise_where, mask=mask, other=0.0).to(tl.float32)
    grad = tl.load(by_mean_ptr + where, mask=mask, other=0.0).to(tl.float32)
    if DOUBLED:
        grad += tl.load(noise_where + channels, mask=mask, other=0.0).to(tl.float32)
    if SHIFTED:
        centre = tl.load(centre_ptr + channel, mask=channel < channels, other=0.0)[None, :]
        pull = tl.where(mask, 2 * (x - centre) * by_noise, 0.0)
        tl.store(down_ptr + tl.program_id(0) * channels + channel, -tl.sum(pull, 0), mask=channel < channels)
    else:
        pull = 2 * x * by_noise
    if DOUBT:
        pull -= 2 * square * x * tl.load(doubt_ptr + row, mask=row < rows, other=0.0)[:, None]
    tl.store(out_ptr + where, grad + pull, mask=mask)


@triton.jit
def _by_weight_kernel(
    by_mean_ptr, by_noise_ptr, weight_ptr, centre_ptr, unit_ptr, out_ptr, down_ptr, units, channels, kernel, width,
    square, each, CENTRED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    chunk, size = tl.program_id(1), channels * kernel
    mask = index < size
    channel, offset = index // kernel, index % kernel
    centre, down = tl.zeros((BLOCK,), tl.float32), tl.zeros((BLOCK,), tl.float32)
    if CENTRED:
        centre = tl.load(centre_ptr + index, mask=mask, other=0.0)
    for unit in range(chunk * each, tl.minimum((chunk + 1) * each, units)):
        start = unit * size
        mean = tl.load(weight_ptr + start + index, mask=mask, other=0.0)
        grad = tl.load(by_mean_ptr + start + offset * channels + channel, mask=mask, other=0.0).to(tl.float32)
        noise_where = by_noise_ptr + (unit * kernel + offset) * width + channel
        by_noise = tl.load(noise_where, mask=mask, other=0.0).to(tl.float32)
        if CENTRED:
            along = tl.load(noise_where + channels, mask=mask, other=0.0).to(tl.float32)
            in_all = tl.load(unit_ptr + unit)
            by_noise += centre * (in_all * centre - 2 * along)
            down += 2 * (square - mean * mean) * (in_all * centre - along)
        tl.store(out_ptr + start + index, grad - 2 * mean * by_noise, mask=mask)
    if CENTRED:
        tl.store(down_ptr + chunk * size + index, down, mask=mask)


def _tile(channels: int, rows: int) -> dict[str, int]:
    """About two thousand elements, whole rows if they are short; few rows where there are few."""
    width = min(_BLOCK, triton.next_power_of_2(channels))
    return {"ROWS": max(1, min(2048 // width, triton.next_power_of_2(max(rows // 256, 1)))), "CHANNELS": width}


def _like(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    layout = torch.channels_last if len(shape) == 4 else torch.contiguous_format
    return torch.empty(shape, dtype=dtype, device=device, memory_format=layout)


def _noise_inputs(
    x: Tensor, centre: Tensor | None, weight_square: float, input_square: float | None, geometry: Geometry | None
) -> tuple[Tensor, Tensor]:
    """What meets the noise of the weights, and per row a² Σ ν (empty for inputs that are known)."""
    channels, shifted = x.shape[1], centre is not None and geometry is None
    width = channels if centre is None or geometry is None else 2 * channels
    rows = x.numel() // channels
    noise = _like((x.shape[0], width, *x.shape[2:]), x.dtype, x.device)
    doubt = torch.empty((x.shape[0], 1, *x.shape[2:]) if input_square is not None else 0, device=x.device)
    tile = _tile(channels, rows)
    _inputs_kernel[(triton.cdiv(rows, tile["ROWS"]),)](
        x, centre if shifted else x, noise, doubt, rows, channels, width, weight_square,
        0.0 if input_square is None else input_square, SHIFTED=shifted, DOUBLED=width > channels,
        DOUBT=input_square is not None, **tile,
    )  # fmt: skip
    return noise, doubt


def _noise_weights(
    weight: Tensor, centre: Tensor | None, weight_square: float, dtype: torch.dtype, geometry: Geometry | None
) -> tuple[Tensor, Tensor, Tensor]:
    """M rounded, what meets the inputs' noise, and its constant part per unit (empty without one)."""
    units, channels, *kernel = weight.shape
    centred = centre is not None and geometry is not None
    width = 2 * channels if centred else channels
    mean = _like((units, channels, *kernel), dtype, weight.device)
    noise = _like((units, width, *kernel), dtype, weight.device)
    constant = torch.empty(units if centred else 0, device=weight.device)
    _weights_kernel[(units,)](
        weight, centre if centred else weight, mean, noise, constant, channels, weight.shape[2:].numel(), width,
        weight_square, CENTRED=centred, BLOCK=_BLOCK,
    )  # fmt: skip
    return mean, noise, constant


def forward(
    x: Tensor, weight: Tensor, centre: Tensor | None, weight_square: float, input_square: float | None,
    geometry: Geometry | None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """As `half.moments`, from an x of half precision, contiguous or channels last, and a float32 weight and centre."""
    weight, centre = weight.contiguous(), None if centre is None else centre.contiguous()
    noise_input, doubt = _noise_inputs(x, centre, weight_square, input_square, geometry)
    low, noise_weight, constant = _noise_weights(weight, centre, weight_square, x.dtype, geometry)
    mean, var = half.product(x, low, geometry), half.product(noise_input, noise_weight, geometry)
    if input_square is not None:
        doubt = half._window_sum(doubt, weight, geometry).contiguous()
    var = _dense(var, geometry)
    _finish_kernel[(triton.cdiv(var.numel(), _BLOCK),)](
        var, doubt, constant, var.numel(), var.shape[1], DOUBT=input_square is not None, CENTRED=constant.numel() > 0,
        BLOCK=_BLOCK,
    )  # fmt: skip
    return mean, var


def backward(
    grad_mean: Tensor, grad_var: Tensor, x: Tensor, weight: Tensor, centre: Tensor | None, weight_square: float,
    input_square: float | None, geometry: Geometry | None, need_x: bool,
) -> tuple[Tensor | None, Tensor, Tensor | None]:  # fmt: skip
    """Gradients by x, by the weight in float32, and by the centre."""
    weight, centre = weight.contiguous(), None if centre is None else centre.contiguous()
    noise_input, _ = _noise_inputs(x, centre, weight_square, None, geometry)
    low, noise_weight, _ = _noise_weights(weight, centre, weight_square, x.dtype, geometry)
    by_mean, mean_weight = half.transposed(grad_mean, x, low, geometry, need_x)
    by_noise, var_weight = half.transposed(grad_var, noise_input, noise_weight, geometry, need_x)
    grad_x = grad_centre = None
    if by_mean is not None and by_noise is not None:
        by_mean, by_noise = _dense(by_mean, geometry), _dense(by_noise, geometry)
        grad_x, grad_centre = _by_input(
            by_mean, by_noise, grad_var, x, weight, centre, weight_square, input_square, geometry
        )
    shifted = centre is not None and geometry is not None
    grad_weight, down = _by_weight(
        _dense(mean_weight, geometry), _dense(var_weight, geometry), grad_var, weight, centre if shifted else None,
        weight_square,
    )  # fmt: skip
    return grad_x, grad_weight, down if shifted else grad_centre


def _by_input(
    by_mean: Tensor, by_noise: Tensor, grad_var: Tensor, x: Tensor, weight: Tensor, centre: Tensor | None,
    weight_square: float, input_square: float | None, geometry: Geometry | None,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    channels, shifted = x.shape[1], centre is not None and geometry is None
    rows, tile = x.numel() // channels, _tile(channels, x.numel() // channels)
    blocks = triton.cdiv(rows, tile["ROWS"])
    doubt = x
    if input_square is not None:
        doubt = half._window_sum_transposed(grad_var, x, weight, geometry).contiguous()
    down = torch.empty((blocks, channels) if shifted else 0, device=x.device)
    out = torch.empty_like(x)
    _by_input_kernel[(blocks, triton.cdiv(channels, tile["CHANNELS"]))](
        by_mean, by_noise, x, centre if shifted else x, doubt, out, down, rows, channels, by_noise.shape[1],
        weight_square, SHIFTED=shifted, DOUBLED=by_noise.shape[1] > channels, DOUBT=input_square is not None, **tile,
    )  # fmt: skip
    return out, down.sum(0) if shifted else None


def _by_weight(
    by_mean: Tensor, by_noise: Tensor, grad_var: Tensor, weight: Tensor, centre: Tensor | None, weight_square: float
) -> tuple[Tensor, Tensor | None]:
    units, channels, size = weight.shape[0], weight.shape[1], weight.shape[1:].numel()
    chunks = _CHUNKS if centre is not None else min(units, 128)
    in_all = weight if centre is None else grad_var.sum((0, 2, 3), dtype=torch.float32)
    down = torch.empty((chunks, *weight.shape[1:]) if centre is not None else 0, device=weight.device)
    out = torch.empty_like(weight)
    _by_weight_kernel[(triton.cdiv(size, 256), chunks)](
        by_mean, by_noise, weight, weight if centre is None else centre, in_all, out, down, units, channels,
        weight.shape[2:].numel(), by_noise.shape[1], weight_square, triton.cdiv(units, chunks),
        CENTRED=centre is not None, BLOCK=256,
    )  # fmt: skip
    return out, None if centre is None else down.sum(0)


def _dense(tensor: Tensor, geometry: Geometry | None) -> Tensor:
    layout = torch.contiguous_format if geometry is None else torch.channels_last
    return tensor.contiguous(memory_format=layout)
