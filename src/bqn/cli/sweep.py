"""`bqn sweep`: a grid of settings times seeds, trained side by side."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import typer

from bqn.cli._errors import UsageError, settings_are_usage
from bqn.cli._options import AsJson, DataDir, Quiet
from bqn.cli._settings import describe_value, with_settings
from bqn.cli._together import Plan, train_all
from bqn.cli.train import free_folder, resolve
from bqn.training import TrainConfig
from bqn.training.replicas import seeds_of

EXAMPLES = """
bqn sweep --data mnist --model mlp --lam 1e-4,1e-3,1e-2 --seeds 10 --out runs/lam
bqn sweep --data digits --learning-rate 0.01,0.03,0.1 --lam 1e-3,1e-2
"""

SWEPT = frozenset({"lam", "learning_rate", "batch_size"})
_LARGEST = 1000


def sweep(
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            metavar="FOLDER",
            help="Folder for the runs, one subfolder each; runs that it holds are continued or skipped.",
            show_default="runs/DATA-MODEL, numbered if taken",
        ),
    ] = None,
    config_file: Annotated[
        Path | None,
        typer.Option(
            "--config",
            "-c",
            metavar="FILE",
            help="TOML file with settings, or a run's config.json; options win over it.",
            show_default=False,
        ),
    ] = None,
    seeds: Annotated[int, typer.Option("--seeds", metavar="N", min=1, help="Runs of each setting.")] = 1,
    data_dir: DataDir = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
    **settings: Any,
) -> None:
    """Train every combination of values of λ, learning rate and batch size, with several seeds each.

    All runs go on side by side; on a GPU they share it. The table at the end ranks the settings by their validation
    NLL: choose with it, and use the test examples once, for the choice.
    """
    lists = {name: _values(name, settings.pop(name)) for name in sorted(SWEPT & set(settings))}
    first = {name: values[0] for name, values in lists.items()}
    config, dataset = resolve(config_file, {**settings, **first}, data_dir)
    with settings_are_usage():
        plans = _plans(config, lists, seeds)
    train_all(plans, dataset, out or free_folder(config), quiet, as_json)


sweep = with_settings(sweep, several=SWEPT)


def _values(name: str, values: Any) -> list[Any]:
    if not isinstance(values, list) or len(set(values)) < len(values):
        flag = name.replace("_", "-")
        raise UsageError(f"--{flag} must be one or more different numbers with commas between them, got {values!r}")
    return values


def _plans(config: TrainConfig, lists: Mapping[str, list[Any]], seeds: int) -> list[Plan]:
    plans = []
    for values in product(*lists.values()):
        chosen = dict(zip(lists, values, strict=True))
        differs = tuple(f"{name}-{describe_value(value)}" for name, value in chosen.items() if len(lists[name]) > 1)
        plans += [Plan(each, differs) for each in seeds_of(replace(config, **chosen), seeds)]
    if len(plans) > _LARGEST:
        raise UsageError(f"these are {len(plans)} runs, more than {_LARGEST}")
    return plans
