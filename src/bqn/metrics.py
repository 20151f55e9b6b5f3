"""Metrics: pure functions of predictions and targets.

Nats for everything logarithmic, fractions for everything else. All sums are made in float64. Equal scores never make a
result depend on the order of the examples.
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import NamedTuple

import torch
from torch import Tensor

from bqn.checks import require_labels, require_positive

_ROUNDING = 1e-3  # probabilities that were written with few digits are still probabilities

# --- classification: probs (N, K), y (N,) ---------------------------------------------------------------------------


def nll(probs: Tensor, y: Tensor) -> float:
    """Mean negative log-likelihood of the labels, in nats; probs is `(N, K)`, y is `(N,)`.

    A probability that has underflowed to zero counts as the smallest positive number of its dtype.
    """
    _require_predictions(probs, y)
    chosen = probs.gather(-1, y.long().unsqueeze(-1)).squeeze(-1)
    return float(-to_double(chosen.clamp_min(torch.finfo(probs.dtype).tiny)).log().mean())


def error(probs: Tensor, y: Tensor) -> float:
    """Fraction of examples whose most probable class is not the label."""
    return float(to_double(wrong(probs, y)).mean())


def wrong(probs: Tensor, y: Tensor) -> Tensor:
    """Whether the most probable class is not the label: bool `(N,)`."""
    _require_predictions(probs, y)
    return probs.argmax(-1) != y


def brier(probs: Tensor, y: Tensor) -> float:
    """Brier score: squared distance of the probabilities to the one-hot label, summed over classes; from 0 to 2."""
    _require_predictions(probs, y)
    given = to_double(probs)
    chosen = given.gather(-1, y.long().unsqueeze(-1).to(given.device)).squeeze(-1)
    return float((given.square().sum(-1) - 2 * chosen + 1).mean())


def confusion_matrix(probs: Tensor, y: Tensor) -> Tensor:
    """Counts `(K, K)`, int64: row the label, column the most probable class."""
    _require_predictions(probs, y)
    classes = probs.shape[-1]
    cell = y.long() * classes + probs.argmax(-1)
    return torch.bincount(cell, minlength=classes * classes).reshape(classes, classes)


class Reliability(NamedTuple):
    """A reliability diagram: for each bin of confidence, all `(B,)`; NaN where a bin is empty."""

    confidence: Tensor
    accuracy: Tensor
    examples: Tensor


def reliability(probs: Tensor, y: Tensor, bins: int = 15) -> Reliability:
    """Mean confidence, accuracy and number of examples in `bins` bins of confidence of equal width.

    Bin b holds confidences from b / bins, inclusive, to (b + 1) / bins; the last one includes 1.
    """
    confidence, correct = _confidence(probs, y)
    position = (confidence * require_positive(bins, "bins")).long().clamp_max(bins - 1)
    empty = confidence.new_zeros(bins)
    count = empty.index_add(0, position, torch.ones_like(confidence))
    return Reliability(
        empty.index_add(0, position, confidence) / count, empty.index_add(0, position, correct) / count, count.long()
    )


def ece(probs: Tensor, y: Tensor, bins: int = 15) -> float:
    """Expected calibration error: |accuracy - confidence| averaged over `bins` equal bins of confidence."""
    diagram = reliability(probs, y, bins)
    gaps = (diagram.accuracy - diagram.confidence).abs().nan_to_num(0.0)
    return float((gaps * diagram.examples).sum() / len(y))


def adaptive_ece(probs: Tensor, y: Tensor, bins: int = 15) -> float:
    """Expected calibration error over `bins` bins that hold equally many examples, up to one."""
    confidence, correct = _confidence(probs, y)
    order = confidence.argsort()
    gaps = _tie_means(confidence[order], correct[order]) - confidence[order]
    parts = gaps.tensor_split(require_positive(bins, "bins"))
    return float(torch.stack([part.sum().abs() for part in parts]).sum() / len(y))


# --- uncertainty ----------------------------------------------------------------------------------------------------


def entropy(probs: Tensor) -> Tensor:
    """Entropy of each row of `probs` `(..., K)`, float64 `(...)`, in nats."""
    terms: Tensor = torch.special.entr(to_double(probs))
    return terms.sum(-1)


def mutual_information(members: Tensor) -> Tensor:
    """Epistemic uncertainty of an ensemble: entropy of the mean less mean entropy.

    Parameters
    ----------
    members : Tensor `(S, N, K)`
        Probabilities of S networks.

    Returns
    -------
    Tensor `(N,)`, float64, not negative
    """
    if members.dim() != 3 or members.shape[0] == 0:
        raise ValueError(f"members must have shape (members, examples, classes), got {tuple(members.shape)}")
    return (entropy(to_double(members).mean(0)) - entropy(members).mean(0)).clamp_min(0)


# --- selective prediction: answer the most confident examples, refuse the others ------------------------------------


def risk_coverage(confidence: Tensor, loss: Tensor) -> tuple[Tensor, Tensor]:
    """The risk-coverage curve: mean loss of the k most confident examples, for k = 1 … N.

    Among examples of equal confidence the risk is its mean over all their orders.

    Parameters
    ----------
    confidence, loss : Tensor `(N,)`
        `loss` may be bool (wrong or not) or any number per example.

    Returns
    -------
    coverage, risk : Tensor `(N,)`, float64
        Coverage is k / N.
    """
    confidence, loss = _pair(confidence, loss, "confidence", "loss")
    order = confidence.argsort(descending=True)
    answered = torch.arange(1, len(order) + 1, dtype=torch.float64, device=order.device)
    return answered / len(order), _tie_means(confidence[order], loss[order]).cumsum(0) / answered


def aurc(confidence: Tensor, loss: Tensor) -> float:
    """Area under the risk-coverage curve: mean risk over all coverages; arguments `(N,)` as for `risk_coverage`."""
    return float(risk_coverage(confidence, loss)[1].mean())


def excess_aurc(confidence: Tensor, loss: Tensor) -> float:
    """`aurc` less that of the best possible confidence, which ranks the examples by their loss; never negative."""
    return max(0.0, aurc(confidence, loss) - aurc(-to_double(loss), loss))


# --- detection: scores (N,) that should be high where positive (N,) is true -----------------------------------------


def auroc(scores: Tensor, positive: Tensor) -> float:
    """Area under the ROC curve: probability that a positive outscores a negative, ties counting half."""
    true_positive, false_positive = _operating_points(scores, positive)
    return float(torch.trapezoid(true_positive / true_positive[-1], false_positive / false_positive[-1]))


def aupr(scores: Tensor, positive: Tensor) -> float:
    """Area under the precision-recall curve as average precision: precision summed over the steps of recall."""
    true_positive, false_positive = _operating_points(scores, positive)
    precision = true_positive[1:] / (true_positive[1:] + false_positive[1:])
    return float((precision * true_positive.diff()).sum() / true_positive[-1])


def fpr95(scores: Tensor, positive: Tensor) -> float:
    """Smallest fraction of negatives above a threshold that at least 95 % of the positives reach."""
    true_positive, false_positive = _operating_points(scores, positive)
    needed = math.ceil(0.95 * float(true_positive[-1]) - 1e-9)
    first = int((true_positive >= needed).nonzero()[0])
    return float(false_positive[first] / false_positive[-1])


def _operating_points(scores: Tensor, positive: Tensor) -> tuple[Tensor, Tensor]:
    """Numbers of true and false positives at every distinct threshold from the highest down, after a leading zero."""
    scores, flags = _pair(scores, positive, "scores", "positive")
    if not bool(((flags == 0) | (flags == 1)).all()) or not bool(flags.any()) or bool(flags.all()):
        raise ValueError("positive must be true for some examples and false for others, and hold nothing else")
    order = scores.argsort(descending=True)
    ranked, hits = scores[order], flags[order].cumsum(0)
    last = torch.cat([ranked.diff().nonzero().squeeze(-1), torch.tensor([len(ranked) - 1], device=ranked.device)])
    true_positive, answered = hits[last], (last + 1).double()
    start = ranked.new_zeros(1)
    return torch.cat([start, true_positive]), torch.cat([start, answered - true_positive])


# --- regression: mixtures of S normals per output; means and variances (S, N, D), y (N, D) --------------------------
# A single normal is a mixture of one: pass `mean.unsqueeze(0)` and `var.unsqueeze(0)`.


def rmse(mean: Tensor, y: Tensor) -> float:
    """Root mean squared error over all examples and outputs; both `(N, D)`."""
    if mean.shape != y.shape or y.numel() == 0:
        raise ValueError(f"y must have the shape of mean, {tuple(mean.shape)}, and not be empty, got {tuple(y.shape)}")
    return math.sqrt(float((to_double(mean) - to_double(y)).square().mean()))


def log_likelihood(mean: Tensor, var: Tensor, y: Tensor) -> float:
    """Mean over examples of log N(y; mean, var), summed over outputs; all `(N, D)`."""
    return mixture_log_likelihood(mean.unsqueeze(0), var.unsqueeze(0), y)


def mixture_log_likelihood(means: Tensor, variances: Tensor, y: Tensor) -> float:
    """Mean over examples of log p(y) for an equal mixture of S normals, each independent over its outputs."""
    means, variances, y = _mixture(means, variances, y)
    square = (y - means).square() / variances
    members = -0.5 * (square + variances.log() + math.log(2 * math.pi)).sum(-1)
    return float((torch.logsumexp(members, 0) - math.log(len(members))).mean())


def interval_coverage(means: Tensor, variances: Tensor, y: Tensor, level: float) -> float:
    """Fraction of targets within the central interval of probability `level` of their predictive distribution."""
    means, variances, y = _mixture(means, variances, y)
    half = 0.5 * _require_level(level)
    return float(((_cdf(means, variances, y) - 0.5).abs() <= half).double().mean())


def interval_width(means: Tensor, variances: Tensor, level: float) -> float:
    """Mean width of the central intervals of probability `level`."""
    half = 0.5 * _require_level(level)
    return float((quantile(means, variances, 0.5 + half) - quantile(means, variances, 0.5 - half)).mean())


def quantile(means: Tensor, variances: Tensor, probability: float) -> Tensor:
    """Quantile of each mixture `(N, D)`, float64, by bisection: it lies between those of the members."""
    means, variances, _ = _mixture(means, variances, means[0])
    score = NormalDist().inv_cdf(_require_level(probability, "probability"))
    members = means + score * variances.sqrt()
    low, high = members.amin(0), members.amax(0)
    for _ in range(60):  # float64 has 53 bits to settle
        middle = 0.5 * (low + high)
        beyond = _cdf(means, variances, middle) > probability
        low, high = torch.where(beyond, low, middle), torch.where(beyond, middle, high)
    return 0.5 * (low + high)


def crps(means: Tensor, variances: Tensor, y: Tensor) -> float:
    """Continuous ranked probability score, mean over examples and outputs; in the units of y, lower is better.

    E|Y - y| - ½ E|Y - Y'| in closed form (Grimit et al. 2006).
    """
    means, variances, y = _mixture(means, variances, y)
    spread = torch.zeros_like(y)
    for mean, var in zip(means, variances, strict=True):
        spread += _mean_absolute(means - mean, variances + var).mean(0) / len(means)
    return float((_mean_absolute(y - means, variances).mean(0) - 0.5 * spread).mean())


def _mean_absolute(mean: Tensor, var: Tensor) -> Tensor:
    """E|Z| for Z ~ N(mean, var)."""
    root = var.sqrt()
    score = mean / root
    return root * math.sqrt(2 / math.pi) * torch.exp(-0.5 * score.square()) + mean * torch.erf(score * math.sqrt(0.5))


def _cdf(means: Tensor, variances: Tensor, y: Tensor) -> Tensor:
    members: Tensor = torch.special.ndtr((y - means) / variances.sqrt())
    return members.mean(0)


# --- what the above share -------------------------------------------------------------------------------------------


def to_double(tensor: Tensor) -> Tensor:
    """In float64; on the host where the device has none."""
    return (tensor.cpu() if tensor.device.type == "mps" else tensor).double()


def _confidence(probs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Probability of the most probable class, and one where it is the label: float64 `(N,)`."""
    _require_predictions(probs, y)
    confidence, guess = probs.max(-1)
    return to_double(confidence), to_double(guess == y)


