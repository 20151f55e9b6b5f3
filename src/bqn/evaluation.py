"""Evaluation: what a network is worth on data it has not seen, in every mode, as one JSON-ready object."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, cast, overload

import torch
from torch import Tensor

from bqn import metrics
from bqn.checks import require_positive
from bqn.corruptions import STRENGTHS, corrupt, require_images
from bqn.data import Split, to_input
from bqn.heads import GaussianHead
from bqn.network import Network
from bqn.predictions import Classified, Predictor, Prepare, Regressed
from bqn.tempering import fit_temperature, temper

INTERVALS = (0.5, 0.8, 0.9, 0.95)
_CURVE_POINTS = 20

Scale: TypeAlias = tuple[Tensor | float, Tensor | float]
Told: TypeAlias = Callable[[str], None]


@dataclass(frozen=True, eq=False)
class Details:
    """The predictions behind an evaluation, by mode.

    Attributes
    ----------
    y : Tensor
        Targets of the test examples, on the host.
    modes : dict
        `Classified` or `Regressed` for each mode.
    ood : dict
        `Classified` for each mode; empty without such a set.
    """

    y: Tensor
    modes: dict[str, Classified] | dict[str, Regressed]
    ood: dict[str, Classified]


@overload
def evaluate(
    net: Network,
    test: Split,
    *,
    samples: int = ...,
    seed: int = ...,
    recalibrate_on: Split | None = ...,
    temper_on: Split | None = ...,
    ood: Split | None = ...,
    corruptions: bool = ...,
    batch_size: int = ...,
    bins: int = ...,
    prepare: Prepare = ...,
    target_scale: Scale | None = ...,
    tell: Told | None = ...,
    details: Literal[False] = ...,
) -> dict[str, Any]: ...


@overload
def evaluate(
    net: Network,
    test: Split,
    *,
    samples: int = ...,
    seed: int = ...,
    recalibrate_on: Split | None = ...,
    temper_on: Split | None = ...,
    ood: Split | None = ...,
    corruptions: bool = ...,
    batch_size: int = ...,
    bins: int = ...,
    prepare: Prepare = ...,
    target_scale: Scale | None = ...,
    tell: Told | None = ...,
    details: Literal[True],
) -> tuple[dict[str, Any], Details]: ...


def evaluate(
    net: Network,
    test: Split,
    *,
    samples: int = 5,
    seed: int = 0,
    recalibrate_on: Split | None = None,
    temper_on: Split | None = None,
    ood: Split | None = None,
    corruptions: bool = False,
    batch_size: int = 500,
    bins: int = 15,
    prepare: Prepare = to_input,
    target_scale: Scale | None = None,
    tell: Told | None = None,
    details: bool = False,
) -> dict[str, Any] | tuple[dict[str, Any], Details]:
    """Evaluate a network on test examples; deterministic for a seed.

    Parameters
    ----------
    net : Network
    test : Split
        Examples as stored, targets in their own units.
    samples : int
        Networks drawn for the MC modes.
    recalibrate_on : Split or None
        Training examples. If given, the modes "mc_recalibrated" and "map_recalibrated" are evaluated too, with batch
        norm statistics estimated on up to 2000 of them.
    temper_on : Split or None
        Held-out examples, with labels. If given, "tempered" has for each mode the scores with a temperature that was
        fitted on them (`bqn.tempering`).
    ood : Split or None
        Examples from elsewhere, to be told apart from those of `test` by their uncertainty; labels are not used.
    corruptions : bool
        Whether to evaluate on noisy, blurred and rotated images too; `test.x` must be uint8 images.
    batch_size : int
        Examples at a time.
    bins : int
        Bins of the calibration errors and the reliability diagram.
    prepare : function
        Turns stored examples `(n, ...)`, on the network's device, into network input.
    target_scale : (mean, std) or None
        For regression: the network predicts `(y - mean) / std`; each a number or of shape `(D,)`.
    tell : function or None
        Called with what is evaluated next, in words such as "mc" or "noise 2 of 5, mc".
    details : bool
        Whether to return the predictions themselves as well.

    Returns
    -------
    dict, or (dict, Details)
        Ready for JSON; None where something is undefined. One entry a mode, "settings", and depending on the task and
        the arguments "curves", "tempered", "ood" and "corruptions". Within a mode, "nll", "bound" and entropies are in
        nats, everything else is a fraction or in the units of the target. "bound" compares with "nll": it is the mean
        of minus `head.log_likelihood`, the ELBO's term.
    """
    require_positive(bins, "bins")
    _require_examples(test, "test")
    for split, name in ((recalibrate_on, "recalibrate_on"), (temper_on, "temper_on"), (ood, "ood")):
        if split is not None:
            _require_examples(split, name, like=test)
    reference = None if recalibrate_on is None else recalibrate_on.x
    tell = (lambda what: None) if tell is None else tell
    predictor = Predictor(
        net, samples=samples, seed=seed, batch_size=batch_size, prepare=prepare, recalibrate_on=reference
    )
    if isinstance(net.head, GaussianHead):
        if ood is not None or corruptions or temper_on is not None:
            raise ValueError("ood, corruptions and temper_on are for classification, but net has a regression head")
        result, seen = _evaluate_regression(predictor, test, target_scale, tell)
    else:
        if target_scale is not None:
            raise ValueError("target_scale is for regression, but net has a classification head")
        result, seen = _evaluate_classification(predictor, test, ood, corruptions, bins, tell)
        if temper_on is not None:
            result["tempered"] = _evaluate_tempered(predictor, test, temper_on, bins, tell)
    settings = {
        "examples": len(test.x),
        "samples": samples,
        "seed": seed,
        "bins": bins,
        "batch_size": batch_size,
        "recalibration_inputs": None if predictor.reference is None else len(predictor.reference),
    }
    document = cast(dict[str, Any], _plain({"settings": settings, **result}))
    return (document, seen) if details else document


def _evaluate_classification(
    predictor: Predictor, test: Split, ood: Split | None, corruptions: bool, bins: int, tell: Told
) -> tuple[dict[str, Any], Details]:
    if corruptions:
        require_images(test.x, "test.x")  # before the work begins
    y = test.y.cpu()
    seen = {mode: predictor.classify(mode, test.x, test.y) for mode in _told(predictor.modes, tell)}
    result: dict[str, Any] = {mode: score_classification(given, y, bins) for mode, given in seen.items()}
    result["curves"] = {mode: _curves(given.probs, y, bins) for mode, given in seen.items()}
    outside: dict[str, Classified] = {}
    if ood is not None:
        outside = {mode: predictor.classify(mode, ood.x) for mode in _told(predictor.modes, tell, "ood, ")}
        result["ood"] = {"examples": len(ood.x)} | {
            mode: {
                "entropy": score_detection(seen[mode].entropy, outside[mode].entropy),
                "epistemic": score_detection(seen[mode].epistemic, outside[mode].epistemic),
            }
            for mode in predictor.modes
        }
    if corruptions:
        result["corruptions"] = _evaluate_corruptions(predictor, test.x, y, bins, tell)
    return result, Details(y, seen, outside)


def _told(modes: Sequence[str], tell: Told, what: str = "") -> Iterator[str]:
    """The modes one by one, each told before its turn."""
    for mode in modes:
        tell(f"{what}{mode.replace('_', ', ')}")
        yield mode


def _evaluate_tempered(
    predictor: Predictor, test: Split, held_out: Split, bins: int, tell: Told
) -> dict[str, dict[str, float]]:
    """By mode: the temperature, and the scores with it."""
    result = {}
    for mode in _told(predictor.modes, tell, "temperature, "):
        temperature = fit_temperature(predictor.log_probs(mode, held_out.x), held_out.y.cpu())
        probs = temper(predictor.log_probs(mode, test.x), temperature)
        result[mode] = {"temperature": temperature, **score_probabilities(probs, test.y.cpu(), bins)}
    return result


def _evaluate_corruptions(predictor: Predictor, x: Tensor, y: Tensor, bins: int, tell: Told) -> dict[str, Any]:
    """By kind: the "strengths", and for each mode lists of scores with one entry a strength."""
    result: dict[str, Any] = {}
    for kind, strengths in STRENGTHS.items():
        rows: dict[str, list[dict[str, float]]] = {mode: [] for mode in predictor.modes}
        for number, strength in enumerate(strengths, 1):
            generator = torch.Generator(x.device).manual_seed(predictor.seed)
            corrupted = corrupt(x, kind, strength, generator)
            for mode in _told(predictor.modes, tell, f"{kind} {number} of {len(strengths)}, "):
                probs = predictor.classify(mode, corrupted, split=False).probs
                rows[mode].append(score_probabilities(probs, y, bins))
        result[kind] = {"strengths": strengths} | {
            mode: {name: [row[name] for row in scores] for name in scores[0]} for mode, scores in rows.items()
        }
    return result


def _evaluate_regression(
    predictor: Predictor, test: Split, scale: Scale | None, tell: Told
) -> tuple[dict[str, Any], Details]:
    predictor.net.head.require_targets(test.y, len(test.x))
    shift, unit = (0.0, 1.0) if scale is None else scale
    if not bool((torch.as_tensor(unit) > 0).all()):
        raise ValueError(f"target_scale must have a positive standard deviation, got {unit}")
    seen = {mode: predictor.regress(mode, test.x, test.y, shift, unit) for mode in _told(predictor.modes, tell)}
    y = test.y.cpu()
    return {mode: score_regression(given, y) for mode, given in seen.items()}, Details(y, seen, {})


# --- scores: predictions in, numbers out ----------------------------------------------------------------------------


def score_probabilities(probs: Tensor, y: Tensor, bins: int = 15) -> dict[str, float]:
    """What can be said of probabilities `(N, K)` and labels `(N,)` alone."""
    confidence, wrong = probs.amax(-1), metrics.wrong(probs, y)
    return {
        "nll": metrics.nll(probs, y),
        "error": metrics.error(probs, y),
        "ece": metrics.ece(probs, y, bins),
        "ece_adaptive": metrics.adaptive_ece(probs, y, bins),
        "brier": metrics.brier(probs, y),
        "aurc": metrics.aurc(confidence, wrong),
        "excess_aurc": metrics.excess_aurc(confidence, wrong),
        "entropy": float(metrics.entropy(probs).mean()),
    }


def score_classification(given: Classified, y: Tensor, bins: int = 15) -> dict[str, float | None]:
    """All scores of one mode; y is `(N,)`. Entropies are means over the examples."""
    return {
        **score_probabilities(given.probs, y, bins),
        "aleatoric": float(given.aleatoric.mean()),
        "epistemic": None if given.epistemic is None else float(given.epistemic.mean()),
        **({} if given.bound is None else {"bound": float(given.bound.double().mean())}),
    }


def score_detection(inside: Tensor | None, outside: Tensor | None) -> dict[str, float] | None:
    """How well a score, `(N,)` and `(M,)`, tells outside examples (the positives) from those inside; None without."""
    if inside is None or outside is None:
        return None
    scores = torch.cat((inside, outside))
    positive = torch.arange(len(scores)) >= len(inside)
    return {
        "auroc": metrics.auroc(scores, positive),
        "aupr": metrics.aupr(scores, positive),
        "fpr95": metrics.fpr95(scores, positive),
    }


def score_regression(given: Regressed, y: Tensor) -> dict[str, float | None]:
    """All scores of one mode; y is `(N, D)`. Variances are means over examples and outputs."""
    mixture = (given.means, given.variances)
    log_likelihood = metrics.mixture_log_likelihood(*mixture, y)
    scores: dict[str, float | None] = {
        "rmse": metrics.rmse(given.mean, y),
        "log_likelihood": log_likelihood,
        "nll": -log_likelihood,
        "crps": metrics.crps(*mixture, y),
        "variance": float(given.variance.mean()),
        "aleatoric": float(given.aleatoric.mean()),
        "epistemic": None if given.epistemic is None else float(given.epistemic.mean()),
    }
    for level in INTERVALS:
        scores[f"coverage_{round(100 * level)}"] = metrics.interval_coverage(*mixture, y, level)
        scores[f"width_{round(100 * level)}"] = metrics.interval_width(*mixture, level)
    return scores if given.bound is None else {**scores, "bound": float(given.bound.mean())}


def _curves(probs: Tensor, y: Tensor, bins: int) -> dict[str, Any]:
    """Reliability diagram, risk-coverage curve at a few coverages, and confusion matrix."""
    coverage, risk = metrics.risk_coverage(probs.amax(-1), metrics.wrong(probs, y))
    at = [math.ceil(len(y) * (point + 1) / _CURVE_POINTS) - 1 for point in range(_CURVE_POINTS)]
    return {
        "reliability": metrics.reliability(probs, y, bins)._asdict(),
        "risk_coverage": {"coverage": coverage[at], "risk": risk[at]},
        "confusion": metrics.confusion_matrix(probs, y),
    }


def _require_examples(split: Split, name: str, like: Split | None = None) -> None:
    if len(split.x) == 0:
        raise ValueError(f"{name} must hold at least one example, got none")
    if like is not None and (split.x.shape[1:] != like.x.shape[1:] or split.x.dtype != like.x.dtype):
        raise ValueError(
            f"{name} must hold examples like those of test, {like.x.dtype} {tuple(like.x.shape[1:])}, got "
            f"{split.x.dtype} {tuple(split.x.shape[1:])}"
        )


def _plain(value: Any) -> Any:
    """Lists, dicts and numbers only, None for what is not finite."""
    if isinstance(value, Tensor):
        return _plain(value.tolist())
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
