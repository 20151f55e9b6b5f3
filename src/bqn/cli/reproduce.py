"""`bqn reproduce`: the paper's tables and figures again, by the recipes of `bqn.reproduction`."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from bqn.choices import expected_one_of
from bqn.cli._console import err, footnote, note, show, show_json
from bqn.cli._errors import InterruptedRunError, UsageError, settings_are_usage
from bqn.cli._options import AsJson, DataDir, Device, Quiet, choose_device
from bqn.cli._tables import comparison_table, new_table
from bqn.cli._training import stop_on_interrupt
from bqn.comparison import Plan, RecordFolder, Task, run_plan
from bqn.comparison import summarize as compare
from bqn.comparison.words import notes
from bqn.reproduction import TARGETS, Cell, paper, plan, run
from bqn.reproduction.boston import boston_folder, plan_boston
from bqn.reproduction.page import write_pages
from bqn.reproduction.plan import FIGURES
from bqn.reproduction.recipes import RECIPES
from bqn.reproduction.running import sort_out
from bqn.reproduction.summary import in_words, planned, summarize
from bqn.training import EpochRecord
from bqn.training.surroundings import find_device

EXAMPLES = """
bqn reproduce table1 --model cnn --data kmnist --recipe best
bqn reproduce table1 --model cnn --data kmnist --seed 3 --out again
bqn reproduce figure-power --model cnn --data mnist --lam 0.1 --seed 0
bqn reproduce figure-gap --recipe paper --dry-run
bqn reproduce table4 --recipe paper --one-split
bqn reproduce table4 --method pbp --seed 7 --out again
bqn reproduce page
"""

_Number = TypeVar("_Number", int, float)
_PAGE = "page"
# Options that a target has no use for.
_USELESS = {
    _PAGE: {
        "recipe", "seeds", "seed", "model", "data", "idea", "lam", "levels", "method", "one_split", "work", "together",
        "redo", "dry_run", "device", "data_dir",
    },
    "table4": {"model", "data", "idea", "lam", "levels", "work", "docs", "together", "redo", "device"},
}  # fmt: skip
# Options that some targets alone have a use for.
_USEFUL = {"ablations": {"idea"}, "levels": {"levels"}, **{figure: {"lam"} for figure in FIGURES}}
_ALL_RECORDED = "nothing was trained: all is recorded; --out FOLDER trains it anew"
_GOES_ON = "what was finished is recorded; the same command goes on from there"


def reproduce(
    context: typer.Context,
    target: Annotated[
        str, typer.Argument(metavar="TARGET", help=f"What to make: {', '.join(TARGETS)} or page.", show_default=False)
    ],
    recipe: Annotated[
        str, typer.Option("--recipe", metavar="|".join(RECIPES), help="How networks are trained.")
    ] = "best",
    seeds: Annotated[
        int | None,
        typer.Option(
            "--seeds",
            metavar="N",
            min=1,
            help="Runs of each setting, from seed 0 on; for table4 splits, or with --one-split seeds.",
            show_default="10; 5 on cifar10; 3 for figures, levels, ablations; 20 splits",
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            "--seed",
            metavar="K",
            min=0,
            help="Only the runs of this seed, for table4 of this split.",
            show_default="all of --seeds",
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option("--model", metavar="A,B,…", help="Only these architectures.", show_default="mlp,cnn,vgg"),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option("--data", metavar="A,B,…", help="Only these data sets.", show_default="all of the paper"),
    ] = None,
    idea: Annotated[
        str | None, typer.Option("--idea", metavar="A,B,…", help="For ablations: only these.", show_default="all")
    ] = None,
    lam: Annotated[
        str | None,
        typer.Option("--lam", metavar="A,B,…", help="For figures: only these values of λ.", show_default="all"),
    ] = None,
    levels: Annotated[
        str | None,
        typer.Option("--levels", metavar="A,B,…", help="For levels: only so many.", show_default="2,3,4,8"),
    ] = None,
    method: Annotated[
        str | None,
        typer.Option("--method", metavar="A,B,…", help="For table4: only these methods.", show_default="all"),
    ] = None,
    one_split: Annotated[
        bool,
        typer.Option(
            "--one-split", metavar="", help="For table4: seeds of the first split, as in the paper, instead of splits."
        ),
    ] = False,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FOLDER", help="Folder of the records.")] = Path(
        "results"
    ),
    work: Annotated[
        Path, typer.Option("--work", metavar="FOLDER", help="Where runs are kept, so that they can be continued.")
    ] = Path("runs/reproduce"),
    docs: Annotated[Path, typer.Option("--docs", metavar="FOLDER", help="For page: where it is written.")] = Path(
        "docs"
    ),
    together: Annotated[
        int | None,
        typer.Option(
            "--together", metavar="N", min=1, help="Runs that train side by side.", show_default="10; 5 on cifar10"
        ),
    ] = None,
    redo: Annotated[
        bool, typer.Option("--redo", metavar="", help="Replace records that were made with other settings.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", metavar="", help="List the runs and which are recorded; train nothing.")
    ] = False,
    device: Device = "auto",
    data_dir: DataDir = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Make a table or figure of the paper again: plan its runs, train and judge them, and record each.

    A run that is recorded in FOLDER is not made again, and one that was stopped goes on where it was: to train anew
    what is recorded, name another folder with --out. Tables 1 to 3 are three views of the same runs. The target page
    writes docs/results.md, docs/ablations.md and their figures from the records alone.
    """
    if target not in (*TARGETS, _PAGE):
        raise UsageError(expected_one_of("TARGET", (*TARGETS, _PAGE), target))
    _require_sense(context, target)
    for option, folder in (("--out", out), ("--work", work), ("--docs", docs)):
        if folder.exists() and not folder.is_dir():
            raise UsageError(f"{option} takes a folder, and {folder} is a file")
    if seeds is not None and seed is not None:
        raise UsageError("--seeds and --seed cannot be given together")
    choose_device(device)
    if target == _PAGE:
        _tell_files(write_pages(out, docs), as_json)
        return
    if target == "table4":
        with settings_are_usage():
            boston = plan_boston(recipe, seeds, one_split=one_split, methods=_names(method), seed=seed, root=data_dir)
        _table4(boston, recipe, boston_folder(out, recipe, one_split), out, data_dir, dry_run, as_json, quiet)
        return
    with settings_are_usage():
        cells = plan(
            target,
            recipe,
            seeds,
            models=_names(model),
            data=_names(data),
            ideas=_names(idea),
            lams=_numbers("--lam", lam, float),
            levels=_numbers("--levels", levels, int),
            seed=seed,
        )
    found, missing = sort_out(cells, out, device, redo)
    if dry_run:
        _tell_plan(planned(cells, found), len(found), len(missing), as_json)
        return
    if found and missing and not quiet:
        note(f"{len(found)} of {len(cells)} runs are recorded already")
    if missing and not quiet:
        note(_introduce(missing, device))
    with settings_are_usage(), stop_on_interrupt() as stop, _progress(missing, device, quiet) as shown:
        try:
            run(
                cells,
                out=out,
                work=work,
                device=device,
                together=together,
                root=data_dir,
                redo=redo,
                report=shown.epoch,
                done=shown.run,
                tick=stop,
            )
        except KeyboardInterrupt:
            raise InterruptedRunError(_GOES_ON) from None
    rows = summarize(target, cells, out)
    if as_json:
        show_json({"target": target, "recipe": recipe, "out": str(out), "rows": rows})
        return
    table = new_table("network", "recipe", "seeds", "NLL, 1e-3", "error %", "paper's NLL", "error %")
    for row in rows:
        table.add_row(*in_words(row))
    on_page = any((cell.architecture, cell.data) in paper.NETWORKS for cell in cells)
    judged = [footnote("Judged on validation examples.")] if any(row["part"] == "validation" for row in rows) else []
    if any(row["mode"] != "analytic" for row in rows):
        judged.append(footnote("Without recalibration; records and the page have it with, too."))
    show(table, *judged, _ending(missing, out, out, on_page))


