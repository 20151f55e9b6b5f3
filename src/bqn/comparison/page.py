"""A comparison as one HTML page: the table, and quality against size."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from bqn._version import __version__
from bqn.comparison.words import describe_rows, heads, label, notes
from bqn.report.axis import Axis
from bqn.report.chart import Chart, legend
from bqn.report.layout import figure, figures, section, table
from bqn.report.markup import Markup, tag
from bqn.report.style import STYLE

# A browser that obeys this loads nothing from anywhere and runs nothing, whatever the page might hold.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
_WORDS = {"rmse": "RMSE", "log_likelihood": "log-likelihood", "error": "error", "nll": "NLL"}
_STYLES = {"analytic": ("analytic", "circle"), "mc": ("mc", "square"), "map": ("map", "triangle")}
_OTHER = ("train", "circle")
_LINE, _NAME = 12.0, 70.0  # height and width of a name in a chart


def render_page(summary: Mapping[str, Any]) -> str:
    """The page as text; `summary` as `summarize` gives it, with at least one row."""
    rows: Sequence[Mapping[str, Any]] = summary["rows"]
    figure_names = ("rmse", "log_likelihood") if summary["task"] == "regression" else ("error", "nll")
    title = f"Methods on {summary['data']}"
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", title),
        tag("style", Markup(STYLE)),
    )
    lead = f"Means over {len(summary['splits'])} {summary['replicates']}, with standard errors."
    shown = table(heads(summary), describe_rows(summary), "Methods side by side")
    charts = figures(_against_size(rows, name) for name in figure_names)
    main = tag(
        "main",
        section("table", "Table", shown, tag("p", notes(summary), class_="lead"), lead=lead),
        section("size", "Quality against size", charts, _legend(rows), lead="What a prediction needs, in bytes."),
    )
    body = tag("body", tag("header", tag("h1", title)), main, tag("footer", f"Written by bqn {__version__}."))
    return f"<!doctype html>\n{tag('html', head, body, lang='en')}\n"


def _against_size(rows: Sequence[Mapping[str, Any]], name: str) -> Markup:
    points = [(row["size"]["mean"], row[name]["mean"], row[name]["standard_error"] or 0.0, row) for row in rows]
    points = [point for point in points if point[1] is not None and math.isfinite(point[1])]
    if not points:
        return figure(_WORDS[name], tag("p", "No figures.", class_="nothing"))
    sizes = [point[0] for point in points]
    y = Axis.around(_WORDS[name], [low for _, m, e, _ in points for low in (m - e, m + e)], percent=name == "error")
    x = Axis("bytes", min(sizes) / 1.6, max(sizes) * 1.6, log=True)
    told = ", ".join(f"{label(row)} {mean:.4g} with {size:,.0f} bytes" for size, mean, _, row in points)
    chart = Chart(x, y, f"{_WORDS[name]} against size: {told}", height=300)
    names: list[tuple[float, float]] = []  # where they stand: none may cover another
    for size, mean, error, row in sorted(points, key=lambda point: chart.place(*point[:2])[1]):
        style, shape = _STYLES.get(row["mode"], _OTHER)
        chart.whiskers([(size, mean - error, mean + error)], style)
        chart.markers([(size, mean)], style, shape, [f"{label(row)}: {mean:.4g} ± {error:.2g}, {size:,.0f} bytes"])
        right = x.place(size) > 0.6
        left, top = chart.place(size, mean)
        while any(abs(top - other) < _LINE and abs(left - beside) < _NAME for beside, other in names):
            top += 1
        names.append((left, top))
        place = {"x": left - 8 if right else left + 8, "y": top + 4}
        chart.add(tag("text", row["method"], text_anchor="end" if right else "start", class_=f"note {style}", **place))
    better = "higher is better" if name == "log_likelihood" else "lower is better"
    return figure(f"{_WORDS[name]}, {better}", chart.svg(), note="Lines: one standard error to either side.")


def _legend(rows: Sequence[Mapping[str, Any]]) -> Markup:
    modes = list(dict.fromkeys(row["mode"] for row in rows))
    entries = []
    for mode in modes:
        style, shape = _STYLES.get(mode, _OTHER)
        entries.append((style, mode, shape))
    return legend(entries)
