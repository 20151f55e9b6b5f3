"""The sweeps over λ as SVG files of their own: the paper's points and ours."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from bqn.report.axis import Axis
from bqn.report.chart import Chart
from bqn.report.picture import picture
from bqn.reproduction import paper, recipes, records
from bqn.reproduction.tables import NAMES

_FACTORS = {"nll": 1e3, "error": 100.0}
_LABELS = {"nll": "NLL, 1e-3", "error": "error, %"}


class Spot(NamedTuple):
    """A point of a curve with its spread, and how many more runs failed."""

    lam: float
    value: float
    low: float
    high: float
    failed: int = 0


class Curve(NamedTuple):
    """A series: its name in the legend, its CSS classes, its marker, its points by (data, figure)."""

    name: str
    style: str
    shape: str
    spots: dict[tuple[str, str], list[Spot]]


def figures(out: Path) -> dict[str, str]:
    """All figures that have something of ours to show: SVG by file name."""
    made: dict[str, str] = {}
    for architecture in ("mlp", "cnn", "vgg"):
        measured = {name: _has_sweep(out, architecture, name) for name in recipes.RECIPES}
        if any(measured.values()):
            ours = [(name, style) for name, style in (("paper", "analytic"), ("best", "map")) if measured[name]]
            made[f"results-power-{architecture}.svg"] = _draw(_power(out, architecture, ours), architecture)
        for name in recipes.RECIPES:
            if measured[name] and _sets("figure-gap", architecture):
                made[f"results-gap-{architecture}-{name}.svg"] = _draw(_gap(out, architecture, name), architecture)
    return made


def _has_sweep(out: Path, architecture: str, recipe: str) -> bool:
    return any(out.glob(f"{architecture}-*/{recipe}-lam-*/seed-*.json"))


def _sets(target: str, architecture: str) -> list[str]:
    return [data for name, data in paper.swept(target) if name == architecture]


def _power(out: Path, architecture: str, ours: Sequence[tuple[str, str]]) -> list[Curve]:
    """The paper's BQN and Gaussian BNN, and our BQN by recipe."""
    target = "figure-power"
    curves = [
        Curve("paper: BQN (of NLL a bound)", "analytic dashed", "square", _said(target, architecture, "bqn")),
        Curve("paper: Gaussian BNN", "train dashed", "triangle", _said(target, architecture, "gaussian-bnn")),
    ]
    for recipe, style in ours:
        curves.append(Curve(_named(recipe), style, "circle", _measured(out, target, architecture, recipe, "analytic")))
    return curves


def _gap(out: Path, architecture: str, recipe: str) -> list[Curve]:
    """Analytic prediction and sampled networks, the paper's and ours."""
    target, curves = "figure-gap", []
    for mode, word, said in (("analytic", "analytic", " (of NLL a bound)"), ("mc", "MC-5", "")):
        curves.append(Curve(f"paper: {word}{said}", f"{mode} dashed", "square", _said(target, architecture, mode)))
        ours = _measured(out, target, architecture, recipe, mode)
        curves.append(Curve(f"{_named(recipe)}: {word}", mode, "circle", ours))
    return curves


def _named(recipe: str) -> str:
    """A recipe in the legend; λ means another thing in each."""
    return f"ours, recipe {recipe}" + (" (λ falls to 0 from there)" if recipe == "best" else "")


def _said(target: str, architecture: str, series: str) -> dict[tuple[str, str], list[Spot]]:
    return {
        (data, name): [Spot(*point) for point in paper.sweep(target, architecture, data, series, name)]
        for data in _sets(target, architecture)
        for name in _FACTORS
    }


def _measured(out: Path, target: str, architecture: str, recipe: str, mode: str) -> dict[tuple[str, str], list[Spot]]:
    spots: dict[tuple[str, str], list[Spot]] = {}
    for data in _sets(target, architecture):
        own = recipes.settings(recipe, architecture, data)["lam"]
        for lam in recipes.swept(target, recipe, architecture, data):
            folder = recipe if lam == own else f"{recipe}-{recipes.lam_variant(lam)}"
            documents = records.seeds(architecture, data, folder, out)
            for name, factor in _FACTORS.items():
                found = records.figure(documents, "test", mode, name)
                if found is not None:
                    mean, std = factor * found.mean, factor * (found.std or 0.0)
                    spot = Spot(lam, mean, mean - std, mean + std, records.failures(documents))
                    spots.setdefault((data, name), []).append(spot)
    return spots


def _draw(curves: Sequence[Curve], architecture: str) -> str:
    """A column a data set, NLL above error."""
    sets = list(dict.fromkeys(data for curve in curves for data, _ in curve.spots))
    panels = [[_panel(curves, architecture, data, name) for data in sets] for name in _FACTORS]
    entries = [(curve.style, curve.name, curve.shape) for curve in curves]
    return picture(panels, entries, f"{NAMES[architecture]}, NLL and error against λ: {_words(curves)}")


def _words(curves: Iterable[Curve]) -> str:
    return "; ".join(curve.name for curve in curves)


def _panel(curves: Iterable[Curve], architecture: str, data: str, name: str) -> Chart:
    drawn = [(curve, curve.spots[data, name]) for curve in curves if curve.spots.get((data, name))]
    every = [spot for _, spots in drawn for spot in spots]
    lams = [spot.lam for spot in every]
    x = Axis("λ", min(lams) / 1.3, max(lams) * 1.3, log=True)
    y = Axis.around(
        f"{NAMES[architecture]} {NAMES[data]}: {_LABELS[name]}",
        [end for spot in every for end in (spot.low, spot.high)],
    )
    chart = Chart(x, y, f"{_LABELS[name]} against λ, {NAMES[data]}")
    for curve, spots in drawn:
        points = [(spot.lam, spot.value) for spot in spots]
        chart.line(points, curve.style)
        chart.whiskers([(spot.lam, spot.low, spot.high) for spot in spots], curve.style)
        titles = [
            f"{curve.name}, λ = {spot.lam:g}: {spot.value:.2f}"
            + (f", {spot.failed} more failed" if spot.failed else "")
            for spot in spots
        ]
        chart.markers(points, curve.style, curve.shape, titles)
    return chart
