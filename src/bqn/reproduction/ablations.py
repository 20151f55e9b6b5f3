"""docs/ablations.md: what each idea gained or lost on validation examples, from records alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bqn.reproduction import paper, recipes, records, tables, tuning
from bqn.reproduction.recipes import IDEAS, Idea
from bqn.reproduction.templates import template

_MODES = {mode: tables.MODES[mode] for mode in ("analytic", "mc_recalibrated", "map_recalibrated")}


def page(out: Path) -> str:
    """The whole page: a section for each network that has a record of an idea, then how the recipe was chosen."""
    sections = [section for network in paper.NETWORKS for recipe in recipes.RECIPES
                if (section := _section(out, network, recipe))]  # fmt: skip
    body = "\n\n".join(sections) if sections else "No idea has been measured yet."
    return template("ablations.md").format(body=body, tuning=tuning.section(out)).rstrip() + "\n"


def _section(out: Path, network: tuple[str, str], recipe: str) -> str:
    found: dict[str, list[dict[str, Any]]] = {}
    for name, idea in IDEAS.items():
        if idea.recipe == recipe and network in idea.networks:
            found[name] = records.seeds(*network, f"{recipe}-{name}", out)
    tried = {name: documents for name, documents in found.items() if documents}
    if not tried:
        return ""
    plain = records.seeds(*network, recipe, out)
    rows = [["recipe as it is", f"{_epochs(plain)}", *_cells(plain, [])]] if plain else []
    for name, documents in tried.items():
        idea = IDEAS[name]
        against = found.get(idea.against, []) if idea.against else plain
        rows.append([_label(name, idea), _epochs(documents), *_cells(documents, against)])
    heads = ("idea", "epochs", *_MODES.values())
    return f"### {tables.title(*network)}, recipe `{recipe}`\n\n{tables.markdown(heads, rows)}"


def _label(name: str, idea: Idea) -> str:
    compared = f", against `{idea.against}`" if idea.against else ""
    return f"`{name}`: {idea.text}{compared}"


def _epochs(documents: list[dict[str, Any]]) -> str:
    return str(records.config_of(documents[0]).epochs) if documents else tables.MISSING


def _cells(documents: list[dict[str, Any]], against: list[dict[str, Any]]) -> list[str]:
    cells = []
    for mode in _MODES:
        cell = tables.ours(documents, mode, part="validation")
        differences = [_difference(documents, against, mode, name) for name in ("nll", "error")]
        if all(differences):
            cell += f"<br>{differences[0]} / {differences[1]}"
        cells.append(cell)
    return cells


def _difference(documents: list[dict[str, Any]], against: list[dict[str, Any]], mode: str, name: str) -> str:
    """Over the seeds that both have: the same seed has the same validation examples and the same start."""
    ours, theirs = _by_seed(documents, mode, name), _by_seed(against, mode, name)
    found = records.statistic([ours[seed] - theirs[seed] for seed in sorted(ours.keys() & theirs.keys())])
    if found is None:
        return ""
    factor, digits = (1e3, 1) if name == "nll" else (100, 2)
    error = "" if found.std is None else f" ± {factor * found.std / found.seeds**0.5:.{digits}f}"
    return f"{factor * found.mean:+.{digits}f}{error}"


def _by_seed(documents: list[dict[str, Any]], mode: str, name: str) -> Mapping[int, float]:
    return {row["seed"]: row["validation"][mode][name] for row in documents if mode in row.get("validation", {})}
