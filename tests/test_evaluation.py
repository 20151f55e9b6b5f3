"""Evaluation: its numbers are those of the metrics, its shape is what the command line and the report rely on."""

import json
import math
from typing import Any

import pytest
import torch
from torch import Tensor

import bqn
from bqn import metrics
from bqn.corruptions import STRENGTHS, corrupt
from bqn.data import Split, to_input
from bqn.evaluation import Details, evaluate, score_detection
from bqn.network import evaluating
from bqn.predictions import Classified, Predictor, Regressed

CLASSES = 3
SCORES = {"nll", "error", "ece", "ece_adaptive", "brier", "aurc", "excess_aurc", "entropy"}
PLAIN = {"analytic", "mc", "map"}
ALL = PLAIN | {"mc_recalibrated", "map_recalibrated"}


def _images(examples: int, seed: int = 0) -> Split:
    """Three kinds of images: the brightest of three columns tells the label, if not always."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(CLASSES, (examples,), generator=generator)
    x = torch.randint(200, (examples, 1, 6, 6), generator=generator)
    x[torch.arange(examples), 0, :, y] += torch.randint(56, (examples, 6), generator=generator)
    return Split(x.to(torch.uint8), y)


@pytest.fixture(scope="module")
def net() -> bqn.Network:
    """A classifier after a few steps of training."""
    torch.manual_seed(0)
    net, data = bqn.models.mlp(36, CLASSES, hidden=(24,)), _images(300)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.05)
    for _ in range(40):
        optimizer.zero_grad()
        (-net.elbo(to_input(data.x), data.y, data_size=300, lam=1e-2)).backward()
        optimizer.step()
    return net


@pytest.fixture(scope="module")
def regressor() -> bqn.Network:
    torch.manual_seed(0)
    return bqn.models.regressor(4, hidden=(20,))


@pytest.fixture(scope="module")
def data() -> Split:
    """A regression with targets far from standardized."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(60, 4, generator=generator)
    return Split(x, 10 + 5 * torch.randn(60, 1, generator=generator) + x[:, :1])


def _require_plain(value: Any) -> None:
    """What JSON can hold, and no NaN."""
    if isinstance(value, dict):
        assert all(isinstance(key, str) for key in value)
        for item in value.values():
            _require_plain(item)
    elif isinstance(value, list):
        for item in value:
            _require_plain(item)
    else:
        assert value is None or type(value) in (int, float, str)
        assert value is None or isinstance(value, str) or math.isfinite(value)


