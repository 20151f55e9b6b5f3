"""Evaluations as tables for people: at most 80 columns, units in the heads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from rich import box
from rich.table import Table
from rich.text import Text


class Column(NamedTuple):
    """A figure of an evaluation: its key, its head, its format, and whether less is better (None: neither)."""

    key: str
    head: str
    form: str
    less_is_better: bool | None = True


CLASSIFICATION = (
    Column("nll", "NLL", ".4f"),
    Column("bound", "bound", ".4f", None),
    Column("error", "error", ".2%"),
    Column("ece", "ECE", ".2%"),
    Column("brier", "Brier", ".4f"),
    Column("aurc", "AURC", ".4f"),
    Column("entropy", "entropy", ".4f", None),
    Column("epistemic", "epist.", ".4f", None),
)
REGRESSION = (
    Column("rmse", "RMSE", ".4g"),
    Column("log_likelihood", "log-lik.", ".4f", False),
    Column("bound", "bound", ".4f", None),
    Column("crps", "CRPS", ".4g"),
    Column("aleatoric", "aleat.", ".4g", None),
    Column("epistemic", "epist.", ".4g", None),
    Column("coverage_50", "in 50%", ".0%", None),
    Column("coverage_90", "in 90%", ".0%", None),
)
CLASSIFICATION_NOTES = (
    "NLL{bound} and entropies in nats; ECE over {bins} bins; entropy: mean of the predictions{epistemic}"
)
REGRESSION_NOTES = (
    "log-likelihood in nats; RMSE and CRPS in units of the target; aleatoric, epistemic: variances from noise and from "
    "doubt; in 50%: share of targets in that interval"
)
_MEANINGS = {
    "mc": "{samples} sampled networks",
    "map": "the most probable one",
    "members": "probabilities of all members, averaged",
    "logits": "their logits, averaged",
}


def new_table(*heads: str, title: str | None = None) -> Table:
    """A table whose first column holds names and the others numbers."""
    table = Table(
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=(0, 1, 0, 0),
        title=title,
        title_justify="left",
        title_style="bold",
    )
    for position, head in enumerate(heads):
        table.add_column(head, justify="right" if position else "left", no_wrap=position > 0, overflow="fold")
    return table


def short(mode: str) -> str:
    """The name of a mode, short enough for eight figures beside it."""
    return mode.replace("_recalibrated", " recal.")


def modes_of(result: Mapping[str, Any]) -> list[str]:
    """The modes in an evaluation, in its order."""
    return [name for name, value in result.items() if isinstance(value, dict) and "nll" in value]


def columns_of(result: Mapping[str, Any]) -> tuple[Column, ...]:
    return REGRESSION if "rmse" in result[modes_of(result)[0]] else CLASSIFICATION


def notes_on(result: Mapping[str, Any]) -> str:
    """What the figures mean."""
    notes = REGRESSION_NOTES if columns_of(result) is REGRESSION else CLASSIFICATION_NOTES
    recalibrated = "; recal.: with batch norm statistics of their own" if "map_recalibrated" in result else ""
    words = "".join(f"; {mode}: {text}" for mode, text in _MEANINGS.items() if mode in result)
    tempered = "; T: with a temperature fitted on the validation examples" if "tempered" in result else ""
    shown = {key for mode in modes_of(result) for key, value in result[mode].items() if value is not None}
    told = {
        "bound": ", its bound" if "bound" in shown else "",
        "epistemic": ", epistemic: the part that more data could remove" if "epistemic" in shown else "",
    }
    return f"{(notes + words).format(**result['settings'], **told)}{recalibrated}{tempered}."


def scores_table(result: Mapping[str, Any]) -> Table:
    """One row a mode."""
    shown = [*(result[mode] for mode in modes_of(result)), *result.get("tempered", {}).values()]
    columns = [each for each in columns_of(result) if any(scores.get(each.key) is not None for scores in shown)]
    table = new_table("", *(column.head for column in columns))
    for mode in modes_of(result):
        table.add_row(short(mode), *(cell(result[mode].get(column.key), column.form) for column in columns))
    for mode, scores in result.get("tempered", {}).items():
        table.add_row(f"{short(mode)} T", *(cell(scores.get(column.key), column.form) for column in columns))
    return table


def ood_table(result: Mapping[str, Any], name: str) -> Table:
    """How well uncertainty tells the examples of another set apart: one row a mode and measure."""
    title = f"Told from {result['ood']['examples']:,} examples of {name}"
    table = new_table("", "by", "AUROC", "AUPR", "FPR95", title=title)
    for mode in modes_of(result):
        for measure, scores in result["ood"][mode].items():
            if scores is not None:
                cells = (f"{scores[key]:.2%}" for key in ("auroc", "aupr", "fpr95"))
                table.add_row(short(mode), measure, *cells)
    return table


def corruptions_table(result: Mapping[str, Any]) -> Table:
    """Error and NLL by kind and strength of corruption: a pair of columns for each of the three modes."""
    modes = [mode for mode in modes_of(result) if not mode.endswith("_recalibrated")]
    heads = [f"{mode} {what}" for mode in modes for what in ("error", "NLL")]
    table = new_table("corrupted by", *heads)
    for column in table.columns:
        column.no_wrap = False
    for kind, scores in result["corruptions"].items():
        for position, strength in enumerate(scores["strengths"]):
            cells: list[str] = []
            for mode in modes:
                cells += [f"{scores[mode]['error'][position]:.2%}", f"{scores[mode]['nll'][position]:.4f}"]
            table.add_row(f"{kind} {strength:g}", *cells)
        table.add_section()
    return table


def ranked_table(names: Sequence[str], results: Sequence[Mapping[str, Any]], modes: Sequence[str], title: str) -> Table:
    """One row a run, each in its mode, the best figure of each column bold."""
    columns = columns_of(results[0])
    table = new_table(title, *(column.head for column in columns))
    scores = [result[mode] for result, mode in zip(results, modes, strict=True)]
    best = [_best([given.get(column.key) for given in scores], column) for column in columns]
    for name, given in zip(names, scores, strict=True):
        values = [given.get(column.key) for column in columns]
        cells = [
            Text(cell(value, column.form), style="bold green" if value is not None and value == top else "")
            for value, column, top in zip(values, columns, best, strict=True)
        ]
        table.add_row(Text(name), *cells)
    return table


def comparison_table(summary: Mapping[str, Any]) -> Table:
    """Methods side by side, as `bqn.comparison.summarize` puts them together."""
    from bqn.comparison.words import describe_rows, heads

    table = new_table(*heads(summary))
    table.padding, table.columns[0].no_wrap = 0, True  # nine columns in eighty characters
    for cells, row in zip(describe_rows(summary), summary["rows"], strict=True):
        table.add_row(
            *(Text(each, style="bold green" if each == "best" else "") for each in cells),
            style="" if row["usual"] else "dim",
        )
    return table


def _best(values: Sequence[float | None], column: Column) -> float | None:
    present = [value for value in values if value is not None]
    if column.less_is_better is None or len(set(present)) < 2:
        return None
    return min(present) if column.less_is_better else max(present)


def cell(value: float | None, form: str) -> str:
    """A number, or a dash where there is none."""
    return "–" if value is None else format(value, form)
