"""Metrics against scikit-learn, scipy and plain loops."""

from itertools import permutations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, stats
from scipy.optimize import brentq
from sklearn import metrics as reference
from torch import Tensor

from bqn import metrics


def _predictions(examples: int = 300, classes: int = 5, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Probabilities with some skill, and labels; rounded logits make ties."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(classes, (examples,), generator=generator)
    logits = torch.randn(examples, classes, generator=generator, dtype=torch.float64).mul(2).round()
    logits[torch.arange(examples), y] += 1
    return torch.softmax(logits, -1), y


def _scores(seed: int, examples: int = 60) -> tuple[Tensor, Tensor]:
    """Scores of a detector with many ties, and which examples are positive."""
    generator = torch.Generator().manual_seed(seed)
    positive = torch.rand(examples, generator=generator) < 0.4
    positive[:2] = torch.tensor([True, False])
    return (torch.randn(examples, generator=generator) * 2 + positive).round(), positive


class TestClassification:
    def test_nll_is_log_loss(self) -> None:
        probs, y = _predictions()
        expected = reference.log_loss(y, probs.double(), labels=range(5))
        assert metrics.nll(probs, y) == pytest.approx(expected, rel=1e-6)

    def test_nll_of_a_probability_that_underflowed_is_finite(self) -> None:
        assert metrics.nll(torch.tensor([[1.0, 0.0]]), torch.tensor([1])) == pytest.approx(87.3365, abs=1e-3)

    def test_error_is_one_minus_accuracy(self) -> None:
        probs, y = _predictions()
        assert metrics.error(probs, y) == pytest.approx(1 - reference.accuracy_score(y, probs.argmax(-1)))

    def test_wrong_marks_the_errors(self) -> None:
        probs, y = _predictions()
        assert metrics.wrong(probs, y).tolist() == [
            int(row.argmax()) != int(label) for row, label in zip(probs, y, strict=True)
        ]

    def test_brier_is_the_squared_distance_to_one_hot(self) -> None:
        probs, y = _predictions()
        expected = np.mean(np.sum((probs.double().numpy() - np.eye(5)[y.numpy()]) ** 2, 1))
        assert metrics.brier(probs, y) == pytest.approx(expected, rel=1e-6)

    def test_brier_of_two_classes_is_twice_scikit_learns(self) -> None:
        probs, y = _predictions(classes=2)
        expected = 2 * reference.brier_score_loss(y, probs[:, 1])
        assert metrics.brier(probs, y) == pytest.approx(expected, rel=1e-6)

    def test_confusion_matrix(self) -> None:
        probs, y = _predictions()
        expected = reference.confusion_matrix(y, probs.argmax(-1), labels=range(5))
        assert metrics.confusion_matrix(probs, y).tolist() == expected.tolist()


class TestCalibration:
    @pytest.mark.parametrize("bins", [1, 7, 15])
    def test_ece_bin_by_bin(self, bins: int) -> None:
        probs, y = _predictions()
        members: list[list[tuple[float, bool]]] = [[] for _ in range(bins)]
        for row, label in zip(probs.double(), y, strict=True):
            confidence = float(row.max())
            members[min(int(confidence * bins), bins - 1)].append((confidence, int(row.argmax()) == int(label)))
        expected = 0.0
        for part in members:
            if part:
                gap = np.mean([hit for _, hit in part]) - np.mean([confidence for confidence, _ in part])
                expected += len(part) / len(y) * abs(gap)
        assert metrics.ece(probs, y, bins) == pytest.approx(expected, rel=1e-9)

    def test_reliability_bins_add_up(self) -> None:
        probs, y = _predictions()
        diagram = metrics.reliability(probs, y, 10)
        full = diagram.examples > 0
        assert int(diagram.examples.sum()) == len(y)
        assert torch.equal(diagram.accuracy.isnan(), ~full)
        hits = (diagram.accuracy * diagram.examples)[full].sum() / len(y)
        assert float(hits) == pytest.approx(1 - metrics.error(probs, y))
        low = torch.arange(10)[full] / 10
        assert ((diagram.confidence[full] >= low) & (diagram.confidence[full] <= low + 0.1)).all()

    def test_full_confidence_falls_into_the_last_bin(self) -> None:
        diagram = metrics.reliability(torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 0]), 4)
        assert diagram.examples.tolist() == [0, 0, 0, 2]
        assert float(diagram.accuracy[-1]) == 0.5

    def test_adaptive_ece_bin_by_bin(self) -> None:
        probs = torch.softmax(3 * torch.randn(101, 4, dtype=torch.float64), -1)
        y = torch.randint(4, (101,))
        confidence, hit = probs.max(-1).values.numpy(), (probs.argmax(-1) == y).numpy()
        order = np.argsort(confidence)
        expected = sum(
            len(part) / 101 * abs(hit[part].mean() - confidence[part].mean()) for part in np.array_split(order, 10)
        )
        assert metrics.adaptive_ece(probs, y, 10) == pytest.approx(expected, rel=1e-9)

    def test_adaptive_ece_does_not_depend_on_the_order_of_ties(self) -> None:
        probs, y = _predictions(classes=2)
        order = torch.randperm(len(y))
        assert metrics.adaptive_ece(probs, y) == pytest.approx(metrics.adaptive_ece(probs[order], y[order]), rel=1e-9)

    def test_calibrated_predictions_have_small_errors(self) -> None:
        probs = torch.softmax(torch.randn(100_000, 3, dtype=torch.float64), -1)
        y = torch.multinomial(probs, 1).squeeze(-1)
        assert metrics.ece(probs, y) < 0.01
        assert metrics.adaptive_ece(probs, y) < 0.01

    def test_more_bins_than_examples(self) -> None:
        probs, y = _predictions(3)
        gaps = (probs.argmax(-1) == y).double() - probs.double().amax(-1)
        assert metrics.adaptive_ece(probs.double(), y, 50) == pytest.approx(float(gaps.abs().mean()), rel=1e-6)


