"""`bqn compare`: several runs side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from bqn.cli._console import footnote, note, show, show_json, working
from bqn.cli._errors import UsageError
from bqn.cli._options import AsJson, BatchSize, DataDir, Device, OtherData, Samples, Seed, choose_device
from bqn.cli._runs import Judged, judge
from bqn.cli._settings import describe_value
from bqn.cli._tables import modes_of, new_table, notes_on, ranked_table, short
from bqn.cli.evaluate import score
from bqn.training import TrainConfig

EXAMPLES = "bqn compare runs/one runs/two runs/three"


def compare(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN", help="Folders of runs, made by bqn train.", show_default=False)
    ],
    data: OtherData = None,
    samples: Samples = 5,
    seed: Seed = 0,
    batch_size: BatchSize = 500,
    device: Device = "auto",
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Evaluate several runs on their test examples and put the figures side by side, the best bold.

    Choose a model by its validation scores, which bqn train prints, not by those shown here.
    """
    where = choose_device(device)
    judged = [judge(run, where, data, data_dir) for run in runs]
    _require_one_task(judged)
    results = []
    for each in judged:
        with working(f"evaluating {each.path} on {each.name}") as tell:
            results.append(score(each, samples=samples, seed=seed, batch_size=batch_size, tell=tell))
    if as_json:
        show_json({"runs": results})
        return
    names = [str(run) for run in runs]
    if len({(each.name, each.run.config.split if each.training is not None else 0) for each in judged}) > 1:
        note("the runs are evaluated on different data, each on its own; --data with other data gives all the same")
    settings = _differences(names, [each.run.config for each in judged])
    show(settings, *_ranked(names, results), footnote(notes_on({**results[0], **_all_modes(results)})))


def _ranked(names: list[str], results: Sequence[Mapping[str, Any]]) -> list[Table]:
    """A table for each mode that all runs have; before them one of their usual modes, where these differ."""
    usual = [modes_of(result)[0] for result in results]
    tables = []
    if len(set(usual)) > 1:
        of_modes = [f"{name} ({short(mode)})" for name, mode in zip(names, usual, strict=True)]
        tables.append(ranked_table(of_modes, results, usual, "usual mode"))
    shared = [mode for mode in modes_of(results[0]) if all(mode in result for result in results)]
    return tables + [ranked_table(names, results, [mode] * len(results), short(mode)) for mode in shared]


def _all_modes(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {mode: result[mode] for result in results for mode in modes_of(result)}


def _require_one_task(judged: Sequence[Judged]) -> None:
    first = judged[0]
    for other in judged:
        if other.run.preprocessing.task != first.run.preprocessing.task:
            raise UsageError(
                f"{first.path} is a run for {first.run.preprocessing.task}, {other.path} one for "
                f"{other.run.preprocessing.task}: they have no figures in common"
            )


def _differences(names: Sequence[str], configs: Sequence[TrainConfig]) -> Table:
    """What each run is, and the settings in which the runs differ."""
    table = new_table("run", "settings")
    table.columns[1].justify, table.columns[1].no_wrap = "left", False
    settings = [field.name for field in fields(TrainConfig)]
    differing = {name for name in settings if len({getattr(config, name) for config in configs}) > 1}
    told = [name for name in settings if name in {"data", "method", "model", *differing}]
    for run, config in zip(names, configs, strict=True):
        words = [f"{name} {describe_value(getattr(config, name)) or 'none'}" for name in told]
        table.add_row(Text(run), Text(", ".join(words)))
    return table
