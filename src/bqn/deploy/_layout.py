"""How the compiled kernels see one product: which kernel, which bytes a position reads, and how weights lie.

Four kernels compute `Σ code * weight` (see kernels.c). `xor` and `and` count bits and take one pass for every pair of
planes of codes and weights; `bytes` and `tiles` multiply a byte by a byte, whatever the number of planes. Every sum
then becomes an integer by `constant + scale * sum + code_scale * Σ codes`; all that padding, biases and lattices do is
in the constants, one per channel and per class of positions that see the same part of the window. Where thresholds
follow, they are moved to the sums, and no integer is formed at all.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from bqn.deploy import _native
from bqn.deploy.ops import output_size
from bqn.deploy.program import Lattice, Pair

Array = npt.NDArray[Any]
LANES = 16
TILE = 64  # bytes of a row of a tile
_BLOCK = 256  # as in kernels.c
_CACHE = 2**19  # bytes of prepared images that are worked on together
_BYTE_LIMIT = 64  # of weights in the byte kernels, so that two products fit 16 bits
# What a word of four bytes takes, in units of what a word of 32 bits takes; as measured.
_COST_OF_BYTES = {"portable": 3.0, "neon": 3.0, "avx2": 0.4, "avx512": 0.4, "amx": 0.4}
_TILES_FROM_POSITIONS = 16  # of one image; where each has a single position, those of many images share a tile
INT32 = np.iinfo(np.int32)


def window(kernel: Pair, stride: Pair, padding: Pair) -> dict[str, int]:
    """Fields of an operation with windows."""
    names = ("kernel_h", "kernel_w", "stride_h", "stride_w", "pad_h", "pad_w")
    return dict(zip(names, (*kernel, *stride, *padding), strict=True))


def in_lanes(array: Array, groups: int, fill: int = 0) -> Array:
    """Channels `(..., O)` in blocks of lanes, group by group: `(..., groups * blocks * LANES)`."""
    per_group = array.reshape(*array.shape[:-1], groups, -1)
    missing = -per_group.shape[-1] % LANES
    widths = [(0, 0)] * (per_group.ndim - 1) + [(0, missing)]
    padded = np.pad(per_group, widths, constant_values=fill)
    return padded.reshape(*array.shape[:-1], -1)


def thresholds(
    values: Array, flips: Array, groups: int, scale: int = 1, constants: Array | None = None
) -> dict[str, Any]:
    """Fields for thresholds: from `±q >= t` with `q = constant + scale * sum` to what the kernels compare.

    They compare `(sum ^ flip) > t'`, where a flip is -1 and ~sum stands for -sum - 1. Lanes without a channel are above
    nothing.

    Parameters
    ----------
    values : `(cases, T, C)`; if there are constants, one case
    flips : bool `(C,)`
    constants : `(classes, C)` or None
        The thresholds of the result are those of the classes, and otherwise those of the cases.
    """
    signs = np.where(flips, -1, 1)
    shifts = np.zeros((1, len(flips)), np.int64) if constants is None else constants
    reached = values.astype(np.int64) - (signs * shifts)[:, None]  # signs * scale * sum >= reached
    least = -(-reached // abs(scale))  # ±sum >= least
    downwards = (signs * scale) < 0
    compared = np.clip(least - np.where(downwards, 2, 1), INT32.min, INT32.max)
    lanes = in_lanes(compared, groups, INT32.max).astype(np.int32)
    blocks = lanes.reshape(*lanes.shape[:2], -1, LANES).transpose(2, 0, 1, 3)
    return {
        "thresholds": np.ascontiguousarray(blocks),
        "flips": np.ascontiguousarray(in_lanes(-downwards.astype(np.int32), groups).astype(np.int32)),
        "class_count": len(lanes),
    }


@dataclass(frozen=True)
class Geometry:
    """Where windows lie; `pool` sums that many neighbouring results."""

    stride: Pair = (1, 1)
    padding: Pair = (0, 0)
    dilation: Pair = (1, 1)
    groups: int = 1
    pool: Pair = (1, 1)


@dataclass(frozen=True, eq=False)
class Weights:
    """Codes of the weights, uint8 `(O, kh, kw, I / groups)`, on their lattice."""

    codes: Array
    lattice: Lattice

    @cached_property
    def integers(self) -> Array:
        return self.codes.astype(np.int64) * self.lattice.stride + self.lattice.low

    @property
    def fit_bytes(self) -> bool:
        return max(abs(self.lattice.low), abs(self.lattice.high)) <= _BYTE_LIMIT


@dataclass(frozen=True)
class Layout:
    """One product. Sizes are of one group; steps and offsets are in bytes.

    Attributes
    ----------
    mode : "xor", "and", "bytes" or "tiles"
    image : (H, W, C) of the source
    lattice : of the source
    raw : whether the source is pixels
    """

    mode: str
    image: tuple[int, int, int]
    lattice: Lattice
    weight_lattice: Lattice
    kernel: Pair
    geometry: Geometry
    raw: bool
    outputs: Pair = field(init=False)

    def __post_init__(self) -> None:
        g = self.geometry
        sizes = zip(self.image[:2], self.kernel, g.stride, g.padding, g.dilation, strict=True)
        object.__setattr__(self, "outputs", tuple(output_size(*each) for each in sizes))

    @property
    def by_bytes(self) -> bool:
        return self.mode in ("bytes", "tiles")

    @property
    def channels(self) -> int:
        return self.image[2] // self.geometry.groups

    @property
    def pooled(self) -> Pair:
        return self.outputs[0] // self.geometry.pool[0], self.outputs[1] // self.geometry.pool[1]

    @property
    def rows(self) -> int:
        """Of the sums; what the pooling leaves out is not computed."""
        return self.pooled[0] * self.geometry.pool[0]

    @property
    def columns(self) -> int:
        return self.pooled[1] * self.geometry.pool[1]

    @property
    def direct(self) -> bool:
        """Whether the kernels read the source where it lies."""
        if self.geometry.padding != (0, 0) or self.geometry.groups != 1:
            return False
        if self.mode == "bytes":
            return self.raw and self.image[:2] == (1, 1) and self.channels % 4 == 0
        return self.mode != "tiles"

    @property
    def plane_bytes(self) -> int:
        return -(-self.channels // 64) * 8 if self.direct else -(-self.channels // 32) * 4

    @property
    def patches(self) -> bool:
        """Whether windows are copied out one by one: they are too narrow for tiles as they lie."""
        return self.mode == "tiles" and self.channels <= TILE // 2

    @property
    def patch_bytes(self) -> int:
        return -(-self.kernel[0] * self.kernel[1] * self.channels // TILE) * TILE if self.patches else 0

    @property
    def pixel_bytes(self) -> int:
        if not self.by_bytes:
            return self.lattice.planes * self.plane_bytes
        if (
            self.mode == "tiles" and not self.patches
        ):  # an odd number of cache lines, so that neighbours lie in different sets of the cache
            return (-(-self.channels // TILE) | 1) * TILE
        return self.channels

    @property
    def padded(self) -> Pair:
        (height, width, _), (pad_h, pad_w) = self.image, self.geometry.padding
        return height + 2 * pad_h, width + 2 * pad_w

    @property
    def row_bytes(self) -> int:
        return self.padded[1] * self.pixel_bytes

    @property
    def image_bytes(self) -> int:
        """Of a prepared image."""
        if self.patches:
            return self.rows * self.columns * self.patch_bytes
        return -(-self.padded[0] * self.row_bytes // 64) * 64

    @property
    def column_step(self) -> int:
        """Bytes from one position to the next; where an image has a single one, to the next image."""
        if self.mode == "tiles" and self.rows * self.columns == 1:
            return self.image_bytes
        return self.patch_bytes or self.geometry.stride[1] * self.pixel_bytes

    @property
    def row_step(self) -> int:
        if self.patches or (self.mode == "tiles" and self.rows * self.columns == 1):
            return self.columns * self.column_step
        return self.geometry.stride[0] * self.row_bytes

    @property
    def pitch(self) -> int:
        """Sums between one row and the next.

        Tiles take sixteen positions at equal distances: from one row, or straight through all rows of the padded image
        with some positions on its margin that nobody wants.
        """
        if self.mode != "tiles" or self.patches or self.rows * self.columns == 1:
            return self.columns
        by_row = -(-self.columns // LANES) * LANES
        through = self.padded[1]
        unit_steps = self.geometry.stride == (1, 1)
        return through if unit_steps and through < by_row else by_row

    def images_together(self, most: int) -> int:
        """Images that are prepared before the weights are read."""
        return most if self.direct else max(1, min(most, _CACHE // self.image_bytes))

    def scratch(self, images: int) -> int:
        """Bytes that the kernel needs beside its source and target; see `product` in kernels.c."""
        rows = max(1, _BLOCK // (self.pitch * self.geometry.pool[0])) * self.geometry.pool[0]
        sums = (rows * self.pitch + 4 * LANES) * LANES * 4
        code_sums = -(-images * self.rows * self.columns * 4 // 64) * 64
        one_pixel = -(-self.image[2] // 64) * 8 * self.lattice.planes + 64
        # A tile reads sixteen positions, also where fewer are left: of the row, or of the images that are prepared.
        past_end = -images % LANES if self.rows * self.columns == 1 else LANES
        beyond = 2 * TILE + past_end * self.column_step
        if self.patches:
            beyond += self.padded[0] * self.row_bytes + 2 * TILE
        widened = self._steps * LANES * TILE if self.one_bit else 0
        return (
            -(-sums // 64) * 64
            + code_sums
            + one_pixel
            + widened
            + (0 if self.direct else images * self.image_bytes + beyond)
        )

    @property
    def one_bit(self) -> bool:
        """Whether weights that tiles multiply as bytes are stored as bits."""
        return self.mode == "tiles" and self.weight_lattice.planes == 1 and not self.patches

    @property
    def words(self) -> int:
        """Words of 32 bits that a window reads from bits or bytes, of one plane."""
        if self.mode == "bytes" and self.geometry.dilation[1] == 1:
            return self.kernel[0] * -(-self.kernel[1] * self.channels // 4)
        return self.kernel[0] * self.kernel[1] * -(-self.channels // (4 if self.by_bytes else 32))

    def reads_more_than(self, most: int, out_channels: int, thresholds: int) -> bool:
        """Whether weights, or thresholds while they are computed, take more than `most` bytes.

        Groups are filled up to whole blocks of lanes; there are thresholds for every class of positions.
        """
        if 8 * max(self.rows * self.kernel[0], self.columns * self.kernel[1]) > most:
            return True  # even finding the classes would
        lanes = self.geometry.groups * -(-out_channels // (self.geometry.groups * LANES)) * LANES
        per_lane = self._steps * TILE if self.mode == "tiles" else self.words * self.weight_lattice.planes * 4
        classes = len(self._seen(0)[0]) * len(self._seen(1)[0])
        return lanes * max(per_lane, classes * max(1, thresholds) * 8) > most

    @property
    def _steps(self) -> int:
        """Tiles that a window reads."""
        return self.kernel[0] * self.kernel[1] * -(-self.channels // TILE)

    @property
    def scale(self) -> int:
        """What one more in a sum is worth."""
        if self.by_bytes:
            return self.lattice.stride
        both = self.lattice.stride * self.weight_lattice.stride
        return -both // 2 if self.mode == "xor" else both

    def _reads(self, weights: Weights) -> tuple[Array, Array]:
        """Offsets int32 `(length,)`, and the weights that belong to them as bytes `(O, planes, length, unit)`."""
        unit = TILE if self.mode == "tiles" else 4
        if self.by_bytes:
            stored = weights.integers.astype(np.int8).view(np.uint8)[:, None]
        else:
            places = np.arange(weights.lattice.planes, dtype=np.uint8).reshape(-1, 1, 1, 1)
            stored = np.packbits(weights.codes[:, None] >> places & 1, axis=-1, bitorder="little")
        if self.patches:  # the whole window is one stretch of bytes
            stored = stored.reshape(*stored.shape[:2], 1, 1, -1)
        elif self.mode == "bytes" and self.geometry.dilation[1] == 1:  # neighbours lie side by side
            stored = stored.reshape(*stored.shape[:3], 1, -1)
        stored = np.pad(stored, [(0, 0)] * 4 + [(0, -stored.shape[4] % unit)])
        stored = stored.reshape(*stored.shape[:4], -1, unit)
        steps = [
            self.geometry.dilation[0] * self.row_bytes * np.arange(stored.shape[2])[:, None, None],
            self.geometry.dilation[1] * self.pixel_bytes * np.arange(stored.shape[3])[None, :, None],
            unit * np.arange(stored.shape[4])[None, None, :],
        ]
        offsets = steps[0] + steps[1] + steps[2]
        return offsets.reshape(-1).astype(np.int32), stored.reshape(*stored.shape[:2], offsets.size, unit)

    def _in_kernel_order(self, stored: Array) -> Array:
        """Bytes `(O, planes, length, unit)` to `(lane blocks, planes, length, unit / 4, LANES, 4)`, or their bits."""
        lanes = np.moveaxis(in_lanes(np.moveaxis(stored, 0, -1), self.geometry.groups), -1, 0)
        _, planes, length, unit = lanes.shape
        blocks = lanes.reshape(-1, LANES, planes, length, unit // 4, 4)
        ordered = np.ascontiguousarray(blocks.transpose(0, 2, 3, 4, 1, 5))
        if not self.one_bit:
            return ordered
        high = ordered.view(np.int8) == self.weight_lattice.high
        return np.packbits(high.reshape(*high.shape[:4], -1), axis=-1, bitorder="little")

    def _seen(self, axis: int) -> tuple[Array, Array]:
        """How often positions see each tap of the window: the distinct cases, and the case of each pooled position."""
        g = self.geometry
        starts = np.arange(self.pooled[axis] * g.pool[axis]) * g.stride[axis] - g.padding[axis]
        places = starts[:, None] + np.arange(self.kernel[axis]) * g.dilation[axis]
        inside = ((places >= 0) & (places < self.image[axis])).astype(np.int64)
        counts = inside.reshape(self.pooled[axis], g.pool[axis], -1).sum(1)
        distinct, which = np.unique(counts, axis=0, return_inverse=True)
        return distinct, which.reshape(-1)

    def _constants(self, weights: Weights, bias: Array) -> tuple[Array, Array]:
        """Constants int64 `(classes, O)`, and the class of every pooled position."""
        g = self.geometry
        seen, classes = zip(self._seen(0), self._seen(1), strict=True)
        by_row = np.einsum("ai,oij->aoj", seen[0], weights.integers.sum(3))
        sums = np.einsum("bj,aoj->abo", seen[1], by_row) * self.lattice.low
        area = g.pool[0] * g.pool[1]
        constants = sums + area * bias
        if self.mode == "xor":  # what the kernel counts where all codes are zero
            ones = (weights.codes.astype(np.int64)).sum((1, 2, 3)) * ((1 << self.lattice.planes) - 1)
            constants -= self.scale * area * ones
        positions = classes[0][:, None] * len(seen[1]) + classes[1]
        return constants.reshape(-1, constants.shape[2]), np.ascontiguousarray(positions.reshape(-1).astype(np.int32))

    def _finish(self, constants: Array, rules: tuple[Lattice, Array, Array] | None) -> dict[str, Any]:
        """Fields that say what becomes of the sums."""
        groups = self.geometry.groups
        if rules is None:
            lanes = in_lanes(constants, groups).astype(np.int32)
            blocks = lanes.reshape(len(lanes), -1, LANES).transpose(1, 0, 2)
            return {"constants": np.ascontiguousarray(blocks), "class_count": len(lanes)}
        lattice, values, flips = rules
        scale = 1 if self.code_scale else self.scale  # otherwise the kernel has scaled them already
        return {"levels": lattice.levels, **thresholds(values, flips, groups, scale, constants)}

    @property
    def code_scale(self) -> int:
        """What one more in the sum of the codes is worth."""
        return self.lattice.stride * self.weight_lattice.low if self.mode == "and" else 0

    def fields(self, weights: Weights, bias: Array, rules: tuple[Lattice, Array, Array] | None) -> dict[str, Any]:
        """All that the kernels need to know about a product, and the thresholds behind it if there are any."""
        g = self.geometry
        offsets, stored = self._reads(weights)
        constants, classes = self._constants(weights, bias)
        return {
            **window(self.kernel, g.stride, g.padding),
            **self._finish(constants, rules),
            "mode": _native.MODES.index(self.mode),
            "groups": g.groups,
            "pool_h": g.pool[0],
            "pool_w": g.pool[1],
            "rows": self.rows,
            "columns": self.columns,
            "pitch": self.pitch,
            "pixel_bytes": self.pixel_bytes,
            "plane_bytes": self.plane_bytes,
            "row_step": self.row_step,
            "column_step": self.column_step,
            "padded_height": self.padded[0],
            "padded_width": self.padded[1],
            "direct": self.direct,
            "dilation_h": g.dilation[0],
            "dilation_w": g.dilation[1],
            "patch_bytes": self.patch_bytes,
            "length": len(offsets),
            "offsets": offsets,
            "weights": self._in_kernel_order(stored),
            "weight_planes": stored.shape[1],
            "one_bit": self.one_bit,
            "low": self.weight_lattice.low,
            "step": self.weight_lattice.stride,
            "classes": classes,
            "scale": self.scale,
            "code_scale": self.code_scale,
        }


def choose(
    instructions: str, image: tuple[int, int, int], lattice: Lattice, weights: Weights, geometry: Geometry, raw: bool
) -> Layout:
    """The layout with the kernel that is expected to be the fastest."""
    kernel = (weights.codes.shape[1], weights.codes.shape[2])

    def layout(mode: str, raw: bool = raw) -> Layout:
        return Layout(mode, image, lattice, weights.lattice, kernel, geometry, raw)

    bits = layout("xor" if lattice.symmetric and weights.lattice.symmetric else "and", raw=False)
    if lattice.planes > 8 or not weights.fit_bytes:
        return bits
    bytes_layout = layout("bytes")
    passes = lattice.planes * weights.lattice.planes
    by_bytes = _COST_OF_BYTES[instructions] * bytes_layout.words < passes * bits.words
    positions = bits.rows * bits.columns
    if instructions == "amx" and (positions >= _TILES_FROM_POSITIONS or (by_bytes and positions == 1)):
        return layout("tiles")
    return bytes_layout if by_bytes else bits