def _tie_means(sorted_scores: Tensor, values: Tensor) -> Tensor:
    """Each value replaced by the mean over all examples with its score: `(N,)`."""
    _, group, size = torch.unique_consecutive(sorted_scores, return_inverse=True, return_counts=True)
    means: Tensor = values.new_zeros(len(size)).index_add(0, group, values) / size
    return means[group]


def _require_predictions(probs: Tensor, y: Tensor) -> None:
    if probs.dim() != 2 or not probs.is_floating_point():
        raise ValueError(f"probs must be floating (examples, classes), got {probs.dtype} {tuple(probs.shape)}")
    require_labels(y, probs.shape[:1], probs.shape[-1])
    if probs.shape[0] == 0:
        raise ValueError("probs must hold at least one example, got none")
    low, high = (float(end) for end in torch.aminmax(probs))
    if math.isnan(low):
        raise ValueError(f"probs must not be NaN, got NaN in {int(probs.isnan().any(-1).sum())} of {len(probs)} rows")
    rounding = max(_ROUNDING, 4 * torch.finfo(probs.dtype).eps)
    if low < -rounding or high > 1 + rounding:
        raise ValueError(
            f"probs must lie between 0 and 1, got values from {low:.4g} to {high:.4g}; logits need a softmax"
        )
    least, most = (float(end) for end in torch.aminmax(probs.sum(-1)))
    if least < 1 - rounding or most > 1 + rounding:
        raise ValueError(f"probs must sum to one in each row, got sums from {least:.4g} to {most:.4g}")


