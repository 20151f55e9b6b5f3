"""Random work for the compiled kernels, with what numpy makes of it.

    python -m tests.deploy.native_cases LIBRARY CASES

runs it on the kernels of a shared library, which the tests build with sanitizers, in memory that ends at a forbidden
page.
"""

from __future__ import annotations

import sys
from ctypes import CDLL
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bqn.deploy import _layout, _native, _plan, ops
from bqn.deploy.program import PIXELS, Lattice
from tests.deploy.guarded import guarded_arena

Array = npt.NDArray[Any]
SIGNS, TERNARY, QUATERNARY = Lattice(-1, 2, 2), Lattice(-1, 1, 3), Lattice(-3, 2, 4)
CODES = (
    SIGNS,
    TERNARY,
    QUATERNARY,
    PIXELS,
    Lattice(0, 1, 2),
    Lattice(0, 3, 7),
    Lattice(5, 2, 100),
    Lattice(-9, 1, 700),
)
WEIGHTS = (SIGNS, TERNARY, QUATERNARY, Lattice(-7, 2, 8), Lattice(0, 1, 2), Lattice(-100, 200, 2), Lattice(-40, 1, 256))
RESULTS = (SIGNS, QUATERNARY, Lattice(0, 1, 6), Lattice(0, 1, 40))


@dataclass(frozen=True)
class Product:
    """A convolution, the sum pooling behind it and the thresholds behind that."""

    codes: Array  # (N, H, W, C)
    lattice: Lattice
    raw: bool
    weight_codes: Array
    weight_lattice: Lattice
    bias: Array
    geometry: _layout.Geometry
    result: Lattice
    thresholds: Array
    flips: Array

    @property
    def input(self) -> Array:
        if self.raw:
            return np.ascontiguousarray(self.codes.astype(np.uint8).transpose(0, 3, 1, 2))
        return ops.pack(self.codes, self.lattice.planes)

    def expected(self) -> tuple[Array, Array]:
        """Integers and packed codes, by numpy."""
        g = self.geometry
        count = len(self.codes)
        codes = self.codes if count else np.zeros((1, *self.codes.shape[1:]), np.uint16)
        x, weight = ops.decode(codes, self.lattice), ops.decode(self.weight_codes, self.weight_lattice)
        windows = (g.groups, g.stride, g.padding, g.dilation)
        pooled = ops.sum_pool(
            ops.grouped_conv2d(x, weight, *windows, self.bias.astype(np.int32)), g.pool, g.pool, (0, 0)
        )
        packed = ops.threshold(pooled, self.thresholds.astype(np.int32), self.flips, self.result.planes)
        return pooled[:count], packed[:count]

    def computed(self, instructions: str, library: CDLL | None = None) -> tuple[tuple[Array, Array], str]:
        """The same by a compiled kernel, and the name of the mode that it used."""
        found = []
        for rules in (None, (self.result, self.thresholds, self.flips)):
            builder = _plan.Builder(instructions, library)
            height, width, channels = self.codes.shape[1:]
            if self.raw:
                x = builder.input_pixels((channels, height, width))
            else:
                x = builder.input_codes(height, width, channels, self.lattice)
            weights = (self.weight_codes, self.weight_lattice, self.bias)
            plan = builder.finish(builder.product(x, *weights, self.geometry, rules))
            found.append(plan(self.input))
        return (found[0], found[1]), _native.MODES[plan.ops[-1].mode]


def random_product(rng: np.random.Generator) -> Product:
    """A product of any shape, small enough for numpy."""

    def pair(most: int, least: int = 1) -> tuple[int, int]:
        return int(rng.integers(least, most + 1)), int(rng.integers(least, most + 1))

    lattice, weight_lattice = CODES[rng.integers(len(CODES))], WEIGHTS[rng.integers(len(WEIGHTS))]
    groups = int(rng.choice([1, 1, 2, 3]))
    inside, outside = int(rng.integers(1, 140 // groups)), int(rng.integers(1, 50 // groups))
    kernel, stride, dilation, padding, pool = pair(3), pair(2), pair(2), pair(2, least=0), pair(2)
    least = [dilation[a] * (kernel[a] - 1) + 1 + stride[a] for a in (0, 1)]
    height, width = (int(rng.integers(size, size + 18)) for size in least)
    result = RESULTS[rng.integers(len(RESULTS))]
    spread = 3 * int(np.sqrt(inside * kernel[0] * kernel[1]) * lattice.high)
    thresholds = np.sort(rng.integers(-spread, spread + 1, (1, result.levels - 1, groups * outside)), axis=1)
    return Product(
        rng.integers(0, lattice.levels, (int(rng.integers(0, 20)), height, width, groups * inside), np.uint16),
        lattice,
        bool(lattice == PIXELS and rng.integers(2)),
        rng.integers(0, weight_lattice.levels, (groups * outside, *kernel, inside), np.uint8),
        weight_lattice,
        rng.integers(-99, 100, groups * outside),
        _layout.Geometry(stride, padding, dilation, groups, pool),
        result,
        thresholds,
        rng.integers(0, 2, groups * outside).astype(bool),
    )


def whole_window(rng: np.random.Generator) -> Product:
    """A window as large as the image, on some more images than are prepared together."""
    images, height, width, channels, outputs = 20, 7, 7, 512, 3
    return Product(
        rng.integers(0, 4, (images, height, width, channels), np.uint16),
        QUATERNARY,
        False,
        rng.integers(0, 4, (outputs, height, width, channels), np.uint8),
        QUATERNARY,
        rng.integers(-99, 100, outputs),
        _layout.Geometry(),
        SIGNS,
        np.zeros((1, 1, outputs), np.int64),
        rng.integers(0, 2, outputs).astype(bool),
    )


def check_product(case: Product, instructions: str, library: CDLL | None = None) -> str:
    """Compare a kernel with numpy; returns the mode that was used."""
    (integers, codes), mode = case.computed(instructions, library)
    expected_integers, expected_codes = case.expected()
    np.testing.assert_array_equal(integers, expected_integers)
    np.testing.assert_array_equal(codes, expected_codes)
    return mode


def main(path: str, cases: int) -> None:
    library = _native.bind(Path(path))
    here = [name for code, name in enumerate(_native.SETS) if library.bqn_supports(code)]
    _native.Plan._arena = guarded_arena  # type: ignore[method-assign]
    rng = np.random.default_rng(0)
    seen = {(name, check_product(whole_window(rng), name, library)) for name in here}
    for number in range(cases):
        _native.set_threads(1 + number % 3)
        case = random_product(rng)
        seen |= {(name, check_product(case, name, library)) for name in here}
    print(f"{cases} cases passed:", *sorted("-".join(each) for each in seen))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
