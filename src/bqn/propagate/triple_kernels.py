"""Triton kernels of three products: mean and variance of a linear layer of more than two levels, in half precision.

As `pair_kernels` for weights and inputs of any levels. With x and ν the moments of the inputs, M and V those of the
weights, S = V + M² and c the centre of the batch (`levels_half`),

    mean = x Mᵀ,      var = (x - c)² Vᵀ + ν Sᵀ

The two terms of the variance are added up in one place, so that forward has no more accumulators than the pair. What is
not kept in memory, squares, S and ν = b² - x² of inputs ±b, is formed in registers. Tiles are cut, sums split and
weights rounded beforehand as there, the gradients too.

    ∂/∂x = gᵐ M + 2 (x - c) gᵛ V          ∂/∂M = gᵐᵀ x + 2 M gᵛᵀ ν
    ∂/∂ν = gᵛ S                           ∂/∂V = gᵛᵀ (x - c)² + gᵛᵀ ν

For inputs ±b, ∂/∂ν goes on to x; together that is gᵐ M - 2 c gᵛ V - 2 x gᵛ M², where gᵛ V and gᵛ S would nearly cancel.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from bqn.propagate.levels_half import needs_noise
from bqn.propagate.pair_kernels import (
    BLOCK,
    PROCESSORS,
    Plan,
    Tiles,
    add_product,
    blocks_of,
    finish_kernel,
    sizes_of,
    split_of,
    tile_of,
)

# Two accumulators a tile forward, three backward; and three tiles of weights at a time, where the pair has two.
CHOICES = (
    Tiles(128, 128, 32, 8, 4),
    Tiles(128, 128, 64, 8, 2),
    Tiles(64, 128, 32, 8, 4),
    Tiles(128, 64, 64, 8, 3),
    Tiles(64, 64, 64, 4, 3),
    Tiles(64, 64, 32, 4, 4),
)


def plan(rows: int, units: int, inputs: int) -> Plan:
    """The usual plan for `(rows, inputs)` times `(units, inputs)`; `benchmarks/pair_of_products.py` compares all."""
    large, tall, small, shallow = CHOICES[0], CHOICES[3], CHOICES[4], CHOICES[5]
    by_weight = tall if units * inputs >= PROCESSORS * tall.rows * tall.columns else small
    if rows > 256:
        forward = large if rows * units >= PROCESSORS * large.rows * large.columns // 2 else small
        by_input = tall if rows * inputs >= PROCESSORS * tall.rows * tall.columns // 2 else small
        return Plan(forward, by_input, by_weight, True)
    return Plan(shallow, shallow, by_weight, False)


@triton.jit
def _weight_tiles(
    weight_ptr, noise_ptr, second_ptr, where, mask, NOISE: tl.constexpr, DOUBT: tl.constexpr, ALONE: tl.constexpr,
    ROUNDED: tl.constexpr, LOW: tl.constexpr,
):  # fmt: skip
    """M, V and S, or M² alone, in half precision; in place of what is not asked for, M."""
    weight = tl.load(weight_ptr + where, mask=mask, other=0.0)
    noise, second = weight, weight
    if NOISE:
        noise = tl.load(noise_ptr + where, mask=mask, other=0.0)
    if DOUBT:
        if ROUNDED:
            second = tl.load(second_ptr + where, mask=mask, other=0.0)
        else:
            second = weight * weight
            if not ALONE:
                second += noise
    return weight.to(LOW), noise.to(LOW), second.to(LOW)


@triton.jit
def _round_kernel(
    weight_ptr, noise_ptr, low_ptr, low_noise_ptr, second_ptr, size, DOUBT: tl.constexpr, ALONE: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = index < size
    weight = tl.load(weight_ptr + index, mask=mask, other=0.0)
    noise = tl.load(noise_ptr + index, mask=mask, other=0.0)
    tl.store(low_ptr + index, weight, mask=mask)
    tl.store(low_noise_ptr + index, noise, mask=mask)
    if DOUBT:
        second = weight * weight
        if not ALONE:
            second += noise
        tl.store(second_ptr + index, second, mask=mask)


@triton.jit
def _forward_kernel(
    x_ptr, doubt_ptr, weight_ptr, noise_ptr, second_ptr, centre_ptr, mean_ptr, var_ptr, rows, units, inputs, part,
    input_square, CENTRED: tl.constexpr, DOUBT: tl.constexpr, SIGNS: tl.constexpr, SPLIT: tl.constexpr,
    ROUNDED: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, TERMS: tl.constexpr,
):  # fmt: skip
    tile, column = tile_of(tl.cdiv(rows, ROWS), tl.cdiv(units, COLUMNS), 8)
    split = tl.program_id(1)
    row = tile * ROWS + tl.arange(0, ROWS)
    unit = column * COLUMNS + tl.arange(0, COLUMNS)
    row_start = (row % rows)[:, None] * inputs  # beyond the edge: computed again, not stored
    weight_start = (unit % units)[None, :] * inputs
    mean = tl.zeros((ROWS, COLUMNS), tl.float32)
    var = tl.zeros((ROWS, COLUMNS), tl.float32)
    first, last = split * part, tl.minimum((split + 1) * part, inputs)
    for start in range(first, last, TERMS):
        term = start + tl.arange(0, TERMS)
        there = term < last
        x = tl.load(x_ptr + row_start + term[None, :], mask=there[None, :], other=0.0)
        weight, noise, second = _weight_tiles(
            weight_ptr, noise_ptr, second_ptr, weight_start + term[:, None], there[:, None], True, DOUBT, False,
            ROUNDED, x.dtype,
        )  # fmt: skip
        wide = x.to(tl.float32)
        base = wide
        if CENTRED:
            base -= tl.load(centre_ptr + term, mask=there, other=0.0)[None, :]
        mean = add_product(mean, x, weight, WIDE)
        var = add_product(var, (base * base).to(x.dtype), noise, WIDE)
        if DOUBT:
            if SIGNS:
                doubt = tl.maximum(input_square - wide * wide, 0.0).to(x.dtype)
            else:
                doubt = tl.load(doubt_ptr + row_start + term[None, :], mask=there[None, :], other=0.0)
            var = add_product(var, doubt, second, WIDE)
    where = row[:, None] * units + unit[None, :]
    mask = (row < rows)[:, None] & (unit < units)[None, :]
    if SPLIT:
        where += split * rows * units
    else:
        var = tl.maximum(var, 0.0)
    tl.store(mean_ptr + where, mean, mask=mask)
    tl.store(var_ptr + where, var, mask=mask)


@triton.jit
def _by_input_kernel(
    by_mean_ptr, by_var_ptr, x_ptr, weight_ptr, noise_ptr, second_ptr, centre_ptr, out_ptr, doubt_out_ptr,
    centre_out_ptr, rows, units, inputs, CENTRED: tl.constexpr, NOISE: tl.constexpr, DOUBT: tl.constexpr,
    SIGNS: tl.constexpr, ROUNDED: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    TERMS: tl.constexpr,
):  # fmt: skip
    low: tl.constexpr = x_ptr.dtype.element_ty
    tile, column = tile_of(tl.cdiv(rows, ROWS), tl.cdiv(inputs, COLUMNS), 8)
    row = tile * ROWS + tl.arange(0, ROWS)
    place = column * COLUMNS + tl.arange(0, COLUMNS)
    grad_start = (row % rows)[:, None] * units
    through_mean = tl.zeros((ROWS, COLUMNS), tl.float32)
    through_noise = tl.zeros((ROWS, COLUMNS), tl.float32)
    through_second = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in range(0, units, TERMS):
        unit = start + tl.arange(0, TERMS)
        there = unit < units
        by_mean = tl.load(by_mean_ptr + grad_start + unit[None, :], mask=there[None, :], other=0.0).to(low)
        by_var = tl.load(by_var_ptr + grad_start + unit[None, :], mask=there[None, :], other=0.0).to(low)
        where = unit[:, None] * inputs + (place % inputs)[None, :]
        weight, noise, second = _weight_tiles(
            weight_ptr, noise_ptr, second_ptr, where, there[:, None], NOISE, DOUBT, SIGNS, ROUNDED, low
        )
        through_mean = add_product(through_mean, by_mean, weight, WIDE)
        if NOISE:
            through_noise = add_product(through_noise, by_var, noise, WIDE)
        if DOUBT:
            through_second = add_product(through_second, by_var, second, WIDE)
    mask = (row < rows)[:, None] & (place < inputs)[None, :]
    out_where = row[:, None] * inputs + place[None, :]
    x = tl.load(x_ptr + out_where, mask=mask, other=0.0).to(tl.float32)
    base = x
    if CENTRED:
        base -= tl.load(centre_ptr + place, mask=place < inputs, other=0.0)[None, :]
        down = tl.sum(tl.where(mask, 2 * base * through_noise, 0.0), 0)
        tl.store(centre_out_ptr + tile * inputs + place, -down, mask=place < inputs)
    if SIGNS:
        grad = through_mean + 2 * (base - x) * through_noise - 2 * x * through_second
    else:
        grad = through_mean + 2 * base * through_noise
        if DOUBT:
            tl.store(doubt_out_ptr + out_where, through_second, mask=mask)
    tl.store(out_ptr + out_where, grad, mask=mask)


@triton.jit
def _by_weight_kernel(
    by_mean_ptr, by_var_ptr, x_ptr, doubt_ptr, weight_ptr, centre_ptr, out_ptr, noise_out_ptr, rows, units, inputs,
    input_square, CENTRED: tl.constexpr, DOUBT: tl.constexpr, SIGNS: tl.constexpr, WIDE: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, TERMS: tl.constexpr,
):  # fmt: skip
    # The tile lies transposed, (inputs, units): so the tensor cores take what is formed from x from registers.
    tile, column = tile_of(tl.cdiv(inputs, ROWS), tl.cdiv(units, COLUMNS), 8)
    place = tile * ROWS + tl.arange(0, ROWS)
    unit = column * COLUMNS + tl.arange(0, COLUMNS)
    through_mean = tl.zeros((ROWS, COLUMNS), tl.float32)
    through_noise = tl.zeros((ROWS, COLUMNS), tl.float32)
    through_doubt = tl.zeros((ROWS, COLUMNS), tl.float32)
    if CENTRED:
        centre = tl.load(centre_ptr + place, mask=place < inputs, other=0.0)[:, None]
    for start in range(0, rows, TERMS):
        row = start + tl.arange(0, TERMS)
        there = row < rows
        x_where = row[None, :] * inputs + (place % inputs)[:, None]
        x = tl.load(x_ptr + x_where, mask=there[None, :], other=0.0)
        grad_where = row[:, None] * units + (unit % units)[None, :]
        by_mean = tl.load(by_mean_ptr + grad_where, mask=there[:, None], other=0.0).to(x.dtype)
        by_var = tl.load(by_var_ptr + grad_where, mask=there[:, None], other=0.0).to(x.dtype)
        wide = x.to(tl.float32)
        base = wide
        if CENTRED:
            base -= centre  # rows beyond the last have no gradient, so what they hold does not matter
        through_mean = add_product(through_mean, x, by_mean, WIDE)
        through_noise = add_product(through_noise, (base * base).to(x.dtype), by_var, WIDE)
        if DOUBT:
            if SIGNS:
                doubt = tl.maximum(input_square - wide * wide, 0.0).to(x.dtype)
            else:
                doubt = tl.load(doubt_ptr + x_where, mask=there[None, :], other=0.0)
            through_doubt = add_product(through_doubt, doubt, by_var, WIDE)
    where = unit[None, :] * inputs + place[:, None]
    mask = (place < inputs)[:, None] & (unit < units)[None, :]
    weight = tl.load(weight_ptr + where, mask=mask, other=0.0)
    tl.store(out_ptr + where, through_mean + 2 * weight * through_doubt, mask=mask)
    tl.store(noise_out_ptr + where, through_noise + through_doubt, mask=mask)


def _weights(
    weight: Tensor, noise: Tensor, dtype: torch.dtype, rounded: bool, doubt: bool, alone: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """M, V, and S or M² `alone`, rounded beforehand or as they are; S is formed before it is rounded."""
    weight, noise = weight.contiguous(), noise.contiguous()
    if not rounded:
        return weight, noise, weight
    low, low_noise = (torch.empty_like(weight, dtype=dtype) for _ in range(2))
    second = torch.empty_like(low) if doubt else low
    size = weight.numel()
    if size:
        _round_kernel[(triton.cdiv(size, BLOCK),)](
            weight, noise, low, low_noise, second, size, DOUBT=doubt, ALONE=alone, BLOCK=BLOCK
        )
    return low, low_noise, second


def _kind(var: Tensor | None, input_square: float | None) -> dict[str, bool]:
    """Whether there is a third product, and whether its inputs are formed from x."""
    return {"DOUBT": var is not None or input_square is not None, "SIGNS": input_square is not None}


def forward(
    x: Tensor, var: Tensor | None, input_square: float | None, weight: Tensor, noise: Tensor, centre: Tensor | None,
    chosen: Plan | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Mean and variance `(N, O)` in float32, as `levels_half.moments_of_levels` for a matrix product.

    Parameters
    ----------
    x, var : Tensor `(N, I)` in half precision, contiguous; no variance for inputs that are known or ±b
    input_square : b², or None
    weight, noise : Tensor `(O, I)` in float32, M and V
    centre : Tensor `(I,)` in float32, or None
    chosen : how to cut the work; `plan` decides by default
    """
    (rows, inputs), units = x.shape, weight.shape[0]
    mean, total = (torch.empty(rows, units, device=x.device) for _ in range(2))
    if not rows or not units:
        return mean, total
    chosen = chosen or plan(rows, units, inputs)
    tiles, kind = chosen.forward, _kind(var, input_square)
    blocks = blocks_of(rows, units, tiles)
    parts, each = split_of(blocks, inputs, tiles)
    into = (mean, total)
    if parts > 1:
        whole = torch.empty(2, parts, rows, units, device=x.device)
        into = (whole[0], whole[1])
    _forward_kernel[(blocks, parts)](
        x, x if var is None else var, *_weights(weight, noise, x.dtype, chosen.rounded, kind["DOUBT"], False),
        x if centre is None else centre.contiguous(), *into, rows, units, inputs, each, input_square or 0.0,
        CENTRED=centre is not None, SPLIT=parts > 1, ROUNDED=chosen.rounded, **kind, **sizes_of(tiles),
    )  # fmt: skip
    if parts > 1:
        finish_kernel[(triton.cdiv(mean.numel(), BLOCK),)](*into, mean, total, mean.numel(), parts, BLOCK=BLOCK)
    return mean, total


