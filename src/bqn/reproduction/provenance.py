"""How the networks on the page of results came about: their settings, and which commits made their records."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from bqn.reproduction import paper, recipes, records, tables
from bqn.training import TrainConfig

_COMMIT = re.compile("[0-9a-f]{40}")
# What the runs of a recipe are for, in the order in which they are told.
_TABLES, _SWEEP, _LEVELS, _IDEAS = "tables 1 to 3", "λ sweep", "levels", "ideas"
_OTHERS = "nothing here any more"


def settings(out: Path) -> str:
    """How the networks of both recipes were trained, as their records say."""
    heads = ("", "recipe", "bound", "epochs", "learning rate", "λ", "start", "shift")
    rows = []
    for network in paper.NETWORKS:
        for recipe in ("paper", "best"):
            documents = records.seeds(*network, recipe, out)
            if documents:
                rows.append([tables.title(*network), recipe, *_settings(documents[0])])
    return tables.markdown(heads, rows) if rows else "No run is recorded yet."


def _settings(document: Mapping[str, Any]) -> list[str]:
    config = records.config_of(document)
    rate, decay, lam = config.learning_rate, config.lr_decay, f"{config.lam:g}"
    rates = {"cosine": f"{rate:g}, cosine", "exponential": f"{rate:g} × {decay:g} an epoch", "constant": f"{rate:g}"}
    lams = {
        "constant": lam,
        "warm-up": f"{config.warm_up_lam:g} for {config.warm_up_epochs:g} epochs, then {lam}",
        "decay": f"from {lam} to {config.lam_end:g}",
    }
    some = f"{config.drawn_epochs} drawn" if config.best_after else "all drawn"
    drawn = f", {some}{how_drawn(config)}" if config.drawn_epochs else ""
    return [config.bound, f"{config.epochs}{drawn}", rates[config.lr_schedule], lams[config.lam_schedule],
            str(config.init), augmentation(config)]  # fmt: skip


def how_drawn(config: TrainConfig) -> str:
    """What such epochs do beyond a drawn network a step, to follow their number; "" if nothing."""
    parts = []
    if config.drawn_alone:
        parts.append(f"{config.drawn_alone} of {config.drawn_alone + 1} steps")
    if config.mode_share:
        parts.append(f"the mode in {config.mode_share:.0%} of {'these' if config.drawn_alone else 'steps'}")
    return "".join(f", {part}" for part in parts)


def augmentation(config: TrainConfig) -> str:
    """By how much images shift, and what else happens to them."""
    further = [f"{name} {getattr(config, name):g}" for name in ("turn", "zoom", "cutout") if getattr(config, name)]
    return " and ".join([str(config.shift), *(["flip"] if config.flip else []), *further])


def commits(out: Path) -> str:
    """Which commits made the records, on what: seed by seed for the tables, by number of runs for all else."""
    rows = []
    for network in paper.NETWORKS:
        for recipe in ("paper", "best"):
            found = _by_purpose(network, recipe, out)
            for purpose in (_TABLES, _SWEEP, _LEVELS, _IDEAS, _OTHERS):
                if documents := found.get(purpose):
                    words = _seeds_of if purpose == _TABLES else _runs_of
                    rows.append([tables.title(*network), recipe, purpose, _commits(documents, words),
                                 " or ".join(sorted({row.get("hardware", "?") for row in documents}))])  # fmt: skip
    return tables.markdown(("", "recipe", "for", "commit", "on"), rows) if rows else "No run is recorded yet."


def _by_purpose(network: tuple[str, str], recipe: str, out: Path) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for folder in sorted((out / "-".join(network)).glob(f"{recipe}*")):
        name, _, variant = folder.name.partition("-")
        if name == recipe and folder.is_dir():
            found.setdefault(_purpose(variant), []).extend(records.seeds(*network, folder.name, out))
    return found


def _purpose(variant: str) -> str:
    if not variant:
        return _TABLES
    if variant in recipes.IDEAS:
        return _IDEAS
    return _SWEEP if variant.startswith("lam-") else _LEVELS if variant.startswith("levels-") else _OTHERS


def _commits(documents: Sequence[Mapping[str, Any]], words: Callable[[Sequence[Mapping[str, Any]]], str]) -> str:
    """Each commit, + with changes that were not committed, and what it made if it did not make all."""
    made: dict[str, list[Mapping[str, Any]]] = {}
    for row in documents:
        name = f"{_short(row.get('code'))}{'+' if row.get('code_changed') else ''}"
        made.setdefault(name, []).append(row)
    if len(made) == 1:
        return next(iter(made))
    return "<br>".join(f"{name}: {words(rows)}" for name, rows in made.items())


def _short(code: object) -> str:
    """A commit by its first digits; the version of a package that is no clone is short as it is."""
    return str(code or "?")[: 7 if _COMMIT.fullmatch(str(code)) else None]


def _seeds_of(documents: Sequence[Mapping[str, Any]]) -> str:
    """For example "seeds 0 to 4, 7"."""
    seeds = [row["seed"] for row in documents]
    runs = [[seed for _, seed in run] for _, run in groupby(enumerate(seeds), lambda pair: pair[1] - pair[0])]
    spans = [f"{run[0]} to {run[-1]}" if len(run) > 1 else str(run[0]) for run in runs]
    return f"seed{'s' if len(seeds) > 1 else ''} {', '.join(spans)}"


def _runs_of(documents: Sequence[Mapping[str, Any]]) -> str:
    return f"{len(documents)} run{'s' if len(documents) > 1 else ''}"


def cost(out: Path) -> str:
    """What the training of tables 1 to 3 took, distillation included, in words: minutes by recipe and device."""
    parts = []
    for recipe in ("best", "paper"):
        seconds: Counter[str] = Counter()
        for network in paper.NETWORKS:
            for row in records.seeds(*network, recipe, out):
                seconds[row.get("hardware", "?")] += row.get("seconds", 0.0)
                seconds[row.get("hardware", "?")] += row.get("distilled", {}).get("seconds", 0.0)
        parts += [f"{total / 60:.0f} minutes of {name} for `{recipe}`" for name, total in seconds.most_common()]
    return f"Training took {', '.join(parts)}." if parts else ""
