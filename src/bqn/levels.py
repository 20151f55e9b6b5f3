"""Level sets: the finite values that a quantized tensor may take, and their arithmetic.

A level set is a tuple of ascending floats. Everything here is plain Python on a handful of numbers, done once and
cached, so that nothing of it is left in the hot path.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from functools import lru_cache, wraps
from itertools import pairwise
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor

Levels = tuple[float, ...]
P = ParamSpec("P")
R = TypeVar("R")

BINARY: Levels = (-1.0, 1.0)
TERNARY: Levels = (-1.0, 0.0, 1.0)
QUATERNARY: Levels = (-3.0, -1.0, 1.0, 3.0)

# Two values closer than this, relative to the largest of the set, are the same value computed in two ways.
_TOLERANCE = 1e-9
# A value that lies within rounding, in units of the largest of its set, of a fraction of so small a denominator is it.
_ROUNDING = 2.0**-48
_LARGEST_DENOMINATOR = 1000
# A lattice finer than this many steps between neighbours is treated as no lattice at all.
_FINEST_STEP = 1024
# Sets of more values than this are refused: they mean that an exact method was asked of too large a sum.
MAX_SUPPORT = 16384


def computed_once(function: Callable[P, R]) -> Callable[P, R]:
    """Cache a function of constants; a compiler calls it while tracing instead of looking into it."""
    cached = lru_cache(maxsize=1024)(function)

    @wraps(function)
    def constant(*args: P.args, **kwargs: P.kwargs) -> R:
        return cached(*args, **kwargs)  # type: ignore[arg-type]

    # What torch.compiler.assume_constant_result sets; calling that would import all of the compiler, for seconds.
    constant._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return constant


def as_levels(levels: Iterable[float] | Tensor, name: str = "levels", at_least: int = 1) -> Levels:
    """Return `levels` as a tuple of floats, or say why it is not an ascending set."""
    try:
        raw = levels.tolist() if isinstance(levels, Tensor) else list(levels)
        values = tuple(float(value) for value in raw)
    except (TypeError, ValueError):
        raise ValueError(f"{name} must be a flat sequence of numbers, got {levels!r}") from None
    if len(values) < at_least:
        raise ValueError(f"{name} must hold at least {at_least} value(s), got {values}")
    if not all(math.isfinite(value) for value in values):
        raise ValueError(f"{name} must be finite, got {values}")
    if any(b <= a for a, b in pairwise(values)):
        raise ValueError(f"{name} must be strictly ascending, without duplicates, got {values}")
    return values


_constants: dict[tuple[tuple[float, ...], torch.dtype, torch.device], Tensor] = {}


def _constant(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Copied to a device once and not at every call: a copy would make the host wait and break CUDA graphs.

    For use inside the library only: whoever changed it in place would change it for all.
    """
    if torch.compiler.is_compiling():
        return torch.tensor(values, dtype=dtype, device=device)
    key = (values, dtype, device)
    known = _constants.get(key)
    if known is None:
        # An inference tensor must never enter the cache, autograd would refuse to save it later; nor a tracer's.
        with torch.inference_mode(False):
            known = torch.tensor(values, dtype=dtype, device=device)
        if type(known) is Tensor:
            _constants[key] = known
    return known


def level_tensor(values: Levels, like: Tensor) -> Tensor:
    """`values` as a tensor with the dtype and device of `like`."""
    return _constant(values, like.dtype, like.device)


def index_tensor(index: tuple[int, ...], like: Tensor) -> Tensor:
    """`index` as an integer tensor on the device of `like`."""
    return _constant(index, torch.int64, like.device)


def symmetric_pair(levels: Levels) -> float | None:
    """Return a if the set is {-a, a}, else None. Its squares are then constant, which saves a product."""
    return levels[1] if len(levels) == 2 and levels[0] == -levels[1] else None


def _merge(values: Sequence[float]) -> tuple[Levels, tuple[int, ...]]:
    scale = max((abs(value) for value in values), default=0.0)
    order = sorted(range(len(values)), key=values.__getitem__)
    merged: list[float] = []
    index = [0] * len(values)
    for position in order:
        value = values[position]
        if not merged or value - merged[-1] > _TOLERANCE * scale:
            merged.append(value)
        index[position] = len(merged) - 1
    if len(merged) > MAX_SUPPORT:
        raise ValueError(
            f"levels: the exact result would have {len(merged)} distinct values, more than {MAX_SUPPORT}; "
            "use method='clt' for a fan-in this large"
        )
    return without_rounding(tuple(merged)), tuple(index)


@computed_once
def without_rounding(values: Levels) -> Levels:
    """Values that arithmetic has rounded, as they would be without: a sum of tenths that cancels is 0, not -3e-17.

    What is zero, or a fraction of a small denominator, is then the same however it was computed, and on a threshold if
    it should be. Others stay as they are: `interval_index` sees to those.
    """
    scale = max((abs(value) for value in values), default=0.0)

    def exact(value: float) -> float:
        if abs(value) <= _TOLERANCE * scale:
            return 0.0
        if value.is_integer():
            return value
        near = float(Fraction(value).limit_denominator(_LARGEST_DENOMINATOR))
        return near if abs(near - value) <= _ROUNDING * scale else value

    return tuple(exact(value) for value in values)


@computed_once
def combine_levels(a: Levels, b: Levels, operation: Callable[[float, float], float]) -> tuple[Levels, tuple[int, ...]]:
    """Distinct values of `operation` on every pair, and for each pair (row-major) the index of its value."""
    return _merge([operation(x, y) for x in a for y in b])


@computed_once
def lattice_step(sets: tuple[Levels, ...]) -> float | None:
    """The largest step such that the differences within every set are multiples of it; None if there is none."""
    gaps = [y - x for levels in sets for x, y in pairwise(levels)]
    if not gaps:
        return 1.0
    unit = min(gaps)
    denominator = 1
    for gap in gaps:
        ratio = Fraction(gap / unit).limit_denominator(_FINEST_STEP)
        if abs(float(ratio) * unit - gap) > _TOLERANCE * gap:
            return None
        denominator = math.lcm(denominator, ratio.denominator)
        if denominator > _FINEST_STEP:
            return None
    numerator = math.gcd(*(round(gap / unit * denominator) for gap in gaps))
    return unit * numerator / denominator


@computed_once
def interval_index(levels: Levels, thresholds: Levels) -> tuple[int, ...]:
    """For each level, how many thresholds lie at or below it; what rounding has put beside a threshold is on it."""
    slack = _TOLERANCE * max(abs(value) for value in (*levels, *thresholds))
    return tuple(sum(threshold <= value + slack for threshold in thresholds) for value in levels)


@computed_once
def lattice_index(levels: Levels, step: float) -> tuple[int, ...]:
    """How many lattice steps each level lies above the lowest."""
    return tuple(round((value - levels[0]) / step) for value in levels)
