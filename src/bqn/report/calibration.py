"""How a classifier is right and wrong: calibration, confusion, and what is gained by refusing to answer."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from bqn.report.axis import Axis
from bqn.report.chart import Chart, legend
from bqn.report.confusion import confusion
from bqn.report.contents import Classification, ReportData
from bqn.report.layout import MODES, by_mode, figure, figures, modes_of, percent, section
from bqn.report.markup import Markup

_COLUMNS = ("confidence", "accuracy", "examples")
_LEFT = 46.0  # of both parts of the reliability diagram, one above the other


def calibration(page: ReportData, task: Classification) -> Markup:
    """Reliability and confusion of one mode at a time, and the risk-coverage curves of all."""
    curves = page.result["curves"]
    modes = modes_of(curves)
    return section(
        "calibration",
        "Calibration and mistakes",
        figures(
            by_mode({mode: _reliability(curves[mode]["reliability"], mode) for mode in modes}),
            by_mode({mode: confusion(curves[mode]["confusion"], task.classes) for mode in modes}),
            _risk_coverage(curves, modes),
        ),
    )


def _reliability(bins: Mapping[str, list[Any]], mode: str) -> Markup:
    width = 1 / len(bins["examples"])
    filled = [place for place, examples in enumerate(bins["examples"]) if examples]
    confidence, accuracy, examples = ([bins[name][place] for place in filled] for name in _COLUMNS)
    look = MODES[mode]
    rows = list(zip(confidence, accuracy, examples, strict=True))
    told = "; ".join(f"confidence {percent(c, 0)}, accuracy {percent(a, 0)}" for c, a, _ in rows)
    chart = Chart(
        Axis("", 0, 1, percent=True), Axis("accuracy", 0, 1, percent=True), f"Reliability diagram: {told}", left=_LEFT
    )
    amount = Chart(
        Axis("confidence", 0, 1, percent=True),
        Axis("examples", 0.5, 1.2 * max(10, *examples), log=True, marks=2),
        f"Examples in each bin: {', '.join(f'{count:,}' for count in examples)}",
        height=112,
        left=_LEFT,
    )
    chart.line([(0, 0), (1, 1)], "ideal")
    for place, share, count in zip(filled, accuracy, examples, strict=True):
        chart.bar(place * width, width, share, look.style)
        amount.bar(place * width, width, count, look.style, f"{count:,} examples")
    chart.whiskers([(c, *wilson(a, count)) for c, a, count in rows], look.style)
    titles = [f"{count:,} examples: confidence {percent(c)}, accuracy {percent(a)}" for c, a, count in rows]
    chart.markers([(c, a) for c, a, _ in rows], look.style, look.marker, titles)
    note = (
        "On the diagonal the network is right as often as it says; below it, it is too sure of itself. "
        "Whiskers: 95\u00a0% interval of the accuracy."
    )
    return figure("Reliability", chart.svg(), amount.svg(), note=note)


def wilson(share: float, count: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share of `count` examples."""
    z = 1.959964
    centre = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z / (1 + z * z / count) * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    return max(centre - half, 0.0), min(centre + half, 1.0)


def _risk_coverage(curves: Mapping[str, Any], modes: list[str]) -> Markup:
    series = {
        mode: list(zip(curves[mode]["risk_coverage"]["coverage"], curves[mode]["risk_coverage"]["risk"], strict=True))
        for mode in modes
    }
    most = max(risk for points in series.values() for _, risk in points)
    x = Axis("coverage: share of examples answered", 0, 1, percent=True)
    y = Axis.around("risk: error among the answered", [0.0, most or 0.01], percent=True)
    ends = ", ".join(f"{MODES[mode].name} {percent(points[-1][1])}" for mode, points in series.items())
    chart = Chart(x, y, f"Risk-coverage curves; risk at full coverage: {ends}")
    for mode, points in series.items():
        chart.line(points, MODES[mode].style)
    return figure(
        "Risk and coverage",
        chart.svg(),
        legend((MODES[mode].style, MODES[mode].name, "line") for mode in modes),
        note="The error that remains when only the most confident examples are answered and the others refused.",
    )
