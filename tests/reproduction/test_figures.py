"""Sweeps as pictures: well-formed, with a point for every record, and none without."""

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from bqn.reproduction import plan
from bqn.reproduction.figures import figures

SVG = "{http://www.w3.org/2000/svg}"


def markers(text: str, style: str) -> list[str]:
    root = ElementTree.fromstring(text)
    return [
        title
        for element in root.iter(f"{SVG}path")
        if {"marker", *style.split()} == set(element.get("class", "").split())
        and (title := element.findtext(f"{SVG}title"))  # those of the legend have none
    ]


def test_no_sweep_no_figure(put: Any, tmp_path: Path) -> None:
    assert figures(tmp_path) == {}
    for cell in plan("table1", "paper", 1):
        put(cell)
    assert figures(tmp_path) == {}


def test_points_are_those_of_the_records(put: Any, tmp_path: Path) -> None:
    for place, cell in enumerate(plan("figure-gap", "paper", 2, models=["mlp"], data=["mnist"])):
        put(cell, 0.1 + 0.001 * place)
    made = figures(tmp_path)
    assert set(made) == {"results-power-mlp.svg", "results-gap-mlp-paper.svg"}
    power = markers(made["results-power-mlp.svg"], "analytic")
    assert len(power) == 2 * 6  # NLL and error
    assert "ours, recipe paper, λ = 0.0001: 100.50" in power
    assert "ours, recipe paper, λ = 0.005: 110.50" in power  # the recipe's own λ
    gap = made["results-gap-mlp-paper.svg"]
    assert len(markers(gap, "mc")) == len(markers(gap, "analytic")) == 2 * 6
    assert len(markers(gap, "analytic dashed")) == 2 * 3 * 6  # the paper has three data sets
    assert "paper: analytic (of NLL a bound), λ = 0.0001: 131.90" in markers(gap, "analytic dashed")


def test_failed_runs_show(put: Any, tmp_path: Path) -> None:
    first, second, *_ = plan("figure-power", "paper", 2, models=["mlp"], data=["mnist"])
    put(first)
    put(second, failed="training stopped")
    titles = markers(figures(tmp_path)["results-power-mlp.svg"], "analytic")
    assert "ours, recipe paper, λ = 0.0001: 100.00, 1 more failed" in titles


def test_a_figure_is_a_file_of_its_own(put: Any, tmp_path: Path) -> None:
    for cell in plan("figure-power", "best", 1, models=["vgg"]):
        put(cell)
    made = figures(tmp_path)
    assert list(made) == ["results-power-vgg.svg"]  # the paper has no gap for it
    root = ElementTree.fromstring(made["results-power-vgg.svg"])
    assert root.tag == f"{SVG}svg"
    assert "ours, recipe best" in root.get("aria-label", "")
    assert root.find(f"{SVG}style") is not None
    titles = [element.text for element in root.iter(f"{SVG}text")]
    assert {"VGG CIFAR-10: NLL, 1e-3", "VGG CIFAR-10: error, %"} <= set(titles)
