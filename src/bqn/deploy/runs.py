"""From a run to a packed file: its networks, and what the file must know of the data."""

from __future__ import annotations

import copy
import math
from typing import Any, cast

import torch
from torch import Tensor

from bqn import __version__
from bqn.data import Split
from bqn.deploy.columns import to_about
from bqn.deploy.packing import pack_in_memory
from bqn.deploy.program import Packed
from bqn.heads import SoftmaxHead
from bqn.network import QuantizedNetwork
from bqn.predictions import Predictor
from bqn.tempering import fit_temperature
from bqn.training import Distillation, Run
from bqn.training.distillation import MODES as MODES


def pack_run(
    run: Run,
    mode: str = "map",
    *,
    samples: int = 5,
    seed: int = 0,
    recalibrate_on: Tensor | None = None,
    temper_on: Split | None = None,
    distilled: Distillation | None = None,
    batch_size: int = 500,
) -> Packed:
    """The networks that `bqn.evaluation.evaluate` judges for the same mode, samples and seed, packed.

    Parameters
    ----------
    run : Run
    mode : "map" or "mc"
        The most probable network, or `samples` sampled ones to average.
    recalibrate_on : Tensor `(M, ...)` or None
        Training examples as stored. If given, each network has batch norm statistics of its own, from up to 2000 of
        them.
    temper_on : Split or None
        Held-out examples. If given, the scale of all heads is multiplied by the temperature with which the average of
        the networks has the lowest NLL on them; classifiers only.
    distilled : Distillation or None
        What `bqn.training.distill` made of the run for this mode, to be packed in the place of those networks, with
        its own `samples` and `seed`. They have batch norm statistics of their own already.
    batch_size : int
        Examples at a time.
    """
    if mode not in MODES:
        raise ValueError(f"mode must be one of {', '.join(MODES)}, got {mode!r}")
    if distilled is not None and recalibrate_on is not None:
        raise ValueError("recalibrate_on is not for distilled networks, which have statistics of their own")
    if distilled is not None and distilled.mode != mode:
        raise ValueError(f"distilled must hold networks of mode {mode}, got those of mode {distilled.mode}")
    predictor = Predictor(
        run.net,
        samples=samples,
        seed=seed,
        batch_size=batch_size,
        prepare=run.preprocessing.input,
        recalibrate_on=recalibrate_on,
    )
    recalibrated = recalibrate_on is not None
    if distilled is None:
        members = list(predictor.members(f"{mode}_recalibrated" if recalibrated else mode))
    else:
        members = [copy.deepcopy(network) for network in distilled.networks]  # tempered in place
    about = _about(run, mode, len(members), seed, recalibrated) | _about_learning(distilled)
    if temper_on is not None:
        about["temperature"] = _temper(members, predictor, temper_on)
    return pack_in_memory(members, **_form(run), about=about)


@torch.no_grad()
def _temper(members: list[QuantizedNetwork], predictor: Predictor, held_out: Split) -> float:
    """Temper all networks alike, in place; the temperature."""
    if not isinstance(predictor.net.head, SoftmaxHead):
        raise ValueError("temper_on is for classification, but the run is a regression")
    logits = [torch.cat([_logits(member, batch) for _, batch in predictor.batches(held_out.x)]) for member in members]
    temperature = fit_temperature(torch.stack(logits), held_out.y.cpu())
    for member in members:
        cast(SoftmaxHead, member.head).log_scale.add_(math.log(temperature))
    return temperature


def _logits(member: QuantizedNetwork, x: Tensor) -> Tensor:
    logits: Tensor = member(x).double() / cast(SoftmaxHead, member.head).scale.double()
    return logits.cpu()


def _form(run: Run) -> dict[str, Any]:
    form = run.preprocessing
    return {
        "inputs": "pixels" if len(form.input_shape) == 3 else "features",
        "input_shape": form.input_shape,
        "input_scale": None if form.inputs is None else (form.inputs.mean, form.inputs.std),
        "target_scale": form.target_scale,
        "classes": form.classes,
    }


def _about_learning(distilled: Distillation | None) -> dict[str, Any]:
    """How many of the networks have learned anything, in how many epochs; the seed counts for a single one too."""
    if distilled is None:
        return {"distilled": None}
    learned = sum(epoch > 0 for epoch in distilled.kept)
    return {"distilled": learned, "distill_epochs": distilled.epochs, "seed": distilled.seed}


def _about(run: Run, mode: str, members: int, seed: int, recalibrated: bool) -> dict[str, Any]:
    config = run.config
    return {
        "bqn": __version__,
        "model": config.model,
        "data": config.data,
        "split": config.split,
        "target": config.target,
        "task": config.task,
        **to_about(run.preprocessing.feature_names, run.preprocessing.target_name),
        "mode": mode,
        "samples": members if mode == "mc" else None,
        "seed": seed if mode == "mc" else None,
        "recalibrated": recalibrated,
        "temperature": None,
    }
