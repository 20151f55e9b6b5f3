"""Triton kernels of `normalized_sign`: each of forward and backward reads its input twice and writes once.

A tensor `(N, C, ...)` lies in memory channel by channel or channels last. Both are rows of `inner` neighbours that
belong to one channel: element i belongs to channel (i // inner) % C, with inner = 1 for channels last.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 1024
_SPLITS = 128  # partial sums per channel: enough to fill a GPU, few enough to be added at once
_ROOT_HALF = tl.constexpr(math.sqrt(0.5))
_DENSITY = tl.constexpr(math.sqrt(2 / math.pi))
_SURE = tl.constexpr(40.0)
_FLOOR = tl.constexpr(torch.finfo(torch.float32).tiny ** 0.5)


def _inner(tensor: Tensor) -> int:
    """Neighbours in memory that belong to one channel."""
    if tensor.dim() == 4 and not tensor.is_contiguous():
        return 1
    return math.prod(tensor.shape[2:])


@triton.jit
def _score(mean, var, sign, shift):
    distance = mean * sign + shift
    score = distance * tl.rsqrt(tl.where(var <= _FLOOR, _FLOOR, var))
    # Written so that a NaN stays a NaN.
    score = tl.where(score > _SURE, _SURE, tl.where(score < -_SURE, -_SURE, score))
    return tl.where(var <= _FLOOR, tl.where(distance >= 0, _SURE, -_SURE), score)


@triton.jit
def _flow(grad, mean, var, sign, shift):
    """g e / √v and z: what a change of the score does, and the score."""
    score = _score(mean, var, sign, shift)
    flow = grad * _DENSITY * tl.exp(-0.5 * score * score) * tl.rsqrt(tl.maximum(var, _FLOOR))
    return tl.where(tl.abs(score) >= _SURE, 0.0, flow), score


@triton.jit
def _offsets(row, channel, channels, inner):
    """Where the row-th element of a channel lies."""
    return (row // inner) * channels * inner + channel * inner + row % inner


@triton.jit
def _statistics_kernel(mean_ptr, var_ptr, sums_ptr, rows, channels, inner, ROWS: tl.constexpr, CHANNELS: tl.constexpr):
    channel = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)[None, :]
    split, splits = tl.program_id(1), tl.num_programs(1)
    known = channel < channels
    # Differences to the first element: sums of squares of these cancel less.
    first = tl.load(mean_ptr + channel * inner, mask=known, other=0.0).to(tl.float32)
    total = tl.zeros((ROWS, CHANNELS), tl.float32)
    squares = tl.zeros((ROWS, CHANNELS), tl.float32)
    noise = tl.zeros((ROWS, CHANNELS), tl.float32)
    for start in range(split * ROWS, rows, splits * ROWS):
        row = start + tl.arange(0, ROWS)[:, None]
        where = _offsets(row, channel, channels, inner)
        mask = (row < rows) & known
        mean = tl.load(mean_ptr + where, mask=mask, other=0.0).to(tl.float32)
        difference = tl.where(mask, mean - first, 0.0)
        total += difference
        squares += difference * difference
        noise += tl.load(var_ptr + where, mask=mask, other=0.0).to(tl.float32)
    here = sums_ptr + split * channels + channel
    stride = splits * channels
    tl.store(here, tl.sum(total, 0)[None, :], mask=known)
    tl.store(here + stride, tl.sum(squares, 0)[None, :], mask=known)
    tl.store(here + 2 * stride, tl.sum(noise, 0)[None, :], mask=known)


@triton.jit
def _forward_kernel(mean_ptr, var_ptr, out_ptr, sign_ptr, shift_ptr, size, channels, inner, BLOCK: tl.constexpr):
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = index < size
    channel = (index // inner) % channels
    mean = tl.load(mean_ptr + index, mask=mask, other=0.0).to(tl.float32)
    var = tl.load(var_ptr + index, mask=mask, other=1.0).to(tl.float32)
    score = _score(mean, var, tl.load(sign_ptr + channel), tl.load(shift_ptr + channel))
    tl.store(out_ptr + index, tl.erf(score * _ROOT_HALF), mask=mask)


@triton.jit
def _pull_kernel(
    grad_ptr, mean_ptr, var_ptr, sign_ptr, shift_ptr, sums_ptr, rows, channels, inner,
    ROWS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    channel = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)[None, :]
    split, splits = tl.program_id(1), tl.num_programs(1)
    known = channel < channels
    sign = tl.load(sign_ptr + channel, mask=known, other=0.0)
    shift = tl.load(shift_ptr + channel, mask=known, other=0.0)
    total = tl.zeros((ROWS, CHANNELS), tl.float32)
    for start in range(split * ROWS, rows, splits * ROWS):
        row = start + tl.arange(0, ROWS)[:, None]
        where = _offsets(row, channel, channels, inner)
        mask = (row < rows) & known
        grad = tl.load(grad_ptr + where, mask=mask, other=0.0).to(tl.float32)
        mean = tl.load(mean_ptr + where, mask=mask, other=0.0).to(tl.float32)
        var = tl.load(var_ptr + where, mask=mask, other=1.0).to(tl.float32)
        flow, _ = _flow(grad, mean, var, sign, shift)
        total += tl.where(mask, flow, 0.0)
    tl.store(sums_ptr + split * channels + channel, tl.sum(total, 0)[None, :], mask=known)


@triton.jit
def _backward_kernel(
    grad_ptr, mean_ptr, var_ptr, grad_mean_ptr, grad_var_ptr, sign_ptr, shift_ptr, constant_ptr, slope_ptr,
    size, channels, inner, BLOCK: tl.constexpr,
):  # fmt: skip
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = index < size
    channel = (index // inner) % channels
    grad = tl.load(grad_ptr + index, mask=mask, other=0.0).to(tl.float32)
    mean = tl.load(mean_ptr + index, mask=mask, other=0.0).to(tl.float32)
    var = tl.load(var_ptr + index, mask=mask, other=1.0).to(tl.float32)
    sign = tl.load(sign_ptr + channel)
    slope = tl.load(slope_ptr + channel)
    flow, score = _flow(grad, mean, var, sign, tl.load(shift_ptr + channel))
    grad_mean = flow * sign + mean * slope + tl.load(constant_ptr + channel)
    grad_var = -0.5 * flow * score * tl.rsqrt(tl.maximum(var, _FLOOR)) + 0.5 * slope
    tl.store(grad_mean_ptr + index, grad_mean, mask=mask)
    tl.store(grad_var_ptr + index, grad_var, mask=mask)


def _per_channel(tensor: Tensor, kinds: int) -> tuple[Tensor, tuple[int, int], dict[str, int]]:
    """Room for partial sums `(kinds, splits, C)`, the grid, and what the reducing kernels need to know."""
    channels, inner = tensor.shape[1], _inner(tensor)
    rows = tensor.numel() // channels
    # A tile is contiguous in memory: along the channels if they come last, else along the neighbours of one channel.
    tile = (32, 64) if inner == 1 else (_BLOCK, 1)
    splits = max(1, min(_SPLITS, triton.cdiv(rows, tile[0])))
    sums = torch.empty(kinds, splits, channels, device=tensor.device)
    sizes = {"rows": rows, "channels": channels, "inner": inner, "ROWS": tile[0], "CHANNELS": tile[1]}
    return sums, (triton.cdiv(channels, tile[1]), splits), sizes


def _elementwise(tensor: Tensor) -> tuple[tuple[int], dict[str, int]]:
    size = tensor.numel()
    sizes = {"size": size, "channels": tensor.shape[1], "inner": _inner(tensor), "BLOCK": _BLOCK}
    return (triton.cdiv(size, _BLOCK),), sizes


def _first(mean: Tensor) -> Tensor:
    return mean[0].reshape(mean.shape[1], -1)[:, 0].float()


def statistics(mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
    """As `normalized_sign.statistics`."""
    sums, grid, sizes = _per_channel(mean, 3)
    _statistics_kernel[grid](mean, var, sums, **sizes)
    difference, square, noise = (sums.sum(1) / sizes["rows"]).unbind()
    return _first(mean) + difference, (square - difference.square()).clamp_min(0) + noise


def forward(mean: Tensor, var: Tensor, sign: Tensor, shift: Tensor, dtype: torch.dtype) -> Tensor:
    """erf(z / √2) with z = (sign · mean + shift) / √var; `sign` and `shift` are `(C,)` in float32."""
    out = torch.empty_like(mean, dtype=dtype)
    grid, sizes = _elementwise(mean)
    _forward_kernel[grid](mean, var, out, sign, shift, **sizes)
    return out


def backward(
    grad: Tensor, mean: Tensor, var: Tensor, sign: Tensor, offset: Tensor, shift: Tensor, centre: Tensor,
    total: Tensor, count: float, dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients by mean and var, in `dtype`, and the sum A per channel."""
    if grad.stride() != mean.stride():
        grad = torch.empty_like(mean, dtype=grad.dtype).copy_(grad)
    sums, grid, sizes = _per_channel(mean, 1)
    _pull_kernel[grid](grad, mean, var, sign, shift, sums, **sizes)
    pull = sums[0].sum(0)
    slope = torch.where(sign != 0, pull * offset, 0) / (total * count)
    constant = -sign * pull / count - slope * centre
    grad_mean, grad_var = (torch.empty_like(tensor, dtype=dtype) for tensor in (mean, var))
    grid_flat, sizes_flat = _elementwise(mean)
    _backward_kernel[grid_flat](
        grad, mean, var, grad_mean, grad_var, sign, shift, constant, slope, **sizes_flat
    )  # fmt: skip
    return grad_mean, grad_var, pull
