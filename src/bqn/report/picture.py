"""Charts in a file of their own: one SVG with its style inside, for pages that are not HTML of ours."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from bqn.report.chart import WIDTH, Chart, key
from bqn.report.markup import Markup, number, tag
from bqn.report.style import CHART_STYLE

_MARGIN, _GAP, _LEGEND = 12.0, 18.0, 30.0
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
    parts: list[Markup] = [*_legend(entries)]
    top = _LEGEND
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


def _legend(entries: Iterable[tuple[str, str, str]]) -> list[Markup]:
    parts, left = [], _MARGIN
    for style, text, sign in entries:
        parts.append(tag("g", key(style, sign), transform=f"translate({number(left)} 9)"))
        parts.append(tag("text", text, x=left + 26, y=19))
        left += 26 + _CHARACTER * len(text) + 22
    return parts
