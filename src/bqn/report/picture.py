"""Charts in a file of their own: one SVG with its style inside, for pages that are not HTML of ours."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from bqn.report.chart import WIDTH, Chart, key
from bqn.report.markup import Markup, number, tag
from bqn.report.style import CHART_STYLE

_MARGIN, _GAP, _LEGEND, _LINE = 12.0, 18.0, 30.0, 18.0
_CHARACTER = 6.6  # average width of one in the legend


def picture(rows: Sequence[Sequence[Chart]], entries: Iterable[tuple[str, str, str]], description: str) -> str:
    """Charts beside and below each other, with one legend for all on top; an SVG document.

    Parameters
    ----------
    rows : sequence of rows of Chart, the charts of a row of one height
    entries : style, text and sign of what the charts show, as for `bqn.report.chart.legend`
    description : what the picture shows, for those who cannot see it
    """
    width = 2 * _MARGIN + max(len(row) for row in rows) * (WIDTH + _GAP) - _GAP
    parts, lines = _legend(entries, width - _MARGIN)
    top = _LEGEND + (lines - 1) * _LINE
    for row in rows:
        for column, chart in enumerate(row):
            move = f"translate({number(_MARGIN + column * (WIDTH + _GAP))} {number(top)})"
            parts.append(tag("g", chart.content(), transform=move))
        top += max(chart.height for chart in row) + _GAP
    ground = tag("rect", width=width, height=top, fill="var(--card)")
    box = f"0 0 {number(width)} {number(top)}"
    style = tag("style", Markup(CHART_STYLE))
    return (
        tag(
            "svg",
            style,
            ground,
            parts,
            xmlns="http://www.w3.org/2000/svg",
            viewBox=box,
            role="img",
            aria_label=description,
        ).replace("><", ">\n<")
        + "\n"
    )


def _legend(entries: Iterable[tuple[str, str, str]], end: float) -> tuple[list[Markup], int]:
    """The legend, and how many lines it takes so that none goes beyond `end`."""
    parts: list[Markup] = []
    left, line = _MARGIN, 0
    for style, text, sign in entries:
        long = 26 + _CHARACTER * len(text)
        if left + long > end and left > _MARGIN:
            left, line = _MARGIN, line + 1
        parts.append(tag("g", key(style, sign), transform=f"translate({number(left)} {number(9 + line * _LINE)})"))
        parts.append(tag("text", text, x=left + 26, y=19 + line * _LINE))
        left += long + 22
    return parts, line + 1
