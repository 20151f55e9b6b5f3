"""Is the difference between two methods more than luck? Paired tests on plain numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence


def mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def variance(values: Sequence[float]) -> float:
    """Unbiased; at least two values."""
    middle = mean(values)
    return math.fsum((value - middle) ** 2 for value in values) / (len(values) - 1)


def standard_error(values: Sequence[float]) -> float | None:
    """Of the mean, from the unbiased variance; None for a single value."""
    return None if len(values) < 2 else math.sqrt(variance(values) / len(values))


def paired_t_test(first: Sequence[float], second: Sequence[float], overlap: float = 0.0) -> float | None:
    """Two-sided p-value of the hypothesis that the two have the same mean.

    Parameters
    ----------
    first, second : figures on the same splits, in the same order
    overlap : float
        Test examples by training examples, where the splits are random ones of the same data. Their training sets
        overlap, so that the plain variance of the mean, 1/n of that of the differences, is too small; Nadeau and Bengio
        (2003) take 1/n + `overlap`. 0 gives the ordinary paired t-test.

    Returns
    -------
    float or None
        None for fewer than two splits.
    """
    differences = [one - other for one, other in zip(first, second, strict=True)]
    count = len(differences)
    if count < 2:
        return None
    middle, spread = mean(differences), variance(differences)
    if spread == 0:
        return 1.0 if middle == 0 else 0.0
    t = middle / math.sqrt((1 / count + overlap) * spread)
    return student_two_sided(t, count - 1)


def student_two_sided(t: float, freedom: float) -> float:
    """P(|T| ≥ |t|) for Student's distribution."""
    return regularized_beta(freedom / (freedom + t * t), freedom / 2, 0.5)


def regularized_beta(x: float, a: float, b: float) -> float:
    """The regularized incomplete beta function I_x(a, b), by its continued fraction, to about 1e-14."""
    if x <= 0 or x >= 1:
        return 0.0 if x <= 0 else 1.0
    if x > (a + 1) / (a + b + 2):  # the fraction converges fast below
        return 1 - regularized_beta(1 - x, b, a)
    front = a * math.log(x) + b * math.log1p(-x) + math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    return math.exp(front) / a * _fraction(x, a, b)


def _fraction(x: float, a: float, b: float) -> float:
    """Lentz's algorithm."""
    tiny = 1e-300
    upper, lower = 1.0, 1 / (1 - (a + b) * x / (a + 1) or tiny)
    value = lower
    for step in range(1, 1000):
        even = step * (b - step) * x / ((a + 2 * step - 1) * (a + 2 * step))
        odd = -(a + step) * (a + b + step) * x / ((a + 2 * step) * (a + 2 * step + 1))
        for term in (even, odd):
            lower = 1 / (1 + term * lower or tiny)
            upper = 1 + term / upper or tiny
            value *= upper * lower
        if abs(upper * lower - 1) < 1e-15:
            break
    return value
