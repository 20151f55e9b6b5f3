"""What is to be compared: every method on every split, each with its config."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bqn.baselines import METHODS
from bqn.choices import expected_one_of
from bqn.data import Dataset, available, load
from bqn.training import ConfigError, TrainConfig

# Sets for which published splits exist under another name.
PUBLISHED = {"boston": "bostonHousing"}
_FEW_SPLITS = 5


@dataclass(frozen=True)
class Task:
    """One training: a method on a split. `replicate` counts from 0."""

    method: str
    replicate: int
    config: TrainConfig


@dataclass(frozen=True)
class Plan:
    """A comparison.

    Attributes
    ----------
    data : str
        As the user named it.
    source : str
        The set that is loaded, the one with the published splits where there is one.
    task : "classification" or "regression"
    resampled : bool
        Whether each replicate has a split of its own. Otherwise all have the same test examples, and replicates differ
        by their seeds.
    tasks : in the order in which they are carried out: all methods on the first split, then on the second
    """

    data: str
    source: str
    task: str
    resampled: bool
    methods: tuple[str, ...]
    replicates: int
    tasks: tuple[Task, ...]


def make_plan(
    data: str,
    methods: Sequence[str],
    splits: int | None = None,
    settings: Mapping[str, Mapping[str, Any]] | None = None,
    *,
    root: str | Path | None = None,
    target: str | None = None,
    one_split: int | None = None,
) -> Plan:
    """Check what the user asks for and work it out.

    Parameters
    ----------
    data : name of a set, or path of a file
    methods : names, each once
    splits : int or None
        How many: published ones, random ones where the set has none, or seeds where its test examples are given. All
        published splits by default, or five.
    settings : by method, "" for all methods: fields of `TrainConfig` by name, over the presets
    one_split : int or None
        The one split that all replicates are trained and tested on; they differ by their seeds then, and `splits` says
        how many. By default each has its own, where the set has several.
    """
    _require_methods(methods)
    given = settings or {}
    for name in given:
        if name and name not in methods:
            raise ConfigError(f"{name} has settings, but is none of the methods: {', '.join(methods)}")
    source = PUBLISHED.get(data, data)
    task, most, resampled = _nature(source, root, target)
    if one_split is not None:
        if not resampled or one_split < 0 or (most is not None and one_split >= most):
            known = "no splits to choose from" if not resampled else f"{most or 'random'} splits, counted from 0"
            raise ConfigError(f"{data} has {known}, got one_split {one_split}")
        most, resampled = None, False
    count = (most if resampled and most is not None else _FEW_SPLITS) if splits is None else splits
    if count < 1:
        raise ConfigError(f"splits must be at least 1, got {count}")
    if resampled and most is not None and count > most:
        raise ConfigError(f"{data} has {most} splits, got splits {count}")
    tasks = []
    for replicate in range(count):
        for method in methods:
            chosen: dict[str, Any] = {**given.get("", {}), **given.get(method, {})}
            fixed = {
                "data": source,
                "split": replicate if resampled else one_split or 0,
                "seed": replicate,
                "method": method,
            }
            for name in fixed.keys() & chosen.keys():
                raise ConfigError(f"{name} cannot be set: the comparison chooses it")
            if target is not None:
                fixed["target"] = target
            tasks.append(Task(method, replicate, TrainConfig.preset({**chosen, **fixed}, task=task)))
    return Plan(data, source, task, resampled, tuple(methods), count, tuple(tasks))


def _require_methods(methods: Sequence[str]) -> None:
    if not methods:
        raise ConfigError("methods must name at least one method")
    for method in methods:
        if method not in METHODS:
            raise ConfigError(expected_one_of("method", METHODS, method))
    if len(set(methods)) < len(methods):
        raise ConfigError(f"methods must name each method once, got {','.join(methods)}")


def _nature(source: str, root: str | Path | None, target: str | None) -> tuple[str, int | None, bool]:
    """The task, how many splits there are (None: any number), and whether there are several."""
    info = next((each for each in available() if each.name == source), None)
    if info is not None:
        if target is not None:
            raise ConfigError(f"target is for your own files, {source} has its own")
        return info.task, info.splits, info.splits != 1
    first, second = (load(source, root, split=split, target=target) for split in range(2))
    return first.task, None, not _same_test(first, second)


def _same_test(first: Dataset, second: Dataset) -> bool:
    return first.test.x.shape == second.test.x.shape and bool((first.test.x == second.test.x).all())