class TestUncertainty:
    def test_entropy(self) -> None:
        probs, _ = _predictions()
        assert np.allclose(metrics.entropy(probs), stats.entropy(probs.double().numpy(), axis=-1))

    def test_entropy_of_certainty_is_zero(self) -> None:
        assert metrics.entropy(torch.tensor([[1.0, 0.0]])).tolist() == [0.0]

    def test_mutual_information_is_the_mean_divergence_from_the_mixture(self) -> None:
        members = torch.softmax(torch.randn(4, 20, 3, dtype=torch.float64), -1)
        mixture = members.mean(0)
        expected = np.mean([stats.entropy(member, mixture, axis=-1) for member in members.numpy()], 0)
        assert np.allclose(metrics.mutual_information(members), expected)

    def test_members_that_agree_share_no_information(self) -> None:
        members = torch.softmax(torch.randn(1, 20, 3), -1).expand(4, -1, -1)
        assert metrics.mutual_information(members).abs().max() < 1e-7


class TestSelectivePrediction:
    def test_curve_by_counting(self) -> None:
        confidence, loss = torch.tensor([0.9, 0.2, 0.7, 0.5]), torch.tensor([False, True, True, False])
        coverage, risk = metrics.risk_coverage(confidence, loss)
        assert coverage.tolist() == [0.25, 0.5, 0.75, 1.0]
        assert risk.tolist() == pytest.approx([0, 1 / 2, 1 / 3, 2 / 4])

    def test_ties_average_over_all_orders(self) -> None:
        confidence, loss = [0.9, 0.5, 0.5, 0.5, 0.1], [1.0, 0.0, 1.0, 3.0, 0.0]
        curves = []
        for order in permutations(range(5)):
            ranked = [confidence[index] for index in order]
            if ranked == sorted(ranked, reverse=True):
                curves.append(np.cumsum([loss[index] for index in order]) / np.arange(1, 6))
        _, risk = metrics.risk_coverage(torch.tensor(confidence), torch.tensor(loss))
        assert len(curves) == 6
        assert np.allclose(risk, np.mean(curves, 0))

    def test_risk_at_full_coverage_is_the_error(self) -> None:
        probs, y = _predictions()
        _, risk = metrics.risk_coverage(probs.amax(-1), metrics.wrong(probs, y))
        assert float(risk[-1]) == pytest.approx(metrics.error(probs, y))

    def test_no_confidence_is_worth_the_error(self) -> None:
        loss = torch.rand(50) < 0.3
        assert metrics.aurc(torch.zeros(50), loss) == pytest.approx(float(loss.double().mean()))

    def test_excess_is_zero_for_the_best_ranking_alone(self) -> None:
        loss = torch.tensor([False, False, True, False, True])
        assert metrics.excess_aurc(torch.tensor([0.9, 0.8, 0.2, 0.7, 0.1]), loss) == 0
        best = min(metrics.aurc(-torch.tensor(order, dtype=torch.float64), loss) for order in permutations(range(5)))
        confidence = torch.tensor([0.1, 0.8, 0.9, 0.7, 0.3])
        assert metrics.excess_aurc(confidence, loss) == pytest.approx(metrics.aurc(confidence, loss) - best)


