"""Figures for regressions: predictions with error bars, residuals, coverage of intervals, and the worst misses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from bqn.report.axis import Axis
from bqn.report.chart import Chart, legend
from bqn.report.contents import Fit, Regression
from bqn.report.layout import (
    MODES,
    by_mode,
    decimals_for,
    figure,
    figures,
    fixed,
    in_mode,
    modes_of,
    percent,
    section,
    table,
)
from bqn.report.markup import Markup, tag


def predictions(task: Regression) -> Markup:
    """Predictions, residuals and coverage: figures for one mode at a time, and the coverage of all."""
    modes = modes_of(task.fits)
    outputs = len(task.fits[modes[0]])
    parts: list[Markup] = []
    for output in range(outputs):
        suffix = f", output {output + 1}" if outputs > 1 else ""
        fits = {mode: task.fits[mode][output] for mode in modes}
        parts.append(by_mode({mode: _against_truth(fit, mode, suffix) for mode, fit in fits.items()}))
        parts.append(by_mode({mode: _residuals(fit, mode, suffix) for mode, fit in fits.items()}))
        parts.append(by_mode({mode: _scores(fit, mode, suffix) for mode, fit in fits.items()}))
    parts += [_coverage(task, modes), _surprises(task)]
    return section("predictions", "Predictions", figures(parts))


def _surprises(task: Regression) -> Markup:
    """The test examples furthest from their prediction, as a table."""
    several = len(task.fits[modes_of(task.fits)[0]]) > 1
    numbers = [(entry.target, entry.mean, entry.deviation) for entry in task.surprises]
    decimals = min(decimals_for([deviation for _, _, deviation in numbers]), 4)
    rows = [
        [
            f"{entry.index}, output {entry.output + 1}" if several else str(entry.index),
            fixed(entry.target, decimals),
            f"{fixed(entry.mean, decimals)} ± {fixed(entry.deviation, decimals)}",
            f"{fixed((entry.target - entry.mean) / entry.deviation, 1)} σ",
        ]
        for entry in task.surprises
    ]
    title = "Largest surprises"
    listed = table(["Row", "True", "Predicted", "Off by"], rows, title, "listed")
    mode = in_mode(task.fits)
    note = f"The test examples that are the most standard deviations from their prediction, in {mode}."
    return tag("div", figure(title, listed, note=note), class_="broad")


def _against_truth(fit: Fit, mode: str, suffix: str) -> Markup:
    bars = [(t, m - 2 * s, m + 2 * s) for t, m, s in zip(fit.target, fit.mean, fit.deviation, strict=True)]
    low = min(min(low for _, low, _ in bars), min(fit.target))
    high = max(max(high for _, _, high in bars), max(fit.target))
    x, y = Axis.around("true", fit.target), Axis.around("predicted", [low, high])
    chart = Chart(x, y, f"Predicted against true values of {len(bars)} test examples, with error bars", height=280)
    ends = max(x.low, y.low), min(x.high, y.high)
    chart.line([(ends[0], ends[0]), (ends[1], ends[1])], "ideal")
    chart.whiskers(bars, f"faint {MODES[mode].style}")
    chart.dots(zip(fit.target, fit.mean, strict=True), MODES[mode].style)
    return figure(
        f"Predicted and true{suffix}",
        chart.svg(),
        note="Bars: two standard deviations either way. On the dashed line the prediction is the truth.",
    )


def _residuals(fit: Fit, mode: str, suffix: str) -> Markup:
    points = [(m, t - m) for t, m in zip(fit.target, fit.mean, strict=True)]
    x = Axis.around("predicted", [mean for mean, _ in points])
    y = Axis.around("true − predicted", [residual for _, residual in points] + [0.0])
    chart = Chart(x, y, f"Residuals of {len(points)} test examples against the prediction", height=280)
    chart.line([(x.low, 0.0), (x.high, 0.0)], "ideal")
    chart.dots(points, MODES[mode].style)
    return figure(f"Residuals{suffix}", chart.svg(), note="Any pattern here is something left to learn.")


def _scores(fit: Fit, mode: str, suffix: str) -> Markup:
    edges, shares = fit.residuals.edges, fit.residuals.shares["test"]
    expected = [_normal(high) - _normal(low) for low, high in pairwise(edges)]
    x = Axis("(true − predicted) / standard deviation", edges[0], edges[-1], whole=True, marks=8)
    y = Axis.around("share of examples", [0.0, *shares, *expected], percent=True)
    within = sum(share for low, share in zip(edges, shares, strict=False) if -2 <= low < 2)
    chart = Chart(x, y, f"Histogram of standardized residuals; {percent(within)} within two deviations", height=280)
    chart.steps(edges, shares, MODES[mode].style)
    middles = [(low + high) / 2 for low, high in pairwise(edges)]
    chart.line(zip(middles, expected, strict=True), "ideal")
    return figure(
        f"Standardized residuals{suffix}",
        chart.svg(),
        note="Dashed: the normal distribution, which they follow if the error bars are right. The outermost bins hold "
        "all beyond.",
    )


def _normal(value: float) -> float:
    """The normal distribution function; the outermost edges stand for infinity."""
    return 0.5 * (1 + math.erf(value / math.sqrt(2)))


def _coverage(task: Regression, modes: Sequence[str]) -> Markup:
    x = Axis("probability of the interval", 0, 1, percent=True)
    y = Axis("share of targets within", 0, 1, percent=True)
    shares = ", ".join(f"{percent(level, 0)}: {percent(share, 0)}" for level, share in task.coverage[modes[0]])
    chart = Chart(x, y, f"Interval coverage in {in_mode(task.coverage)}: {shares}", height=280)
    chart.line([(0, 0), (1, 1)], "ideal")
    for mode in modes:
        chart.line([(0.0, 0.0), *task.coverage[mode], (1.0, 1.0)], MODES[mode].style)
        titles = [
            f"{MODES[mode].name}: {percent(share)} in {percent(level, 0)}" for level, share in task.coverage[mode]
        ]
        chart.markers(task.coverage[mode], MODES[mode].style, MODES[mode].marker, titles)
    return figure(
        "Interval coverage",
        chart.svg(),
        legend((MODES[mode].style, MODES[mode].name, MODES[mode].marker) for mode in modes),
        note="Above the diagonal the intervals are wider than they need be, below it too narrow.",
    )
