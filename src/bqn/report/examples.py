"""Single examples: the most uncertain, the most wrong, and those from elsewhere that were taken for known."""

from __future__ import annotations

from bqn.report.contents import Classification, Example, Gallery
from bqn.report.layout import certainty, figure, figures, in_mode, section, table
from bqn.report.markup import Markup, shorten, tag

_NONE = tag("p", "There are none.", class_="nothing")


def examples(task: Classification) -> Markup:
    """All galleries, as pictures or, for tables of features, as lists."""
    pictures = all(example.picture for gallery in task.galleries for example in gallery.examples)
    parts = [_pictures(gallery) if pictures else _list(gallery) for gallery in task.galleries]
    return section(
        "examples", "Examples", parts if pictures else figures(parts), lead=f"In {in_mode(task.uncertainty)}."
    )


def _pictures(gallery: Gallery) -> Markup:
    content = tag("ul", map(_pictured, gallery.examples)) if gallery.examples else _NONE
    return tag("div", tag("h3", gallery.title), tag("p", gallery.note), content, class_="gallery")


def _list(gallery: Gallery) -> Markup:
    rows = [
        [str(example.index), _name(example.predicted), certainty(example.confidence), _name(example.label or "–")]
        for example in gallery.examples
    ]
    listed = table(["Row", "Predicted", "Confidence", "True"], rows, gallery.title, "listed") if rows else _NONE
    return figure(gallery.title, listed, note=gallery.note)


def _pictured(example: Example) -> Markup:
    text = f"Example {example.index}"
    if example.label is not None:
        text += f", true class {example.label}"
    text += f", predicted {example.predicted}"
    lines = [
        _share(example.predicted, example.confidence, example.label),
        _share(example.second, example.second_confidence, example.label),
    ]
    if example.label is not None:
        lines.append(tag("p", "true ", tag("b", _name(example.label)), class_="truth"))
    return tag("li", tag("img", src=example.picture, alt=text, title=text), lines)


def _share(name: str, share: float, label: str | None) -> Markup:
    """A class and its probability, on a bar of that length."""
    style = "share right" if name == label else "share wrong"
    bar = tag("i", style=f"width:{100 * share:.0f}%")
    return tag("p", bar, tag("b", _name(name)), tag("span", certainty(share)), class_=style)


def _name(name: str) -> str:
    return shorten(name, 24)