class TestDetection:
    @given(st.integers(0, 10_000))
    def test_auroc(self, seed: int) -> None:
        scores, positive = _scores(seed)
        assert metrics.auroc(scores, positive) == pytest.approx(reference.roc_auc_score(positive, scores), abs=1e-12)

    @given(st.integers(0, 10_000))
    def test_aupr(self, seed: int) -> None:
        scores, positive = _scores(seed)
        expected = reference.average_precision_score(positive, scores)
        assert metrics.aupr(scores, positive) == pytest.approx(expected, abs=1e-12)

    @given(st.integers(0, 10_000))
    def test_fpr95(self, seed: int) -> None:
        scores, positive = _scores(seed)
        false, true, _ = reference.roc_curve(positive, scores, drop_intermediate=False)
        expected = false[np.flatnonzero(true >= 0.95 - 1e-12)[0]]
        assert metrics.fpr95(scores, positive) == pytest.approx(expected, abs=1e-12)

    def test_fpr95_at_exactly_95_percent(self) -> None:
        scores = torch.cat((torch.arange(20.0), torch.tensor([0.5, -1.0])))  # 19 of 20 positives reach 1
        assert metrics.fpr95(scores, torch.arange(22) < 20) == 0

    def test_constant_scores_tell_nothing(self) -> None:
        positive = torch.arange(10) < 3
        assert metrics.auroc(torch.zeros(10), positive) == 0.5
        assert metrics.aupr(torch.zeros(10), positive) == pytest.approx(0.3)
        assert metrics.fpr95(torch.zeros(10), positive) == 1

    def test_perfect_scores(self) -> None:
        positive = torch.arange(10) < 3
        assert metrics.auroc(positive.float(), positive) == 1
        assert metrics.aupr(positive.float(), positive) == 1
        assert metrics.fpr95(positive.float(), positive) == 0


def _mixture(members: int, examples: int = 30, outputs: int = 2) -> tuple[Tensor, Tensor, Tensor]:
    means = 2 * torch.randn(members, examples, outputs, dtype=torch.float64)
    variances = 0.2 + torch.rand(members, examples, outputs, dtype=torch.float64)
    return means, variances, 2 * torch.randn(examples, outputs, dtype=torch.float64)


class TestRegression:
    def test_rmse(self) -> None:
        means, _, y = _mixture(1)
        assert metrics.rmse(means[0], y) == pytest.approx(reference.mean_squared_error(y, means[0]) ** 0.5)

    def test_log_likelihood(self) -> None:
        means, variances, y = _mixture(1)
        expected = stats.norm(means[0], variances[0].sqrt()).logpdf(y).sum(-1).mean()
        assert metrics.log_likelihood(means[0], variances[0], y) == pytest.approx(expected)

    def test_mixture_log_likelihood(self) -> None:
        means, variances, y = _mixture(3)
        densities = stats.norm(means, variances.sqrt()).pdf(y).prod(-1)
        assert metrics.mixture_log_likelihood(means, variances, y) == pytest.approx(np.log(densities.mean(0)).mean())

    def test_far_targets_do_not_underflow(self) -> None:
        far = torch.full((1, 1), 1e3, dtype=torch.float64)
        value = metrics.mixture_log_likelihood(torch.zeros(2, 1, 1), torch.ones(2, 1, 1), far)
        assert value == pytest.approx(stats.norm.logpdf(1e3))

    @pytest.mark.parametrize("probability", [0.025, 0.5, 0.9])
    def test_quantile_inverts_the_distribution_function(self, probability: float) -> None:
        means, variances, _ = _mixture(3, examples=4)
        found = metrics.quantile(means, variances, probability)
        for row in range(4):
            for column in range(2):
                member = stats.norm(means[:, row, column], variances[:, row, column].sqrt())
                expected = brentq(lambda t, law=member: law.cdf(t).mean() - probability, -50, 50, xtol=1e-12)
                assert float(found[row, column]) == pytest.approx(expected, abs=1e-9)

    @pytest.mark.parametrize("level", [0.5, 0.8, 0.9, 0.95])
    def test_intervals_of_a_mixture(self, level: float) -> None:
        means, variances, y = _mixture(3)
        low = metrics.quantile(means, variances, 0.5 - level / 2)
        high = metrics.quantile(means, variances, 0.5 + level / 2)
        inside = ((low <= y) & (y <= high)).double().mean()
        assert metrics.interval_coverage(means, variances, y, level) == pytest.approx(float(inside))
        assert metrics.interval_width(means, variances, level) == pytest.approx(float((high - low).mean()))

    @pytest.mark.parametrize("level", [0.5, 0.95])
    def test_intervals_of_one_normal(self, level: float) -> None:
        means, variances, _ = _mixture(1, examples=40_000)
        y = means[0] + variances[0].sqrt() * torch.randn_like(means[0])
        low, high = stats.norm.interval(level, means[0], variances[0].sqrt())
        assert metrics.interval_width(means, variances, level) == pytest.approx((high - low).mean())
        assert metrics.interval_coverage(means, variances, y, level) == pytest.approx(level, abs=0.01)

    def test_crps_is_the_integrated_squared_distance_of_distribution_functions(self) -> None:
        means, variances, y = _mixture(3, examples=1, outputs=1)
        member, target = stats.norm(means.flatten(), variances.flatten().sqrt()), float(y)
        below = integrate.quad(lambda t: member.cdf(t).mean() ** 2, -40, target)[0]
        above = integrate.quad(lambda t: (1 - member.cdf(t).mean()) ** 2, target, 40)[0]
        assert metrics.crps(means, variances, y) == pytest.approx(below + above, rel=1e-6)

    def test_crps_of_a_sharp_prediction_is_the_absolute_error(self) -> None:
        means, _, y = _mixture(1)
        found = metrics.crps(means, torch.full_like(means, 1e-12), y)
        assert found == pytest.approx(float((means[0] - y).abs().mean()), rel=1e-5)


