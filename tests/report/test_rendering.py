from __future__ import annotations

import re
from dataclasses import replace

import pytest

from bqn.report import ReportData, render
from bqn.report.contents import Classification
from tests.report import pages
from tests.report.pages import Material, Reader

MATERIALS = {
    "full": pages.full,
    "without outside and corruptions": lambda: pages.classification(outside=False, corruptions=False),
    "hostile names": lambda: pages.classification(pages.HOSTILE),
    "two classes": lambda: pages.classification(("yes", "no")),
    "many classes": lambda: pages.classification([f"class number {index}" for index in range(24)], corruptions=False),
    "before the first epoch": lambda: pages.classification(epochs=0, outside=False, corruptions=False),
    "one epoch": lambda: pages.classification(epochs=1, outside=False, corruptions=False),
    "colour": lambda: pages.classification(shape=(3, 80, 70), corruptions=False),
    "tables": pages.features,
    "regression": pages.regression,
    "several outputs": lambda: pages.regression(3),
}


@pytest.fixture(params=MATERIALS, scope="module")
def material(request: pytest.FixtureRequest) -> Material:
    return MATERIALS[request.param]()


def test_every_page_is_whole_and_stands_alone(material: Material) -> None:
    text = render(material.page())
    page = Reader(text)  # every element is closed
    assert text.startswith("<!doctype html>")
    text.encode()
    assert not page.names() & {"script", "iframe", "object", "embed", "base", "form"}
    for _, attributes in page.elements:
        assert not any(name.startswith("on") for name in attributes)
        for name in ("src", "href"):
            value = attributes.get(name)
            assert value is None or value.startswith(("data:image/", "#")), value
    (style,) = re.findall("<style>(.*?)</style>", text, re.DOTALL)
    assert "url(" not in style
    assert "@import" not in style


def test_links_lead_to_sections(material: Material) -> None:
    page = Reader(render(material.page()))
    targets = [attributes["id"] for attributes in page.all("section")]
    assert [(attributes["href"] or "")[1:] for attributes in page.all("a")] == targets


def test_ids_are_unique_and_labels_lead_to_them(material: Material) -> None:
    page = Reader(render(material.page()))
    ids = [attributes["id"] for _, attributes in page.elements if attributes.get("id")]
    assert len(ids) == len(set(ids))
    assert {attributes["for"] for attributes in page.all("label")} <= set(ids)
    assert {attributes["aria-labelledby"] for attributes in page.all("section")} <= set(ids)


def test_everything_that_is_seen_can_be_heard(material: Material) -> None:
    page = Reader(render(material.page()))
    for attributes in page.all("svg"):
        assert attributes.get("aria-label") or attributes.get("aria-hidden") == "true"
    for attributes in page.all("img"):
        assert attributes["alt"]


def test_no_number_is_broken(material: Material) -> None:
    page = Reader(render(material.page()))
    values = [value or "" for _, attributes in page.elements for value in attributes.values()]
    assert not re.search(r"\b(nan|inf|None)\b", " ".join([*page.text, *values]))


def test_the_same_data_give_the_same_page(material: Material) -> None:
    assert render(material.page()) == render(material.page())


def test_hostile_text_is_shown_not_obeyed() -> None:
    page = pages.full().page()
    hostile = pages.HOSTILE[0]
    assert isinstance(page.task, Classification)
    task = replace(page.task, classes=pages.HOSTILE, outside=hostile)
    pair = ((hostile, hostile),)
    text = render(replace(page, title=hostile, subtitle=hostile, facts=pair, settings=pair, task=task))
    assert "<script" not in text
    assert "<img src=x" not in text
    assert text.count("&lt;script&gt;alert(1)&lt;/script&gt;") >= 6
    assert "\u202e" not in text
    Reader(text)


def test_a_page_of_a_run_on_images_has_what_people_look_for() -> None:
    page = Reader(render(pages.full().page()))
    headings = set(page.text)
    assert {
        "Negative log-likelihood",
        "Reliability",
        "Confusion",
        "Risk and coverage",
        "Entropy, right and wrong",
        "Entropy, in and out of distribution",
        "Noise",
        "Most uncertain",
        "Most confidently wrong",
        "Weights",
    } <= headings
    assert len(page.all("img")) == 3 * 12 + 3 * 5


def test_scores_are_those_of_the_evaluation() -> None:
    material = pages.full()
    text = " ".join(Reader(render(material.page())).text)
    for mode in ("analytic", "mc", "map"):
        assert f"{100 * material.result[mode]['error']:.1f}" in text
        assert f"{material.result[mode]['nll']:.2f}" in text


def test_the_best_of_each_row_is_bold() -> None:
    page = pages.full().page()
    scores = {"analytic": 0.25, "mc": 0.5, "map": 0.75}
    result = {mode: dict(page.result[mode], nll=value) for mode, value in scores.items()}
    text = render(replace(page, result={**page.result, **result}))
    row = re.search(r'<tr><th scope="row">NLL</th>(.*?)</tr>', text)
    assert row is not None
    assert "<b>0.250</b>" in row[1]
    assert "<td>0.500</td><td>0.750</td>" in row[1]


@pytest.mark.parametrize(
    ("confidence", "words"),
    [(0.95, "surer than it should be"), (0.8, "as sure as it should be"), (0.6, "less sure than it could be")],
)
def test_the_verdict_says_whether_the_network_is_too_sure(confidence: float, words: str) -> None:
    page = pages.full().page()
    reliability = {"confidence": [None, confidence], "accuracy": [None, 0.8], "examples": [0, 1000]}
    curves = {mode: dict(given, reliability=reliability) for mode, given in page.result["curves"].items()}
    analytic = dict(page.result["analytic"], error=0.2)
    text = render(replace(page, result={**page.result, "curves": curves, "analytic": analytic}))
    assert words in text


def test_scores_that_are_not_finite_are_dashes() -> None:
    page = pages.regression().page()
    analytic = dict(page.result["analytic"], nll=None, crps=None)
    text = render(replace(page, result={**page.result, "analytic": analytic}))
    assert "<dt>NLL</dt><dd><b>–</b>" in text


def test_an_untrained_run_says_so() -> None:
    page: ReportData = pages.classification(epochs=0, outside=False, corruptions=False).page()
    assert "No epoch has been finished yet." in render(page)


def test_pages_stay_small() -> None:
    assert len(render(pages.full().page())) < 400_000
    large = pages.classification(shape=(3, 96, 96), corruptions=False)  # noise, which does not compress
    assert len(render(large.page())) < 1_500_000
