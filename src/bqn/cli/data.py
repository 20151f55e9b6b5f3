"""`bqn data`: which sets there are, bringing them here, checking them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich import box, progress
from rich.table import Table
from rich.text import Text

from bqn.cli._console import err, show, show_json
from bqn.cli._help import Command, Group
from bqn.cli._options import AsJson, DataDir, Quiet
from bqn.data import FileReport, SetInfo, available, data_root
from bqn.data import fetch as fetch_set
from bqn.data import verify as verify_set
from bqn.data._catalog import find_entry

app = typer.Typer(cls=Group, help="List, fetch and verify data sets.", add_completion=False, rich_markup_mode="rich")

Transfer = Callable[[str, int, int | None], None]
Names = Annotated[list[str], typer.Argument(metavar="NAME", help="Names of data sets.", show_default=False)]
OptionalNames = Annotated[
    list[str] | None, typer.Argument(metavar="NAME", help="Names of data sets.", show_default="all")
]


@app.command("list", cls=Command)
def list_sets(names: OptionalNames = None, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """List the data sets that have a name; with names, all about these: licence, source, description."""
    root = data_root(data_dir)
    known = {info.name: info for info in available()}
    chosen = [known[find_entry(name).info.name] for name in names or known]
    if as_json:
        show_json({"data_dir": str(root), "sets": [{**asdict(info), "here": _here(info, root)} for info in chosen]})
    elif names:
        show(*(_details(info, root) for info in chosen))
    else:
        show(
            _overview(chosen, root),
            f"Files lie in {root}. Your own data go by their path: .npz, .csv or a folder of pictures.",
        )


@app.command("fetch", cls=Command)
def fetch(names: Names, data_dir: DataDir = None, as_json: AsJson = False, quiet: Quiet = False) -> None:
    """Download what is missing or damaged of data sets, and verify it. A broken download goes on where it stopped."""
    for name in names:
        find_entry(name)  # a wrong name is told before the first byte is moved
    reports = {}
    for name in names:
        with _transfers(quiet) as told:
            reports[name] = fetch_set(name, data_dir, told)
    _tell(reports, data_root(data_dir), as_json)


@app.command("verify", cls=Command)
def verify(names: OptionalNames = None, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Compare the files of data sets with the published checksums.

    Exit code 1 if a file is damaged, or if one of a set that you name is missing. Without names, all sets that are
    here, whole or in part, are verified.
    """
    reports = {name: verify_set(name, data_dir) for name in names or [info.name for info in available()]}
    if not names:
        reports = {name: files for name, files in reports.items() if any(file.state != "missing" for file in files)}
    _tell(reports, data_root(data_dir), as_json)


def _here(info: SetInfo, root: Path) -> str:
    """Whether the files of a set lie below `root`; their contents are not looked at."""
    files = find_entry(info.name).files()
    found = sum(file.find(root) is not None for file in files)
    return "bundled" if not files else "yes" if found == len(files) else "in part" if found else "no"


def _overview(sets: list[SetInfo], root: Path) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("name", no_wrap=True, style="bold")
    table.add_column("examples")
    table.add_column("here", no_wrap=True)
    for task in ("classification", "regression"):
        table.add_row(Text(task, style="italic not bold"), "", "")
        for info in sets:
            if info.task == task:
                table.add_row(f" {info.name}", info.size, _here(info, root))
        table.add_section()
    return table


def _details(info: SetInfo, root: Path) -> Table:
    splits = "any seed" if info.splits is None else str(info.splits)
    rows = {
        "name": info.name,
        "task": info.task,
        "examples": info.size,
        "splits": splits,
        "licence": info.licence,
        "source": info.source,
        "about": info.description,
        "here": _here(info, root),
    }
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows.items():
        table.add_row(name, Text(value))
    return table


@contextmanager
def _transfers(quiet: bool) -> Iterator[Transfer | None]:
    """A function that shows downloads as bars."""
    if quiet or not err.is_terminal:
        yield None
        return
    columns = (
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.DownloadColumn(),
        progress.TimeRemainingColumn(),
    )
    with progress.Progress(*columns, console=err) as bars:
        tasks: dict[str, progress.TaskID] = {}

        def tell(name: str, done: int, total: int | None) -> None:
            if name not in tasks:
                tasks[name] = bars.add_task(name, total=total)
            bars.update(tasks[name], completed=done, total=total)

        yield tell


def _tell(reports: dict[str, list[FileReport]], root: Path, as_json: bool) -> None:
    """Say how each set fares; files that are not as they should be make the command fail."""
    bad = [file for files in reports.values() for file in files if file.state != "ok"]
    if as_json:
        sets = {name: [{**asdict(file), "path": str(file.path)} for file in files] for name, files in reports.items()}
        show_json({"data_dir": str(root), "ok": not bad, "sets": sets})
    elif not reports:
        show(f"no data set in {root}")
    else:
        for name, files in reports.items():
            show(f"{name}: {_state(files, root)}")
            for file in files:
                if file.state != "ok":
                    show(f"  {file.state}: {file.detail or file.path}")
    if bad:
        raise typer.Exit(1)


def _state(files: list[FileReport], root: Path) -> str:
    if not files:
        return "ok, it comes with scikit-learn"
    good = sum(file.state == "ok" for file in files)
    count = f"{len(files)} files" if len(files) > 1 else "1 file"
    return f"ok, {count} in {root}" if good == len(files) else f"{good} of {count} ok"