PROBS, LABELS = torch.full((4, 2), 0.5), torch.zeros(4, dtype=torch.int64)


class TestBadInput:
    @pytest.mark.parametrize(
        "name", ["nll", "error", "brier", "ece", "adaptive_ece", "confusion_matrix", "reliability"]
    )
    @pytest.mark.parametrize(
        ("probs", "y", "message"),
        [
            (PROBS, LABELS[:3], "y must have shape"),
            (PROBS, LABELS + 2, "y must hold labels from 0 to 1"),
            (PROBS[0], LABELS[0], "probs must be floating"),
            (PROBS.long(), LABELS, "probs must be floating"),
            (PROBS[:0], LABELS[:0], "probs must hold at least one example"),
            (torch.tensor([[3.0, 2.0]]), LABELS[:1], "probs must lie between 0 and 1, got values from 2 to 3"),
            (torch.tensor([[1.5, -0.5]]), LABELS[:1], "probs must lie between 0 and 1, got values from -0.5 to 1.5"),
            (0.9 * PROBS, LABELS, "probs must sum to one in each row, got sums from 0.9 to 0.9"),
            (torch.tensor([[0.5, torch.nan], [0.5, 0.5]]), LABELS[:2], "probs must not be NaN, got NaN in 1 of 2 rows"),
        ],
    )
    def test_predictions(self, name: str, probs: Tensor, y: Tensor, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            getattr(metrics, name)(probs, y)

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
    def test_rounded_probabilities_are_no_bad_input(self, dtype: torch.dtype) -> None:
        logits = 3 * torch.randn(500, 1000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        probs, y = torch.softmax(logits, -1).to(dtype), logits.argmax(-1)
        exact = metrics.nll(torch.softmax(logits, -1), y)
        assert metrics.nll(probs, y) == pytest.approx(exact, rel=4 * torch.finfo(dtype).eps)
        four_digits = torch.softmax(logits[:, :5], -1).mul(1e4).round().div(1e4).to(torch.float32)
        assert 0 <= metrics.ece(four_digits, y % 5) <= 1

    @pytest.mark.parametrize("name", ["ece", "adaptive_ece", "reliability"])
    def test_bins(self, name: str) -> None:
        with pytest.raises(ValueError, match="bins must be a positive integer, got 0"):
            getattr(metrics, name)(PROBS, LABELS, bins=0)

    @pytest.mark.parametrize("name", ["auroc", "aupr", "fpr95"])
    def test_detection_needs_both_kinds(self, name: str) -> None:
        with pytest.raises(ValueError, match="positive must be true for some"):
            getattr(metrics, name)(torch.rand(4), torch.ones(4, dtype=torch.bool))
        with pytest.raises(ValueError, match="scores must not be NaN, got 1"):
            getattr(metrics, name)(torch.tensor([0.0, torch.nan]), torch.tensor([True, False]))

    def test_risk_coverage_shapes(self) -> None:
        with pytest.raises(ValueError, match="confidence and loss must both have shape"):
            metrics.risk_coverage(torch.rand(4), torch.rand(3))

    def test_members(self) -> None:
        with pytest.raises(ValueError, match="members must have shape"):
            metrics.mutual_information(PROBS)

    def test_mixtures(self) -> None:
        means, variances, y = _mixture(2)
        with pytest.raises(ValueError, match="means and variances must have shape"):
            metrics.crps(means, variances, y[:-1])
        with pytest.raises(ValueError, match="variances must be positive"):
            metrics.crps(means, 0 * variances, y)
        with pytest.raises(ValueError, match="level must lie between 0 and 1, got 95"):
            metrics.interval_coverage(means, variances, y, 95)
        with pytest.raises(ValueError, match="probability must lie between 0 and 1"):
            metrics.quantile(means, variances, 0)
        with pytest.raises(ValueError, match="y must have the shape of mean"):
            metrics.rmse(means[0], y[:-1])
