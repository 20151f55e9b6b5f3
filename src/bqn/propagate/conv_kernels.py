"""Triton kernels of the pair of products of a convolution: mean and noise in half precision, as implicit gemm.

With the names of `half.py`, x the means of the inputs and c the centre of each channel,

    mean = x * M,      var = [x (x - 2c)] * V + Σ V c² + a² Σ ν

Rows are pixels of the result, columns its units, and the sum runs over the places of the kernel and the channels. A
tile of x is read once for both products, straight from the image, and what meets V is formed in registers. Pixels of
the padding read as zero, which x (x - 2c) leaves zero. The weights are rounded beforehand, since every tile would do it
again, and what is done element by element waits for the end of a tile.

Backward is two more pairs of the same kind:

    ∂/∂x = gᵐ * M + 2 (x - c) [gᵛ * V] - 2 a² x Σ gᵛ          ∂/∂M = gᵐ * x - 2 M (gᵛ * [x (x - 2c)] + c² Σ gᵛ)

The first runs over pixels of the input, whose neighbours it reads the other way round. The second is a long sum for few
results, split in parts that `_finish_kernel` adds in a fixed order: no result depends on the order in which blocks run.
Images are channels last, places are counted in 32 bits; `fits` says whether a layer is of that kind, `pays` whether
products of the library would be faster.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from bqn.propagate import half, half_kernels
from bqn.propagate.pair_kernels import PROCESSORS, Tiles, add_product, blocks_of, sizes_of, tile_of

if TYPE_CHECKING:
    from bqn.propagate.products import Geometry

PAYS = False  # until it is measured where
_WAVES = 4  # of blocks over the GPU, at most, when a sum is split


# Two accumulators a tile, as in `pair_kernels`; two blocks of four warps share a processor if their stages leave room.
CHOICES = (
    Tiles(128, 128, 64, 8, 3),
    Tiles(128, 128, 64, 8, 4),
    Tiles(64, 128, 64, 4, 3),
    Tiles(128, 64, 64, 4, 3),
    Tiles(64, 64, 64, 4, 3),
)


class Plan(NamedTuple):
    """How the three pairs of a layer are cut."""

    forward: Tiles
    by_input: Tiles
    by_weight: Tiles


def plan(rows: int, units: int, channels: int) -> Plan:
    """What was fastest for so many pixels on an H200; `benchmarks/pair_of_products.py --tune` compares all."""
    large, deep, wide, tall, small = CHOICES
    narrow = tall if rows >= 2 * PROCESSORS * tall.rows else small
    by_weight = wide if units > 2 * wide.columns else deep
    return Plan(
        wide if units > tall.columns else narrow,
        large if channels > tall.columns else narrow,
        by_weight if min(units, channels) > small.columns else small,
    )


@triton.jit
def _pixel_of(row, rows, height, width):
    """Image, line and column of each pixel; beyond the last a line that is in no image."""
    image, within = row // (height * width), row % (height * width)
    return image, tl.where(row < rows, within // width, -(2**20)), within % width


@triton.jit
def _inside(line, column, height, width):
    return (line >= 0) & (line < height) & (column >= 0) & (column < width)


@triton.jit
def _doubt_kernel(x_ptr, doubt_ptr, rows, channels, square, input_square, ROWS: tl.constexpr, CHANNELS: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    known = tl.zeros((ROWS,), tl.float32)
    for start in range(0, channels, CHANNELS):
        channel = start + tl.arange(0, CHANNELS)
        mask = (row < rows)[:, None] & (channel < channels)[None, :]
        x = tl.load(x_ptr + row[:, None] * channels + channel[None, :], mask=mask, other=0.0).to(tl.float32)
        known += tl.sum(x * x, 1)
    tl.store(doubt_ptr + row, square * (input_square * channels - known), mask=row < rows)


@triton.jit
def _forward_kernel(
    x_ptr, weight_ptr, noise_ptr, centre_ptr, constant_ptr, doubt_ptr, mean_ptr, var_ptr, rows, units, channels,
    height, width, out_height, out_width, HIGH: tl.constexpr, ACROSS: tl.constexpr,
    TOP: tl.constexpr, LEFT: tl.constexpr, CENTRED: tl.constexpr, DOUBT: tl.constexpr, EVEN: tl.constexpr,
    WIDE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, TERMS: tl.constexpr,
):  # fmt: skip
    tile, column = tile_of(tl.cdiv(rows, ROWS), tl.cdiv(units, COLUMNS), 8)
    row = tile * ROWS + tl.arange(0, ROWS)
    unit = column * COLUMNS + tl.arange(0, COLUMNS)
    image, out_line, out_column = _pixel_of(row, rows, out_height, out_width)
    line, left = out_line - TOP, out_column - LEFT  # where the window begins
    x_start = x_ptr + (((image * height + line) * width + left) * channels)[:, None]
    weight_start = (unit % units)[None, :] * (HIGH * ACROSS * channels)  # beyond the edge: computed again, not stored
    mean = tl.zeros((ROWS, COLUMNS), tl.float32)
    var = tl.zeros((ROWS, COLUMNS), tl.float32)
    pieces = tl.cdiv(channels, TERMS)
    for step in range(HIGH * ACROSS * pieces):  # one loop, so that loads run ahead from place to place
        place = step // pieces
        channel = (step - place * pieces) * TERMS + tl.arange(0, TERMS)
        down, right = place // ACROSS, place % ACROSS
        there = _inside(line + down, left + right, height, width)[:, None]
        weight_where = weight_start + place * channels + channel[:, None]
        if EVEN:
            x = tl.load(x_start + (down * width + right) * channels + channel[None, :], mask=there, other=0.0)
            weight = tl.load(weight_ptr + weight_where)
            noise = tl.load(noise_ptr + weight_where)
        else:
            known_channel = channel < channels
            there = there & known_channel[None, :]
            x = tl.load(x_start + (down * width + right) * channels + channel[None, :], mask=there, other=0.0)
            weight = tl.load(weight_ptr + weight_where, mask=known_channel[:, None], other=0.0)
            noise = tl.load(noise_ptr + weight_where, mask=known_channel[:, None], other=0.0)
        wide = x.to(tl.float32)
        if CENTRED:
            centre = tl.load(centre_ptr + channel, mask=channel < channels, other=0.0)[None, :]
            squares = wide * (wide - 2 * centre)
        else:
            squares = wide * wide
        mean = add_product(mean, x, weight, WIDE)  # before the noise, or the compiler lets neither run ahead
        var = add_product(var, squares.to(x.dtype), noise, WIDE)
    if DOUBT:
        doubt = tl.zeros((ROWS,), tl.float32)
        pixel = (image * height + line) * width + left
        for place in range(HIGH * ACROSS):
            down, right = place // ACROSS, place % ACROSS
            there = _inside(line + down, left + right, height, width)
            doubt += tl.load(doubt_ptr + pixel + down * width + right, mask=there, other=0.0)
        var += doubt[:, None]
    if CENTRED:
        var += tl.load(constant_ptr + unit, mask=unit < units, other=0.0)[None, :]
    where = row[:, None] * units + unit[None, :]
    mask = (row < rows)[:, None] & (unit < units)[None, :]
    tl.store(mean_ptr + where, mean, mask=mask)
    tl.store(var_ptr + where, tl.maximum(var, 0.0), mask=mask)


@triton.jit
def _by_input_kernel(
    by_mean_ptr, by_var_ptr, in_all_ptr, x_ptr, weight_ptr, noise_ptr, centre_ptr, out_ptr, centre_out_ptr,
    rows, units, channels, height, width, out_height, out_width, square, HIGH: tl.constexpr, ACROSS: tl.constexpr,
    TOP: tl.constexpr, LEFT: tl.constexpr, CENTRED: tl.constexpr, DOUBT: tl.constexpr, EVEN: tl.constexpr,
    WIDE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, TERMS: tl.constexpr,
):  # fmt: skip
    tile, column = tile_of(tl.cdiv(rows, ROWS), tl.cdiv(channels, COLUMNS), 8)
    row = tile * ROWS + tl.arange(0, ROWS)
    channel = column * COLUMNS + tl.arange(0, COLUMNS)
    image, in_line, in_column = _pixel_of(row, rows, height, width)
    line, left = in_line + TOP, in_column + LEFT  # the result whose window begins here; places count back from it
    grad_start = (((image * out_height + line) * out_width + left) * units)[:, None]
    through_mean = tl.zeros((ROWS, COLUMNS), tl.float32)
    through_noise = tl.zeros((ROWS, COLUMNS), tl.float32)
    pieces = tl.cdiv(units, TERMS)
    size = HIGH * ACROSS * channels
    for step in range(HIGH * ACROSS * pieces):
        place = step // pieces
        unit = (step - place * pieces) * TERMS + tl.arange(0, TERMS)
        down, right = place // ACROSS, place % ACROSS
        there = _inside(line - down, left - right, out_height, out_width)[:, None]
        where = grad_start - (down * out_width + right) * units + unit[None, :]
        weight_where = unit[:, None] * size + place * channels + (channel % channels)[None, :]
        if EVEN:
            by_mean = tl.load(by_mean_ptr + where, mask=there, other=0.0)
            by_var = tl.load(by_var_ptr + where, mask=there, other=0.0)
            weight = tl.load(weight_ptr + weight_where)
            noise = tl.load(noise_ptr + weight_where)
        else:
            there = there & (unit < units)[None, :]
            by_mean = tl.load(by_mean_ptr + where, mask=there, other=0.0)
            by_var = tl.load(by_var_ptr + where, mask=there, other=0.0)
            weight = tl.load(weight_ptr + weight_where, mask=(unit < units)[:, None], other=0.0)
            noise = tl.load(noise_ptr + weight_where, mask=(unit < units)[:, None], other=0.0)
        through_mean = add_product(through_mean, by_mean, weight, WIDE)
        through_noise = add_product(through_noise, by_var, noise, WIDE)
    mask = (row < rows)[:, None] & (channel < channels)[None, :]
    x_where = row[:, None] * channels + channel[None, :]
    x = tl.load(x_ptr + x_where, mask=mask, other=0.0).to(tl.float32)
    pull = 2 * x * through_noise
    if CENTRED:
        tl.store(centre_out_ptr + tile * channels + channel, -tl.sum(pull, 0), mask=channel < channels)
        centre = tl.load(centre_ptr + channel, mask=channel < channels, other=0.0)[None, :]
        pull = 2 * (x - centre) * through_noise
    if DOUBT:
        in_all = tl.zeros((ROWS,), tl.float32)
        pixel = (image * out_height + line) * out_width + left
        for place in range(HIGH * ACROSS):
            down, right = place // ACROSS, place % ACROSS
            there = _inside(line - down, left - right, out_height, out_width)
            in_all += tl.load(in_all_ptr + pixel - down * out_width - right, mask=there, other=0.0)
        pull -= 2 * square * x * in_all[:, None]
    tl.store(out_ptr + x_where, through_mean + pull, mask=mask)


@triton.jit
def _by_weight_kernel(
    by_mean_ptr, by_var_ptr, x_ptr, centre_ptr, mean_out_ptr, noise_out_ptr, rows, units, channels, height, width, part,
    OUT_HEIGHT: tl.constexpr, OUT_WIDTH: tl.constexpr, HIGH: tl.constexpr, ACROSS: tl.constexpr, TOP: tl.constexpr,
    LEFT: tl.constexpr, CENTRED: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    TERMS: tl.constexpr,
):  # fmt: skip
    # The tile lies transposed, (channels, units): so the tensor cores take the squares of x from registers.
    pieces = tl.cdiv(channels, ROWS)
    tile, column = tile_of(HIGH * ACROSS * pieces, tl.cdiv(units, COLUMNS), 8)
    split = tl.program_id(1)
    place = tile // pieces
    channel = (tile - place * pieces) * ROWS + tl.arange(0, ROWS)
    unit = column * COLUMNS + tl.arange(0, COLUMNS)
    down, right = place // ACROSS - TOP, place % ACROSS - LEFT
    through_mean = tl.zeros((ROWS, COLUMNS), tl.float32)
    through_noise = tl.zeros((ROWS, COLUMNS), tl.float32)
    x_start = x_ptr + (channel % channels)[:, None]
    grad_start = (unit % units)[None, :]
    if CENTRED:
        twice = 2 * tl.load(centre_ptr + channel, mask=channel < channels, other=0.0)[:, None]
    last = tl.minimum((split + 1) * part, rows)
    for start in range(split * part, last, TERMS):
        row = start + tl.arange(0, TERMS)
        # The size of the image is known to the compiler: dividing by it in each step would cost.
        image, line, left = _pixel_of(row, last, OUT_HEIGHT, OUT_WIDTH)
        line, left = line + down, left + right
        there = _inside(line, left, height, width)[None, :]
        x = tl.load(x_start + (((image * height + line) * width + left) * channels)[None, :], mask=there, other=0.0)
        where = row[:, None] * units + grad_start
        by_mean = tl.load(by_mean_ptr + where, mask=(row < last)[:, None], other=0.0)
        by_var = tl.load(by_var_ptr + where, mask=(row < last)[:, None], other=0.0)
        wide = x.to(tl.float32)
        squares = wide * (wide - twice) if CENTRED else wide * wide
        through_mean = add_product(through_mean, x, by_mean, WIDE)
        through_noise = add_product(through_noise, squares.to(x.dtype), by_var, WIDE)
    size = HIGH * ACROSS * channels
    where = unit[None, :] * size + place * channels + channel[:, None] + split.to(tl.int64) * (units * size)
    mask = (channel < channels)[:, None] & (unit < units)[None, :]
    tl.store(mean_out_ptr + where, through_mean, mask=mask)
    tl.store(noise_out_ptr + where, through_noise, mask=mask)


@triton.jit
def _finish_kernel(
    mean_ptr, noise_ptr, weight_ptr, square_ptr, unit_ptr, out_ptr, down_ptr, units, channels, kernel, parts, square,
    each, CENTRED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    chunk, size = tl.program_id(1), channels * kernel
    mask = index < size
    channel, place = index // kernel, index % kernel
    constant, down = tl.zeros((BLOCK,), tl.float32), tl.zeros((BLOCK,), tl.float32)
    if CENTRED:
        constant = tl.load(square_ptr + index, mask=mask, other=0.0)
    for unit in range(chunk * each, tl.minimum((chunk + 1) * each, units)):
        where = unit * size + place * channels + channel
        grad = tl.zeros((BLOCK,), tl.float32)
        by_noise = tl.zeros((BLOCK,), tl.float32)
        for part in range(parts):
            whole = tl.cast(part, tl.int64) * (units * size)
            grad += tl.load(mean_ptr + whole + where, mask=mask, other=0.0)
            by_noise += tl.load(noise_ptr + whole + where, mask=mask, other=0.0)
        mean = tl.load(weight_ptr + unit * size + index, mask=mask, other=0.0)
        if CENTRED:
            in_all = tl.load(unit_ptr + unit)
            by_noise += in_all * constant
            down += in_all * (square - mean * mean)
        tl.store(out_ptr + unit * size + index, grad - 2 * mean * by_noise, mask=mask)
    if CENTRED:
        tl.store(down_ptr + chunk * size + index, down, mask=mask)


def fits(x: Tensor, weight: Tensor, geometry: Geometry) -> bool:
    """Whether windows move by one pixel, reach one at least, and all places can be counted in 32 bits."""
    if geometry.stride != (1, 1) or geometry.dilation != (1, 1) or geometry.groups != 1:
        return False
    height, width = _out_size(x, weight, geometry)
    largest = max(x.numel(), weight.numel(), x.shape[0] * weight.shape[0] * max(height, 0) * max(width, 0))
    return height > 0 and width > 0 and largest < 2**31


def pays(x: Tensor, weight: Tensor, geometry: Geometry) -> bool:
    """Whether forward and backward together are faster than with products of the library and `half_kernels`."""
    return PAYS


def _out_size(x: Tensor, weight: Tensor, geometry: Geometry) -> tuple[int, int]:
    high, across = (
        size + 2 * pad - kernel + 1
        for size, pad, kernel in zip(x.shape[2:], geometry.padding, weight.shape[2:], strict=True)
    )
    return high, across


def _usual(x: Tensor, weight: Tensor) -> Plan:
    return plan(x.numel() // x.shape[1], weight.shape[0], weight.shape[1])


def _window(weight: Tensor, geometry: Geometry) -> dict[str, int]:
    (high, across), (top, left) = weight.shape[2:], geometry.padding
    return {"HIGH": high, "ACROSS": across, "TOP": top, "LEFT": left}


def _parts(blocks: int, rows: int, tiles: Tiles) -> int:
    """In how many parts a sum over rows is split: those that fill the GPU best, where to store and add a part takes as
    long as some ten steps."""
    slots = PROCESSORS * max(1, 8 // tiles.warps)
    steps = triton.cdiv(rows, tiles.terms)
    most = max(1, min(_WAVES * slots // blocks, steps // 4))

    def time(parts: int) -> int:
        return int(triton.cdiv(blocks * parts, slots) * (triton.cdiv(steps, parts) + 10))

    return min(range(1, most + 1), key=time)


def forward(
    x: Tensor, weight: Tensor, centre: Tensor | None, weight_square: float, input_square: float | None,
    geometry: Geometry, chosen: Plan | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Mean and variance `(N, O, H, W)`, channels last, of `weight · x`, as `half.moments` for a convolution.

    Parameters
    ----------
    x : Tensor `(N, C, H, W)` in half precision, best channels last
    weight : Tensor `(O, C, *kernel)` in float32
    centre : Tensor `(C, *kernel)` in float32, or None
    chosen : how to cut the work; `plan` decides by default
    """
    units, channels = weight.shape[:2]
    size = _out_size(x, weight, geometry)
    mean, var = (half_kernels.like((x.shape[0], units, *size), x.dtype, x.device) for _ in range(2))
    rows = x.shape[0] * size[0] * size[1]
    if not rows:
        return mean, var
    x, tiles = half_kernels.dense(x, geometry), (chosen or _usual(x, weight)).forward
    middle, constant_square = half_kernels.centres(centre, geometry)
    low, noise, constant = half_kernels.noise_weights(weight.contiguous(), constant_square, weight_square, x.dtype)
    doubt = constant if input_square is None else _doubt(x, weight_square, input_square)
    _forward_kernel[(blocks_of(rows, units, tiles),)](
        x, low, noise, constant if middle is None else middle, constant, doubt, mean, var, rows, units, channels,
        *x.shape[2:], *size, **_window(weight, geometry), CENTRED=middle is not None, DOUBT=input_square is not None,
        EVEN=channels % tiles.terms == 0, **sizes_of(tiles),
    )  # fmt: skip
    return mean, var


