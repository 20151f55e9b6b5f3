"""Showing a run: a bar and a table on a terminal, JSON lines elsewhere, TensorBoard on request."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, TextIO

from bqn.training.files import to_json
from bqn.training.loop import Report, Tick
from bqn.training.records import EpochRecord


class Progress(NamedTuple):
    """The two functions that `fit`, `train` and `resume` take: after each epoch, and after each step."""

    report: Report
    tick: Tick


@contextmanager
def progress(epochs: int, quiet: bool = False, stream: TextIO | None = None) -> Iterator[Progress]:
    """Show a run as fits where the output goes.

    Use it as `with progress(config.epochs) as shown: train(config, report=shown.report, tick=shown.tick)`.

    Parameters
    ----------
    epochs : int
        Epochs of the whole run.
    quiet : bool
        Show nothing.
    stream : text stream, standard output by default
        A terminal gets a bar with the time left and a line an epoch (needs the extra `cli`); anything else one JSON
        object a line.
    """
    target = sys.stdout if stream is None else stream
    if quiet:
        yield Progress(lambda record: None, _ignore_tick)
    elif target.isatty():
        with _terminal(epochs, target) as shown:
            yield shown
    else:
        yield Progress(_json_lines(target), _ignore_tick)


@contextmanager
def tensorboard(folder: str | Path) -> Iterator[Report]:
    """A report function that writes event files for TensorBoard into `folder`; needs the extra `tensorboard`."""
    module = _extra("torch.utils.tensorboard", "tensorboard")
    writer = module.SummaryWriter(str(folder))
    try:
        yield lambda record: _write_scalars(writer, record)
    finally:
        writer.close()


def both(*reports: Report) -> Report:
    """One report function that calls several in turn."""

    def report(record: EpochRecord) -> None:
        for each in reports:
            each(record)

    return report


def _ignore_tick(done: int, total: int) -> None:
    pass


def _json_lines(stream: TextIO) -> Report:
    def report(record: EpochRecord) -> None:
        stream.write(f"{to_json(record.to_dict())}\n")
        stream.flush()

    return report


# Name of a field, head of its column, format. Fields that are None in a run are left out; the rest fits 80 characters.
_COLUMNS: tuple[tuple[str, str, str], ...] = (
    ("epoch", "epoch", "d"),
    ("elbo", "ELBO", ".4f"),
    ("log_likelihood", "log-lik.", ".4f"),
    ("kl", "KL", ".4g"),
    ("validation_nll", "val. NLL", ".4f"),
    ("validation_error", "error", ".2%"),
    ("validation_rmse", "RMSE", ".4g"),
    ("learning_rate", "rate", ".2g"),
    ("seconds", "seconds", ".1f"),
)
_WIDTH = 10
_MARGIN = _WIDTH - len("epoch")


def header(record: EpochRecord) -> str:
    """The heads of the columns that `row` fills."""
    return "".join(f"{head:>{_WIDTH}}" for _, head, _ in _columns(record))[_MARGIN:]


def row(record: EpochRecord) -> str:
    """An epoch as a line of a table."""
    cells = (format(getattr(record, name), form) for name, _, form in _columns(record))
    return "".join(f"{cell:>{_WIDTH}}" for cell in cells)[_MARGIN:]


def _columns(record: EpochRecord) -> list[tuple[str, str, str]]:
    return [column for column in _COLUMNS if getattr(record, column[0]) is not None]


@contextmanager
def _terminal(epochs: int, stream: TextIO) -> Iterator[Progress]:
    rich = _extra("rich.progress", "cli")
    console = import_module("rich.console").Console(file=stream)
    columns = (
        rich.TextColumn("epoch {task.fields[epoch]}"),
        rich.BarColumn(bar_width=None),
        rich.TaskProgressColumn(),
        rich.TimeElapsedColumn(),
        rich.TextColumn("gone,"),
        rich.TimeRemainingColumn(),
        rich.TextColumn("left"),
    )
    with rich.Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("training", epoch=f"1/{epochs}", total=None)
        headed = False

        def report(record: EpochRecord) -> None:
            nonlocal headed
            if not headed:
                bar.console.print(header(record), style="bold", highlight=False)
                headed = True
            bar.console.print(row(record), highlight=False)
            bar.update(task, epoch=f"{min(record.epoch + 1, epochs)}/{epochs}")

        def tick(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        yield Progress(report, tick)


def _write_scalars(writer: Any, record: EpochRecord) -> None:
    for name, value in record.to_dict().items():
        if name not in ("epoch", "eta") and value is not None:
            part, _, rest = name.partition("_")
            tag = f"{part}/{rest}" if part in ("validation", "train") else f"train/{name}"
            writer.add_scalar(tag, value, record.epoch)
    writer.flush()


def _extra(module: str, extra: str) -> ModuleType:
    try:
        return import_module(module)
    except ImportError as error:
        package = module.rpartition(".")[2] if extra == "tensorboard" else module.partition(".")[0]
        raise ImportError(f'{package} is not installed: pip install "bqn[{extra}]"') from error
