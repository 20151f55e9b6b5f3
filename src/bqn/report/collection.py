"""From a run and its evaluation to what the report shows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, cast

import torch
from torch import Tensor

from bqn import metrics
from bqn._version import __version__
from bqn.corruptions import STRENGTHS, corrupt
from bqn.data import Dataset, Split
from bqn.evaluation import Details
from bqn.network import Network
from bqn.predictions import Classified, Regressed
from bqn.report.contents import (
    POINTS,
    Classification,
    Example,
    Fit,
    Gallery,
    Histogram,
    PosteriorSummary,
    Regression,
    ReportData,
    Surprise,
    Uncertainty,
)
from bqn.report.facts import describe, set_name
from bqn.report.layout import modes_of
from bqn.report.png import data_uri, thumbnail
from bqn.training import Run
from bqn.training.files import to_json

EXAMPLES = 12
OUTPUTS = 4
_BINS = 30
_ROC_POINTS = 100
_SHARP = 40  # pixels
_POSTERIOR_BINS = 40
_LEVELS = tuple(step / 20 for step in range(1, 20))
_Z_EDGES = tuple(step / 2 for step in range(-8, 9))


def collect(
    run: Run,
    dataset: Dataset,
    result: Mapping[str, Any],
    details: Details,
    *,
    title: str,
    ood: Dataset | None = None,
) -> ReportData:
    """All that a page shows.

    Parameters
    ----------
    run : Run
    dataset : Dataset
        Whose test examples were evaluated.
    result, details
        What `bqn.evaluation.evaluate(..., details=True)` returned.
    title : str
        Name of the run.
    ood : Dataset or None
        Whose test examples were evaluated as examples from elsewhere.
    """
    if dataset.task == "classification":
        task: Classification | Regression = _classification(run, dataset, result, details, ood)
    else:
        task = _regression(details)
    return ReportData(
        title=f"{set_name(dataset)} · {run.config.model}",
        subtitle=title,
        facts=describe(run, dataset, result),
        settings=tuple((field.name, to_json(getattr(run.config, field.name))) for field in fields(run.config)),
        records=run.history.records,
        best_epoch=run.history.best_epoch,
        result=result,
        posteriors=summarize_posteriors(run.net),
        task=task,
        version=__version__,
    )


def summarize_posteriors(net: Network) -> tuple[PosteriorSummary, ...]:
    """How decided the weights are, posterior by posterior, in the order of the network."""
    summaries = []
    order: dict[str, int] = {}
    with torch.no_grad():
        for path, posterior in net.posteriors():
            layer, _, role = path.rpartition(".")
            position = order.setdefault(layer, len(order) + 1)
            kind = type(net.get_submodule(layer)).__name__
            bits = (posterior.entropy().flatten().double() / math.log(2)).cpu()
            most = math.log2(len(posterior.level_values))
            counts = torch.histc(bits.clamp(0, most), _POSTERIOR_BINS, 0, most)
            shares = tuple((counts / len(bits)).tolist())
            summaries.append(
                PosteriorSummary(
                    f"{position} · {kind} {role}",
                    tuple(posterior.shape),
                    posterior.level_values,
                    float(bits.mean()),
                    shares,
                )
            )
    return tuple(summaries)


# --- classification -------------------------------------------------------------------------------------------------


def _classification(
    run: Run, dataset: Dataset, result: Mapping[str, Any], details: Details, ood: Dataset | None
) -> Classification:
    seen = cast(dict[str, Classified], details.modes)
    classes = dataset.classes or tuple(map(str, range(run.preprocessing.outputs)))
    uncertainty = {
        mode: _uncertainty(given, metrics.wrong(given.probs, details.y), details.ood.get(mode))
        for mode, given in seen.items()
    }
    galleries = _galleries(seen[modes_of(seen)[0]], dataset.test, classes)
    if ood is not None:
        galleries += (_outside_gallery(details.ood[modes_of(seen)[0]], ood, classes),)
    corrupted = _corrupted(dataset.test.x) if "corruptions" in result else {}
    sharp = max(dataset.input_shape[-2:]) <= _SHARP
    return Classification(classes, uncertainty, galleries, corrupted, sharp, None if ood is None else set_name(ood))


def _uncertainty(given: Classified, wrong: Tensor, outside: Classified | None) -> Uncertainty:
    most = math.log(given.probs.shape[1])
    epistemic, parts = None, None
    if given.epistemic is not None:
        epistemic = _histogram(_groups(given.epistemic, wrong), float(given.epistemic.max()))
        both = _groups(torch.stack((given.aleatoric, given.epistemic), 1), wrong)
        parts = {name: tuple((a, e) for a, e in _some(pairs).tolist()) for name, pairs in both.items()}
    outside_entropy, outside_epistemic = None, None
    roc: tuple[tuple[float, float], ...] = ()
    if outside is not None:
        outside_entropy = _histogram({"test": given.entropy, "outside": outside.entropy}, most)
        roc = _roc(given.entropy, outside.entropy)
        if given.epistemic is not None and outside.epistemic is not None:
            doubts = {"test": given.epistemic, "outside": outside.epistemic}
            outside_epistemic = _histogram(doubts, max(float(part.max()) for part in doubts.values()))
    entropy = _histogram(_groups(given.entropy, wrong), most)
    return Uncertainty(entropy, epistemic, parts, outside_entropy, outside_epistemic, roc)


def _groups(values: Tensor, wrong: Tensor) -> dict[str, Tensor]:
    return {"right": values[~wrong], "wrong": values[wrong]}


def _some(values: Tensor) -> Tensor:
    """At most `POINTS` of the rows, from first to last."""
    return values[torch.linspace(0, len(values) - 1, min(len(values), POINTS)).round().long()]


def _histogram(groups: Mapping[str, Tensor], most: float) -> Histogram:
    """Shares of each group in bins from 0 to `most`; a group without examples is left out."""
    most = most or 1.0
    shares = {
        name: tuple((torch.histc(values.double().clamp(0, most), _BINS, 0, most) / len(values)).tolist())
        for name, values in groups.items()
        if len(values)
    }
    return Histogram(tuple(most * step / _BINS for step in range(_BINS + 1)), shares)


def _roc(inside: Tensor, outside: Tensor) -> tuple[tuple[float, float], ...]:
    """Operating points of the detector "entropy reaches a threshold", from none found to all."""
    ranked = inside.unique().flip(0)
    places = torch.linspace(0, len(ranked) - 1, min(len(ranked), _ROC_POINTS)).long()
    points = []
    for bar in ranked[places]:
        for found in (torch.gt, torch.ge):  # just below the threshold and at it: the corners of the stairs
            points.append((_share(found(inside, bar)), _share(found(outside, bar))))
    return (*points, (1.0, 1.0))


def _share(found: Tensor) -> float:
    return float(found.double().mean())


def _galleries(given: Classified, test: Split, classes: tuple[str, ...]) -> tuple[Gallery, ...]:
    wrong = metrics.wrong(given.probs, test.y.cpu())
    mistakes = wrong.nonzero().squeeze(-1)
    confidence = given.probs[mistakes].amax(-1)
    return (
        Gallery(
            "Most uncertain",
            "The test examples whose prediction has the highest entropy.",
            _examples(given, test.x, _highest(given.entropy), classes, test.y),
        ),
        Gallery(
            "Most confidently wrong",
            "The mistakes that the network was surest of: a wrong label, or something that it has yet to learn.",
            _examples(given, test.x, mistakes[_highest(confidence)], classes, test.y),
        ),
    )


def _outside_gallery(given: Classified, ood: Dataset, classes: tuple[str, ...]) -> Gallery:
    return Gallery(
        "Taken for known",
        f"The examples of {set_name(ood)} with the lowest entropy: none belongs to any of the classes.",
        _examples(given, ood.test.x, _highest(-given.entropy), classes, None),
    )


def _highest(scores: Tensor) -> Tensor:
    """Where the highest scores stand, the highest first, the first of equals first."""
    return scores.argsort(descending=True, stable=True)[:EXAMPLES]


def _examples(
    given: Classified, x: Tensor, chosen: Tensor, classes: tuple[str, ...], y: Tensor | None
) -> tuple[Example, ...]:
    pictures = x.dtype == torch.uint8 and x.dim() == 4
    examples = []
    for index in chosen.tolist():
        (first, second), (best, next_best) = given.probs[index].topk(2)
        examples.append(
            Example(
                index,
                classes[int(best)],
                float(first),
                classes[int(next_best)],
                float(second),
                float(given.entropy[index]),
                None if y is None else classes[int(y[index])],
                data_uri(thumbnail(x[index])) if pictures else None,
            )
        )
    return tuple(examples)


def _corrupted(x: Tensor) -> dict[str, tuple[str, ...]]:
    """The first test example, corrupted in every way and strength."""
    return {
        kind: tuple(
            data_uri(thumbnail(corrupt(x[:1], kind, strength, torch.Generator(x.device).manual_seed(0))[0]))
            for strength in strengths
        )
        for kind, strengths in STRENGTHS.items()
    }


# --- regression -----------------------------------------------------------------------------------------------------


def _regression(details: Details) -> Regression:
    seen = cast(dict[str, Regressed], details.modes)
    y = details.y.double()
    outputs = range(min(y.shape[1], OUTPUTS))
    fits = {mode: tuple(_fit(given, y, output) for output in outputs) for mode, given in seen.items()}
    coverage = {
        mode: tuple((level, metrics.interval_coverage(given.means, given.variances, y, level)) for level in _LEVELS)
        for mode, given in seen.items()
    }
    return Regression(fits, coverage, _surprises(seen[modes_of(seen)[0]], y))


def _fit(given: Regressed, y: Tensor, output: int) -> Fit:
    target, mean, deviation = y[:, output], given.mean[:, output], given.variance[:, output].sqrt()
    score = ((target - mean) / deviation).clamp(_Z_EDGES[0], _Z_EDGES[-1])
    counts = torch.histc(score, len(_Z_EDGES) - 1, _Z_EDGES[0], _Z_EDGES[-1])
    shown = [tuple(_some(values).tolist()) for values in (target, mean, deviation)]
    return Fit(shown[0], shown[1], shown[2], Histogram(_Z_EDGES, {"test": tuple((counts / len(y)).tolist())}))


def _surprises(given: Regressed, y: Tensor) -> tuple[Surprise, ...]:
    mean, deviation = given.mean, given.variance.sqrt()
    score = ((y - mean) / deviation).abs().flatten()
    places = [divmod(place, y.shape[1]) for place in _highest(score).tolist()]
    return tuple(
        Surprise(index, output, *(float(values[index, output]) for values in (y, mean, deviation)))
        for index, output in places
    )