class TestClassification:
    def test_shape_of_the_result(self, net: bqn.Network) -> None:
        result = evaluate(net, _images(50))
        assert set(result) == PLAIN | {"settings", "curves"}
        for mode in PLAIN:
            extra = {"bound"} if mode == "analytic" else set()
            assert set(result[mode]) == SCORES | {"aleatoric", "epistemic"} | extra
        assert result["settings"] == {
            "examples": 50,
            "samples": 5,
            "seed": 0,
            "bins": 15,
            "batch_size": 500,
            "recalibration_inputs": None,
        }

    def test_everything_is_ready_for_json(self, net: bqn.Network) -> None:
        result = evaluate(net, _images(40), recalibrate_on=_images(60, 1), ood=_images(20, 2), corruptions=True)
        _require_plain(result)
        assert json.loads(json.dumps(result, allow_nan=False)) == result
        assert set(result["curves"]) == ALL
        assert set(result["ood"]) == ALL | {"examples"}
        assert all(set(result["corruptions"][kind]) == ALL | {"strengths"} for kind in STRENGTHS)

    @pytest.mark.parametrize("mode", sorted(PLAIN))
    def test_scores_are_the_metrics_of_the_networks_prediction(self, net: bqn.Network, mode: str) -> None:
        test = _images(80)
        scores = evaluate(net, test, samples=3, seed=2, batch_size=30, bins=7)[mode]
        probs = net.predict(to_input(test.x), mode, samples=3, generator=torch.Generator().manual_seed(2))
        wrong = probs.argmax(-1) != test.y
        assert scores["nll"] == pytest.approx(metrics.nll(probs, test.y), abs=1e-5)
        assert scores["error"] == metrics.error(probs, test.y)
        assert scores["ece"] == pytest.approx(metrics.ece(probs, test.y, 7), abs=1e-5)
        assert scores["ece_adaptive"] == pytest.approx(metrics.adaptive_ece(probs, test.y, 7), abs=1e-5)
        assert scores["brier"] == pytest.approx(metrics.brier(probs, test.y), abs=1e-5)
        assert scores["entropy"] == pytest.approx(float(metrics.entropy(probs).mean()), abs=1e-5)
        assert scores["aurc"] == pytest.approx(metrics.aurc(probs.amax(-1), wrong), abs=1e-5)
        assert scores["excess_aurc"] == pytest.approx(metrics.excess_aurc(probs.amax(-1), wrong), abs=1e-5)

    def test_the_bound_lies_above_the_predictive_nll(self, net: bqn.Network) -> None:
        test = _images(80)
        scores = evaluate(net, test)["analytic"]
        with torch.no_grad(), evaluating(net):
            expected = -net.head.log_likelihood(net(to_input(test.x)), test.y).mean()
        assert scores["bound"] == pytest.approx(float(expected), abs=1e-5)
        assert scores["bound"] > scores["nll"]

    def test_parts_of_the_entropy(self, net: bqn.Network) -> None:
        result = evaluate(net, _images(80))
        for mode in ("analytic", "mc"):
            parts = result[mode]["aleatoric"] + result[mode]["epistemic"]
            assert parts == pytest.approx(result[mode]["entropy"])
        assert result["map"]["epistemic"] is None
        assert result["map"]["aleatoric"] == pytest.approx(result["map"]["entropy"])

    def test_curves(self, net: bqn.Network) -> None:
        test = _images(70)
        result = evaluate(net, test, bins=10)
        for mode in PLAIN:
            curves = result["curves"][mode]
            assert sum(curves["reliability"]["examples"]) == 70
            assert [len(values) for values in curves["reliability"].values()] == [10, 10, 10]
            assert curves["reliability"]["confidence"][0] is None  # no maximum of three is below a tenth
            assert len(curves["risk_coverage"]["risk"]) == len(curves["risk_coverage"]["coverage"]) == 20
            assert curves["risk_coverage"]["coverage"][-1] == 1
            assert curves["risk_coverage"]["risk"][-1] == pytest.approx(result[mode]["error"])
            hits = sum(curves["confusion"][label][label] for label in range(CLASSES))
            assert hits / 70 == pytest.approx(1 - result[mode]["error"])

    def test_curves_of_very_few_examples(self, net: bqn.Network) -> None:
        curve = evaluate(net, _images(3))["curves"]["map"]["risk_coverage"]
        assert curve["coverage"] == sorted(curve["coverage"])
        assert set(curve["coverage"]) == {1 / 3, 2 / 3, 1.0}

    def test_deterministic_for_a_seed(self, net: bqn.Network) -> None:
        options: dict[str, Any] = {"recalibrate_on": _images(60, 1), "ood": _images(20, 2), "corruptions": True}
        first, again = (evaluate(net, _images(40), seed=3, **options) for _ in range(2))
        torch.manual_seed(99)  # the global generator plays no part
        assert first == again == evaluate(net, _images(40), seed=3, **options)
        assert first["mc"] != evaluate(net, _images(40), seed=4)["mc"]

    def test_batches_make_no_difference(self, net: bqn.Network) -> None:
        large, small = (evaluate(net, _images(50), batch_size=size) for size in (50, 8))
        for mode in PLAIN:
            for name in SCORES - {"ece", "ece_adaptive"}:  # these may jump where a bin or tie is met by rounding
                assert large[mode][name] == pytest.approx(small[mode][name], abs=1e-5)

    def test_recalibrated_modes(self, net: bqn.Network) -> None:
        test, train = _images(60), _images(150, 1)
        result = evaluate(net, test, samples=2, recalibrate_on=train)
        assert set(result) == ALL | {"settings", "curves"}
        assert result["settings"]["recalibration_inputs"] == 150
        by_hand = bqn.recalibrate(net.mode(), to_input(train.x)).predict(to_input(test.x))
        assert result["map_recalibrated"]["nll"] == pytest.approx(metrics.nll(by_hand, test.y), abs=1e-4)
        assert result["map_recalibrated"]["nll"] != result["map"]["nll"]
        assert result["mc"] == evaluate(net, test, samples=2)["mc"]

    def test_prepare(self, net: bqn.Network) -> None:
        test = _images(30)
        plain = evaluate(net, test)
        features = Split(to_input(test.x).flatten(1), test.y)
        assert evaluate(net, features)["map"] == plain["map"]
        inverted = evaluate(net, test, prepare=lambda x: to_input(255 - x))
        assert inverted["map"]["nll"] != plain["map"]["nll"]

    def test_details(self, net: bqn.Network) -> None:
        test, ood = _images(30), _images(10, 1)
        result, details = evaluate(net, test, ood=ood, details=True)
        assert isinstance(details, Details)
        assert torch.equal(details.y, test.y)
        assert set(details.modes) == set(details.ood) == PLAIN
        for mode, given in details.modes.items():
            assert isinstance(given, Classified)
            assert given.probs.shape == (30, CLASSES)
            assert metrics.nll(given.probs, test.y) == result[mode]["nll"]
            assert details.ood[mode].entropy.shape == (10,)