def _gradients(grad_mean: Tensor, grad_var: Tensor, dtype: torch.dtype, rounded: bool) -> tuple[Tensor, Tensor]:
    """Rounded beforehand where many tiles read them, else by each tile for itself."""
    if rounded:
        grad_mean, grad_var = grad_mean.to(dtype), grad_var.to(dtype)
    return grad_mean.contiguous(), grad_var.contiguous()


def by_input(
    grad_mean: Tensor, grad_var: Tensor, x: Tensor, var: Tensor | None, input_square: float | None, weight: Tensor,
    noise: Tensor, centre: Tensor | None, chosen: Plan | None = None,
) -> tuple[Tensor, Tensor | None, Tensor | None]:  # fmt: skip
    """Gradients by x `(N, I)`, by ν, if it is given, and by the centre `(I,)`, if there is one."""
    (rows, inputs), units = x.shape, weight.shape[0]
    out, doubt_out = torch.empty_like(x), None if var is None else torch.empty_like(var)
    if not rows or not inputs:
        return out, doubt_out, None if centre is None else torch.zeros_like(centre)
    chosen = chosen or plan(rows, units, inputs)
    tiles, kind = chosen.by_input, _kind(var, input_square)
    down = torch.empty(triton.cdiv(rows, tiles.rows), inputs, device=x.device) if centre is not None else out
    _by_input_kernel[(blocks_of(rows, inputs, tiles),)](
        *_gradients(grad_mean, grad_var, x.dtype, chosen.rounded), x,
        *_weights(weight, noise, x.dtype, chosen.rounded, kind["DOUBT"], kind["SIGNS"]),
        x if centre is None else centre.contiguous(), out, out if doubt_out is None else doubt_out, down,
        rows, units, inputs, CENTRED=centre is not None, NOISE=needs_noise(centre, kind["SIGNS"]),
        ROUNDED=chosen.rounded, **kind, **sizes_of(tiles),
    )  # fmt: skip
    return out, doubt_out, None if centre is None else down.sum(0)


