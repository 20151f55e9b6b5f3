"""What `sweep` and `train --replicas` share: many runs in one folder, side by side, and a table of their scores."""

from __future__ import annotations

import math
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

import typer
from rich.table import Table

from bqn.cli._console import note, show, show_json
from bqn.cli._errors import InterruptedRunError, one_line, settings_are_usage
from bqn.cli._tables import new_table
from bqn.cli._training import stop_on_interrupt
from bqn.data import Dataset
from bqn.training import DivergedError, EpochRecord, Run, TrainConfig
from bqn.training.files import to_json
from bqn.training.replicas import train_together


class Plan(NamedTuple):
    """A run to be made: its config, and in words how it differs from the others but for the seed."""

    config: TrainConfig
    differs: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """That of its folder."""
        return "_".join((*self.differs, f"seed-{self.config.seed}"))


def train_all(plans: Sequence[Plan], dataset: Dataset, folder: Path, quiet: bool, as_json: bool) -> None:
    """Carry out all plans in subfolders of `folder`; what is there already is continued or skipped.

    Runs that fail are named on standard error, and the command fails if none is left.
    """
    names = [plan.name for plan in plans]
    if not quiet and sys.stderr.isatty():
        note(f"{len(plans)} runs of {plans[0].config.epochs} epochs, into {folder}")

    def report(index: int, record: EpochRecord) -> None:
        if not quiet:
            sys.stderr.write(f"{to_json({'run': names[index], **record.to_dict()})}\n")
            sys.stderr.flush()

    with settings_are_usage(), stop_on_interrupt() as stop:
        try:
            runs = train_together(
                [plan.config for plan in plans],
                dataset,
                folders=[folder / name for name in names],
                report=report,
                tick=stop,
            )
        except KeyboardInterrupt:
            message = f"the runs are saved; the same command with --out {shlex.quote(str(folder))} continues them"
            raise InterruptedRunError(message) from None
    summaries = [_summary(name, run) for name, run in zip(names, runs, strict=True)]
    groups = _by_setting(plans, summaries)
    none_left = all("failed" in summary for summary in summaries)
    for summary in summaries:
        if "failed" in summary:
            note(f"bqn: {summary['run']} failed: {one_line(summary['failed'])}")
    if as_json:
        show_json({"folder": str(folder), "runs": summaries, "settings": groups})
    else:
        further = "" if none_left else f"; next: bqn compare {shlex.quote(str(folder))}/*"
        show(_table(groups), f"saved in {folder}{further}")
    if none_left:
        raise typer.Exit(1)


def _summary(name: str, run: Run | DivergedError) -> dict[str, Any]:
    if isinstance(run, DivergedError):
        return {"run": name, "failed": str(run)}
    history = run.history
    best = history.best or (history.records[-1] if history.records else None)
    return {"run": name, "best": None if best is None else best.to_dict()}


def _by_setting(plans: Sequence[Plan], summaries: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Mean and standard deviation over the seeds of each setting, the best validation NLL first."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for plan, summary in zip(plans, summaries, strict=True):
        groups.setdefault(", ".join(plan.differs) or "all seeds", []).append(summary)
    rows = []
    for setting, members in groups.items():
        done = [member["best"] for member in members if member.get("best") is not None]
        row: dict[str, Any] = {"setting": setting, "runs": len(members), "failed": len(members) - len(done)}
        for key in ("validation_nll", "validation_error", "validation_rmse"):
            values = [best[key] for best in done if best[key] is not None]
            if values:
                row[key] = {"mean": fmean(values), "std": stdev(values) if len(values) > 1 else None}
        rows.append(row)
    return sorted(rows, key=lambda row: row.get("validation_nll", {}).get("mean", math.inf))


def _table(rows: Sequence[dict[str, Any]]) -> Table:
    heads = {"validation_nll": ("NLL", ".4f"), "validation_error": ("error", ".2%"), "validation_rmse": ("RMSE", ".4g")}
    shown = [key for key in heads if any(key in row for row in rows)]
    table = new_table("setting", "runs", *(heads[key][0] for key in shown), title="validation, mean ± std over seeds")
    for row in rows:
        failed = f", {row['failed']} failed" if row["failed"] else ""
        cells = [_cell(row.get(key), heads[key][1]) for key in shown]
        table.add_row(row["setting"], f"{row['runs']}{failed}", *cells)
    return table


def _cell(value: dict[str, float | None] | None, form: str) -> str:
    if value is None:
        return "-"
    spread = "" if value["std"] is None else f" ± {value['std']:{form}}"
    return f"{value['mean']:{form}}{spread}"
