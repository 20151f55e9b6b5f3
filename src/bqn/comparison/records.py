"""What has been measured: one JSON file a method, with a number for each split in every list.

A file is replaced, whole or not at all, whenever a split is finished; a comparison that was stopped goes on from there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from bqn.comparison.plan import Plan, Task
from bqn.training import TrainConfig
from bqn.training.files import parse_object, read_text, remove_leftovers, to_json, write_atomic

FORMAT = "bqn-comparison-1"
# They differ from split to split, or make no difference to what is measured.
_NOT_COMPARED = ("split", "seed", "device", "threads", "checkpoint_every", "compile")
_DEFAULTS = {each.name: each.default for each in fields(TrainConfig)}  # of settings that are newer than a record
_COMMON = ("train_seconds", "epochs")


class ComparisonError(ValueError):
    """A comparison that cannot go on."""


@dataclass
class MethodRecord:
    """All splits of one method so far.

    Attributes
    ----------
    config : the settings that all splits have in common, by name
    examples : numbers of training and test examples of the first split
    replicates : numbers of the splits, ascending
    common : by name, one number a split: training time and epochs
    modes : by mode of prediction, the usual one first, and by name: one number a split
    """

    method: str
    data: str
    config: dict[str, Any]
    examples: dict[str, int]
    replicates: list[int] = field(default_factory=list)
    common: dict[str, list[float]] = field(default_factory=dict)
    modes: dict[str, dict[str, list[float | None]]] = field(default_factory=dict)

    def add(self, replicate: int, measured: Mapping[str, Any]) -> None:
        """Put a finished split in its place."""
        place = sum(each < replicate for each in self.replicates)
        self.replicates.insert(place, replicate)
        for name in _COMMON:
            self.common.setdefault(name, []).insert(place, measured[name])
        for mode, scores in measured["modes"].items():
            lists = self.modes.setdefault(mode, {})
            for name, value in scores.items():
                lists.setdefault(name, []).insert(place, value)

    def to_json(self) -> str:
        """The usual mode's figures stand at the top, those of others under "modes"."""
        usual, *others = self.modes
        document = {
            "format": FORMAT,
            "method": self.method,
            "data": self.data,
            "mode": usual,
            "config": self.config,
            "examples": self.examples,
            "splits": self.replicates,
            **self.common,
            **self.modes[usual],
            "modes": {mode: self.modes[mode] for mode in others},
        }
        return to_json(document, indent=1)

    @classmethod
    def from_json(cls, text: str, source: str) -> MethodRecord:
        """What `to_json` wrote; anything else is an error."""
        try:
            values = parse_object(text, source)
        except ValueError as error:
            raise ComparisonError(str(error)) from None
        if values.pop("format", None) != FORMAT:
            raise ComparisonError(f"{source} is no record of a comparison, {FORMAT}")
        try:
            head = {
                name: values.pop(name) for name in ("method", "data", "mode", "config", "examples", "splits", "modes")
            }
            common = {name: values.pop(name) for name in _COMMON}
        except KeyError as error:
            raise ComparisonError(f"{source}: {error.args[0]} is missing") from None
        record = cls(head["method"], head["data"], head["config"], head["examples"], head["splits"], common)
        others = head["modes"] if isinstance(head["modes"], dict) else {}
        record.modes = {head["mode"]: values, **others}
        record._check(source)
        return record

    def _check(self, source: str) -> None:
        tables: list[Any] = [self.common, *self.modes.values()]
        if not all(isinstance(each, str) for each in (self.method, self.data, *self.modes)):
            raise ComparisonError(f"{source}: method, data and modes must be names")
        if not all(isinstance(each, dict) for each in (self.config, self.examples, *tables)):
            raise ComparisonError(f"{source}: config, examples and modes must be objects")
        if not isinstance(self.replicates, list) or not all(
            map(_is_count, (*self.replicates, *self.examples.values()))
        ):
            raise ComparisonError(f"{source}: splits and examples must be counts")
        if (
            not self.replicates
            or sorted(set(self.replicates)) != self.replicates
            or set(self.examples) != {"train", "test"}
        ):
            raise ComparisonError(f"{source}: splits must be ascending numbers, examples those of train and test")
        for name, values in (entry for table in tables for entry in table.items()):
            if not isinstance(values, list) or len(values) != len(self.replicates) or not all(map(_is_figure, values)):
                raise ComparisonError(f"{source}: {name} must be {len(self.replicates)} numbers, one a split")


class RecordFolder:
    """Where the records of a comparison lie."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def file(self, method: str) -> Path:
        return self.path / f"{method}.json"

    def read(self, method: str) -> MethodRecord | None:
        """The record of a method; None if it has none yet."""
        file = self.file(method)
        if not file.exists():
            return None
        record = MethodRecord.from_json(read_text(file), str(file))
        if record.method != method:
            raise ComparisonError(f"{file} is the record of {record.method}")
        return record

    def read_all(self, plan: Plan) -> dict[str, MethodRecord]:
        """The records that fit `plan`, by method; one that was made with other settings is an error."""
        found = {method: record for method in plan.methods if (record := self.read(method)) is not None}
        for task in plan.tasks:
            if task.method in found:
                self._require_same(found[task.method], plan, task)
        return found

    def _require_same(self, record: MethodRecord, plan: Plan, task: Task) -> None:
        file, wanted = self.file(task.method), shared_settings(task.config)
        if record.data != plan.data:
            raise ComparisonError(f"{file} is about {record.data}, not {plan.data}: choose another folder")
        for name in sorted((wanted.keys() | record.config.keys()).difference(_NOT_COMPARED)):
            was, now = record.config.get(name, _DEFAULTS.get(name)), wanted.get(name)
            if was != now:
                raise ComparisonError(
                    f"{file} was made with {name} {was!r:.60}, not {now!r:.60}; choose another folder or remove it"
                )

    def add(self, plan: Plan, task: Task, measured: Mapping[str, Any]) -> None:
        """Keep a finished split."""
        record = self.read(task.method)
        if record is None:
            record = MethodRecord(task.method, plan.data, shared_settings(task.config), dict(measured["examples"]))
        record.add(task.replicate, measured)
        self.path.mkdir(parents=True, exist_ok=True)
        remove_leftovers(self.file(task.method))
        write_atomic(self.file(task.method), f"{record.to_json()}\n".encode())


def shared_settings(config: TrainConfig) -> dict[str, Any]:
    """The settings that must be the same in all splits, as JSON has them."""
    settings = {each.name: getattr(config, each.name) for each in fields(config) if each.name not in _NOT_COMPARED}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in settings.items()}


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_figure(value: object) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value))