def _require_sense(context: typer.Context, target: str) -> None:
    """Raise for an option that was given and would do nothing."""
    useless = _USELESS.get(
        target, {"docs", "idea", "lam", "levels", "method", "one_split"} - _USEFUL.get(target, set())
    )
    for option in context.command.params:
        source = context.get_parameter_source(option.name or "")
        if option.name in useless and source is not None and source.name == "COMMANDLINE":
            raise UsageError(f"{option.opts[0]} is not for {target}")


def _ending(trained: Sequence[object], records: Path, out: Path, on_page: bool = True) -> str:
    """Whether anything was trained, where records are, and the command that writes the page from them, if they have a
    place on it."""
    # Pages of other records go to a folder of their own: in docs they would take the place of those that are there.
    option = "" if out == Path("results") else f" --out {shlex.quote(str(out))} --docs {shlex.quote(str(out / 'docs'))}"
    where = f"records are in {records}" + (f"; next: bqn reproduce page{option}" if on_page else "")
    return where if trained else f"{_ALL_RECORDED}\n{where}"


def _introduce(missing: Sequence[Cell], device: str) -> str:
    """What is about to be done, and where."""
    configs = [cell.config(device) for cell in missing]
    lengths = sorted({config.epochs for config in configs})
    each = f"{lengths[0]}" if len(lengths) == 1 else f"{lengths[0]} to {lengths[-1]}"
    runs = "1 run" if len(configs) == 1 else f"{len(configs)} runs"
    return f"{runs} of {each} epochs, {sum(config.epochs for config in configs):,} in all, on {find_device(configs[0])}"


def _names(text: str | None) -> list[str] | None:
    return None if text is None else [name.strip() for name in text.split(",") if name.strip()]