def _pair(scores: Tensor, values: Tensor, scores_name: str, values_name: str) -> tuple[Tensor, Tensor]:
    if scores.dim() != 1 or scores.shape != values.shape or len(scores) == 0:
        raise ValueError(
            f"{scores_name} and {values_name} must both have shape (examples,), at least one, got "
            f"{tuple(scores.shape)} and {tuple(values.shape)}"
        )
    scores, values = to_double(scores), to_double(values)
    for tensor, name in ((scores, scores_name), (values, values_name)):
        if bool(tensor.isnan().any()):
            raise ValueError(f"{name} must not be NaN, got {int(tensor.isnan().sum())}")
    return scores, values


def _mixture(means: Tensor, variances: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    if means.dim() != 3 or means.shape != variances.shape or means.shape[1:] != y.shape or means.numel() == 0:
        raise ValueError(
            f"means and variances must have shape (members, examples, outputs) and y (examples, outputs), none empty, "
            f"got {tuple(means.shape)}, {tuple(variances.shape)} and {tuple(y.shape)}"
        )
    if not bool((variances > 0).all()):
        raise ValueError(f"variances must be positive, got a minimum of {float(variances.min())}")
    return to_double(means), to_double(variances), to_double(y)


def _require_level(level: float, name: str = "level") -> float:
    if not 0 < level < 1:
        raise ValueError(f"{name} must lie between 0 and 1, got {level}")
    return level
