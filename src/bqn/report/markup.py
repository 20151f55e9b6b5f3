"""HTML and SVG that cannot be broken by the text in it: whatever is not markup already is escaped."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable
from typing import TypeAlias

# Control characters, lone surrogates (file names that are not UTF-8) and marks that turn the direction of writing:
# none of them belongs in a page, and the last can make a text read as another one.
_UNPRINTABLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)
_VOID = frozenset({"meta", "link", "img", "input", "br"})


class Markup(str):
    """Text that is markup already and goes into a page as it is."""

    __slots__ = ()


Child: TypeAlias = str | Iterable[str] | None
Value: TypeAlias = str | float | bool | None


def escape(text: str) -> Markup:
    """`text` as it should be read: markup in it is shown, not obeyed; characters that cannot be shown are replaced."""
    return text if isinstance(text, Markup) else Markup(html.escape(_UNPRINTABLE.sub("\ufffd", text)))


def join(children: Iterable[str]) -> Markup:
    """Pieces one after the other, plain text escaped."""
    return Markup("".join(map(escape, children)))


def tag(name: str, /, *children: Child, **attributes: Value) -> Markup:
    """An element.

    Parameters
    ----------
    name : str
    children : text, markup, or iterables of both; None for nothing
    attributes
        `class_` and `for_` lose their underscore, other underscores become hyphens. Numbers are rounded to hundredths,
        True gives an attribute without a value, None and False give none.
    """
    parts = [f"<{name}"]
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        parts.append(f" {key.rstrip('_').replace('_', '-')}")
        if value is not True:
            parts.append(f'="{escape(value if isinstance(value, str) else number(value))}"')
    parts.append(">")
    if name in _VOID:
        return Markup("".join(parts))
    for child in children:
        if child is not None:
            parts.append(escape(child) if isinstance(child, str) else join(child))
    parts.append(f"</{name}>")
    return Markup("".join(parts))


def number(value: float) -> str:
    """A coordinate, to hundredths."""
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


def shorten(text: str, length: int) -> str:
    """`text` cut to `length` characters, the last an ellipsis where something is missing."""
    return text if len(text) <= length else f"{text[: length - 1].rstrip()}…"
