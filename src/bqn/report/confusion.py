"""The confusion matrix: with numbers for some classes, as a picture for many; and the most frequent confusions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from bqn.report.chart import WIDTH, canvas
from bqn.report.layout import figure
from bqn.report.markup import Markup, shorten, tag
from bqn.report.png import data_uri

NUMBERED = 20
_LISTED = 5
_LETTER = 8.5  # width of one, about; names have wider ones than numbers
_RIGHT, _WRONG = (0, 114, 178), (213, 94, 0)
_MOST_OPAQUE = 0.62  # a number must stay readable on the darkest cell


def confusion(counts: Sequence[Sequence[int]], classes: Sequence[str]) -> Markup:
    """A figure of `counts` `(K, K)`: row the label, column the prediction."""
    matrix = np.asarray(counts, dtype=np.int64)
    draw = _numbered if len(classes) <= NUMBERED else _pictured
    right = int(np.trace(matrix))
    description = f"Confusion matrix of {len(classes)} classes: {right:,} of {int(matrix.sum()):,} on the diagonal"
    return figure(
        "Confusion",
        draw(matrix, classes, description),
        _most_frequent(matrix, classes),
        note="Rows: the true class. Columns: the prediction. Blue: right; orange: wrong.",
    )


def _opacity(matrix: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Share of the row on the diagonal; beside it the count against the highest there, its root lest few be lost."""
    total = np.maximum(matrix.sum(1), 1)
    mistakes = matrix - np.diag(np.diag(matrix))
    beside = np.sqrt(mistakes / max(int(mistakes.max()), 1))
    return beside + np.diag(np.diag(matrix) / total)


def _numbered(matrix: npt.NDArray[np.int64], classes: Sequence[str], description: str) -> Markup:
    names = [shorten(name, 10) for name in classes]
    left = 10 + _LETTER * max(map(len, names))
    cell = (WIDTH - left) / len(classes)
    upright = _LETTER * max(map(len, names)) <= cell - 2
    top = 18 if upright else left
    strength = _opacity(matrix) * _MOST_OPAQUE
    size = min(12.0, cell * 0.42)
    parts = []
    for index, name in enumerate(names):
        middle = (index + 0.5) * cell
        parts.append(tag("text", name, x=left - 6, y=top + middle + 4, text_anchor="end", class_="tick"))
        if upright:
            parts.append(tag("text", name, x=left + middle, y=top - 6, text_anchor="middle", class_="tick"))
        else:
            turn = f"translate({left + middle + 4:.1f} {top - 6:.1f}) rotate(-90)"
            parts.append(tag("text", name, transform=turn, class_="tick"))
    for row, column in np.ndindex(*matrix.shape):
        count, x, y = int(matrix[row, column]), left + column * cell, top + row * cell
        kind = "right" if row == column else "wrong"
        title = tag("title", f"{classes[row]} taken for {classes[column]}: {count:,}")
        box = {"x": x + 0.5, "y": y + 0.5, "width": cell - 1, "height": cell - 1, "rx": 2}
        opacity = {"fill_opacity": float(strength[row, column])} if count else {}
        parts.append(tag("rect", title, class_=f"cell {kind if count else 'none'}", **box, **opacity))
        if count:
            where = {"x": x + cell / 2, "y": y + cell / 2 + size * 0.36}
            fit = min(size, (cell - 2) / (0.6 * len(str(count))))
            look = {"class_": "count", "text_anchor": "middle", "style": f"font-size:{fit:.1f}px"}
            parts.append(tag("text", str(count), **look, **where))
    return canvas(WIDTH, top + cell * len(classes), description, parts)


def _pictured(matrix: npt.NDArray[np.int64], classes: Sequence[str], description: str) -> Markup:
    """A pixel a cell: too many classes to name and number each."""
    pixels = np.zeros((*matrix.shape, 4), np.uint8)
    pixels[..., :3] = _WRONG
    pixels[np.arange(len(matrix)), np.arange(len(matrix)), :3] = _RIGHT
    pixels[..., 3] = np.round(255 * _opacity(matrix))
    parts = [
        tag("rect", x=0.5, y=0.5, width=WIDTH - 1, height=WIDTH - 1, class_="cell none"),
        tag("image", href=data_uri(pixels), width=WIDTH, height=WIDTH, class_="pixels"),
    ]
    return canvas(WIDTH, WIDTH, description, parts)


def _most_frequent(matrix: npt.NDArray[np.int64], classes: Sequence[str]) -> Markup | None:
    mistakes = matrix - np.diag(np.diag(matrix))
    order = np.argsort(-mistakes, axis=None, kind="stable")[:_LISTED]
    items = []
    for row, column in zip(*np.unravel_index(order, matrix.shape), strict=True):
        if mistakes[row, column]:
            pair = [tag("b", shorten(classes[row], 30)), " taken for ", tag("b", shorten(classes[column], 30))]
            items.append(tag("li", pair, tag("span", f" · {int(mistakes[row, column]):,}")))
    return tag("ol", items, class_="pairs") if items else tag("p", "No mistakes.", class_="nothing")
