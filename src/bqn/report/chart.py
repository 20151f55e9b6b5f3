"""Charts as small inline SVG: text stays text and colours come from the page, so that both follow its dark mode."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import repeat

from bqn.report.axis import Axis
from bqn.report.markup import Markup, number, shorten, tag

WIDTH = 360.0
HEIGHT = 230.0
_CHARACTER = 7.7  # width of one at the size of the marks, in the widest of the usual typefaces
_TOP, _RIGHT, _BOTTOM, _BOTTOM_UNNAMED = 26.0, 16.0, 40.0, 22.0
_MARKERS = {
    "circle": "M-3 0a3 3 0 1 0 6 0a3 3 0 1 0-6 0",
    "square": "M-2.8-2.8h5.6v5.6h-5.6z",
    "triangle": "M0-3.6l3.5 6h-7z",
}

Point = tuple[float, float]


class Chart:
    """A pair of axes to draw on.

    Styles are names of CSS classes that the page defines, for example "line analytic".

    Parameters
    ----------
    x, y : Axis
    description : str
        What the chart shows, for those who cannot see it.
    height : float
        In pixels at the size of a phone, where a chart is `WIDTH` wide.
    left : float or None
        Where the plane begins; just right of the numbers by default.
    """

    def __init__(
        self, x: Axis, y: Axis, description: str, *, height: float = HEIGHT, left: float | None = None
    ) -> None:
        self.x, self.y = x, y
        self.description = description
        self.height = height
        self.left = 10 + _CHARACTER * max((len(text) for _, text in y.ticks()), default=0) if left is None else left
        self.right, self.top, self.bottom = WIDTH - _RIGHT, _TOP, height - (_BOTTOM if x.label else _BOTTOM_UNNAMED)
        self._parts: list[Markup] = []

    def place(self, x: float, y: float) -> Point:
        """Where values lie on the paper."""
        return (
            self.left + self.x.place(x) * (self.right - self.left),
            self.bottom - self.y.place(y) * (self.bottom - self.top),
        )

    def add(self, part: Markup) -> None:
        self._parts.append(part)

    def line(self, points: Iterable[Point], style: str) -> None:
        """Straight lines from point to point."""
        placed = [self.place(*point) for point in points]
        if len(placed) > 1:
            self.add(tag("path", d=f"M{_path(placed)}", class_=f"line {style}"))

    def steps(self, edges: Sequence[float], heights: Sequence[float], style: str) -> None:
        """The outline of a histogram, filled: `edges` `(B + 1,)`, `heights` `(B,)`."""
        points = [(edges[0], self.y.low)]
        for index, height in enumerate(heights):
            points += [(edges[index], height), (edges[index + 1], height)]
        points.append((edges[-1], self.y.low))
        self.add(tag("path", d=f"M{_path([self.place(*point) for point in points])}z", class_=f"steps {style}"))

    def bar(self, x: float, width: float, height: float, style: str, title: str | None = None) -> None:
        """A bar from `x` to `x + width` with its top at `height`."""
        (left, top), (right, bottom) = self.place(x, height), self.place(x + width, self.y.low)
        box = {"x": left + 0.5, "y": top, "width": max(right - left - 1, 0.5), "height": bottom - top}
        self.add(tag("rect", _title(title), class_=f"bar {style}", **box))

    def markers(
        self, points: Iterable[Point], style: str, shape: str = "circle", titles: Iterable[str] | None = None
    ) -> None:
        """A sign at each point, with a title that shows when it is pointed at."""
        given = list(points)
        for point, title in zip(given, repeat(None) if titles is None else titles, strict=titles is not None):
            x, y = self.place(*point)
            move = f"translate({number(x)} {number(y)})"
            self.add(tag("path", _title(title), d=_MARKERS[shape], transform=move, class_=f"marker {style}"))

    def dots(self, points: Iterable[Point], style: str) -> None:
        """Many small dots as one element."""
        placed = [self.place(*point) for point in points]
        self.add(tag("path", d="".join(f"M{_pair(point)}h0" for point in placed), class_=f"dots {style}"))

    def whiskers(self, ranges: Iterable[tuple[float, float, float]], style: str) -> None:
        """Vertical lines, each at x from low to high, as one element."""
        pieces = []
        for x, low, high in ranges:
            start, end = self.place(x, low), self.place(x, high)
            pieces.append(f"M{_pair(start)}V{end[1]:.1f}")
        self.add(tag("path", d="".join(pieces), class_=f"whiskers {style}"))

    def note(self, x: float, y: float, text: str, anchor: str = "middle", style: str = "", fall: float = 0) -> None:
        """A word at a point, `fall` below it."""
        left, top = self.place(x, y)
        self.add(tag("text", text, x=left, y=top + fall, text_anchor=anchor, class_=f"note {style}".strip()))

    def content(self) -> list[Markup]:
        """Axes and all that was drawn, to be put into a picture."""
        return [*self._axes(), *self._parts]

    def svg(self) -> Markup:
        """The whole chart."""
        return canvas(WIDTH, self.height, self.description, self.content())

    def _axes(self) -> list[Markup]:
        parts = []
        for value, text in self.y.ticks():
            _, top = self.place(self.x.low, value)
            parts.append(tag("path", d=f"M{self.left:.1f} {top:.1f}H{self.right:.1f}", class_="grid"))
            parts.append(tag("text", text, x=self.left - 6, y=top + 4, text_anchor="end", class_="tick"))
        for value, text in self.x.ticks():
            left, _ = self.place(value, self.y.low)
            # The outermost numbers keep within the paper.
            half = _CHARACTER * len(text) / 2
            centre = min(left, WIDTH - 2 - half)
            parts.append(tag("text", text, x=centre, y=self.bottom + 15, text_anchor="middle", class_="tick"))
        base = f"M{self.left:.1f} {self.bottom:.1f}H{self.right:.1f}"
        parts.append(tag("path", d=base, class_="base"))
        parts.append(tag("text", self.y.label, x=2, y=12, class_="label"))
        middle = (self.left + self.right) / 2
        if self.x.label:
            parts.append(tag("text", self.x.label, x=middle, y=self.height - 6, text_anchor="middle", class_="label"))
        return parts


def canvas(width: float, height: float, description: str, parts: Iterable[str]) -> Markup:
    """An SVG picture of its own, which fills the width that it is given."""
    box = f"0 0 {number(width)} {number(height)}"
    return tag("svg", parts, viewBox=box, role="img", aria_label=description)


def legend(entries: Iterable[tuple[str, str, str]]) -> Markup:
    """What a chart shows: entries of style, text, and sign, which is "patch", "dot", "line", or a marker's shape."""
    items = []
    for style, text, sign in entries:
        swatch = tag("svg", key(style, sign), viewBox="0 0 20 12", aria_hidden="true")
        items.append(tag("li", swatch, tag("span", shorten(text, 40))))
    return tag("ul", items, class_="legend")


def key(style: str, sign: str) -> list[Markup]:
    """The sign of an entry of a legend, 20 × 12 in size; arguments as for `legend`."""
    if sign == "patch":
        return [tag("rect", x=1, y=2, width=18, height=8, class_=f"steps {style}")]
    if sign == "dot":
        return [tag("path", d="M10 6h0", class_=f"dots {style}")]
    line = tag("path", d="M1 6H19", class_=f"line {style}")
    if sign not in _MARKERS:
        return [line]
    return [line, tag("path", d=_MARKERS[sign], transform="translate(10 6)", class_=f"marker {style}")]


def _title(text: str | None) -> Markup | None:
    return None if text is None else tag("title", text)


def _pair(point: Point) -> str:
    return f"{point[0]:.1f} {point[1]:.1f}"


def _path(points: Iterable[Point]) -> str:
    return "L".join(map(_pair, points))
