from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from bqn.report.axis import Axis
from bqn.report.chart import HEIGHT, WIDTH, Chart, legend

X, Y = Axis("epoch", 0, 10), Axis("nats", 0, 1)


def drawn(chart: Chart) -> ElementTree.Element:
    return ElementTree.fromstring(chart.svg())


def elements(root: ElementTree.Element, style: str) -> list[ElementTree.Element]:
    return [element for element in root.iter() if style in element.get("class", "").split()]


def test_a_chart_is_described_and_labelled() -> None:
    root = drawn(Chart(X, Y, "a <chart> & more"))
    assert root.get("role") == "img"
    assert root.get("aria-label") == "a <chart> & more"
    texts = [element.text for element in root.iter("text")]
    assert {"epoch", "nats", "0", "10", "0.2"} <= set(texts)


def test_values_lie_where_the_axes_say() -> None:
    chart = Chart(X, Y, "")
    assert chart.place(0, 0) == (chart.left, chart.bottom)
    assert chart.place(10, 1) == (chart.right, chart.top)
    x, y = chart.place(5, 0.5)
    assert x == pytest.approx((chart.left + chart.right) / 2)
    assert y == pytest.approx((chart.top + chart.bottom) / 2)


def test_everything_stays_on_the_paper() -> None:
    chart = Chart(X, Axis("y", -1e5, 1e5), "")
    chart.line([(-5, -1e9), (20, 1e9)], "a")
    chart.steps([0, 5, 10], [1e9, 0], "b")
    chart.whiskers([(3, -1e9, 1e9)], "c")
    for element in drawn(chart).iter("path"):
        numbers = [float(value) for value in re.findall(r"-?\d+\.?\d*", element.get("d", ""))]
        assert all(0 <= value <= max(WIDTH, HEIGHT) for value in numbers)


def test_a_line_goes_from_point_to_point() -> None:
    chart = Chart(X, Y, "")
    chart.line([(0, 0), (5, 1), (10, 0)], "analytic")
    (line,) = elements(drawn(chart), "analytic")
    assert line.get("d", "").count("L") == 2


def test_one_point_makes_no_line() -> None:
    chart = Chart(X, Y, "")
    chart.line([(5, 1)], "analytic")
    assert not elements(drawn(chart), "analytic")


def test_markers_carry_titles() -> None:
    chart = Chart(X, Y, "")
    chart.markers([(1, 0.5), (2, 0.25)], "mc", "square", ["first", "<second>"])
    titles = [marker.findtext("title") for marker in elements(drawn(chart), "mc")]
    assert titles == ["first", "<second>"]


def test_titles_and_points_must_match() -> None:
    with pytest.raises(ValueError, match="zip"):
        Chart(X, Y, "").markers([(1, 0.5)], "mc", titles=["first", "second"])


def test_a_bar_stands_on_the_ground() -> None:
    chart = Chart(X, Y, "")
    chart.bar(2, 1, 0.5, "map", "half")
    (bar,) = elements(drawn(chart), "map")
    assert float(bar.get("y", "")) + float(bar.get("height", "")) == pytest.approx(chart.bottom, abs=0.02)
    assert float(bar.get("height", "")) == pytest.approx((chart.bottom - chart.top) / 2, abs=0.02)


@pytest.mark.parametrize("sign", ["patch", "dot", "line", "circle", "square", "triangle"])
def test_a_legend_names_and_shows(sign: str) -> None:
    made = ElementTree.fromstring(legend([("mc", "Monte <Carlo>", sign)]))
    assert made.findtext("li/span") == "Monte <Carlo>"
    assert elements(made, "mc")
