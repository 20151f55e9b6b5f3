"""A run and the examples to judge it by, with everything checked that could make the figures wrong."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch

from bqn.cli._console import note, working
from bqn.cli._errors import UsageError
from bqn.data import DataError, Dataset, Split, load
from bqn.training import Run, load_data, load_run, own_parts
from bqn.training.preprocessing import Preprocessing

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
    """

    path: Path
    run: Run
    data: str
    part: str
    examples: Split
    training: Split | None
    validation: Split | None = None

    @property
    def name(self) -> str:
        """What the examples are, for people."""
        return f"{self.data} ({self.part})"


def open_run(path: Path, device: torch.device) -> Run:
    """Read a run, and say so if it is not finished."""
    run = load_run(path, device=str(device))
    done, wanted = len(run.history.records), run.config.epochs
    if done < wanted and not run.history.stopped_early:
        note(f"{path} is not finished: {done} of {wanted} epochs")
    return run


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
    with working(f"loading {data or run.config.data}"):
        dataset = load_data(run.config, data_dir) if data is None else _load_other(run, data, data_dir)
    require_like(path, run, dataset)
    if data is not None:
        chosen = _part_of_other(dataset, part)
        return Judged(path, run, dataset.name, part, with_own_labels(path, run, dataset, chosen), None)
    if part == "all":
        raise UsageError("--part all needs --data: some of the run's own data were trained on")
    training, validation = own_parts(path, run.config, dataset)
    if part == "validation":
        if validation is None:
            raise UsageError(f"{path} has no validation examples")
        return Judged(path, run, dataset.name, part, validation, training, validation)
    test = with_own_labels(path, run, dataset, dataset.test)
    return Judged(path, run, dataset.name, part, test, training, validation)


def _load_other(run: Run, data: str, data_dir: Path | None) -> Dataset:
    """Other data; a table is read as the run's own was."""
    if Path(data).suffix.lower() == ".csv":
        return load(data, data_dir, target=run.config.target, task=run.config.task)
    return load(data, data_dir)


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
