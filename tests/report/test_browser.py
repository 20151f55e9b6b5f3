"""Pages in a real browser: they render, complain about nothing, load nothing, and fit a phone."""

from __future__ import annotations

from pathlib import Path

import pytest

from bqn import report
from bqn.report import render
from tests.report import pages
from tests.report.browser import Browser, start_browser

PHONE, DESKTOP = 375, 1280
MATERIALS = {
    "classifier": pages.full,
    "hostile names": lambda: pages.classification(pages.HOSTILE),
    "long names": lambda: pages.classification(["Donaudampfschifffahrtsgesellschaft" * 3 + str(n) for n in range(12)]),
    "many classes": lambda: pages.classification([f"class number {n}" for n in range(24)], corruptions=False),
    "tables": pages.features,
    "regression": pages.regression,
    "several outputs": lambda: pages.regression(2),
}

# Texts that leave their chart, and elements that leave the page, but for what scrolls by itself.
ESCAPED = """(() => {
  const out = [];
  for (const text of document.querySelectorAll("figure > svg text")) {
    const box = text.getBoundingClientRect(), paper = text.closest("svg").getBoundingClientRect();
    if (box.width && (box.left < paper.left - 4 || box.right > paper.right + 4 || box.top < paper.top - 2 ||
        box.bottom > paper.bottom + 2)) out.push(["text", text.textContent]);
  }
  const width = document.documentElement.clientWidth + 0.5;
  for (const element of document.body.querySelectorAll("*"))
    if (element.getBoundingClientRect().right > width && !element.closest(".scroll")) out.push([element.tagName]);
  return out;
})()"""
SMALLEST_TEXT = """Math.min(...[...document.querySelectorAll("figure > svg text:not(.count)")]
  .filter(text => text.getBoundingClientRect().width)
  .map(text => parseFloat(getComputedStyle(text).fontSize) * text.getScreenCTM().a || Infinity))"""
CONTRASTS = """(() => {
  const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
  const light = colour => {
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    const [r, g, b] = [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3)
      .map(v => v / 255).map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const style = getComputedStyle(document.documentElement);
  const tone = name => light(style.getPropertyValue(name).trim());
  const result = {};
  for (const front of ["ink", "soft", "blue", "orange", "green", "violet"])
    for (const back of ["paper", "card"]) {
      const [a, b] = [tone("--" + front), tone("--" + back)];
      result[front + " on " + back] = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    }
  return result;
})()"""


@pytest.mark.parametrize("name", MATERIALS)
def test_a_page_renders_at_any_width(browser: Browser, tmp_path: Path, name: str) -> None:
    path = tmp_path / "report.html"
    path.write_text(render(MATERIALS[name]().page()), encoding="utf-8")
    for width in (PHONE, 768, DESKTOP):
        browser.open(path, width)
        assert browser.complaints() == []
        assert browser.requests() == [path.resolve().as_uri()]
        assert browser.evaluate("document.documentElement.scrollWidth") == width
        assert browser.evaluate(ESCAPED) == []
        assert browser.evaluate("document.querySelectorAll('figure > svg').length") >= 5
        assert browser.evaluate(SMALLEST_TEXT) >= 8
    assert browser.evaluate("document.scripts.length") == 0
    broken = "[...document.images].filter(image => !image.complete || !image.naturalWidth).length"
    assert browser.evaluate(broken) == 0
    assert len(browser.screenshot()) > 20_000


def test_the_report_of_a_run_renders(browser: Browser, shared_run: Path, tmp_path: Path) -> None:
    outside = shared_run.parent / "elsewhere.npz"
    path = report.write(shared_run, tmp_path / "report.html", ood=outside, corruptions=True, samples=2)
    browser.open(path, PHONE)
    assert browser.complaints() == []
    assert browser.requests() == [path.resolve().as_uri()]
    assert browser.evaluate("document.title") == "known.npz · mlp — report"
    assert browser.evaluate("document.images.length") > 30


def test_a_mode_can_be_chosen_without_a_script(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text(render(pages.full().page()), encoding="utf-8")
    browser.open(path)
    shown = """[...document.querySelectorAll(".of")].filter(part => part.offsetParent).map(part => part.className)"""
    assert set(browser.evaluate(shown)) == {"of of-analytic"}
    count = len(browser.evaluate(shown))
    for mode in ("mc", "map", "mc_recalibrated", "analytic"):
        browser.evaluate(f"document.querySelector('label[for=mode-{mode}]').click()")
        assert browser.evaluate(shown) == [f"of of-{mode}"] * count


@pytest.mark.parametrize("dark", [False, True])
def test_text_is_readable_in_light_and_dark(browser: Browser, tmp_path: Path, dark: bool) -> None:
    path = tmp_path / "report.html"
    path.write_text(render(pages.full().page()), encoding="utf-8")
    browser.open(path, dark=dark)
    paper = browser.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, paper[4:-1].split(","))) < 150) is dark
    for pair, contrast in browser.evaluate(CONTRASTS).items():
        # Text needs 4.5, the lines and areas of a chart 3 (WCAG 2.1, AA).
        assert contrast >= (4.5 if pair.startswith(("ink", "soft", "blue")) else 3), pair


def test_hostile_names_do_nothing(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text(render(pages.classification(pages.HOSTILE).page()), encoding="utf-8")
    browser.open(path)
    assert not any(event.get("method") == "Page.javascriptDialogOpening" for event in browser.events)
    assert browser.evaluate("document.querySelectorAll('[onerror], script, img:not([src^=\"data:\"])').length") == 0
    assert "<script>alert(1)</script>" in browser.evaluate("document.body.innerText")


def test_the_browser_would_tell(browser: Browser, tmp_path: Path) -> None:
    """The checks above can fail: a page that loads, logs and overflows is caught."""
    path = tmp_path / "bad.html"
    path.write_text(
        "<!doctype html><meta name=viewport content='width=device-width'><script>console.error('no')</script>"
        "<img src='missing.png'><div style='width:900px'>wide</div>"
    )
    browser.open(path, PHONE)
    assert any("no" in complaint for complaint in browser.complaints())
    assert len(browser.requests()) == 2
    assert browser.evaluate("document.documentElement.scrollWidth") > PHONE
    assert browser.evaluate(ESCAPED) != []


def test_a_missing_browser_is_a_failure_that_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(pytest.fail.Exception, match="apt-get install -y chromium"), start_browser():
        pass
