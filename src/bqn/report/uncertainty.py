"""How uncertain a classifier is: of right and wrong answers, in its parts, in and out of distribution."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from bqn.report.axis import Axis
from bqn.report.chart import Chart, legend
from bqn.report.contents import POINTS, Classification, Histogram, ReportData, Uncertainty
from bqn.report.layout import MODES, by_mode, figure, figures, modes_of, percent, section
from bqn.report.markup import Markup, tag

_ANSWERS = {"right": ("test", "right"), "wrong": ("outside", "wrong")}
_RIGHTWARD = "Wrong answers should stand to the right."
_SURE = "A single network cannot doubt itself: all its uncertainty is aleatoric."


def uncertainty(page: ReportData, task: Classification) -> Markup:
    """Figures for one mode at a time, and the ROC curves of all."""
    modes = modes_of(task.uncertainty)

    def each(draw: Callable[[Uncertainty], Markup]) -> Markup:
        return by_mode({mode: draw(task.uncertainty[mode]) for mode in modes})

    parts = [
        each(lambda given: _histogram("Entropy, right and wrong", given.entropy, _ANSWERS, _RIGHTWARD)),
        each(lambda given: _histogram("Epistemic, right and wrong", given.epistemic, _ANSWERS, _RIGHTWARD)),
        each(_two_kinds),
    ]
    if task.outside is not None:
        names = {"test": ("test", "test examples"), "outside": ("outside", task.outside)}
        title, text = "in and out of distribution", "Examples from elsewhere should stand to the right."
        parts += [
            each(lambda given: _histogram(f"Entropy, {title}", given.outside_entropy, names, text)),
            each(lambda given: _histogram(f"Epistemic, {title}", given.outside_epistemic, names, text)),
            _roc(page, task, modes),
        ]
    lead = (
        "Entropy is all the uncertainty of a prediction. Its epistemic part comes from doubt about the weights, and "
        "more data could remove it; the aleatoric rest lies in the examples."
    )
    return section("uncertainty", "Uncertainty", figures(parts), lead=lead)


def _two_kinds(given: Uncertainty) -> Markup:
    if given.parts is None:
        return figure("Two kinds of uncertainty", tag("p", _SURE, class_="nothing"))
    points = [point for pairs in given.parts.values() for point in pairs]
    x = Axis.around("aleatoric, nats", [0.0, *(max(a, 1e-6) for a, _ in points)])
    y = Axis.around("epistemic, nats", [0.0, *(max(e, 1e-6) for _, e in points)])
    counts = ", ".join(f"{len(pairs)} {name}" for name, pairs in given.parts.items())
    chart = Chart(x, y, f"Epistemic against aleatoric uncertainty of single examples: {counts}")
    for name, pairs in given.parts.items():
        if pairs:
            chart.dots(pairs, _ANSWERS[name][0])
    entries = [(*_ANSWERS[name], "dot") for name, pairs in given.parts.items() if pairs]
    note = f"One dot an example, at most {POINTS} of each kind."
    return figure("Two kinds of uncertainty", chart.svg(), legend(entries), note=note)


def _roc(page: ReportData, task: Classification, modes: list[str]) -> Markup:
    x, y = Axis("false alarms", 0, 1, percent=True), Axis("outside examples found", 0, 1, percent=True)
    areas = {mode: page.result["ood"][mode]["entropy"]["auroc"] for mode in modes}
    shown = ", ".join(f"{MODES[mode].name} {percent(area)}" for mode, area in areas.items())
    chart = Chart(x, y, f"ROC curves; area: {shown}")
    chart.line([(0, 0), (1, 1)], "ideal")
    for mode in modes:
        chart.line(task.uncertainty[mode].roc, MODES[mode].style)
    names = legend((MODES[mode].style, f"{MODES[mode].short} {percent(areas[mode])}", "line") for mode in modes)
    return figure("Finding the outside by entropy", chart.svg(), names, note="With the area under each curve.")


def _histogram(title: str, histogram: Histogram | None, names: Mapping[str, tuple[str, str]], note: str) -> Markup:
    """Histograms of several groups, one over the other; `names` has a style and a text for each."""
    if histogram is None:
        return figure(title, tag("p", _SURE, class_="nothing"))
    shown = {name: shares for name, shares in histogram.shares.items() if name in names}
    limit = _limit(list(shown.values()))
    x = Axis("nats", histogram.edges[0], histogram.edges[-1])
    y = Axis.around("share of examples", [0.0, limit], percent=True)
    means = ", ".join(f"{names[name][1]}: {percent(shares[0])} in the lowest bin" for name, shares in shown.items())
    chart = Chart(x, y, f"{title}. {means}")
    for name, shares in shown.items():
        chart.steps(histogram.edges, shares, names[name][0])
    cut = [(name, index) for name, shares in shown.items() for index, share in enumerate(shares) if share > y.high]
    for row, (name, index) in enumerate(cut):
        side, anchor = (index + 1, "start") if 2 * index < len(histogram.edges) else (index, "end")
        text = f"↑ {percent(shown[name][index], 0)}"
        chart.note(histogram.edges[side], y.high, text, anchor, names[name][0], fall=12 + 14 * row)
    entries = [(names[name][0], names[name][1], "patch") for name in shown]
    return figure(title, chart.svg(), legend(entries), note=note)


def _limit(series: list[tuple[float, ...]]) -> float:
    """Where to cut bars: at the highest, unless it would press all others to the ground."""
    highest = max(max(shares) for shares in series)
    rest = max(sorted(shares)[-2] for shares in series)
    return min(highest, 1.5 * rest) if rest else highest
