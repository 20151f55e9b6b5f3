"""Table 4, regression on Boston: carried out by `bqn.comparison`, recorded beside its other regression records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bqn.choices import expected_one_of
from bqn.comparison import Plan, RecordFolder, make_plan
from bqn.training import ConfigError

# The published splits, one seed each; or the paper's protocol, ten seeds of one split. Which one it took the paper does
# not say: we take the first.
SPLITS, SEEDS, ONE_SPLIT = 20, 10, 0
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


def plan_boston(
    recipe: str = "best",
    count: int | None = None,
    *,
    one_split: bool = False,
    methods: Sequence[str] | None = None,
    seed: int | None = None,
    root: str | Path | None = None,
) -> Plan:
    """The methods of a recipe on the published splits, or on one of them.

    Parameters
    ----------
    recipe : "paper" or "best"
    count : int or None
        How many splits, from the first on, or with `one_split` seeds; by default 20 and 10.
    one_split : bool
        Whether to follow the paper's protocol: several seeds of one split.
    methods : names or None
        Only these.
    seed : int or None
        Only this split, or with `one_split` this seed, whatever `count` would plan.
    """
    if recipe not in METHODS:
        raise ConfigError(expected_one_of("recipe", METHODS, recipe))
    for method in methods or ():
        if method not in METHODS[recipe]:
            raise ConfigError(expected_one_of("method", METHODS[recipe], method))
    usual = SEEDS if one_split else SPLITS
    chosen = METHODS[recipe] if methods is None else methods
    wanted = make_plan(
        "boston",
        chosen,
        max(usual, seed + 1) if seed is not None else usual if count is None else count,
        {method: settings for method, settings in SETTINGS[recipe].items() if method in chosen},
        root=root,
        one_split=ONE_SPLIT if one_split else None,
    )
    if seed is None:
        return wanted
    return replace(wanted, tasks=tuple(task for task in wanted.tasks if task.replicate == seed))


def boston_folder(out: str | Path, recipe: str, one_split: bool = False) -> RecordFolder:
    """Where the records of a recipe lie."""
    name = f"{FOLDERS[recipe]}-split-{ONE_SPLIT}" if one_split else FOLDERS[recipe]
    return RecordFolder(Path(out) / "regression" / name)
