from __future__ import annotations

import math

import pytest
import torch

from bqn import metrics
from bqn.report.collection import EXAMPLES, OUTPUTS, summarize_posteriors
from bqn.report.contents import POINTS, Classification, Regression
from bqn.training import TrainConfig, build_model
from tests.report import pages


def classification() -> Classification:
    task = pages.full().page().task
    assert isinstance(task, Classification)
    return task


def regression(outputs: int = 1) -> Regression:
    task = pages.regression(outputs).page().task
    assert isinstance(task, Regression)
    return task


# --- posteriors -----------------------------------------------------------------------------------------------------


def test_posteriors_are_summarized() -> None:
    net = build_model(TrainConfig(hidden=(4,), levels="ternary"), (1, 2, 2), 3)  # type: ignore[arg-type]
    posteriors = dict(net.posteriors())
    summaries = summarize_posteriors(net)
    assert [entry.name for entry in summaries] == ["1 · Linear weight", "2 · Linear weight", "2 · Linear bias"]
    assert [entry.shape for entry in summaries] == [(4, 4), (3, 4), (3,)]
    for entry, posterior in zip(summaries, posteriors.values(), strict=True):
        assert entry.mean_bits == pytest.approx(float(posterior.entropy().detach().mean()) / math.log(2), rel=1e-5)
        assert entry.most_bits == pytest.approx(math.log2(3))
        assert sum(entry.shares) == pytest.approx(1)


def test_decided_weights_stand_left_and_undecided_right() -> None:
    net = build_model(TrainConfig(hidden=(4,)), (1, 2, 2), 3)
    (_, first), (_, second), _ = net.posteriors()
    with torch.no_grad():
        first.logits.copy_(torch.tensor([50.0, -50.0]).expand_as(first.logits))
        second.logits.zero_()
    decided, undecided, _ = summarize_posteriors(net)
    assert (decided.mean_bits, decided.shares[0]) == (pytest.approx(0, abs=1e-6), 1)
    assert (undecided.mean_bits, undecided.shares[-1]) == (pytest.approx(1), 1)


# --- classification -------------------------------------------------------------------------------------------------


def test_histograms_hold_all_examples() -> None:
    for given in classification().uncertainty.values():
        for histogram in (given.entropy, given.epistemic, given.outside_entropy, given.outside_epistemic):
            if histogram is not None:
                assert all(sum(shares) == pytest.approx(1) for shares in histogram.shares.values())
                assert histogram.edges[0] == 0
    assert classification().uncertainty["analytic"].entropy.edges[-1] == pytest.approx(math.log(3))


def test_a_single_network_has_no_epistemic_part() -> None:
    task = classification()
    assert task.uncertainty["map"].epistemic is None
    assert task.uncertainty["map"].parts is None
    assert task.uncertainty["mc"].epistemic is not None


def test_two_kinds_add_up_to_the_entropy() -> None:
    material = pages.full()
    parts = classification().uncertainty["analytic"].parts
    assert parts is not None
    sums = sorted(aleatoric + epistemic for pairs in parts.values() for aleatoric, epistemic in pairs)
    assert len(sums) <= 2 * POINTS
    assert sums == pytest.approx(sorted(material.details.modes["analytic"].entropy.tolist()), abs=1e-6)


def test_the_roc_curve_has_the_area_of_the_auroc() -> None:
    material = pages.full()
    for mode, given in classification().uncertainty.items():
        false, true = torch.tensor(given.roc, dtype=torch.float64).T
        assert bool((false.diff() >= 0).all())
        assert bool((true.diff() >= 0).all())
        area = float(torch.trapezoid(true, false))
        assert area == pytest.approx(material.result["ood"][mode]["entropy"]["auroc"], abs=1e-9)


def test_the_most_uncertain_come_first() -> None:
    material = pages.full()
    given = material.details.modes["analytic"]
    uncertain, wrong, outside = classification().galleries
    assert len(uncertain.examples) == EXAMPLES
    highest = given.entropy.argsort(descending=True)[:EXAMPLES]
    assert [example.index for example in uncertain.examples] == highest.tolist()
    for example in uncertain.examples:
        probs = given.probs[example.index]
        assert (example.confidence, example.second_confidence) == tuple(probs.topk(2).values.tolist())
        assert example.predicted == material.dataset.classes[int(probs.argmax())]
        assert example.label == material.dataset.classes[int(material.dataset.test.y[example.index])]
        assert example.picture is not None
    assert all(example.predicted != example.label for example in wrong.examples)
    sureness = [example.confidence for example in wrong.examples]
    assert sureness == sorted(sureness, reverse=True)
    mistakes = metrics.wrong(given.probs, material.details.y)
    assert sureness[0] == float(given.probs[mistakes].max())
    assert [example.label for example in outside.examples] == [None] * EXAMPLES
    entropies = [example.entropy for example in outside.examples]
    assert entropies == sorted(entropies)


def test_corrupted_pictures_are_made_when_asked_for() -> None:
    assert {kind: len(pictures) for kind, pictures in classification().corrupted.items()} == {
        "noise": 5,
        "blur": 5,
        "rotation": 5,
    }
    plain = pages.classification(outside=False, corruptions=False).page().task
    assert isinstance(plain, Classification)
    assert plain.corrupted == {}
    assert plain.outside is None
    assert plain.uncertainty["analytic"].outside_entropy is None


def test_tables_have_no_pictures() -> None:
    task = pages.features().page().task
    assert isinstance(task, Classification)
    assert {example.picture for gallery in task.galleries for example in gallery.examples} == {None}


@pytest.mark.parametrize(("side", "sharp"), [(28, True), (100, False)])
def test_pixels_of_small_images_are_to_be_seen(side: int, sharp: bool) -> None:
    material = pages.classification(outside=False, corruptions=False, shape=(3, side, side))
    task = material.page().task
    assert isinstance(task, Classification)
    assert task.sharp is sharp


# --- regression -----------------------------------------------------------------------------------------------------


def test_fits_are_the_predictions() -> None:
    material = pages.regression()
    given = material.details.modes["analytic"]
    (fit,) = regression().fits["analytic"]
    assert fit.target == pytest.approx(material.dataset.test.y[:, 0].tolist())
    assert fit.mean == pytest.approx(given.mean[:, 0].tolist())
    assert fit.deviation == pytest.approx(given.variance[:, 0].sqrt().tolist())
    assert sum(fit.residuals.shares["test"]) == pytest.approx(1)


def test_coverage_is_that_of_the_evaluation() -> None:
    material = pages.regression()
    for mode, pairs in regression().coverage.items():
        shares = dict(pairs)
        assert shares[0.9] == pytest.approx(material.result[mode]["coverage_90"])
        assert list(shares.values()) == sorted(shares.values())


def test_the_largest_surprise_comes_first() -> None:
    scores = [abs(entry.target - entry.mean) / entry.deviation for entry in regression().surprises]
    assert len(scores) == EXAMPLES
    assert scores == sorted(scores, reverse=True)


def test_only_some_of_many_outputs_are_drawn() -> None:
    task = regression(OUTPUTS + 2)
    assert {len(fits) for fits in task.fits.values()} == {OUTPUTS}
    assert all(0 <= entry.output < OUTPUTS + 2 for entry in task.surprises)
