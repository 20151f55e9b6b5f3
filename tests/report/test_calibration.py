from __future__ import annotations

import pytest
from scipy.stats import binomtest

from bqn.report.calibration import calibration, wilson
from bqn.report.contents import Classification
from tests.report import pages
from tests.report.pages import Reader


@pytest.mark.parametrize(("right", "count"), [(0, 1), (1, 1), (5, 10), (97, 100), (10_000, 10_000)])
def test_intervals_are_those_of_wilson(right: int, count: int) -> None:
    expected = binomtest(right, count).proportion_ci(0.95, method="wilson")
    assert wilson(right / count, count) == pytest.approx((expected.low, expected.high), abs=1e-6)


def test_every_bin_with_examples_is_drawn() -> None:
    page = pages.full().page()
    assert isinstance(page.task, Classification)
    drawn = Reader(calibration(page, page.task))
    for curves in page.result["curves"].values():
        bins = curves["reliability"]
        for count, confidence in zip(bins["examples"], bins["confidence"], strict=True):
            if count:
                told = f"{count:,} examples: confidence {100 * confidence:.1f}"
                assert any(text.startswith(told) for text in drawn.text)


def test_risk_is_drawn_for_every_mode() -> None:
    page = pages.full().page()
    assert isinstance(page.task, Classification)
    text = Reader(calibration(page, page.task)).text
    assert {"Analytic", "Monte Carlo", "MAP", "Monte Carlo, recalibrated", "MAP, recalibrated"} <= set(text)
