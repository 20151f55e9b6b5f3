"""Folding: what lies between two products becomes integer thresholds, found by asking the float layers themselves.

While a network is packed, a value is an integer of the program and what the float network has done with it since: a
`Symbol`. Batch norm and its like wait in it, unevaluated, until a quantizer turns them into codes. All that waits is
monotone in the integer, channel by channel, and rounding keeps it so; a bisection that evaluates the float32 layers on
integers finds the first integer that reaches each level. Nothing is rederived, so nothing can differ.

The float network adds the same integers in float32. Its sums are exact as long as they need at most 24 bits; where they
do not, `Symbol.error` bounds how far they may be off, and a threshold that this error could cross is refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from typing import cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from bqn.deploy.program import INT32_MAX, Lattice, PackedError, Pair

# One float32 layer, or a part of it, on candidates (M, C) and what the selector adds, if there is one.
Step = Callable[[Tensor, float], Tensor]
Int64 = npt.NDArray[np.int64]

MANTISSA = 2**24
ROUNDING = 2.0**-24


class UnpackableError(PackedError):
    """A network that the packed form cannot express exactly; the message names the layer and the reason."""


@dataclass(frozen=True)
class Pool:
    """A maximum that waits for the quantizer before it, with which it commutes."""

    kernel: Pair
    stride: Pair
    padding: Pair


@dataclass(frozen=True, eq=False)
class Symbol:
    """A value of the float network in terms of an integer q of the program.

    The float network holds `steps(unit * q + shift)`, up to `error` before the steps.

    Attributes
    ----------
    name : str
        The value of the program that holds q.
    unit : Fraction
    low, high, spacing : int
        q lies in `low, low + spacing, …, high`.
    lattice : Lattice or None
        Where the program holds codes.
    channels : int or None
        None as long as nobody said.
    shape : tuple of int or None
        Shape of one example in the float network, where the shape of the input is known.
    flat : bool
        Whether it has been flattened; otherwise it has as many dimensions as the input.
    shifts : float64 Tensor `(S, C)` or None
        For each member, exact.
    error : float
    steps : tuple, for each member the same number of steps
    average : int
        What a sum is still to be divided by: the first step does it, or the unit where that is possible.
    selector : Symbol or None
        The other summand of a shortcut, whose value the steps take as second argument.
    pools : maxima that wait behind the steps
    normalized : bool
        Whether a batch norm has read the shifts, which others do not read.
    real : bool
        Whether q comes from real-valued features, whose sums the float network rounds as it likes.
    """

    name: str
    unit: Fraction
    low: int
    high: int
    spacing: int = 1
    lattice: Lattice | None = None
    channels: int | None = None
    shape: tuple[int, ...] | None = None
    flat: bool = False
    shifts: Tensor | None = None
    error: float = 0.0
    steps: tuple[tuple[Step, ...], ...] = ()
    average: int = 1
    selector: Symbol | None = None
    pools: tuple[Pool, ...] = ()
    normalized: bool = False
    real: bool = False

    @property
    def bound(self) -> float:
        """The largest size of the value before the steps."""
        largest = float(max(abs(self.low), abs(self.high)) * self.unit)
        return largest if self.shifts is None else largest + float(self.shifts.abs().max())

    @property
    def waiting(self) -> bool:
        """Whether layers wait for a quantizer."""
        return bool(self.steps) or self.selector is not None or bool(self.pools)

    def settled(self) -> Symbol | None:
        """The same as a plain multiple of integers, without steps and shifts; None if there is no such form."""
        if self.average > 1 and len(self.steps[0]) == 1 and self.selector is None and not self.pools:
            error = self.error / self.average + 2 * ROUNDING * self.bound / self.average
            plain = replace(self, unit=self.unit / self.average, steps=(), average=1, error=error)
            return plain.settled()
        return self if not self.waiting and self.shifts is None else None

    def then(self, steps: Sequence[Step]) -> Symbol:
        """With one more step, given for each member."""
        before = self.steps or ((),) * len(steps)
        return replace(self, steps=tuple((*done, step) for done, step in zip(before, steps, strict=True)))

    def with_shifts(self, shifts: Tensor) -> Symbol:
        """`shifts` `(S, C)` are added, in float32."""
        total = shifts.double() if self.shifts is None else self.shifts + shifts
        return replace(self, shifts=total).rounded(1)

    def own_sums(self, layer: str) -> Symbol:
        """As a layer reads it that is no batch norm: with the shifts put back, in float32."""
        if self.shifts is None or self.normalized:
            return self
        if self.waiting:
            raise UnpackableError(
                f"{layer} reads averages of sums that are shifted for a batch norm, which reads them too; put a "
                "quantizer before the average"
            )
        return replace(self, shifts=None, error=self.error and self.error + 2 * ROUNDING * self.bound)

    def rounded(self, terms: int) -> Symbol:
        """With what float32 may lose where it makes this value by `terms` additions: nothing if all are exact."""
        if self.real:
            return self
        grid = _grid(self.unit, self.shifts)
        exact = self.error == 0 and grid is not None and self.bound <= MANTISSA * grid
        return self if exact else replace(self, error=self.error + (terms + 1) * ROUNDING * self.bound)

    def values(self, member: int, q: Int64) -> Tensor:
        """What the float network holds before the steps: float64 `(M, C)` for integers `(M, C)`."""
        value = torch.from_numpy(q.astype(np.float64)) * float(self.unit)
        return value if self.shifts is None else value + self.shifts[member]

    def apply(self, member: int, value: Tensor, added: float) -> Tensor:
        """The steps on float32 values `(M, C)`."""
        for step in self.steps[member] if self.steps else ():
            value = step(value, added)
        return value


def _grid(unit: Fraction, shifts: Tensor | None) -> float | None:
    """The largest power of two that divides unit and shifts; None if the unit is no binary fraction."""
    if unit.denominator & (unit.denominator - 1):
        return None
    values = [] if shifts is None else shifts.unique().tolist()
    return float(min(_lowest_bit(Fraction(value)) for value in (unit, *values) if value))


def _lowest_bit(value: Fraction) -> Fraction:
    """The largest power of two that divides a binary fraction."""
    numerator = abs(value.numerator)
    return Fraction(numerator & -numerator, value.denominator)


# --- lattices -------------------------------------------------------------------------------------------------------


def lattice_of(values: Sequence[float], most: int, what: str) -> tuple[Fraction, Lattice]:
    """The unit and the lattice of a set of float32 values, exactly.

    Parameters
    ----------
    values : ascending, distinct
    most : int
        How many levels the lattice may have.
    what : str
        What has these values, for the error.
    """
    exact = [Fraction(value) for value in values]
    gaps = [value - exact[0] for value in exact[1:]]
    step = common_unit(gaps) if gaps else Fraction(0)
    unit = common_unit([part for part in (exact[0], step) if part]) if exact[0] or step else Fraction(1)
    levels = int(gaps[-1] / step) + 1 if gaps else 1
    low, stride = int(exact[0] / unit), int(step / unit) if gaps else 1
    if levels > most or max(abs(low), stride * levels) > INT32_MAX:
        shown = ", ".join(f"{value:g}" for value in values[:8])
        reason = f"{what} has the levels {shown}, which lie on no common lattice of at most {most} steps"
        raise UnpackableError(f"{reason}{_remedy(values, most)}")
    return unit, Lattice(low, stride, levels)


def _remedy(values: Sequence[float], most: int) -> str:
    """What to take instead of values that lie on a lattice but for their rounding to float32; nothing for others."""
    largest = max(map(abs, values))
    ratios = [Fraction(value / largest).limit_denominator(most) for value in values]
    steps = [int(ratio * math.lcm(*(each.denominator for each in ratios))) for ratio in ratios]
    off = max(abs(float(ratio) * largest - value) for ratio, value in zip(ratios, values, strict=True))
    too_fine = steps[-1] - steps[0] >= most * math.gcd(*(step - steps[0] for step in steps))
    if off > 2 * ROUNDING * largest or too_fine or len(set(steps)) < len(steps):
        return ""
    instead = ", ".join(map(str, steps[:8]))
    return f": they would, but float32 rounds them; take integers such as {instead}, or binary fractions, instead"


def common_unit(values: Sequence[Fraction]) -> Fraction:
    """The largest number of which all are multiples; not all may be zero."""
    denominator = math.lcm(*(value.denominator for value in values))
    return Fraction(math.gcd(*(int(value * denominator) for value in values)), denominator)


# --- thresholds -----------------------------------------------------------------------------------------------------


def find_thresholds(
    symbol: Symbol, member: int, quantizer: Callable[[Tensor], Tensor], levels: Sequence[int], layer: str
) -> tuple[Int64, npt.NDArray[np.bool_]]:
    """Thresholds `(cases, T, C)` and flips `(C,)` such that the codes are those of the float network.

    Parameters
    ----------
    symbol : Symbol
        What the quantizer reads; its channels are known.
    quantizer : function
        Float32 `(M, C)` to the positions, int64 `(M, C)`, of its results among the levels.
    levels : sequence of int
        The code of each position on the lattice, ascending from 0 to T.
    layer : str
        Name of the quantizer, for errors.
    """
    assert symbol.channels is not None
    cases = [0.0] if symbol.selector is None else case_values(symbol.selector)
    code_of = np.array(levels)

    def codes(values: Tensor, added: float) -> Int64:
        result = symbol.apply(member, values.float().contiguous(), added)
        if not bool(torch.isfinite(result).all()):
            raise UnpackableError(f"{layer} would read NaN or infinite values")
        return cast(Int64, code_of[quantizer(result).numpy()])

    ends = np.array([[symbol.low], [symbol.high]], np.int64).repeat(symbol.channels, 1)
    at_ends = [codes(symbol.values(member, ends), added) for added in cases]
    flips = np.any([pair[0] > pair[1] for pair in at_ends], 0)
    found = [_search(symbol, member, partial(codes, added=added), flips, levels[-1], layer) for added in cases]
    return np.stack(found), flips


def case_values(selector: Symbol) -> list[float]:
    """The values of the other summand, by its code."""
    lattice = selector.lattice
    assert lattice is not None
    return [float((lattice.low + lattice.stride * code) * selector.unit) for code in range(lattice.levels)]


def _search(
    symbol: Symbol,
    member: int,
    codes: Callable[[Tensor], Int64],
    flips: npt.NDArray[np.bool_],
    count: int,
    layer: str,
) -> Int64:
    """For each t in 1 … count and each channel the least directed integer whose code is at least t: `(count, C)`."""
    direction = np.where(flips, -1, 1).astype(np.int64)
    least = np.where(flips, -symbol.high, symbol.low)
    most = np.where(flips, -symbol.low, symbol.high)
    wanted = np.arange(1, count + 1)[:, None]
    below, reached = (
        np.broadcast_to(least - 1, (count, len(least))).copy(),
        np.broadcast_to(most + 1, (count, len(least))).copy(),
    )
    while (gaps := reached - below).max(initial=0) > 1:
        middle = below + gaps // 2
        # Both ends are beyond the range at first; a middle between neighbours is one of them and settles nothing.
        inside = np.clip(middle, least, most)
        up = codes(symbol.values(member, inside * direction)) >= wanted
        open_ = gaps > 1
        reached = np.where(open_ & up, middle, reached)
        below = np.where(open_ & ~up, middle, below)
    if symbol.error and not symbol.real:
        _require_margin(symbol, member, codes, direction, reached, (least, most), wanted, layer)
    return reached


def _require_margin(
    symbol: Symbol,
    member: int,
    codes: Callable[[Tensor], Int64],
    direction: Int64,
    reached: Int64,
    ends: tuple[Int64, Int64],
    wanted: Int64,
    layer: str,
) -> None:
    """Raise if the float network's own rounding could carry an integer over a threshold."""
    least, most = ends
    slack = torch.from_numpy(direction * symbol.error * (1 + 1e-6))
    above = symbol.values(member, np.clip(reached, least, most) * direction) - slack
    below = symbol.values(member, np.clip(reached - 1, least, most) * direction) + slack
    torn = (codes(above) < wanted) & (reached <= most) | (codes(below) >= wanted) & (reached > least)
    if torn.any():
        channel = int(np.nonzero(torn.any(0))[0][0])
        raise UnpackableError(
            f"{layer}: in channel {channel} the float network's sums lie so close to a threshold that their rounding "
            "in float32 decides, so that no integer network can agree with it; sums of fewer terms, or levels and "
            "pooling windows that are powers of two, are exact"
        )
