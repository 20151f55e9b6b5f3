"""The figure of a record: predictions by the number of networks, and what mean field misses, layer by layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bqn.report.axis import Axis
from bqn.report.chart import Chart, Point
from bqn.report.picture import picture

Record = Mapping[str, Any]

# Mode of the record: style, shape, words.
MODES = {
    "mc": ("mc", "square", "sampled networks"),
    "mc_recalibrated": ("map", "triangle", "sampled networks, recalibrated"),
}
_SCORES = (("nll", "NLL of S networks, nats", False), ("error", "error of S networks", True))
# Figure of a layer, what it is called, and what it would be if the analytic pass were right; of correlations, of which
# the pass carries some, there is no such number.
_LAYERS = (
    ("mean_error", "error of the means, deviations", 0.0),
    ("variance_ratio", "variance, analytic / sampled", 1.0),
    ("neighbour", "correlation of neighbours", None),
    ("channel", "correlation along a channel", None),
    ("unit", "correlation of units, rms", None),
)
_WIDE = 4  # an axis whose ends are farther apart than so many times is logarithmic


def draw(record: Record) -> str:
    """An SVG document; `record` as `bqn.faithfulness.measure` gives it, with at least the mode "mc"."""
    modes = [mode for mode in MODES if mode in record]
    charts = [_scores(record, modes, *score) for score in _SCORES]
    charts += [chart for each in _LAYERS if (chart := _layers(record, modes, *each)) is not None]
    entries = [("analytic", "analytic pass", "line")]
    entries += [(style, words, shape) for style, shape, words in (MODES[mode] for mode in modes)]
    description = f"The analytic pass beside sampled networks: {', '.join(chart.y.label for chart in charts)}"
    return picture([charts[start : start + 3] for start in range(0, len(charts), 3)], entries, description)


def _scores(record: Record, modes: Sequence[str], name: str, label: str, percent: bool) -> Chart:
    """A score against the number S of averaged networks, with its standard deviation."""
    series = {mode: [row for row in record[mode]["predictions"] if row[name] is not None] for mode in modes}
    analytic = record["analytic"][name]
    values = [analytic, *(row[name] for rows in series.values() for row in rows)]
    log = min(values) > 0 and max(values) > _WIDE * min(values)
    most = max(row["samples"] for rows in series.values() for row in rows)
    x = Axis("S", 0.9, 1.1 * most, log=True)
    ends = [
        row[name] + side * (row[f"{name}_std"] or 0.0) for rows in series.values() for row in rows for side in (-1, 1)
    ]
    y = Axis.around(label, [*values, *(end for end in ends if end > 0)], log=log, percent=percent)
    chart = Chart(x, y, f"{label}: analytic {analytic:.4g}; {_ends(series, name)}")
    chart.line([(x.low, analytic), (x.high, analytic)], "analytic")
    for mode, rows in series.items():
        style, shape, words = MODES[mode]
        points: list[Point] = [(row["samples"], row[name]) for row in rows]
        deviations = [row[f"{name}_std"] or 0.0 for row in rows]
        chart.line(points, style)
        chart.whiskers(
            [(count, value - std, value + std) for (count, value), std in zip(points, deviations, strict=True)], style
        )
        titles = [f"{words}, S = {count}: {value:.4g}" for count, value in points]
        chart.markers(points, style, shape, titles)
    return chart


def _ends(series: Mapping[str, Sequence[Mapping[str, Any]]], name: str) -> str:
    return ", ".join(
        f"{MODES[mode][2]} from {rows[0][name]:.4g} to {rows[-1][name]:.4g}" for mode, rows in series.items()
    )


def figure_of(row: Mapping[str, Any], name: str) -> float | None:
    """A figure of a layer: of correlations the mean, but for units, which are of either sign, the root mean square."""
    if name not in row["correlation"]:
        value: float | None = row[name]
        return value
    found = row["correlation"][name]
    return None if found is None else found["rms" if name == "unit" else "mean"]


def _layers(record: Record, modes: Sequence[str], name: str, label: str, right: float | None) -> Chart | None:
    """A figure of every layer, in the order of the pass; `right` is what it would be if the pass were right."""
    series: dict[str, list[Point]] = {}
    names = [row["layer"] for row in record[modes[0]]["layers"]]
    for mode in modes:
        rows = enumerate(record[mode]["layers"], 1)
        found = [(float(number), figure_of(row, name)) for number, row in rows]
        series[mode] = [(number, value) for number, value in found if value is not None]
    values = [value for points in series.values() for _, value in points]
    if not values:
        return None
    x = Axis("layer", 0.5, len(names) + 0.5, whole=True)
    y = Axis.around(label, [0.0 if right is None else right, *values])
    chart = Chart(x, y, f"{label}, layer by layer: from {min(values):.3g} to {max(values):.3g}")
    if right is not None:
        chart.line([(x.low, right), (x.high, right)], "analytic")
    for mode, points in series.items():
        style, shape, words = MODES[mode]
        titles = [f"{names[round(number) - 1]}, {words}: {value:.3g}" for number, value in points]
        for unbroken in _unbroken(points):
            chart.line(unbroken, style)
        chart.markers(points, style, shape, titles)
    return chart


def _unbroken(points: Sequence[Point]) -> list[list[Point]]:
    """Runs of layers that follow each other: a line across one that has no figure would be read as a measurement."""
    runs: list[list[Point]] = []
    for point in points:
        if runs and point[0] - runs[-1][-1][0] == 1:
            runs[-1].append(point)
        else:
            runs.append([point])
    return runs
