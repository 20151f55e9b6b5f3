"""Calibration and detection: the figures of an evaluation, the few that matter."""

import pytest

from bqn import evaluation
from bqn.faithfulness import calibration
from tests.faithfulness.test_measuring import net, pictures

__all__ = ["net"]  # the fixture


def test_the_figures_are_those_of_an_evaluation(net):
    test, training, held_out = pictures(30), pictures(60, seed=1), pictures(20, seed=2)
    outside = {"noise": pictures(25, seed=3), "more": pictures(10, seed=4)}
    options = {"seed": 1, "samples": 3, "recalibrate_on": training}
    result = calibration(net, test, outside, temper_on=held_out, **options)
    expected = evaluation.evaluate(net, test, ood=outside["more"], temper_on=held_out, **options)
    assert list(result) == ["analytic", "mc", "map", "mc_recalibrated", "map_recalibrated"]
    for mode, scores in result.items():
        for name in ("nll", "error", "ece"):
            assert scores[name] == expected[mode][name]
            assert scores["tempered"][name] == expected["tempered"][mode][name]
        assert scores["tempered"]["temperature"] == expected["tempered"][mode]["temperature"]
        assert list(scores["auroc"]) == ["noise", "more"]
        assert scores["auroc"]["more"]["entropy"] == expected["ood"][mode]["entropy"]["auroc"]
    assert result["mc"]["auroc"]["more"]["epistemic"] == expected["ood"]["mc"]["epistemic"]["auroc"]
    assert result["map"]["auroc"]["more"]["epistemic"] is None


@pytest.mark.parametrize("outside", [{}, {"noise": pictures(5)}])
def test_without_a_temperature(net, outside):
    result = calibration(net, pictures(10), outside, samples=2)
    assert list(result) == ["analytic", "mc", "map"]
    assert all("tempered" not in scores and list(scores["auroc"]) == list(outside) for scores in result.values())
