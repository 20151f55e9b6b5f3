"""A run and the examples to judge it by, with everything checked that could make the figures wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import torch

from bqn.cli._console import note, working
from bqn.cli._errors import UsageError
from bqn.cli._packed import is_run
from bqn.data import DataError, Dataset, Split, Task, available, load
from bqn.training import Run, load_run, own_parts
from bqn.training.preprocessing import Preprocessing
from bqn.training.run import load_again
from bqn.zoo import PRETRAINED

PARTS = ("test", "validation", "all")
_MOST_NAMED = 5


class Prepared(Protocol):
    """What knows the form of its data: a run, or a packed file."""

    @property
    def preprocessing(self) -> Preprocessing: ...


@dataclass(frozen=True, eq=False)
class Judged:
    """A run with the examples that it is evaluated on.

    Attributes
    ----------
    data, part : str
        The data set, and which of its examples: "test", "validation" or "all".
    examples : Split
        Labels are those of the run's classes.
    training : Split or None
        Examples that the run was trained on, where the data set has them.
    validation : Split or None
        Examples that chose its best epoch, likewise.
    split : int
        The split that tells test examples from others in a file of other data.
    """

    path: Path
    run: Run
    data: str
    part: str
    examples: Split
    training: Split | None
    validation: Split | None = None
    split: int = 0

    @property
    def name(self) -> str:
        """What the examples are, for people."""
        return f"{self.data} ({self.part}, split {self.split})" if self.split else f"{self.data} ({self.part})"


def open_run(path: Path, device: torch.device) -> Run:
    """Read a run, and say so if it is not finished."""
    require_folder(path)
    run = load_run(path, device=str(device))
    done, wanted = len(run.history.records), run.config.epochs
    if done < wanted and not run.history.stopped_early:
        note(f"{path} is not finished: {done} of {wanted} epochs")
    return run


def require_folder(path: Path) -> None:
    """Raise where a packed network is named in the place of a run."""
    if path.is_file():
        raise UsageError(f"{path} is a file, not the folder of a run; if it is a packed network, use bqn run {path}")
    if not is_run(path) and str(path) in PRETRAINED.names():
        raise UsageError(f"{path} is a packed network, not the folder of a run: use bqn run {path}")


def judge(path: Path, device: torch.device, data: str | None, data_dir: Path | None, part: str = "test") -> Judged:
    """Read a run with the examples to evaluate it on.

    Parameters
    ----------
    path : folder of the run
    data : str or None
        Another data set than the run's own.
    part : "test", "validation" or "all"
        The validation examples are those of the run; "all" is for other data.
    """
    run = open_run(path, device)
    if data is not None and same_source(data, run.config.data):
        if part == "all":
            raise UsageError(f"--part all is for other data, {data} is the run's own; a copy of another name is not")
        data = None  # split as for training: another split would judge by examples that were trained on
    with working(f"loading {data or run.config.data}"):
        dataset = load_again(run.config, data_dir) if data is None else _load_other(run, data, data_dir)
    dataset = with_own_columns(path, run, dataset)
    require_like(path, run, dataset)
    if data is not None:
        chosen = _part_of_other(dataset, part)
        split = run.config.split if part == "test" and not _is_named(data) else 0
        return Judged(path, run, dataset.name, part, with_own_labels(path, run, dataset, chosen), None, split=split)
    if part == "all":
        raise UsageError("--part all needs --data: some of the run's own data were trained on")
    training, validation = own_parts(path, run.config, dataset)
    if part == "validation":
        if validation is None:
            raise UsageError(f"{path} has no validation examples")
        return Judged(path, run, dataset.name, part, validation, training, validation)
    test = with_own_labels(path, run, dataset, dataset.test)
    return Judged(path, run, dataset.name, part, test, training, validation)


def same_source(one: str, other: str | None) -> bool:
    """Whether both are the same data: a named set, or a file or folder by whatever path."""
    if other is None or one == other or _is_named(one) or _is_named(other):
        return one == other
    paths = [Path(each).expanduser() for each in (one, other)]
    return all(path.exists() for path in paths) and paths[0].resolve() == paths[1].resolve()


def _is_named(data: str) -> bool:
    return data in {info.name for info in available()}


def _load_other(run: Run, data: str, data_dir: Path | None) -> Dataset:
    task: Task | None = "regression" if run.preprocessing.task == "regression" else run.config.task
    config = run.config
    return load_other(data, data_dir, config.split, config.target, run.preprocessing.target_name, task)


def load_other(
    data: str, data_dir: Path | None, split: int, target: str | None, known_as: str | None, task: Task | None
) -> Dataset:
    """Other data than those of training; targets in a file are read for `task`, or by their looks.

    Files and folders are split by `split`, that of training: they may be those of training by another path, and by
    another split most of the test examples would have been trained on.

    In a `.csv` file, where the target is `known_as` and nobody named it, it may stand in any column.
    """
    suffix = Path(data).suffix.lower()
    if suffix == ".csv":
        dataset = load(data, split=split, target=target, task=task)
        found = known_as in dataset.feature_names
        return load(data, split=split, target=known_as, task=task) if found else dataset
    if _is_named(data):
        return load(data, data_dir)
    return load(data, split=split, task=task if suffix == ".npz" else None)


def _part_of_other(dataset: Dataset, part: str) -> Split:
    if part == "validation":
        raise UsageError("--part validation is for the run's own data, leave --data out")
    if part == "test":
        return dataset.test
    both = (dataset.train, dataset.test)
    return Split(torch.cat([each.x for each in both]), torch.cat([each.y for each in both]))


def require_like(path: Path, run: Prepared, dataset: Dataset) -> None:
    """Raise unless the examples are of the form that the run takes."""
    expected, pictures = run.preprocessing.input_shape, run.preprocessing.inputs is None
    if dataset.task != run.preprocessing.task:
        raise DataError(f"{dataset.name} is for {dataset.task}, but {path} is a run for {run.preprocessing.task}")
    if dataset.input_shape != expected or (dataset.train.x.dtype == torch.uint8) != pictures:
        raise DataError(
            f"{dataset.name} has {describe_shape(dataset.input_shape)}, but {path} takes {describe_shape(expected)}"
        )
    if dataset.task == "regression" and dataset.train.y.shape[1] != run.preprocessing.outputs:
        raise DataError(
            f"{dataset.name} has {dataset.train.y.shape[1]} targets, but {path} predicts {run.preprocessing.outputs}"
        )


def with_own_columns(path: Path, run: Prepared, dataset: Dataset) -> Dataset:
    """The same examples with their columns in the order of the run, where both have names."""
    own, given = run.preprocessing.feature_names, dataset.feature_names
    if not own or not given or own == given:
        return dataset
    require_columns(dataset.name, [*given, dataset.target_name or ""], own, run.preprocessing.target_name)
    order = [given.index(name) for name in own]
    train, test = (Split(part.x[:, order], part.y) for part in (dataset.train, dataset.test))
    return replace(dataset, train=train, test=test, feature_names=own)


def require_columns(source: str, given: Sequence[str], features: Sequence[str], target: str | None) -> None:
    """Raise unless `given` are the names of the features, each once and in any order, with or without the target."""
    twice = sorted({name for name in given if given.count(name) > 1})
    missing = [name for name in features if name not in given]
    unknown = [name for name in given if name not in features and name != target]
    faults = [
        f"{words} {_few([repr(name) for name in names])}"
        for words, names in (("missing", missing), ("unknown", unknown), ("more than once", twice))
        if names
    ]
    if faults:
        raise DataError(f"{source}: its columns are not those of training: {'; '.join(faults)}")


def with_own_labels(path: Path, run: Prepared, dataset: Dataset, split: Split) -> Split:
    """The same examples with the labels that the run has for their classes; a class it does not know is an error."""
    classes = run.preprocessing.classes or tuple(map(str, range(run.preprocessing.outputs)))
    if dataset.task == "regression" or dataset.classes == classes:
        return split
    present = [dataset.classes[label] for label in split.y.unique().tolist()]
    unknown = [name for name in present if name not in classes]
    if unknown:
        raise DataError(
            f"{dataset.name} has classes that {path} does not know: {_few(unknown)}; it knows {_few(classes)}"
        )
    own = torch.tensor([classes.index(name) if name in classes else -1 for name in dataset.classes])
    return Split(split.x, own[split.y])


def describe_shape(shape: tuple[int, ...]) -> str:
    """The shape of one example in words."""
    if len(shape) == 1:
        return f"{shape[0]} features"
    return f"images of {' × '.join(map(str, shape))}"


def _few(names: list[str] | tuple[str, ...]) -> str:
    shown = ", ".join(names[:_MOST_NAMED])
    return shown if len(names) <= _MOST_NAMED else f"{shown} and {len(names) - _MOST_NAMED} more"
