"""How the network came to be: learning curves, and how decided its weights are in the end."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from bqn.report.axis import Axis
from bqn.report.chart import WIDTH, Chart, Point, canvas, legend
from bqn.report.contents import PosteriorSummary, ReportData
from bqn.report.facts import levels_text
from bqn.report.layout import figure, figures, in_mode, section, short
from bqn.report.markup import Markup, number, tag

_COLUMNS = 3
_GAP = 10.0
_ROW, _STRIP = 62.0, 26.0


def learning(page: ReportData) -> Markup:
    """Learning curves: NLL, error or RMSE, and KL."""
    if not page.records:
        return section("learning", "Learning", lead="No epoch has been finished yet.")
    lead = "One point an epoch."
    if page.best_epoch is not None:
        lead = f"One point an epoch; the weights of epoch {page.best_epoch}, the best on validation data, were kept."
    train: list[Point] = [(record.epoch, record.train_nll) for record in page.records]
    validation: list[Point] = [(r.epoch, r.validation_nll) for r in page.records if r.validation_nll is not None]
    error: list[Point] = [(r.epoch, r.validation_error) for r in page.records if r.validation_error is not None]
    rmse: list[Point] = [(r.epoch, r.validation_rmse) for r in page.records if r.validation_rmse is not None]
    kl: list[Point] = [(record.epoch, record.kl) for record in page.records]
    best = page.best_epoch
    parts = [
        figure(
            "Negative log-likelihood",
            _curves("nats", {"train": train, "validation": validation}, best),
            legend(
                [("train", "training, bound", "square")]
                + ([("validation", "validation, predictive", "circle")] if validation else [])
            ),
            note="Training: the bound as the examples passed. Validation: the prediction after the epoch.",
        )
    ]
    if error:
        chart = _curves("wrong", {"validation": error}, best, percent=True)
        parts.append(figure("Validation error", chart, note=f"In {in_mode(page.result)}, after the epoch."))
    if rmse:
        chart = _curves("units of the target", {"validation": rmse}, best)
        parts.append(figure("Validation RMSE", chart, note=f"In {in_mode(page.result)}, after the epoch."))
    parts.append(
        figure(
            "KL to the prior",
            _curves("nats", {"train": kl}, best),
            note="What the network has learned about its weights, all together.",
        )
    )
    return section("learning", "Learning", figures(parts), lead=lead)


def _curves(label: str, series: dict[str, list[Point]], best: int | None, percent: bool = False) -> Markup:
    values = [value for points in series.values() for _, value in points]
    epochs = [epoch for points in series.values() for epoch, _ in points]
    log = min(values) > 0 and max(values) > 8 * min(values)
    low = min(values) if log or min(values) < 0 else 0.0 if min(values) < 0.5 * max(values) else min(values)
    y = Axis.around(label, [low, *values], log=log, percent=percent)
    x = Axis("epoch", min(epochs) - 0.25, max(epochs) + 0.25, whole=True)
    ends = ", ".join(
        f"{name} from {short(points[0][1])} to {short(points[-1][1])}" for name, points in series.items() if points
    )
    chart = Chart(x, y, f"Learning curve over {int(max(epochs))} epochs: {ends}")
    if best is not None:
        chart.line([(best, y.low), (best, y.high)], "mark")
    for name, points in series.items():
        chart.line(points, name)
        if len(points) <= 60:
            titles = [f"epoch {int(epoch)}: {short(value)}" for epoch, value in points]
            chart.markers(points, name, "square" if name == "train" else "circle", titles)
    return chart.svg()


def weights(page: ReportData) -> Markup:
    """Posterior entropy of the weights, layer by layer."""
    ends = [round(len(page.posteriors) * column / _COLUMNS) for column in range(_COLUMNS + 1)]
    columns = [page.posteriors[start:end] for start, end in pairwise(ends) if end > start]
    return section(
        "weights",
        "Weights",
        figures(_strips(column) for column in columns),
        lead="How decided each weight is: the entropy of its posterior, in bits. On the left its value is settled, on "
        "the right all levels are equally probable. The line marks the mean.",
    )


def _strips(posteriors: Sequence[PosteriorSummary]) -> Markup:
    """One strip a posterior, the histogram of the entropies of its weights."""
    parts: list[Markup] = []
    for index, entry in enumerate(posteriors):
        parts += _strip(entry, index * _ROW)
    means = ", ".join(f"{entry.name} {entry.mean_bits:.2f}" for entry in posteriors)
    description = f"Mean posterior entropy in bits per weight: {means}"
    return tag("figure", canvas(WIDTH, len(posteriors) * _ROW - _GAP, description, parts))


def _strip(entry: PosteriorSummary, top: float) -> list[Markup]:
    shape = " × ".join(map(str, entry.shape))
    title = f"{entry.name}, {shape} in {levels_text(entry.levels)}"
    mean = f"{entry.mean_bits:.2f} of {entry.most_bits:.3g} bit"
    width = WIDTH / len(entry.shares)
    largest = max(entry.shares)
    base = top + 20 + _STRIP
    path = [f"M0 {number(base)}"]
    for index, share in enumerate(entry.shares):
        # A square root, so that bins with few weights can be seen beside those with nearly all.
        height = base - _STRIP * (share / largest) ** 0.5
        path.append(f"L{number(index * width)} {number(height)}H{number((index + 1) * width)}")
    path.append(f"V{number(base)}z")
    place = WIDTH * entry.mean_bits / entry.most_bits
    return [
        tag("text", tag("tspan", entry.name, class_="strong"), f"  {shape}", x=0, y=top + 11, class_="label"),
        tag("text", mean, x=WIDTH, y=top + 11, text_anchor="end", class_="label"),
        tag("path", tag("title", title), d="".join(path), class_="steps posterior"),
        tag("path", d=f"M0 {number(base)}H{number(WIDTH)}", class_="base"),
        tag("path", d=f"M{number(place)} {number(base - _STRIP)}V{number(base + 4)}", class_="line mean"),
    ]