class TestOutOfDistribution:
    def test_scores_by_entropy_and_by_epistemic_uncertainty(self, net: bqn.Network) -> None:
        test = _images(60)
        generator = torch.Generator().manual_seed(7)
        ood = Split(torch.randint(256, (40, 1, 6, 6), generator=generator).to(torch.uint8), torch.zeros(40).long())
        result = evaluate(net, test, ood=ood)["ood"]
        assert result["examples"] == 40
        predictor = Predictor(net)
        for mode in PLAIN:
            inside, outside = (predictor.classify(mode, split.x) for split in (test, ood))
            positive = torch.arange(100) >= 60
            scores = torch.cat((inside.entropy, outside.entropy))
            assert result[mode]["entropy"]["auroc"] == metrics.auroc(scores, positive)
            assert result[mode]["entropy"]["aupr"] == metrics.aupr(scores, positive)
            assert result[mode]["entropy"]["fpr95"] == metrics.fpr95(scores, positive)
        assert set(result["analytic"]["epistemic"]) == {"auroc", "aupr", "fpr95"}
        assert result["map"]["epistemic"] is None

    def test_outside_examples_are_the_positives(self) -> None:
        assert score_detection(torch.zeros(5), torch.ones(3)) == {"auroc": 1.0, "aupr": 1.0, "fpr95": 0.0}
        assert score_detection(None, None) is None


class TestCorruptions:
    def test_scores_of_corrupted_images(self, net: bqn.Network) -> None:
        test = _images(40)
        result = evaluate(net, test, corruptions=True, seed=1)["corruptions"]
        assert set(result) == set(STRENGTHS)
        for kind, strengths in STRENGTHS.items():
            assert result[kind]["strengths"] == list(strengths)
            for mode in PLAIN:
                assert set(result[kind][mode]) == SCORES
                assert all(len(values) == 5 for values in result[kind][mode].values())
            x = corrupt(test.x, kind, strengths[3], torch.Generator().manual_seed(1))
            expected = metrics.nll(net.predict(to_input(x)), test.y)
            assert result[kind]["analytic"]["nll"][3] == pytest.approx(expected, abs=1e-5)


class TestRegression:
    def test_shape_of_the_result(self, regressor: bqn.Network, data: Split) -> None:
        result, details = evaluate(regressor, data, recalibrate_on=data, details=True)
        assert set(result) == ALL | {"settings"}
        names = {"rmse", "log_likelihood", "nll", "crps", "variance", "aleatoric", "epistemic"}
        for level in (50, 80, 90, 95):
            names |= {f"coverage_{level}", f"width_{level}"}
        for mode in ALL:
            assert set(result[mode]) == names | ({"bound"} if mode == "analytic" else set())
            assert isinstance(details.modes[mode], Regressed)
        _require_plain(result)
        json.dumps(result, allow_nan=False)

    @pytest.mark.parametrize("mode", ["analytic", "map"])
    def test_scores_on_the_scale_of_the_targets(self, regressor: bqn.Network, data: Split, mode: str) -> None:
        scores = evaluate(regressor, data, target_scale=(10.0, 5.0), batch_size=7)[mode]
        predicted = regressor.predict(data.x, mode)
        mean, var = predicted.mean * 5 + 10, predicted.var * 25
        assert scores["rmse"] == pytest.approx(metrics.rmse(mean, data.y), rel=1e-5)
        assert scores["log_likelihood"] == pytest.approx(metrics.log_likelihood(mean, var, data.y), rel=1e-5)
        assert scores["nll"] == -scores["log_likelihood"]
        assert scores["variance"] == pytest.approx(float(var.mean()), rel=1e-5)
        score = torch.special.ndtri(torch.tensor(0.95))
        inside = ((data.y - mean).abs() <= score * var.sqrt()).double().mean()
        assert scores["coverage_90"] == pytest.approx(float(inside))
        assert scores["width_90"] == pytest.approx(float((2 * score * var.sqrt()).mean()), rel=1e-5)

    def test_mc_is_a_mixture(self, regressor: bqn.Network, data: Split) -> None:
        scores = evaluate(regressor, data, samples=3, seed=2)["mc"]
        generator = torch.Generator().manual_seed(2)
        members = [regressor.sample(generator).predict(data.x) for _ in range(3)]
        means, variances = (torch.stack([part[index] for part in members]) for index in range(2))
        expected = metrics.mixture_log_likelihood(means, variances, data.y)
        assert scores["log_likelihood"] == pytest.approx(expected, rel=1e-5)
        assert scores["epistemic"] == pytest.approx(float(means.var(0, correction=0).mean()), rel=1e-5)
        assert scores["crps"] == pytest.approx(metrics.crps(means, variances, data.y), rel=1e-5)

    def test_bound(self, regressor: bqn.Network, data: Split) -> None:
        scores = evaluate(regressor, data, target_scale=(10.0, 5.0))["analytic"]
        with torch.no_grad():
            expected = math.log(5) - regressor.head.log_likelihood(regressor(data.x), (data.y - 10) / 5).mean()
        assert scores["bound"] == pytest.approx(float(expected), rel=1e-5)
        assert scores["bound"] >= scores["nll"]
        assert scores["variance"] == pytest.approx(scores["aleatoric"] + scores["epistemic"])

    def test_scale_of_several_outputs(self) -> None:
        net, x, y = bqn.models.regressor(4, out_features=2), torch.randn(8, 4), torch.randn(8, 2)
        scale = torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0])
        scores = evaluate(net, Split(x, y), target_scale=scale)["map"]
        assert scores["rmse"] == pytest.approx(
            metrics.rmse(net.predict(x, "map").mean * scale[1] + scale[0], y), rel=1e-5
        )


