"""The runs that the recipe `best` was chosen by: records under results/tuning, and their part of docs/ablations.md.

One network a setting and seed, judged on validation examples. The words about them, `pages/tuning.md`, quote figures by
reference, `[[RECORD DATA NAME MODE]]`, so that they cannot say what the records do not. Some runs were judged again
with the logits of their posterior times a factor: `[[RECORD DATA NAME MODE FACTOR]]`. Runs of the tables are quoted as
`quotes` says.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bqn.reproduction import provenance, tables
from bqn.reproduction.quotes import quoted
from bqn.reproduction.records import MODES, RecordError, require_number
from bqn.reproduction.templates import template
from bqn.training import ConfigError, TrainConfig
from bqn.training.files import parse_object, read_text

_ROUNDS = {"mlp": 8, "cnn": 6, "vgg": 9}
_RECORDS = tuple(f"{model}-{number}" for model, rounds in _ROUNDS.items() for number in range(1, rounds + 1))
_HEAD = ("what", "hardware", "date", "code")
_REFERENCE = re.compile(r"\[\[([^/\]]*)\]\]")  # those with a slash are for `quotes`

Record = Mapping[str, Any]


def section(out: Path) -> str:
    """The runs as tables, and what follows from them; "" where no such run is recorded."""
    folder = out / "tuning"
    if not folder.is_dir():
        return ""
    strangers = sorted({path.stem for path in folder.glob("*.json")} - set(_RECORDS))
    if strangers:  # a round that nobody would see
        raise RecordError(f"{folder}: the page does not know {', '.join(strangers)}; add them to its rounds")
    found = {name: read(path) for name in _RECORDS if (path := folder / f"{name}.json").exists()}
    return f"{quoted(_quoted(found), out)}\n\n" + "\n\n".join(_tables(record) for record in found.values())


def read(path: Path) -> dict[str, Any]:
    """A record, checked throughout."""
    try:
        document = parse_object(read_text(path), str(path))
    except ValueError as error:
        raise RecordError(str(error)) from None
    for name in _HEAD:
        if not (isinstance(document.get(name), str) and document[name]):
            raise RecordError(f"{path}: {name} must be words, got {document.get(name)!r:.40}")
    if f"{document.get('architecture')}-{document.get('round')}" != path.stem:
        raise RecordError(f"{path}: architecture and round must be those of the file's name")
    runs = document.get("runs")
    if not isinstance(runs, list) or not runs or not all(isinstance(run, dict) for run in runs):
        raise RecordError(f"{path}: runs must be a list of objects")
    for run in runs:
        _check(run, document, f"{path}: run {run.get('data')!r:.20} {run.get('name')!r:.20}")
    if len({(run["data"], run["name"]) for run in runs}) != len(runs):
        raise RecordError(f"{path}: a run stands twice")
    return document


def _check(run: Record, document: Record, place: str) -> None:
    if not all(isinstance(run.get(name), str) for name in ("data", "name")):
        raise RecordError(f"{place}: data and name must be words")
    config = _config(run, document, place)
    _check_scores(run.get("scores"), place)
    sharpened = run.get("sharpened", {})
    if not isinstance(sharpened, dict):
        raise RecordError(f"{place}: sharpened must be an object")
    for factor, scores in sharpened.items():
        _check_scores(scores, f"{place}, sharpened {factor}")
    require_number(run.get("entropy"), f"{place}: entropy")
    if "best_epoch" not in run or run["best_epoch"] not in (None, *range(1, config.epochs + 1)):
        raise RecordError(f"{place}: best_epoch must be one of {config.epochs}, got {run.get('best_epoch')!r:.40}")


def _check_scores(scores: Any, place: str) -> None:
    if not isinstance(scores, dict) or set(scores) != set(MODES):
        raise RecordError(f"{place}: scores must have the modes {', '.join(MODES)}")
    for mode, pair in scores.items():
        if not isinstance(pair, list) or len(pair) != 2:
            raise RecordError(f"{place}: {mode} must be NLL and error")
        for value in pair:
            require_number(value, f"{place}: {mode}")


def _config(run: Record, document: Record, place: str) -> TrainConfig:
    """What was trained: the preset with the settings of the record, and those of the run over them."""
    changed = [document.get("settings"), run.get("settings")]
    if not all(isinstance(each, dict) for each in changed):
        raise RecordError(f"{place}: settings must be an object")
    merged = {name: value for each in changed if isinstance(each, dict) for name, value in each.items()}
    merged = {"drawn_epochs": 0, **merged}  # a preset that came to have more is no news of older runs
    try:
        return TrainConfig.preset({**merged, "model": document["architecture"], "data": run["data"]})
    except ConfigError as error:
        raise RecordError(f"{place}: {error}") from None


def _tables(record: Record) -> str:
    """A table for each data set of a record."""
    heads = ("λ", "shift", "learning rate", "drawn epochs", *tables.MODES.values(), "entropy", "best epoch")
    parts = []
    for data in dict.fromkeys(run["data"] for run in record["runs"]):
        runs = [run for run in record["runs"] if run["data"] == data]
        epochs = _config(runs[0], record, "").epochs
        title = f"### {tables.title(record['architecture'], data)}, round {record['round']}, {epochs} epochs"
        parts.append(f"{title}\n\n{tables.markdown(heads, (_row(run, record) for run in runs))}")
    note = f"({record['hardware']}, {record['date']}; {record['code']}.)"
    return "\n\n".join([*parts, note])


def _row(run: Record, record: Record) -> list[str]:
    config = _config(run, record, "")
    lam = f"{config.lam:g}" if config.lam_schedule == "constant" else f"{config.lam:g} to {config.lam_end:g}"
    scores = [_pair(run["scores"][mode]) for mode in tables.MODES]
    return [
        lam,
        provenance.augmentation(config),
        f"{config.learning_rate:g}",
        f"{config.drawn_epochs}{provenance.how_drawn(config)}",
        *scores,
        f"{run['entropy']:.3f}",
        "–" if run["best_epoch"] is None else str(run["best_epoch"]),
    ]


def _pair(scores: list[float]) -> str:
    return f"{scores[0]:.1f} / {scores[1]:.2f}"


def _quoted(found: Mapping[str, Record]) -> str:
    """The words with the figures that they refer to."""

    def figure(match: re.Match[str]) -> str:
        try:
            record, data, name, what, *factor = match[1].split()
            if record in _RECORDS and record not in found:
                return tables.MISSING
            (run,) = (run for run in found[record]["runs"] if (run["data"], run["name"]) == (data, name))
            if what == "entropy" and not factor:
                return f"{run['entropy']:.3f}"
            scores = run["sharpened"][" ".join(factor)] if factor else run["scores"]
            return _pair(scores[what])
        except (KeyError, ValueError):
            raise RecordError(f"results/tuning has no figure for [[{match[1]}]]") from None

    return _REFERENCE.sub(figure, template("tuning.md").rstrip())
