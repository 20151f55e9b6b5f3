"""The page: one self-contained HTML document without scripts, drawn from plain data."""

from __future__ import annotations

from collections.abc import Iterator

from bqn.report import regression
from bqn.report.calibration import calibration
from bqn.report.contents import Classification, ReportData
from bqn.report.corrupted import corruptions
from bqn.report.examples import examples
from bqn.report.layout import choice_rules, definitions, details, mode_choice, modes_of, section
from bqn.report.learning import learning, weights
from bqn.report.markup import Markup, tag
from bqn.report.style import STYLE
from bqn.report.summary import header, summary
from bqn.report.uncertainty import uncertainty

# A browser that obeys this loads nothing from anywhere and runs nothing, whatever the page might hold.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
_ICON = (
    "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'%3E%3Cpath fill='%230072b2' "
    "d='M1 15V9h3v6zm5 0V1h4v14zm6 0V6h3v9z'/%3E%3C/svg%3E"
)


def render(page: ReportData) -> str:
    """The page as text. The same data give the same text; nothing is read and nothing written."""
    rules = Markup(STYLE + choice_rules(modes_of(page.result)))
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", f"{page.title} — report"),
        tag("link", rel="icon", href=_ICON),
        tag("style", rules),
    )
    foot = tag("footer", f"Written by bqn {page.version}.")
    body = tag("body", header(page), _contents(page), tag("main", _sections(page), class_=_picture_style(page)), foot)
    return f"<!doctype html>\n{tag('html', head, body, lang='en')}\n"


def _sections(page: ReportData) -> Iterator[Markup]:
    yield summary(page)
    yield learning(page)
    if isinstance(page.task, Classification):
        yield _by_mode(page, calibration(page, page.task), uncertainty(page, page.task))
        if "corruptions" in page.result:
            yield corruptions(page, page.task)
        yield examples(page.task)
    else:
        yield _by_mode(page, regression.predictions(page.task))
    if page.posteriors:
        yield weights(page)
    yield section("settings", "Settings", details("All settings of the run", definitions(page.settings, "settings")))


def _by_mode(page: ReportData, *sections: Markup) -> Markup:
    """Sections that the choice of a mode, which stays in sight, rules."""
    return tag("div", mode_choice(modes_of(page.result)), sections)


def _picture_style(page: ReportData) -> str | None:
    return "sharp" if isinstance(page.task, Classification) and page.task.sharp else None


def _contents(page: ReportData) -> Markup:
    anchors = ["summary", "learning"]
    if isinstance(page.task, Classification):
        anchors += ["calibration", "uncertainty"]
        anchors += ["corruptions"] if "corruptions" in page.result else []
        anchors += ["examples"]
    else:
        anchors += ["predictions"]
    anchors += ["weights", "settings"] if page.posteriors else ["settings"]
    links = [tag("li", tag("a", anchor.capitalize(), href=f"#{anchor}")) for anchor in anchors]
    return tag("nav", tag("ul", links), aria_label="Contents")