class TestBadInput:
    @pytest.mark.parametrize("name", ["samples", "batch_size", "bins"])
    def test_counts(self, net: bqn.Network, name: str) -> None:
        with pytest.raises(ValueError, match=f"{name} must be a positive integer, got 0"):
            evaluate(net, _images(4), **{name: 0})  # type: ignore[call-overload]

    def test_empty_sets(self, net: bqn.Network) -> None:
        for name in ("test", "ood", "recalibrate_on"):
            sets: dict[str, Any] = {"test": _images(4)} | {name: _images(0)}
            with pytest.raises(ValueError, match=f"{name} must hold at least one example"):
                evaluate(net, **sets)

    @pytest.mark.parametrize("name", ["ood", "recalibrate_on"])
    def test_sets_of_another_kind(self, net: bqn.Network, name: str) -> None:
        other = Split(torch.zeros(4, 3, 6, 6, dtype=torch.uint8), torch.zeros(4, dtype=torch.int64))
        with pytest.raises(ValueError, match=rf"{name} must hold examples like those of test, torch.uint8 \(1, 6, 6\)"):
            evaluate(net, _images(4), **{name: other})  # type: ignore[call-overload]

    def test_labels_the_model_does_not_know(self, net: bqn.Network) -> None:
        with pytest.raises(ValueError, match="y must hold labels from 0 to 2, got values from 0 to 3"):
            evaluate(net, Split(_images(4).x, torch.arange(4)))

    def test_targets_of_the_other_task(self, net: bqn.Network) -> None:
        x = torch.randn(4, 36)
        with pytest.raises(TypeError, match="y must be an integer tensor"):
            evaluate(net, Split(x, torch.randn(4, 1)))
        with pytest.raises(TypeError, match="y must be a floating-point tensor"):
            evaluate(bqn.models.regressor(36), Split(x, torch.arange(4)))

    def test_options_of_the_other_task(self, net: bqn.Network) -> None:
        regressor, data = bqn.models.regressor(4), Split(torch.randn(4, 4), torch.randn(4, 1))
        with pytest.raises(ValueError, match="ood, corruptions and temper_on are for classification"):
            evaluate(regressor, data, corruptions=True)
        with pytest.raises(ValueError, match="ood, corruptions and temper_on are for classification"):
            evaluate(regressor, data, ood=data)
        with pytest.raises(ValueError, match="target_scale is for regression"):
            evaluate(net, _images(4), target_scale=(0.0, 1.0))
        with pytest.raises(ValueError, match="target_scale must have a positive standard deviation"):
            evaluate(regressor, data, target_scale=(0.0, 0.0))

    def test_corruptions_of_features(self, net: bqn.Network) -> None:
        features: Tensor = to_input(_images(4).x).flatten(1)
        with pytest.raises(ValueError, match=r"test.x must be uint8 images"):
            evaluate(net, Split(features, _images(4).y), corruptions=True)


def test_what_comes_next_is_told_before_its_turn(net: bqn.Network, regressor: bqn.Network, data: Split) -> None:
    told: list[str] = []
    options = {"recalibrate_on": _images(60, 1), "temper_on": _images(30, 3), "ood": _images(20, 2)}
    evaluate(net, _images(40), **options, corruptions=True, tell=told.append)
    modes = ["analytic", "mc", "map", "mc, recalibrated", "map, recalibrated"]
    steps = [f"{kind} {number} of 5, " for kind in STRENGTHS for number in range(1, 6)]
    assert told == [before + mode for before in ("", "ood, ", *steps, "temperature, ") for mode in modes]
    told.clear()
    evaluate(regressor, data, tell=told.append)
    assert told == ["analytic", "mc", "map"]