def by_input(
    grad_mean: Tensor, grad_var: Tensor, x: Tensor, weight: Tensor, centre: Tensor | None, weight_square: float,
    in_all: Tensor | None, geometry: Geometry, chosen: Plan | None = None,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Gradients by x and, if there is a centre, by that of each channel through the inputs, `(C,)`.

    `in_all` are the gradients by the variance, added up over the units, `(N, 1, H, W)`; None for inputs that are known.
    """
    units, channels = weight.shape[:2]
    rows = x.numel() // channels
    x, tiles = half_kernels.dense(x, geometry), (chosen or _usual(x, weight)).by_input
    middle = None if centre is None else half._middle(centre, geometry).contiguous()
    low, noise, _ = half_kernels.noise_weights(weight.contiguous(), None, weight_square, x.dtype)
    out = torch.empty_like(x)
    down = torch.empty(triton.cdiv(rows, tiles.rows) if centre is not None else 0, channels, device=x.device)
    _by_input_kernel[(blocks_of(rows, channels, tiles),)](
        _gradient(grad_mean, x), _gradient(grad_var, x), down if in_all is None else in_all, x, low, noise,
        down if middle is None else middle, out, down, rows, units, channels, *x.shape[2:], *grad_mean.shape[2:],
        weight_square, **_window(weight, geometry), CENTRED=middle is not None, DOUBT=in_all is not None,
        EVEN=units % tiles.terms == 0, **sizes_of(tiles),
    )  # fmt: skip
    return out, None if middle is None else down.sum(0)


def by_weight(
    grad_mean: Tensor, grad_var: Tensor, x: Tensor, weight: Tensor, centre: Tensor | None, weight_square: float,
    by_unit: Tensor | None, geometry: Geometry, chosen: Plan | None = None,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Gradients by the weight in float32 and, if there is a centre, by the constant square, `(C, *kernel)`.

    `by_unit` are the gradients by the variance, added up over all pixels, `(O,)`; not needed without a centre.
    """
    weight, x = weight.contiguous(), half_kernels.dense(x, geometry)
    units, channels, kernel = weight.shape[0], weight.shape[1], weight.shape[2:].numel()
    grad_mean, grad_var = _gradient(grad_mean, x), _gradient(grad_var, x)
    rows, tiles = grad_mean.numel() // units, (chosen or _usual(x, weight)).by_weight
    middle, constant_square = half_kernels.centres(centre, geometry)
    blocks = kernel * blocks_of(channels, units, tiles)
    parts = _parts(blocks, rows, tiles)
    each = triton.cdiv(triton.cdiv(rows, parts), tiles.terms) * tiles.terms
    parts = max(1, triton.cdiv(rows, each))
    whole = torch.empty(2, parts, weight.numel(), device=x.device)
    out_height, out_width = grad_mean.shape[2:]
    _by_weight_kernel[(blocks, parts)](
        grad_mean, grad_var, x, whole if middle is None else middle, whole[0], whole[1], rows, units, channels,
        *x.shape[2:], each, OUT_HEIGHT=out_height, OUT_WIDTH=out_width, **_window(weight, geometry),
        CENTRED=middle is not None, **sizes_of(tiles),
    )  # fmt: skip
    chunks = half_kernels.CHUNKS if constant_square is not None else min(units, 128)
    down = torch.empty((chunks, *weight.shape[1:]) if constant_square is not None else 0, device=x.device)
    out = torch.empty_like(weight)
    _finish_kernel[(triton.cdiv(channels * kernel, 256), chunks)](
        whole[0], whole[1], weight, weight if constant_square is None else constant_square,
        weight if by_unit is None else by_unit, out, down, units, channels, kernel, parts, weight_square,
        triton.cdiv(units, chunks), CENTRED=constant_square is not None, BLOCK=256,
    )  # fmt: skip
    return out, None if constant_square is None else down.sum(0)


def backward(
    grad_mean: Tensor, grad_var: Tensor, x: Tensor, weight: Tensor, centre: Tensor | None, weight_square: float,
    input_square: float | None, geometry: Geometry, need_x: bool, chosen: Plan | None = None,
) -> tuple[Tensor | None, Tensor, Tensor | None]:  # fmt: skip
    """Gradients by x, by the weight in float32, and by the centre, as `half_kernels.backward`."""
    if not x.numel():
        empty = torch.empty_like(x) if need_x else None
        return empty, torch.zeros_like(weight), None if centre is None else torch.zeros_like(centre)
    grad_mean, grad_var = _gradient(grad_mean, x), _gradient(grad_var, x)
    grad_x = grad_centre = by_row = by_unit = None
    if centre is not None or (need_x and input_square is not None):
        by_row, by_unit = half_kernels.sums(grad_var, centre is not None)
    if need_x:
        in_all = None if input_square is None else by_row
        grad_x, grad_centre = by_input(grad_mean, grad_var, x, weight, centre, weight_square, in_all, geometry, chosen)
    grad_weight, shared = by_weight(grad_mean, grad_var, x, weight, centre, weight_square, by_unit, geometry, chosen)
    if grad_centre is not None and shared is not None and centre is not None:
        grad_centre = half.by_centre(grad_centre, shared, centre)
    return grad_x, grad_weight, grad_centre


def _doubt(x: Tensor, weight_square: float, input_square: float) -> Tensor:
    """a² Σ ν over the channels of each pixel, `(N, 1, H, W)`."""
    channels = x.shape[1]
    rows = x.numel() // channels
    tile = half_kernels.tile_for(channels, rows, 8192)
    doubt = torch.empty((x.shape[0], 1, *x.shape[2:]), device=x.device)
    _doubt_kernel[(triton.cdiv(rows, tile["ROWS"]),)](x, doubt, rows, channels, weight_square, input_square, **tile)
    return doubt


def _gradient(grad: Tensor, x: Tensor) -> Tensor:
    return grad.to(dtype=x.dtype).contiguous(memory_format=torch.channels_last)
