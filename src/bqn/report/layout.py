"""The parts that all pages are made of: sections, figures, tables, and what is shown for one mode at a time."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from bqn.report.markup import Child, Markup, join, tag


@dataclass(frozen=True)
class Mode:
    """How a mode of prediction is named and drawn."""

    name: str
    short: str
    style: str
    marker: str
    meaning: str


MODES: Mapping[str, Mode] = {
    "analytic": Mode("Analytic", "Analytic", "analytic", "circle", "One pass of beliefs, without sampling."),
    "mc": Mode("Monte Carlo", "MC", "mc", "square", "Networks drawn from the posterior; their predictions averaged."),
    "map": Mode("MAP", "MAP", "map", "triangle", "The one network whose weights are the most probable."),
    "members": Mode("Members", "Members", "mc", "square", "The probabilities of all members, averaged."),
    "logits": Mode("Logits", "Logits", "analytic", "circle", "The logits of all members, averaged."),
    "mc_recalibrated": Mode(
        "Monte Carlo, recalibrated",
        "MC recal.",
        "mc dashed",
        "square",
        "As Monte Carlo, with the statistics of batch norm estimated anew for each network.",
    ),
    "map_recalibrated": Mode(
        "MAP, recalibrated",
        "MAP recal.",
        "map dashed",
        "triangle",
        "As MAP, with the statistics of batch norm estimated anew.",
    ),
}  # fmt: skip


def modes_of(result: Mapping[str, object]) -> list[str]:
    """The modes that an evaluation, or a part of it, has: the usual one first."""
    return [mode for mode in result if mode in MODES]


def in_mode(result: Mapping[str, object]) -> str:
    """What single figures were found in, as words: "analytic mode", "MC mode"."""
    name = MODES[modes_of(result)[0]].short
    return f"{name if name.isupper() else name.lower()} mode"


def section(anchor: str, title: str, *content: Child, lead: str | None = None) -> Markup:
    """A part of the page with a title, and a sentence that leads into it."""
    heading = tag("h2", title, id=f"{anchor}-title")
    opening = None if lead is None else tag("p", lead, class_="lead")
    return tag("section", heading, opening, *content, id=anchor, aria_labelledby=f"{anchor}-title")


def figures(*content: Child) -> Markup:
    """Figures side by side, as many as there is room for."""
    return tag("div", *content, class_="figures")


def figure(title: str, *content: Child, note: str | None = None) -> Markup:
    """A chart with its title and how to read it."""
    reading = None if note is None else tag("figcaption", note)
    return tag("figure", tag("h3", title), *content, reading)


def by_mode(variants: Mapping[str, Markup]) -> Markup:
    """What is shown for the chosen mode only; `mode_choice` lets the reader choose."""
    return join(tag("div", content, class_=f"of of-{mode}") for mode, content in variants.items())


def mode_choice(modes: Sequence[str]) -> Markup:
    """Buttons to choose a mode, which work without a script."""
    buttons = []
    for mode in modes:
        name = f"mode-{mode}"
        buttons.append(tag("input", type="radio", name="mode", id=name, checked=mode == modes[0]))
        buttons.append(tag("label", MODES[mode].short, for_=name, class_=MODES[mode].style))
    return tag("fieldset", tag("legend", "Mode of prediction"), tag("span", "Mode"), buttons, class_="modes")


def choice_rules(modes: Iterable[str]) -> str:
    """The style sheet behind `by_mode`: the first mode shows unless another is chosen."""
    others = list(modes)[1:]
    rules = [f".of-{mode}{{display:none}}" for mode in others]
    for mode in others:
        chosen = f"body:has(#mode-{mode}:checked)"
        rules.append(f"{chosen} .of{{display:none}}{chosen} .of-{mode}{{display:block}}")
    return "".join(rules)


def table(head: Sequence[str], rows: Iterable[Sequence[str]], caption: str, style: str = "") -> Markup:
    """A table whose first column names the rows. It scrolls by itself where it is wider than the page."""
    body = [
        tag("tr", tag("th", row[0], scope="row"), [tag("td", cell) for cell in row[1:]]) if len(row) > 1
        else tag("tr", tag("th", row[0], scope="rowgroup", colspan=len(head)), class_="group")
        for row in rows
    ]  # fmt: skip
    inner = tag(
        "table",
        tag("caption", caption),
        tag("thead", tag("tr", [tag("th", cell, scope="col") for cell in head])),
        tag("tbody", body),
        class_=style or None,
    )
    return tag("div", inner, class_="scroll", tabindex="0", role="region", aria_label=caption)


def details(title: str, *content: Child) -> Markup:
    """Something for those who want to know more."""
    return tag("details", tag("summary", title), *content)


def definitions(entries: Iterable[tuple[str, str]], style: str) -> Markup:
    """Names and what they stand for."""
    return tag("dl", [tag("div", tag("dt", name), tag("dd", text)) for name, text in entries], class_=style)


# --- numbers --------------------------------------------------------------------------------------------------------


def decimals_for(values: Iterable[float | None]) -> int:
    """Digits behind the point that give the smallest of `values` three places, and the largest four at most."""
    sizes = [abs(value) for value in values if value]
    if not sizes:
        return 2
    wanted, limit = 2 - math.floor(math.log10(min(sizes))), 3 - math.floor(math.log10(max(sizes)))
    return min(max(min(wanted, limit), 0), 5)


def fixed(value: float | None, decimals: int) -> str:
    """A number with so many digits behind the point; a dash for none."""
    return "–" if value is None else f"{value:,.{decimals}f}".replace("-", "−")


def short(value: float | None) -> str:
    """A number with three places, or more where it is large; a dash for none."""
    return fixed(value, decimals_for([value]))


def percent(share: float | None, decimals: int | None = None) -> str:
    """A share as percent; a dash for none."""
    if share is None:
        return "–"
    value = 100 * share
    return f"{fixed(value, min(decimals_for([value]), 2) if decimals is None else decimals)}\u00a0%"


def certainty(share: float) -> str:
    """A probability as whole percent, but never "100 %" or "0 %" for what is not certain."""
    if 0.995 <= share < 1:
        return percent(min(share, 0.999), 1)
    return f"<{percent(0.01, 0)}" if 0 < share < 0.005 else percent(share, 0)
