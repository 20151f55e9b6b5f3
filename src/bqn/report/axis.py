"""Axes: from values to positions, with round numbers to mark the way."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)
_LOG_MARKS = ((1,), (1, 3), (1, 2, 5), (1, 2, 3, 5, 7))


@dataclass(frozen=True)
class Axis:
    """One axis of a chart.

    Attributes
    ----------
    label : str
    low, high : float
        Its ends.
    log, percent, whole : bool
        Whether it is logarithmic, shows fractions as percent, has marks at whole numbers only.
    marks : int
        About how many marks there are.
    """

    label: str
    low: float
    high: float
    log: bool = False
    percent: bool = False
    whole: bool = False
    marks: int = 5

    def __post_init__(self) -> None:
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise ValueError(f"low and high must be finite and ascending, got {self.low} and {self.high}")
        if self.log and self.low <= 0:
            raise ValueError(f"low must be positive on a logarithmic axis, got {self.low}")

    @classmethod
    def around(cls, label: str, values: Iterable[float], *, log: bool = False, percent: bool = False) -> Axis:
        """An axis that has room for all `values` and ends at round numbers."""
        given = list(values)
        low, high = min(given), max(given)
        if log:
            return cls(label, low / 1.1, high * 1.1, log=True, percent=percent)
        if high - low <= 1e-9 * max(abs(low), abs(high)):  # as good as equal, zero included
            low, high = low - abs(low) / 2 - 1e-3, high + abs(high) / 2 + 1e-3
        for _ in range(3):  # rounding outwards can call for longer steps
            step = _round_step(high - low, cls.marks)
            low, high = math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step
        return cls(label, low, high, percent=percent)

    def place(self, value: float) -> float:
        """Where `value` lies: 0 at the low end, 1 at the high end; what lies outside is put at the end."""
        if self.log:
            share = math.log(max(value, self.low) / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return min(max(share, 0.0), 1.0)

    def ticks(self) -> list[tuple[float, str]]:
        """Values to mark, and what to write there."""
        if self.log:
            return [(value, self._text(value, None)) for value in self._log_ticks()]
        step = _round_step(self.high - self.low, self.marks)
        if self.whole:
            step = max(1.0, float(round(step)))
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [(index * step, self._text(index * step, step)) for index in range(first, last + 1)]

    def _log_ticks(self) -> list[float]:
        decades = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        for factors in _LOG_MARKS:
            marked = [factor * 10.0**power for power in decades for factor in factors]
            marked = [value for value in marked if self.low <= value <= self.high]
            if len(marked) >= 3:
                break
        # Powers of ten that are this many are long in writing; every second or third of them is as good.
        most = self.marks + 2 if factors == (1,) else 2 * self.marks
        return marked[:: math.ceil(len(marked) / most)]

    def _text(self, value: float, step: float | None) -> str:
        factor = 100 if self.percent else 1
        value *= factor
        if step is None:
            text = f"{value:,.10g}" if 1e-4 <= value < 1e5 else f"{value:.0e}"
        elif abs(value) >= 1e6 or 0 < abs(step) * factor < 1e-4:
            text = f"{value:.3g}"
        else:
            text = f"{value:,.{_decimals(step * factor)}f}"
        return text.replace("-", "−") + ("\u00a0%" if self.percent else "")


def _round_step(span: float, marks: int) -> float:
    """A round number that goes into `span` about `marks` times."""
    rough = span / marks
    power = 10.0 ** math.floor(math.log10(rough))
    return next(step * power for step in _STEPS if step * power >= rough * (1 - 1e-9))


def _decimals(step: float) -> int:
    """Digits behind the point that tell multiples of `step` apart."""
    return next((count for count in range(7) if abs(round(step, count) - step) < 1e-9 * step), 7)
