"""How a classifier fares as images get worse."""

from __future__ import annotations

from collections.abc import Mapping

from bqn.report.axis import Axis
from bqn.report.chart import Chart, legend
from bqn.report.contents import Classification, ReportData
from bqn.report.layout import MODES, figure, figures, modes_of, percent, section, short
from bqn.report.markup import Markup, tag

_KINDS = {
    "noise": ("Noise", "standard deviation, share of the pixel range"),
    "blur": ("Blur", "standard deviation in pixels / √side"),
    "rotation": ("Rotation", "degrees"),
}


def corruptions(page: ReportData, task: Classification) -> Markup:
    """Error and NLL on corrupted images."""
    parts = []
    for kind, curves in page.result["corruptions"].items():
        title, label = _KINDS[kind]
        strengths = curves["strengths"]
        strip = [
            tag("img", src=picture, alt=f"{title}, strength {strength:g}")
            for picture, strength in zip(task.corrupted[kind], strengths, strict=True)
        ]
        content: list[Markup] = [tag("div", strip, class_="strip")]
        for score, name, in_percent in (("error", "error", True), ("nll", "NLL, nats", False)):
            series = {}
            for mode in modes_of(curves):
                values = [page.result[mode][score], *curves[mode][score]]
                series[mode] = [(s, v) for s, v in zip([0.0, *strengths], values, strict=True) if v is not None]
            content.append(_chart(title, label, name, series, in_percent))
        parts.append(figure(title, content))
    names = legend((MODES[mode].style, MODES[mode].name, MODES[mode].marker) for mode in modes_of(page.result))
    return section(
        "corruptions",
        "Corrupted images",
        names,
        figures(parts),
        lead="How the network fares as the test images get worse. The pictures: the first of them at each strength.",
    )


def _chart(
    title: str, label: str, name: str, series: Mapping[str, list[tuple[float, float]]], in_percent: bool
) -> Markup:
    values = [value for points in series.values() for _, value in points]
    x = Axis(label, 0, max(strength for points in series.values() for strength, _ in points) * 1.02)
    y = Axis.around(name, [0.0, *values], percent=in_percent)
    form = percent if in_percent else short
    ends = ", ".join(
        f"{MODES[mode].name} {form(points[0][1])} to {form(points[-1][1])}" for mode, points in series.items()
    )
    chart = Chart(x, y, f"{title}: {name} from clean to the strongest: {ends}", height=190)
    for mode, points in series.items():
        chart.line(points, MODES[mode].style)
        titles = [f"{MODES[mode].name}, strength {strength:g}: {form(value)}" for strength, value in points]
        chart.markers(points, MODES[mode].style, MODES[mode].marker, titles)
    return chart.svg()
