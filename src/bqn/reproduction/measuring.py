"""What a finished run is worth: every mode on validation and test examples, each network and each example once."""

from __future__ import annotations

import datetime
import math
import subprocess
import time
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor

import bqn
from bqn import metrics
from bqn.data import Dataset, Split
from bqn.network import Network, QuantizedNetwork
from bqn.predictions import Predictor
from bqn.reproduction import recipes, records
from bqn.reproduction.cells import Cell
from bqn.training import DivergedError, Run, distill
from bqn.training.files import parse_object
from bqn.training.run import data_parts

SAMPLES = 5  # as many as the paper draws
_BATCH = 1000
_CURVE_POINTS = 25
AllScores: TypeAlias = dict[str, dict[str, dict[str, float]]]  # by part, mode and name
_CURVE = ("epoch", "train_nll", "validation_nll", "validation_error", "kl")


def describe(
    cell: Cell,
    run: Run | DivergedError,
    dataset: Dataset,
    seconds: float,
    together: int,
    device: str,
    tick: Callable[[], None] | None = None,
) -> dict[str, Any]:
    """The record of a run: what it is, how it went, what it is worth.

    Parameters
    ----------
    cell : Cell
    run : the run, or the error with which it failed, which is worth a record too
    dataset : Dataset
    seconds : float
        What it is charged for its training.
    together : int
        How many runs shared the device, and were charged parts of the same time.
    device : str
    tick : function called between steps of distillation, which may raise KeyboardInterrupt
    """
    config = run.config if isinstance(run, Run) else cell.config(device)
    document: dict[str, Any] = {
        "architecture": cell.architecture,
        "data": cell.data,
        "recipe": cell.folder,
        "seed": cell.seed,
        "config": parse_object(config.to_json(), "config"),
        **code(),
        "hardware": hardware(config.device),
        "date": str(datetime.date.today()),
    }
    if isinstance(run, DivergedError):
        return {**document, "failed": str(run)}
    history = run.history.records
    scores, distilled = judge(run, dataset, test=cell.judged_on_test), {}
    if epochs := recipes.distillation(cell.recipe, cell.variant):
        distilled = _distill(run, dataset, cell.judged_on_test, epochs, scores, tick)
    return {
        **document,
        "epochs": len(history),
        "best_epoch": run.history.best_epoch,
        "seconds": seconds,
        "together": together,
        "parameters": sum(posterior.shape.numel() for _, posterior in run.net.posteriors()),
        "entropy": entropy_share(run.net),
        **({"distilled": distilled} if distilled else {}),
        **scores,
        "curve": thin([record.to_dict() for record in history]),
    }


def judge(run: Run, dataset: Dataset, test: bool) -> AllScores:
    """Scores of every mode on "validation" and, if asked for, "test" examples.

    Both pass through each network together: drawn and recalibrated once, it sees every example once.
    """
    training, parts = _parts(run, dataset, test)
    if not parts:
        return {}
    x, y = _joined(run, parts)
    predictor = Predictor(
        run.net,
        samples=SAMPLES,
        seed=run.config.seed,
        batch_size=_BATCH,
        prepare=run.preprocessing.input,
        recalibrate_on=training.x,
    )
    result: AllScores = {name: {} for name in parts}
    for mode in predictor.modes:
        given = predictor.classify(mode, x, y, split=False)
        _put_down(result, mode, parts, given.probs, y, given.bound)
    return result


def _put_down(
    scores: AllScores, mode: str, parts: Mapping[str, Split], probs: Tensor, y: Tensor, bound: Tensor | None = None
) -> None:
    """Score what was predicted for all parts together, each by itself."""
    sizes = [len(part) for part in parts.values()]
    bounds = [None] * len(sizes) if bound is None else bound.split(sizes)
    for name, own, labels, its in zip(parts, probs.split(sizes), y.split(sizes), bounds, strict=True):
        scores[name][mode] = _scores(own, labels, its)


