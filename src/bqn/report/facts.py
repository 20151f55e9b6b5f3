"""What a run is, in words: data, network, training, evaluation."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from bqn.baselines import METHODS
from bqn.data import Dataset
from bqn.deploy import PackedError, to_bytes
from bqn.deploy.runs import pack_run
from bqn.sizes import bytes_in_words
from bqn.training import Run, TrainConfig


def describe(run: Run, dataset: Dataset, result: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Names and texts for the head of the page."""
    return (
        ("Data", _data(run.config, dataset)),
        ("Network", _network(run)),
        ("Weights", _weights(run)),
        ("Training", _training(run)),
        ("Evaluation", _evaluation(result["settings"])),
    )


def _data(config: TrainConfig, dataset: Dataset) -> str:
    shape = " × ".join(map(str, dataset.input_shape))
    form = f"{shape} pixels" if len(dataset.input_shape) == 3 else f"{shape} features"
    kind = f"{len(dataset.classes)} classes" if dataset.classes else "regression"
    train, test = f"{len(dataset.train):,} training", f"{len(dataset.test):,} test examples"
    held_out = (
        f" ({100 * config.validation_fraction:g}\u00a0% of them for validation)" if config.validation_fraction else ""
    )
    return f"{set_name(dataset)}: {train}{held_out}, {test}, {form}, {kind}"


def set_name(dataset: Dataset) -> str:
    """The name of a set; of a file or folder only its own, not where it lies."""
    return PurePath(dataset.name).name or dataset.name


def _network(run: Run) -> str:
    config, parts = run.config, [run.config.model]
    if config.method != "bqn":
        parts.insert(0, f"{config.method} ({METHODS[config.method].what})")
    for name in ("channels", "hidden"):
        sizes = getattr(config, name)
        if sizes:
            parts.append(f"{name} {', '.join(map(str, sizes))}")
    if config.activations:
        parts.append(f"activations in {levels_text(config.activations)}")
    if config.batch_norm:
        parts.append("batch norm")
    return "; ".join(parts)


def _weights(run: Run) -> str:
    net = run.net
    posteriors = [posterior for _, posterior in net.posteriors()]
    count = sum(posterior.shape.numel() for posterior in posteriors)
    if not count:
        return f"{sum(parameter.numel() for parameter in net.parameters()):,} real numbers"
    kinds = sorted({posterior.level_values for posterior in posteriors}, key=lambda levels: (len(levels), levels))
    levels = " and ".join(f"{levels_text(kind)} ({_bits(len(kind))} bit)" for kind in kinds)
    return f"{count:,} in {levels}: {_packed(run)}{bytes_in_words(4 * count)} in float32"


def _packed(run: Run) -> str:
    """The size of the file that `bqn pack` makes of the most probable network, if it can."""
    try:
        return f"{bytes_in_words(len(to_bytes(pack_run(run))))} packed, "
    except (PackedError, UnicodeError):  # a layer, or the name of a class, that a packed file cannot hold
        return ""


def _bits(levels: int) -> int:
    return math.ceil(math.log2(levels))


def levels_text(levels: tuple[float, ...]) -> str:
    """A set of levels: all of a few, the ends of many."""
    shown = [f"{value:g}".replace("-", "−") for value in levels]
    return f"{{{', '.join(shown)}}}" if len(shown) <= 5 else f"{{{shown[0]}, {shown[1]}, …, {shown[-1]}}}"


def _training(run: Run) -> str:
    config, history = run.config, run.history
    done = len(history.records)
    parts = [f"{done} of {config.epochs} epochs in {_duration(sum(record.seconds for record in history.records))}"]
    if history.stopped_early:
        parts[0] += ", stopped early"
    if history.best_epoch is not None:
        parts.append(f"weights of epoch {history.best_epoch}")
    parts.append(f"batches of {config.batch_size}")
    parts.append(f"learning rate {config.learning_rate:g} ({config.lr_schedule})")
    parts.append(f"λ {config.lam:g} ({config.lam_schedule})")
    parts.append(f"seed {config.seed}")
    return "; ".join(parts)


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def _evaluation(settings: Mapping[str, Any]) -> str:
    text = f"{settings['examples']:,} test examples; {settings['samples']} sampled networks; seed {settings['seed']}"
    inputs = settings["recalibration_inputs"]
    return f"{text}; batch norm recalibrated on {inputs:,} training examples" if inputs else text
