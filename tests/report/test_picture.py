"""Charts in a file of their own."""

from xml.etree import ElementTree

from bqn.report.axis import Axis
from bqn.report.chart import HEIGHT, WIDTH, Chart
from bqn.report.picture import picture

SVG = "{http://www.w3.org/2000/svg}"


def chart(label: str, height: float = HEIGHT) -> Chart:
    made = Chart(Axis("x", 0, 1), Axis(label, 0, 1), label, height=height)
    made.line([(0, 0), (1, 1)], "mc")
    made.markers([(0.5, 0.5)], "mc", "square", ["a < b & c"])
    return made


def test_a_document_with_every_chart_in_its_place():
    text = picture([[chart("one"), chart("two")], [chart("three", 100)]], [("mc", "R & D", "square")], 'a "picture"')
    svg = ElementTree.fromstring(text)
    assert svg.attrib["aria-label"] == 'a "picture"'
    texts = [element.text for element in svg.iter(f"{SVG}text")]
    assert {"one", "two", "three", "R & D"} <= set(texts)
    assert [element.text for element in svg.iter(f"{SVG}title")] == ["a < b & c"] * 3
    *_, width, height = map(float, svg.attrib["viewBox"].split())
    places = []
    for group in svg.findall(f"{SVG}g"):
        left, top = map(float, group.attrib["transform"].removeprefix("translate(").rstrip(")").split())
        places.append((left, top))
    (_, legend), first, second, third = places
    assert legend < first[1] == second[1]
    assert second[0] >= first[0] + WIDTH
    assert third == (first[0], third[1])
    assert third[1] >= first[1] + HEIGHT
    assert width >= second[0] + WIDTH
    assert height >= third[1] + 100


def test_a_legend_that_is_too_long_goes_on_in_the_next_line():
    names = ["first of four", "second of the four", "third of all the four", "fourth"]
    entries = [("mc", name, "circle") for name in names]
    tops, starts = {}, {}
    for columns in (1, 3):
        svg = ElementTree.fromstring(picture([[chart("one")] * columns], entries, "one"))
        places = [element.attrib["transform"] for element in svg.findall(f"{SVG}g")]
        tops[columns] = float(places[-1].rstrip(")").split()[1])
        written = [element for element in svg.findall(f"{SVG}text") if element.text in names]
        width = float(svg.attrib["viewBox"].split()[2])
        assert all(float(each.attrib["x"]) + 6.6 * len(each.text) < width for each in written)
        starts[columns] = [float(each.attrib["y"]) for each in written]
    assert len(set(starts[3])) == 1
    assert starts[1] == sorted(starts[1])
    assert len(set(starts[1])) == 2
    assert tops[1] - tops[3] == starts[1][-1] - starts[1][0] > 0  # the charts make room


def test_the_style_is_inside_and_follows_the_dark():
    style = ElementTree.fromstring(picture([[chart("one")]], [], "one")).find(f"{SVG}style").text
    assert "prefers-color-scheme: dark" in style
    assert ".line" in style
    assert "figure" not in style  # what is for the page of a report only
