"""What a command line says about planned and finished runs: one row a network and recipe."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from bqn.reproduction import paper, records
from bqn.reproduction.cells import Cell
from bqn.reproduction.plan import TABLES

# The mode that a target is about, where it is not the analytic prediction.
_MODES = {"table2": "map", "table3": "mc", "figure-gap": "mc"}
# What the paper calls it in its figures.
_SERIES = {"figure-power": "bqn", "figure-gap": "mc"}

# Unit for people and digits.
_FORMS = {"nll": (1e3, 1), "error": (100.0, 2)}


def planned(cells: Sequence[Cell], found: Collection[Cell]) -> list[dict[str, Any]]:
    """Networks and recipes with the number of runs that are planned and recorded."""
    return [
        {
            "run": name,
            "epochs": group[0].config().epochs,
            "planned": len(group),
            "recorded": sum(cell in found for cell in group),
        }
        for name, group in _grouped(cells).items()
    ]


def summarize(target: str, cells: Sequence[Cell], out: str | Path) -> list[dict[str, Any]]:
    """Means and standard deviations over the seeds among `cells`, JSON-ready, NLL in nats.

    Beside them the paper's: of its tables, or of its figures at the same λ; none for levels and ideas.
    """
    mode = _MODES.get(target, "analytic")
    rows = []
    for group in _grouped(cells).values():
        first, documents = group[0], list(records.read_all(group, out).values())
        part = "validation" if target == "ablations" else "test"
        row: dict[str, Any] = {"architecture": first.architecture, "data": first.data, "recipe": first.folder}
        failed = records.failures(documents)
        row |= {"part": part, "mode": mode, "seeds": len(documents) - failed, "failed": failed}
        for name, (factor, _) in _FORMS.items():
            found = records.figure(documents, part, mode, name)
            said = _said(target, first, name)
            row[name] = None if found is None else {"mean": found.mean, "std": found.std}
            row[f"paper_{name}"] = (
                None if said is None else {"mean": said.mean / factor, "std": _scaled(said.std, factor)}
            )
        rows.append(row)
    return rows


def _said(target: str, cell: Cell, name: str) -> paper.Figure | None:
    if target not in _SERIES:
        return paper.printed(target, cell.architecture, cell.data, "bqn", name) if target in TABLES else None
    lam = cell.config().lam
    points = paper.sweep(target, cell.architecture, cell.data, _SERIES[target], name)
    return next((paper.Figure(point.value, None) for point in points if point.lam == lam), None)


def in_words(row: Mapping[str, Any]) -> list[str]:
    """A row for people: network, recipe, seeds and failures, NLL in 1e-3 and error in percent, ours and the paper's."""
    figures = [_figure(row[f"{whose}{name}"], *form) for whose in ("", "paper_") for name, form in _FORMS.items()]
    seeds = f"{row['seeds']}, {row['failed']} failed" if row["failed"] else str(row["seeds"])
    return [f"{row['architecture']} {row['data']}", row["recipe"], seeds, *figures]


def _figure(found: Mapping[str, float | None] | None, factor: float, digits: int) -> str:
    if found is None or found["mean"] is None:
        return "–"
    spread = "" if found["std"] is None else f" ± {factor * found['std']:.{digits}f}"
    return f"{factor * found['mean']:.{digits}f}{spread}"


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else value / factor


def _grouped(cells: Sequence[Cell]) -> dict[str, list[Cell]]:
    groups: dict[str, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(f"{cell.architecture}-{cell.data}/{cell.folder}", []).append(cell)
    return groups
