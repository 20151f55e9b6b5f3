"""The head of the page and the table of scores: what the run is, and what it is worth."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bqn.report.contents import Classification, ReportData
from bqn.report.layout import (
    MODES,
    decimals_for,
    definitions,
    details,
    fixed,
    in_mode,
    modes_of,
    percent,
    section,
    short,
    table,
)
from bqn.report.markup import Markup, tag


@dataclass(frozen=True)
class Score:
    """A row of the table. `better` says which of two numbers is better: "low", "high", or None for neither."""

    key: str
    name: str
    meaning: str
    better: str | None = "low"
    percent: bool = False


CLASSIFICATION = (
    Score("nll", "NLL", "Mean negative log-likelihood of the true class, in nats."),
    Score("bound", "Bound", "What training pushes down: a bound on the expected NLL, in nats.", None),
    Score("error", "Error, %", "Share of examples whose most probable class is wrong.", percent=True),
    Score("ece", "ECE, %", "Expected calibration error: |accuracy − confidence|, averaged over bins.", percent=True),
    Score("ece_adaptive", "ECE adaptive, %", "The same over bins that hold equally many examples.", percent=True),
    Score("brier", "Brier", "Squared distance of the probabilities to the truth, summed over the classes."),
    Score("aurc", "AURC, %", "Mean risk over all coverages: how well confidence sorts the mistakes out.", percent=True),
    Score("excess_aurc", "Excess AURC, %", "AURC beyond that of a perfect order.", percent=True),
    Score("entropy", "Entropy", "Mean entropy of the predictions, in nats: all their uncertainty.", None),
    Score("epistemic", "Epistemic", "The part of it that comes from doubt about the weights.", None),
)
DETECTION = (
    Score("auroc", "AUROC, %", "Chance that an outside example has the higher score.", "high", percent=True),
    Score("aupr", "AUPR, %", "Average precision in finding the outside examples.", "high", percent=True),
    Score("fpr95", "FPR95, %", "False alarms where 95 % of the outside examples are found.", percent=True),
)
REGRESSION = (
    Score("rmse", "RMSE", "Root mean squared error of the predictive mean, in the units of the target."),
    Score("nll", "NLL", "Mean negative log-likelihood of the targets, in nats."),
    Score("bound", "Bound", "What training pushes down: a bound on the expected NLL, in nats.", None),
    Score("crps", "CRPS", "Continuous ranked probability score, in the units of the target."),
    Score(
        "coverage_50", "In 50 % interval, %", "Share of targets within the interval; 50 % would be right.", None, True
    ),
    Score("coverage_90", "In 90 % interval, %", "The same for the 90 % interval.", None, True),
    Score("coverage_95", "In 95 % interval, %", "The same for the 95 % interval.", None, True),
    Score("width_90", "Width of 90 %", "Mean width of the 90 % intervals.", None),
    Score("variance", "Variance", "Mean predictive variance.", None),
    Score("epistemic", "Epistemic", "The part of it that comes from doubt about the weights.", None),
)


def header(page: ReportData) -> Markup:
    """Title and facts."""
    return tag(
        "header",
        tag("p", "Bayesian quantized network", class_="kicker"),
        tag("h1", page.title),
        tag("p", "Run ", tag("b", page.subtitle), class_="run"),
        definitions(page.facts, "facts"),
    )


def summary(page: ReportData) -> Markup:
    """The most important numbers, the table of all, and what they mean."""
    classification = isinstance(page.task, Classification)
    scores = CLASSIFICATION if classification else REGRESSION
    modes = modes_of(page.result)
    rows = _rows(scores, modes, lambda mode, key: page.result[mode].get(key))
    meanings = [(MODES[mode].name, MODES[mode].meaning) for mode in modes]
    meanings += [(score.name, score.meaning) for score in scores]
    if isinstance(page.task, Classification) and page.task.outside is not None:
        for source, title in (("entropy", "by entropy"), ("epistemic", "by epistemic part")):
            rows.append([f"Told apart from {page.task.outside} {title}"])
            rows += _rows(DETECTION, modes, _detection(page.result["ood"], source))
        meanings += [(score.name, score.meaning) for score in DETECTION]
    tiles = _classification_tiles(page) if classification else _regression_tiles(page.result[modes[0]])
    return section(
        "summary",
        "Summary",
        tag("dl", tiles, class_="tiles"),
        table(["", *(MODES[mode].short for mode in modes)], rows, "Scores on the test examples, by mode", "scores"),
        details("What the rows and columns mean", definitions(meanings, "meanings")),
        lead=_verdict(page),
    )


def _rows(scores: Sequence[Score], modes: Sequence[str], value: Callable[[str, str], float | None]) -> list[list[str]]:
    rows = []
    for score in scores:
        values = [value(mode, score.key) for mode in modes]
        if all(entry is None for entry in values):
            continue
        if score.percent:
            values = [None if entry is None else 100 * entry for entry in values]
            decimals = min(decimals_for([max(entry for entry in values if entry is not None)]), 3)
        else:
            decimals = decimals_for(values)
        shown = [fixed(entry, decimals) for entry in values]
        rows.append([score.name, *_emphasize(shown, values, score.better)])
    return rows


def _emphasize(shown: Sequence[str], values: Sequence[float | None], better: str | None) -> list[str]:
    """The best of the numbers in bold, all of those that look alike."""
    given = [value for value in values if value is not None]
    if better is None or len(set(shown)) < 2:
        return list(shown)
    best = shown[values.index(min(given) if better == "low" else max(given))]
    return [tag("b", text) if text == best else text for text in shown]


def _detection(ood: Mapping[str, Any], source: str) -> Callable[[str, str], float | None]:
    def value(mode: str, key: str) -> float | None:
        scores = ood[mode][source]
        return None if scores is None else scores[key]

    return value


def _tile(name: str, value: str, note: str) -> Markup:
    return tag("div", tag("dt", name), tag("dd", tag("b", value), tag("span", note)))


def _classification_tiles(page: ReportData) -> list[Markup]:
    mode = modes_of(page.result)[0]
    scores, settings = page.result[mode], page.result["settings"]
    mistakes = round(scores["error"] * settings["examples"])
    tiles = [
        _tile("Error", percent(scores["error"]), f"{mistakes:,} of {settings['examples']:,} wrong"),
        _tile("NLL", short(scores["nll"]), "nats"),
        _tile("ECE", percent(scores["ece"]), f"{settings['bins']} bins"),
        _tile("Brier", short(scores["brier"]), "0 is perfect, 2 the worst"),
    ]
    if "ood" in page.result:
        detection = page.result["ood"][mode]["entropy"]
        tiles.append(_tile("OOD AUROC", percent(detection["auroc"]), "by entropy; 50\u00a0% is chance"))
    return tiles


def _regression_tiles(scores: Mapping[str, float]) -> list[Markup]:
    return [
        _tile("RMSE", short(scores["rmse"]), "units of the target"),
        _tile("NLL", short(scores["nll"]), "nats"),
        _tile("CRPS", short(scores["crps"]), "units of the target"),
        _tile("90 % intervals", percent(scores["coverage_90"], 1), "of the targets lie within"),
    ]


def _verdict(page: ReportData) -> str:
    scores, mode = page.result[modes_of(page.result)[0]], in_mode(page.result)
    if isinstance(page.task, Classification):
        return (
            f"In {mode} {percent(scores['error'])} of the test examples are classified wrongly. Confidence and "
            f"accuracy are {fixed(100 * scores['ece'], 2)} percentage points apart on average; all in all the network "
            f"is {_self_assurance(page)}."
        )
    return (
        f"In {mode} predictions are off by {short(scores['rmse'])} (root mean square). Intervals that should "
        f"hold 90\u00a0% of the test targets hold {percent(scores['coverage_90'], 1)}."
    )


def _self_assurance(page: ReportData) -> str:
    """Whether confidence is above or below accuracy, if the test examples are enough to tell."""
    mode = modes_of(page.result)[0]
    bins, error = page.result["curves"][mode]["reliability"], page.result[mode]["error"]
    filled = [pair for pair in zip(bins["confidence"], bins["examples"], strict=True) if pair[1]]
    examples = sum(count for _, count in filled)
    gap = sum(confidence * count for confidence, count in filled) / examples - (1 - error)
    if abs(gap) < 2 * math.sqrt(error * (1 - error) / examples):
        return "as sure as it should be, as far as so many examples can tell"
    return "surer than it should be" if gap > 0 else "less sure than it could be"
