"""`bqn benchmark`: methods side by side on the same splits."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from bqn.cli._console import err, footnote, note, show, show_json, working
from bqn.cli._errors import InterruptedRunError, UsageError, settings_are_usage
from bqn.cli._options import AsJson, DataDir, Quiet
from bqn.cli._settings import parse_setting
from bqn.cli._tables import comparison_table
from bqn.comparison import ComparisonError, Plan, RecordFolder, Task, make_plan, render_page, run_plan, summarize
from bqn.comparison.words import notes
from bqn.data import DataError
from bqn.training.files import to_json, write_atomic

EXAMPLES = """
bqn benchmark --data boston --methods bqn,pbp,ebp,npn,mc-dropout --splits 20
bqn benchmark --data digits --methods bqn,qnn,ensemble --splits 3 --set epochs=10
bqn benchmark --data prices.csv --target price --methods bqn,pbp --set bqn.lam=0.3
"""


def benchmark(
    data: Annotated[
        str,
        typer.Option(
            "--data", metavar="NAME|PATH", help="Name (see bqn data list), or path of a file.", show_default=False
        ),
    ],
    methods: Annotated[
        str,
        typer.Option("--methods", "-m", metavar="A,B,…", help="Names of methods, as bqn train --method has them."),
    ] = "bqn",
    splits: Annotated[
        int | None,
        typer.Option(
            "--splits",
            metavar="N",
            help="How many train and test splits; seeds, where the set's test examples are given.",
            show_default="all published ones, or 5",
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="[METHOD.]NAME=VALUE",
            help="A setting of bqn train for all methods or for one, as epochs=5 or bqn.lam=0.3; may stand repeatedly.",
            show_default=False,
        ),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option("--target", metavar="COLUMN", help="Column of a .csv file to predict.", show_default=False),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            metavar="FOLDER",
            help="Folder for the records; what is there already is not done again.",
            show_default="runs/benchmark-DATA",
        ),
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(
            "--jobs", "-j", metavar="N", min=1, help="Trainings at a time, one thread each.", show_default="one a core"
        ),
    ] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Train several methods on the same splits and put their figures side by side.

    Each method has its own preset; test examples are looked at once, after training. FOLDER gets one JSON file a method
    with a figure for each split, comparison.json with the table, and comparison.html with plots of quality against
    size. A benchmark that was stopped goes on where it was with the same command.
    """
    chosen = _parse_settings(settings or [])
    names = [name.strip() for name in methods.split(",") if name.strip()]
    with settings_are_usage(), _data_are_usage():
        plan = make_plan(data, names, splits, chosen, root=data_dir, target=target)
    folder = RecordFolder(out or Path("runs") / f"benchmark-{Path(data).stem}")
    known = folder.read_all(plan)
    with _progress(plan, sum(len(record.replicates) for record in known.values()), quiet) as report:
        try:
            workers = (os.cpu_count() or 1) if jobs is None else jobs
            run_plan(plan, folder, root=data_dir, jobs=workers, report=report)
        except KeyboardInterrupt:
            raise InterruptedRunError(f"the same command goes on from here; records are in {folder.path}") from None
    summary = summarize(plan, folder.read_all(plan))
    write_atomic(folder.path / "comparison.json", f"{to_json(summary, indent=1)}\n".encode())
    write_atomic(folder.path / "comparison.html", render_page(summary).encode())
    if as_json:
        show_json(summary)
        return
    page = folder.path / "comparison.html"
    show(comparison_table(summary), footnote(f"{notes(summary)}."), f"records and plots: {shlex.quote(str(page))}")


def _parse_settings(given: list[str]) -> dict[str, dict[str, Any]]:
    """`bqn.lam=0.3` as {"bqn": {"lam": 0.3}}; without a method the key is ""."""
    result: dict[str, dict[str, Any]] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise UsageError(f"--set must be NAME=VALUE or METHOD.NAME=VALUE, got {text!r}")
        method, _, setting = name.strip().rpartition(".")
        result.setdefault(method, {})[setting] = parse_setting(setting, value.strip())
    return result


@contextmanager
def _data_are_usage() -> Iterator[None]:
    """A setting that this kind of data does not have is wrong usage; bad data are not."""
    try:
        with working("looking at the data"):
            yield
    except (DataError, ComparisonError, UsageError):
        raise
    except ValueError as error:
        raise UsageError(str(error)) from error


@contextmanager
def _progress(plan: Plan, done: int, quiet: bool) -> Iterator[Callable[[Task, float], None]]:
    """A bar on a terminal, one line a training elsewhere, nothing if quiet."""
    total = len(plan.tasks)
    if done and not quiet:
        note(f"{done} of {total} trainings are recorded already")
    if quiet or not err.is_terminal:
        finished = done

        def tell(task: Task, seconds: float) -> None:
            nonlocal finished
            finished += 1
            if not quiet:
                note(f"{finished}/{total} {task.method}, split {task.replicate}: trained in {seconds:.1f} s")

        yield tell
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("gone,"),
        TimeRemainingColumn(),
        TextColumn("left"),
    )
    with Progress(*columns, console=err, transient=True) as bar:
        line = bar.add_task("training", total=total, completed=done)
        yield lambda task, seconds: bar.update(line, advance=1, description=f"{task.method}, split {task.replicate}")
