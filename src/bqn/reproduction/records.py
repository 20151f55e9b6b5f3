"""Records of runs: small JSON files, one a run, written whole, read with suspicion."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

from bqn.reproduction.cells import Cell
from bqn.training import ConfigError, TrainConfig
from bqn.training.files import parse_object, read_text, remove_leftovers, to_json, write_atomic

MODES = ("analytic", "mc", "map", "mc_recalibrated", "map_recalibrated")
# Those of networks that were distilled; records of before there was distillation have none.
DISTILLED_MODES = ("mc_distilled", "map_distilled")
FIGURES = ("nll", "error", "ece")
_LINE = 120
# They make no difference to what is measured, or none beyond rounding.
NOT_COMPARED = (
    "device",
    "threads",
    "checkpoint_every",
    "checkpoint_activations",
    "compile",
    "mixed_precision",
)
_KNOWN = frozenset(field.name for field in fields(TrainConfig))


class RecordError(ValueError):
    """A record that cannot be used: damaged, of another run, or made with other settings."""


def write(path: Path, document: Mapping[str, Any]) -> None:
    """Put a record down, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(path)
    write_atomic(path, f"{_laid_out(document)}\n".encode())


def _laid_out(value: object, depth: int = 0) -> str:
    """JSON that reads well and stays short: objects a line an entry unless they fit on one, lists on one line."""
    flat = to_json(value)
    if not isinstance(value, Mapping) or len(flat) < _LINE:
        return flat
    pad = " " * (depth + 1)
    entries = [f"{pad}{to_json(key)}: {_laid_out(entry, depth + 1)}" for key, entry in value.items()]
    return "{\n" + ",\n".join(entries) + "\n" + " " * depth + "}"


def read(cell: Cell, out: str | Path) -> dict[str, Any] | None:
    """The record of a cell; None if there is none."""
    path = cell.path(out)
    if not path.exists():
        return None
    try:
        document = parse_object(read_text(path), str(path))
    except ValueError as error:
        raise RecordError(str(error)) from None
    _check(document, cell, path)
    return document


def read_all(cells: Sequence[Cell], out: str | Path) -> dict[Cell, dict[str, Any]]:
    """The records that are there."""
    return {cell: document for cell in cells if (document := read(cell, out)) is not None}


def seeds(architecture: str, data: str, folder: str, out: str | Path) -> list[dict[str, Any]]:
    """All records of a recipe, or of a variant of it, in the order of their seeds."""
    recipe, _, variant = folder.partition("-")
    found = sorted(
        int(number)
        for path in (Path(out) / f"{architecture}-{data}" / folder).glob("seed-*.json")
        if (number := path.stem.removeprefix("seed-")).isdecimal()
    )
    cells = [Cell(architecture, data, recipe, variant, seed) for seed in found]
    return list(read_all(cells, out).values())


def config_of(document: Mapping[str, Any]) -> TrainConfig:
    """The config of a record. Settings that are newer than it have their defaults; those that are gone are left out."""
    return TrainConfig(**{name: value for name, value in document["config"].items() if name in _KNOWN})


def failures(documents: Sequence[Mapping[str, Any]], mode: str = "") -> int:
    """How many of the runs failed, and so have no figures; those of a mode also where its distillation did."""
    distilled = mode in DISTILLED_MODES
    return sum(
        "failed" in row or (distilled and "failed" in row.get("distilled", {}) and mode not in row.get("test", {}))
        for row in documents
    )


def difference(document: Mapping[str, Any], config: TrainConfig) -> str | None:
    """In which setting a record differs from `config`, in words; None where it does not."""
    wanted = parse_object(config.to_json(), "config")
    recorded = {**document["config"], **parse_object(config_of(document).to_json(), "config")}
    for name in sorted((wanted.keys() | recorded.keys()).difference(NOT_COMPARED)):
        was, now = recorded.get(name), wanted.get(name)
        if was != now:
            return f"{name} {was!r:.60}, not {now!r:.60}"
    return None


class Statistic(NamedTuple):
    """Mean and standard deviation (None for one seed) over so many seeds."""

    mean: float
    std: float | None
    seeds: int


def statistic(values: Sequence[float]) -> Statistic | None:
    """None for no values."""
    if not values:
        return None
    return Statistic(fmean(values), stdev(values) if len(values) > 1 else None, len(values))