def by_weight(
    grad_mean: Tensor, grad_var: Tensor, x: Tensor, var: Tensor | None, input_square: float | None, weight: Tensor,
    centre: Tensor | None, chosen: Plan | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Gradients by M and by V, `(O, I)` in float32."""
    (rows, inputs), units = x.shape, weight.shape[0]
    weight = weight.contiguous()
    out, noise_out = torch.empty_like(weight), torch.empty_like(weight)
    if not out.numel():
        return out, noise_out
    chosen = chosen or plan(rows, units, inputs)
    tiles = chosen.by_weight
    _by_weight_kernel[(blocks_of(inputs, units, tiles),)](
        *_gradients(grad_mean, grad_var, x.dtype, chosen.rounded), x, x if var is None else var, weight,
        x if centre is None else centre.contiguous(), out, noise_out, rows, units, inputs, input_square or 0.0,
        CENTRED=centre is not None, **_kind(var, input_square), **sizes_of(tiles),
    )  # fmt: skip
    return out, noise_out


def backward(
    grad_mean: Tensor, grad_var: Tensor, x: Tensor, var: Tensor | None, input_square: float | None, weight: Tensor,
    noise: Tensor, centre: Tensor | None, of_inputs: bool, of_weights: bool,
) -> tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None, Tensor | None]:  # fmt: skip
    """Gradients by x, ν, M, V and the centre, as far as asked for."""
    chosen = plan(x.shape[0], *weight.shape)
    grads = _gradients(grad_mean, grad_var, x.dtype, chosen.rounded)
    inputs = by_input(*grads, x, var, input_square, weight, noise, centre, chosen) if of_inputs else (None, None, None)
    weights = by_weight(*grads, x, var, input_square, weight, centre, chosen) if of_weights else (None, None)
    return *inputs[:2], *weights, inputs[2]