def _distill(
    run: Run,
    dataset: Dataset,
    test: bool,
    epochs: int,
    scores: AllScores,
    tick: Callable[[], None] | None,
) -> dict[str, Any]:
    """Add the scores of distilled networks to those of the other modes; returns how they were made."""
    training, parts = _parts(run, dataset, test)
    if not parts:
        return {}
    x, y = _joined(run, parts)
    about: dict[str, Any] = {"epochs": epochs, "seconds": 0.0}
    for mode in records.DISTILLED_MODES:
        began = time.perf_counter()
        try:
            made = distill(
                run,
                training,
                parts.get("validation"),
                mode=mode.removesuffix("_distilled"),
                samples=SAMPLES,
                seed=run.config.seed,
                epochs=epochs,
                tick=tick,
            )
        except (DivergedError, torch.OutOfMemoryError) as error:  # the run itself is worth its record all the same
            return {**about, "failed": str(error)}
        about["seconds"] += time.perf_counter() - began
        probs = torch.stack([_probabilities(run, network, x) for network in made.networks]).mean(0)
        _put_down(scores, mode, parts, probs, y)
    return about


def _probabilities(run: Run, network: QuantizedNetwork, x: Tensor) -> Tensor:
    found = [cast(Tensor, network.predict(run.preprocessing.input(part))) for part in x.split(_BATCH)]
    return torch.cat(found).double().cpu()


def _parts(run: Run, dataset: Dataset, test: bool) -> tuple[Split, dict[str, Split]]:
    """Training examples, and those to judge by."""
    training, validation, _ = data_parts(run.config, dataset)
    parts = {"validation": validation} if validation is not None else {}
    return training, parts | ({"test": dataset.test} if test else {})


def _joined(run: Run, parts: Mapping[str, Split]) -> tuple[Tensor, Tensor]:
    """All examples on the device of the run, and their labels on the host."""
    x = torch.cat([part.x for part in parts.values()]).to(next(run.net.parameters()).device)
    return x, torch.cat([part.y for part in parts.values()]).cpu()


def _scores(probs: Tensor, y: Tensor, bound: Tensor | None) -> dict[str, float]:
    scores = {"nll": metrics.nll(probs, y)}
    if bound is not None:
        scores["bound"] = float(bound.double().mean())
    return scores | {"error": metrics.error(probs, y), "ece": metrics.ece(probs, y)}


@torch.no_grad()
def entropy_share(net: Network) -> float:
    """The posterior's entropy as a share of the largest it could be: 1 knows nothing, 0 has no doubt."""
    total, most = 0.0, 0.0
    for _, posterior in net.posteriors():
        total += float(posterior.entropy().double().sum())
        most += posterior.shape.numel() * math.log(len(posterior.level_values))
    return total / most


def thin(records: list[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """A learning curve of at most 25 epochs, the first and the last among them, as lists by name."""
    last = len(records) - 1
    count = min(len(records), _CURVE_POINTS)
    chosen = [records[round(step * last / max(count - 1, 1))] for step in range(count)]
    return {name: [record[name] for record in chosen] for name in _CURVE}


@cache
def code() -> dict[str, Any]:
    """The commit that the package is run from, and whether it has been changed since; its version outside a clone."""
    here = Path(bqn.__file__).parent

    def git(*arguments: str) -> str | None:
        try:
            done = subprocess.run(["git", "-C", str(here), *arguments], capture_output=True, text=True, check=True)
        except (OSError, subprocess.CalledProcessError):  # no git, or no clone
            return None
        return done.stdout.strip()

    commit = git("rev-parse", "HEAD")
    if commit is None or git("ls-files", "--error-unmatch", "__init__.py") is None:  # installed into another's clone
        return {"code": f"bqn {bqn.__version__}"}
    changed = git("status", "--porcelain", "--untracked-files=no", "--", str(here))
    return {"code": commit, **({"code_changed": True} if changed else {})}


def hardware(device: str) -> str:
    """What the device is called."""
    if device.startswith("cuda") or (device == "auto" and torch.cuda.is_available()):
        return torch.cuda.get_device_name(None if device in ("auto", "cuda") else torch.device(device))
    return f"CPU, {torch.get_num_threads()} threads"