def _numbers(option: str, text: str | None, kind: type[_Number]) -> list[_Number] | None:
    try:
        return None if text is None else [kind(each) for each in text.split(",")]
    except ValueError:
        raise UsageError(f"{option} takes numbers with commas between them, got {text!r}") from None


def _table4(
    wanted: Plan, recipe: str, folder: RecordFolder, out: Path, data_dir: Path | None, dry_run: bool, as_json: bool,
    quiet: bool,
) -> None:  # fmt: skip
    known = {method: set(record.replicates) for method, record in folder.read_all(wanted).items()}
    missing = [task for task in wanted.tasks if task.replicate not in known.get(task.method, ())]
    if dry_run:
        rows = [
            {
                "run": f"{folder.path.name}/{method}",
                "epochs": tasks[0].config.epochs,
                "planned": len(tasks),
                "recorded": sum(task.replicate in known.get(method, ()) for task in tasks),
            }
            for method in wanted.methods
            if (tasks := [task for task in wanted.tasks if task.method == method])
        ]
        _tell_plan(rows, len(wanted.tasks) - len(missing), len(missing), as_json)
        return
    finished = len(wanted.tasks) - len(missing)
    unit = "split" if wanted.resampled else "seed"

    def tell(task: Task, seconds: float) -> None:
        nonlocal finished
        finished += 1
        if not quiet:
            note(f"{finished}/{len(wanted.tasks)} {task.method}, {unit} {task.replicate}: trained in {seconds:.1f} s")

    try:
        run_plan(wanted, folder, root=data_dir, jobs=os.cpu_count() or 1, report=tell)
    except KeyboardInterrupt:
        raise InterruptedRunError(_GOES_ON) from None
    summary = compare(wanted, folder.read_all(wanted))
    if as_json:
        about = {"target": "table4", "recipe": recipe, "out": str(folder.path), "methods": list(wanted.methods)}
        show_json({**about, "rows": summary["rows"]})
    else:
        show(comparison_table(summary), footnote(f"{notes(summary)}."), _ending(missing, folder.path, out))


def _tell_plan(rows: Sequence[dict[str, Any]], found: int, missing: int, as_json: bool) -> None:
    if as_json:
        show_json({"recorded": found, "missing": missing, "runs": list(rows)})
        return
    table = new_table("run", "epochs", "planned", "recorded")
    for row in rows:
        table.add_row(row["run"], str(row["epochs"]), str(row["planned"]), str(row["recorded"]))
    show(
        table,
        f"{found} {'run is' if found == 1 else 'runs are'} recorded, {missing} {'is' if missing == 1 else 'are'} not",
    )


def _tell_files(written: Sequence[Path], as_json: bool) -> None:
    if as_json:
        show_json({"written": [str(path) for path in written]})
    else:
        show("written: " + ", ".join(map(str, written)))


class _Shown(NamedTuple):
    epoch: Callable[[Cell, EpochRecord], None]
    run: Callable[[Cell, dict[str, Any]], None]


@contextmanager
def _progress(missing: Sequence[Cell], device: str, quiet: bool) -> Iterator[_Shown]:
    """A bar over all epochs on a terminal; elsewhere a line now and then, and one a finished run; nothing if quiet."""
    epochs = sum(cell.config(device).epochs for cell in missing)
    finished = 0

    def end(cell: Cell, document: dict[str, Any]) -> None:
        nonlocal finished
        finished += 1
        note(f"{finished}/{len(missing)} {cell.name}: {_outcome(document)}")

    def line(cell: Cell, record: EpochRecord) -> None:
        whole = cell.config(device).epochs
        if record.epoch % max(whole // 10, 1) == 0:
            note(f"{cell.name}: {_words(record)}")

    if quiet:
        yield _Shown(lambda cell, record: None, lambda cell, document: None)
        return
    if not err.is_terminal:
        yield _Shown(line, end)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("epochs,"))
    times = (TimeElapsedColumn(), TextColumn("gone,"), TimeRemainingColumn(), TextColumn("left"))
    with Progress(*columns, *times, console=err, transient=True) as bar:
        task = bar.add_task("training", total=epochs)

        def move(cell: Cell, record: EpochRecord) -> None:
            score = "" if record.validation_nll is None else f", NLL {record.validation_nll:.4f}"
            bar.update(task, advance=1, description=f"{cell.architecture} {cell.data}{score}")

        yield _Shown(move, end)


def _words(record: EpochRecord) -> str:
    if record.validation_nll is None or record.validation_error is None:
        return f"epoch {record.epoch}"
    return f"epoch {record.epoch}, validation NLL {record.validation_nll:.4f}, error {record.validation_error:.2%}"


def _outcome(document: dict[str, Any]) -> str:
    if "failed" in document:
        return f"failed, {document['failed']}"
    part = "test" if "test" in document else "validation"
    scores = ", ".join(
        f"{mode} {entry['nll']:.4f} / {entry['error']:.2%}" for mode, entry in document.get(part, {}).items()
    )
    return f"{part} NLL / error {scores}" if scores else "recorded"
