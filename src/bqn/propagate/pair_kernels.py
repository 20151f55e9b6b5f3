"""Triton kernels of the pair of products: mean and noise of a linear layer in half precision, one pass over its tiles.

With x the means of the inputs, M those of the weights ±a, V = a² - M² and c the centre of the batch (`half.py`),

    mean = x Mᵀ,      var = (x - c)² Vᵀ + a² Σ ν

A tile of x is read once and squared in registers. The weights are read as they are, in float32, and V is formed in
registers too: rounded first, a weight that is nearly certain would lose its V. Where many tiles of x meet the same
weights, M and V are rounded beforehand instead, in one pass (`rounded`), since each tile would do it again.

Sums are float32. If there are too few tiles to fill a GPU, the sum over the inputs is split, and `finish_kernel` adds
the parts in a fixed order: results do not depend on the order in which blocks run. Places are counted in 32 bits, which
spares registers; `fits` says whether that is enough, `pays` whether products of the library would be faster.

Backward is two more pairs that end in the same way, without a pass of its own for what is done element by element:

    ∂/∂x = gᵐ M + 2 (x - c) gᵛ V - 2 a² x Σ gᵛ          ∂/∂M = gᵐᵀ x - 2 M gᵛᵀ (x - c)²
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024  # elements of a pass at a time
PROCESSORS = 132  # of a Hopper GPU; says only from when on a sum is split


class Tiles(NamedTuple):
    """How a product is cut: rows and columns of a tile of the result, and terms of the sum at a time."""

    rows: int
    columns: int
    terms: int
    warps: int
    stages: int


# Two accumulators a tile: 128 × 128 are as many registers as eight warps have.
CHOICES = (
    Tiles(128, 128, 64, 8, 3),
    Tiles(128, 128, 64, 8, 4),
    Tiles(64, 256, 64, 8, 3),
    Tiles(128, 64, 64, 4, 4),
    Tiles(64, 128, 64, 4, 4),
    Tiles(64, 64, 64, 4, 4),
)


class Plan(NamedTuple):
    """How the three pairs of a layer are computed.

    Attributes
    ----------
    forward, by_input, by_weight : Tiles
    rounded : bool
        Whether the weights are rounded beforehand.
    """

    forward: Tiles
    by_input: Tiles
    by_weight: Tiles
    rounded: bool


def plan(rows: int, units: int, inputs: int) -> Plan:
    """The usual plan for `(rows, inputs)` times `(units, inputs)`; `benchmarks/pair_of_products.py` compares all."""
    large, narrow, small = CHOICES[0], CHOICES[4], CHOICES[5]
    by_weight = large if units * inputs >= PROCESSORS * large.rows * large.columns else small
    if rows > 256:
        forward = large if rows * units >= PROCESSORS * large.rows * large.columns // 2 else small
        by_input = large if rows * inputs >= PROCESSORS * large.rows * large.columns // 2 else small
        return Plan(forward, by_input, by_weight, True)
    return Plan(narrow, narrow, by_weight, False)


@triton.jit
def tile_of(first, second, GROUP: tl.constexpr):
    """Row and column of this block's tile; neighbours in time share rows and columns, and find them in the cache."""
    block = tl.program_id(0)
    width = GROUP * second
    start = (block // width) * GROUP
    height = tl.minimum(first - start, GROUP)
    return start + (block % width) % height, (block % width) // height


@triton.jit
def add_product(total, a, b, WIDE: tl.constexpr):
    """Triton's interpreter takes bfloat16 for integers here: there the rounded numbers are multiplied in full."""
    if WIDE:
        return tl.dot(a.to(tl.float32), b.to(tl.float32), total, input_precision="ieee")
    return tl.dot(a, b, total)


@triton.jit
def _weight_tiles(mean_ptr, noise_ptr, where, mask, square, ROUNDED: tl.constexpr, LOW: tl.constexpr):
    """M and V in half precision."""
    mean = tl.load(mean_ptr + where, mask=mask, other=0.0)
    if ROUNDED:
        return mean, tl.load(noise_ptr + where, mask=mask, other=0.0)
    return mean.to(LOW), (square - mean * mean).to(LOW)


@triton.jit
def _round_kernel(weight_ptr, mean_ptr, noise_ptr, square, size, BLOCK: tl.constexpr):
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = index < size
    mean = tl.load(weight_ptr + index, mask=mask, other=0.0).to(tl.float32)
    tl.store(mean_ptr + index, mean, mask=mask)
    tl.store(noise_ptr + index, square - mean * mean, mask=mask)


@triton.jit
def _forward_kernel(
    x_ptr, weight_ptr, noise_ptr, centre_ptr, mean_ptr, var_ptr, rows, units, inputs, x_row, x_column, part,
    square, input_square, CENTRED: tl.constexpr, DOUBT: tl.constexpr, SPLIT: tl.constexpr, ROUNDED: tl.constexpr,
    WIDE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, TERMS: tl.constexpr,
):  # fmt: skip
    tile, column = tile_of(tl.cdiv(rows, ROWS), tl.cdiv(units, COLUMNS), 8)
    split = tl.program_id(1)
    row = tile * ROWS + tl.arange(0, ROWS)
    unit = column * COLUMNS + tl.arange(0, COLUMNS)
    x_start = x_ptr + (row % rows)[:, None] * x_row  # beyond the edge: computed again, not stored
    weight_start = (unit % units)[None, :] * inputs
    mean = tl.zeros((ROWS, COLUMNS), tl.float32)
    var = tl.zeros((ROWS, COLUMNS), tl.float32)
    known = tl.zeros((ROWS,), tl.float32)
    first, last = split * part, tl.minimum((split + 1) * part, inputs)
    for start in range(first, last, TERMS):
        term = start + tl.arange(0, TERMS)
        there = term < last
        x = tl.load(x_start + term[None, :] * x_column, mask=there[None, :], other=0.0)
        weight, noise = _weight_tiles(
            weight_ptr, noise_ptr, weight_start + term[:, None], there[:, None], square, ROUNDED, x.dtype
        )
        wide = x.to(tl.float32)
        if DOUBT:
            known += tl.sum(wide * wide, 1)
        if CENTRED:
            wide -= tl.load(centre_ptr + term, mask=there, other=0.0)[None, :]
        mean = add_product(mean, x, weight, WIDE)
        var = add_product(var, (wide * wide).to(x.dtype), noise, WIDE)
    if DOUBT:
        var += square * (input_square * (last - first) - known)[:, None]
    where = row[:, None] * units + unit[None, :]
    mask = (row < rows)[:, None] & (unit < units)[None, :]
    if SPLIT:
        where += split * rows * units
    else:
        var = tl.maximum(var, 0.0)
    tl.store(mean_ptr + where, mean, mask=mask)
    tl.store(var_ptr + where, var, mask=mask)


@triton.jit
def finish_kernel(part_mean_ptr, part_var_ptr, mean_ptr, var_ptr, size, parts, BLOCK: tl.constexpr):
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = index < size
    mean = tl.zeros((BLOCK,), tl.float32)
    var = tl.zeros((BLOCK,), tl.float32)
    for part in range(parts):
        mean += tl.load(part_mean_ptr + part * size + index, mask=mask, other=0.0)
        var += tl.load(part_var_ptr + part * size + index, mask=mask, other=0.0)
    tl.store(mean_ptr + index, mean, mask=mask)
    tl.store(var_ptr + index, tl.maximum(var, 0.0), mask=mask)


@triton.jit
def _by_input_kernel(
    by_mean_ptr, by_var_ptr, in_all_ptr, x_ptr, weight_ptr, noise_ptr, centre_ptr, out_ptr, centre_out_ptr,
    rows, units, inputs, x_row, x_column, square, CENTRED: tl.constexpr, DOUBT: tl.constexpr, ROUNDED: tl.constexpr,
    WIDE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, TERMS: tl.constexpr,
):  # fmt: skip
    tile, column = tile_of(tl.cdiv(rows, ROWS), tl.cdiv(inputs, COLUMNS), 8)
    row = tile * ROWS + tl.arange(0, ROWS)
    place = column * COLUMNS + tl.arange(0, COLUMNS)
    grad_start = (row % rows)[:, None] * units
    through_mean = tl.zeros((ROWS, COLUMNS), tl.float32)
    through_noise = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in range(0, units, TERMS):
        unit = start + tl.arange(0, TERMS)
        there = unit < units
        by_mean = tl.load(by_mean_ptr + grad_start + unit[None, :], mask=there[None, :], other=0.0)
        by_var = tl.load(by_var_ptr + grad_start + unit[None, :], mask=there[None, :], other=0.0)
        where = unit[:, None] * inputs + (place % inputs)[None, :]
        weight, noise = _weight_tiles(weight_ptr, noise_ptr, where, there[:, None], square, ROUNDED, by_mean.dtype)
        through_mean = add_product(through_mean, by_mean, weight, WIDE)
        through_noise = add_product(through_noise, by_var, noise, WIDE)
    mask = (row < rows)[:, None] & (place < inputs)[None, :]
    x_where = row[:, None] * x_row + place[None, :] * x_column
    x = tl.load(x_ptr + x_where, mask=mask, other=0.0).to(tl.float32)
    if CENTRED:
        base = x - tl.load(centre_ptr + place, mask=place < inputs, other=0.0)[None, :]
        pull = 2 * base * through_noise
        down = tl.sum(tl.where(mask, pull, 0.0), 0)
        tl.store(centre_out_ptr + tile * inputs + place, -down, mask=place < inputs)
    else:
        pull = 2 * x * through_noise
    if DOUBT:
        pull -= 2 * square * x * tl.load(in_all_ptr + row, mask=row < rows, other=0.0)[:, None]
    tl.store(out_ptr + row[:, None] * inputs + place[None, :], through_mean + pull, mask=mask)


@triton.jit
def _by_weight_kernel(
    by_mean_ptr, by_var_ptr, x_ptr, weight_ptr, centre_ptr, out_ptr, rows, units, inputs, x_row, x_column,
    CENTRED: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, TERMS: tl.constexpr,
):  # fmt: skip
    # The tile lies transposed, (inputs, units): so the tensor cores take the squares of x from registers.
    tile, column = tile_of(tl.cdiv(inputs, ROWS), tl.cdiv(units, COLUMNS), 8)
    place = tile * ROWS + tl.arange(0, ROWS)
    unit = column * COLUMNS + tl.arange(0, COLUMNS)
    through_mean = tl.zeros((ROWS, COLUMNS), tl.float32)
    through_noise = tl.zeros((ROWS, COLUMNS), tl.float32)
    x_start = x_ptr + (place % inputs)[:, None] * x_column
    if CENTRED:
        centre = tl.load(centre_ptr + place, mask=place < inputs, other=0.0)[:, None]
    for start in range(0, rows, TERMS):
        row = start + tl.arange(0, TERMS)
        there = row < rows
        x = tl.load(x_start + row[None, :] * x_row, mask=there[None, :], other=0.0)
        grad_where = row[:, None] * units + (unit % units)[None, :]
        by_mean = tl.load(by_mean_ptr + grad_where, mask=there[:, None], other=0.0)
        by_var = tl.load(by_var_ptr + grad_where, mask=there[:, None], other=0.0)
        wide = x.to(tl.float32)
        if CENTRED:
            wide -= centre  # rows beyond the last have no gradient, so what they hold does not matter
        through_mean = add_product(through_mean, x, by_mean, WIDE)
        through_noise = add_product(through_noise, (wide * wide).to(x.dtype), by_var, WIDE)
    where = unit[None, :] * inputs + place[:, None]
    mask = (place < inputs)[:, None] & (unit < units)[None, :]
    weight = tl.load(weight_ptr + where, mask=mask, other=0.0)
    tl.store(out_ptr + where, through_mean - 2 * weight * through_noise, mask=mask)


_INTERPRETED = not isinstance(_forward_kernel, triton.runtime.JITFunction)


def sizes_of(tiles: Tiles) -> dict[str, int | bool]:
    return {
        "ROWS": tiles.rows, "COLUMNS": tiles.columns, "TERMS": tiles.terms, "num_warps": tiles.warps,
        "num_stages": tiles.stages, "WIDE": _INTERPRETED,
    }  # fmt: skip


def blocks_of(rows: int, columns: int, tiles: Tiles) -> int:
    return int(triton.cdiv(rows, tiles.rows) * triton.cdiv(columns, tiles.columns))


def split_of(blocks: int, inputs: int, tiles: Tiles) -> tuple[int, int]:
    """In how many parts a sum is split, and the terms of each: enough to fill the GPU, each of at least four steps."""
    parts = max(1, min(PROCESSORS // max(blocks, 1), inputs // (4 * tiles.terms)))
    each = triton.cdiv(triton.cdiv(inputs, parts), tiles.terms) * tiles.terms
    return max(1, triton.cdiv(inputs, each)) if each else 1, each


def fits(x: Tensor, weight: Tensor) -> bool:
    """Whether all places can be counted in 32 bits. Splits of the sum can: they are made where results are few."""
    return max(x.shape[0] * weight.shape[0], weight.numel(), x.shape[0] * x.stride(0)) < 2**31


def pays(x: Tensor, weight: Tensor) -> bool:
    """Whether forward and backward together are faster than with products of the library and `half_kernels`.

    So it was on an H200 for all layers of `benchmarks/pair_of_products.py` within these bounds. Of those beyond, 784 →
    512 and 512 → 256 at batch 4096 were faster too, and are left out to keep the rule simple; layers of ten outputs
    were slower there, maybe because the gradient of their weights is few tiles, each a long sum.
    """
    return x.shape[0] <= 512 and x.shape[0] * weight.numel() <= 2**30


def rounded(weight: Tensor, weight_square: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """M and V = a² - M² in half precision, each like the weight; V is formed before it is rounded."""
    mean, noise = (torch.empty_like(weight, dtype=dtype) for _ in range(2))
    size = weight.numel()
    if size:
        _round_kernel[(triton.cdiv(size, BLOCK),)](weight, mean, noise, weight_square, size, BLOCK=BLOCK)
    return mean, noise


def forward(
    x: Tensor, weight: Tensor, centre: Tensor | None, weight_square: float, input_square: float | None,
    chosen: Plan | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Mean and variance `(N, O)` of `weight · x`, as `half.moments` for a matrix product.

    Parameters
    ----------
    x : Tensor `(N, I)` in half precision, any strides
    weight : Tensor `(O, I)` in float32
    centre : Tensor `(I,)` in float32, or None
    chosen : how to cut the work; `plan` decides by default
    """
    (rows, inputs), units = x.shape, weight.shape[0]
    mean, var = (torch.empty(rows, units, dtype=x.dtype, device=x.device) for _ in range(2))
    if not rows or not units:
        return mean, var
    chosen = chosen or plan(rows, units, inputs)
    tiles, weight = chosen.forward, weight.contiguous()
    low, noise = rounded(weight, weight_square, x.dtype) if chosen.rounded else (weight, weight)
    blocks = blocks_of(rows, units, tiles)
    parts, each = split_of(blocks, inputs, tiles)
    into = (mean, var)
    if parts > 1:
        whole = torch.empty(2, parts, rows, units, device=x.device)
        into = (whole[0], whole[1])
    _forward_kernel[(blocks, parts)](
        x, low, noise, x if centre is None else centre, *into, rows, units, inputs, x.stride(0), x.stride(1), each,
        weight_square, 0.0 if input_square is None else input_square, CENTRED=centre is not None,
        DOUBT=input_square is not None, SPLIT=parts > 1, ROUNDED=chosen.rounded, **sizes_of(tiles),
    )  # fmt: skip
    if parts > 1:
        finish_kernel[(triton.cdiv(mean.numel(), BLOCK),)](*into, mean, var, mean.numel(), parts, BLOCK=BLOCK)
    return mean, var


def by_input(
    grad_mean: Tensor, grad_var: Tensor, x: Tensor, weight: Tensor, centre: Tensor | None, weight_square: float,
    doubt: bool, chosen: Plan | None = None,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Gradients by x `(N, I)` and by the centre `(I,)`, if there is one; `doubt` as `input_square is not None`."""
    (rows, inputs), units = x.shape, weight.shape[0]
    out = torch.empty(rows, inputs, dtype=x.dtype, device=x.device)
    if not rows or not inputs:
        return out, None if centre is None else torch.zeros_like(centre)
    chosen = chosen or plan(rows, units, inputs)
    tiles, weight = chosen.by_input, weight.contiguous()
    low, noise = rounded(weight, weight_square, x.dtype) if chosen.rounded else (weight, weight)
    down = torch.empty(triton.cdiv(rows, tiles.rows), inputs, device=x.device) if centre is not None else out
    in_all = grad_var.sum(-1, dtype=torch.float32) if doubt else x
    _by_input_kernel[(blocks_of(rows, inputs, tiles),)](
        grad_mean.to(x.dtype).contiguous(), grad_var.to(x.dtype).contiguous(), in_all, x, low, noise,
        x if centre is None else centre, out, down, rows, units, inputs, x.stride(0), x.stride(1), weight_square,
        CENTRED=centre is not None, DOUBT=doubt, ROUNDED=chosen.rounded, **sizes_of(tiles),
    )  # fmt: skip
    return out, None if centre is None else down.sum(0)


def by_weight(
    grad_mean: Tensor, grad_var: Tensor, x: Tensor, weight: Tensor, centre: Tensor | None, chosen: Plan | None = None
) -> Tensor:
    """Gradient by the weight, `(O, I)` in float32."""
    (rows, inputs), units = x.shape, weight.shape[0]
    weight = weight.contiguous()
    out = torch.empty_like(weight)
    if not out.numel():
        return out
    tiles = (chosen or plan(rows, units, inputs)).by_weight
    _by_weight_kernel[(blocks_of(inputs, units, tiles),)](
        grad_mean.to(x.dtype).contiguous(), grad_var.to(x.dtype).contiguous(), x, weight,
        x if centre is None else centre, out, rows, units, inputs, x.stride(0), x.stride(1),
        CENTRED=centre is not None, **sizes_of(tiles),
    )  # fmt: skip
    return out
