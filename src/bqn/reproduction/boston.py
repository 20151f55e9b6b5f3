"""Table 4, regression on Boston: carried out by `bqn.comparison`, recorded beside its other regression records."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bqn.choices import expected_one_of
from bqn.comparison import Plan, RecordFolder, make_plan
from bqn.comparison.run import Report, run_plan
from bqn.training import ConfigError

SPLITS = 20
# Methods of table 4, and the one that people use. The paper's recipe concerns BQN alone.
METHODS: Mapping[str, tuple[str, ...]] = {"best": ("bqn", "pbp", "ebp", "npn", "mc-dropout"), "paper": ("bqn",)}
FOLDERS: Mapping[str, str] = {"best": "boston", "paper": "boston-paper"}
# One layer of 50 sign units, weights and biases ±1, batches of 4 for 400 epochs. `best` is the preset.
SETTINGS: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "best": {},
    "paper": {
        "bqn": {
            "model": "regressor",
            "hidden": (50,),
            "levels": (-1.0, 1.0),
            "activations": (-1.0, 1.0),
            "batch_norm": False,
            "init": "xavier",
            "mean_field": True,
            "epochs": 400,
            "batch_size": 4,
            "learning_rate": 1e-2,
            "lr_schedule": "exponential",
            "lr_decay": 0.99,
            "lam": 1e-4,
            "lam_schedule": "warm-up",
        }
    },
}


def plan_boston(recipe: str = "best", splits: int | None = None, *, root: str | Path | None = None) -> Plan:
    """All methods of a recipe on the published splits, the first `splits` of them."""
    if recipe not in METHODS:
        raise ConfigError(expected_one_of("recipe", METHODS, recipe))
    count = SPLITS if splits is None else splits
    return make_plan("boston", METHODS[recipe], count, SETTINGS[recipe], root=root)


def boston_folder(out: str | Path, recipe: str) -> RecordFolder:
    """Where the records of a recipe lie."""
    return RecordFolder(Path(out) / "regression" / FOLDERS[recipe])


def run_boston(
    recipe: str = "best",
    splits: int | None = None,
    *,
    out: str | Path = "results",
    root: str | Path | None = None,
    jobs: int = 1,
    report: Report | None = None,
) -> RecordFolder:
    """Do what is not recorded yet; arguments as for `bqn.comparison.run_plan`."""
    folder = boston_folder(out, recipe)
    run_plan(plan_boston(recipe, splits, root=root), folder, root=root, jobs=jobs, report=report)
    return folder