def figure(documents: Sequence[Mapping[str, Any]], part: str, mode: str, name: str) -> Statistic | None:
    """A figure over the seeds that have it; `part` is "test" or "validation"."""
    return statistic([row[part][mode][name] for row in documents if name in row.get(part, {}).get(mode, {})])


def _check(document: Mapping[str, Any], cell: Cell, path: Path) -> None:
    expected = {"architecture": cell.architecture, "data": cell.data, "recipe": cell.folder, "seed": cell.seed}
    for name, value in expected.items():
        if document.get(name) != value:
            raise RecordError(f"{path}: {name} must be {value!r}, got {document.get(name)!r:.40}")
    if not isinstance(document.get("config"), dict):
        raise RecordError(f"{path}: config must be an object")
    try:
        config_of(document)
    except ConfigError as error:
        raise RecordError(f"{path}: config: {error}") from None
    for name in ("hardware", "failed"):
        if name in document and not (isinstance(document[name], str) and document[name]):
            raise RecordError(f"{path}: {name} must be words, got {document[name]!r:.40}")
    for name in ("seconds", "together", "entropy"):
        if name in document:
            require_number(document[name], f"{path}: {name}")
    _check_curve(document, path)
    for part in ("test", "validation"):
        check_scores(document.get(part, {}), f"{path}: {part}")
    _check_distilled(document, path)
    if "failed" not in document:
        judged = "test" if cell.judged_on_test else "validation"
        for part in {judged, *document.keys() & {"test", "validation"}}:
            _require_modes(document.get(part), f"{path}: {part}")


def _check_distilled(document: Mapping[str, Any], path: Path) -> None:
    """What distillation took, or why it failed; its modes with all figures where they are."""
    about = document.get("distilled", {})
    if not isinstance(about, dict):
        raise RecordError(f"{path}: distilled must be an object, got {about!r:.40}")
    for name in ("epochs", "seconds") if about else ():
        require_number(about.get(name), f"{path}: distilled, {name}")
    if not isinstance(about.get("failed", ""), str):
        raise RecordError(f"{path}: distilled, failed must be words, got {about['failed']!r:.40}")
    for part in document.keys() & {"test", "validation"}:
        scores = document[part]
        for mode in DISTILLED_MODES:
            if mode in scores and set(FIGURES) - set(scores[mode]):
                raise RecordError(f"{path}: {part}, {mode} must have {', '.join(FIGURES)}")


def _check_curve(document: Mapping[str, Any], path: Path) -> None:
    """The learning curve: lists of one length, of numbers, or nulls where nothing was set aside to validate on."""
    curve = document.get("curve", {})
    if not curve:
        return
    if not isinstance(curve, dict) or not all(isinstance(values, list) for values in curve.values()):
        raise RecordError(f"{path}: curve must hold one list a figure")
    if not {"epoch", "train_nll", "validation_nll"} <= curve.keys():
        raise RecordError(f"{path}: curve must have epoch, train_nll and validation_nll")
    if len({len(values) for values in curve.values()}) > 1:
        raise RecordError(f"{path}: the lists of curve must be of one length")
    for name, values in curve.items():
        for value in values:
            if value is not None:
                require_number(value, f"{path}: curve, {name}")
    for name in ("epochs", "best_epoch"):
        require_number(document.get(name), f"{path}: {name}")


def check_scores(scores: object, place: str) -> None:
    """Raise RecordError unless `scores` holds objects of finite numbers by mode; NLL and errors are not negative."""
    if not isinstance(scores, dict) or not all(isinstance(entry, dict) for entry in scores.values()):
        raise RecordError(f"{place} must hold one object a mode")
    for mode, entry in scores.items():
        for name, value in entry.items():
            require_number(value, f"{place}, {mode}, {name}")
            if name in FIGURES and (value < 0 or (name != "nll" and value > 1)):
                raise RecordError(f"{place}, {mode}, {name} is out of range: {value!r:.40}")


def require_number(value: object, place: str) -> None:
    """Raise RecordError unless `value` is a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise RecordError(f"{place} must be a number, got {value!r:.40}")


def _require_modes(scores: Mapping[str, Any] | None, place: str) -> None:
    """All modes with all figures, as `bqn.reproduction.measuring` writes them."""
    for mode in MODES:
        for name in FIGURES:
            if scores is None or name not in scores.get(mode, {}):
                raise RecordError(f"{place} must have {name} of every mode ({', '.join(MODES)}), {mode} has none")
