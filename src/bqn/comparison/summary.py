"""From records to one table: means, standard errors, and a paired test against the best."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from bqn.comparison.plan import Plan
from bqn.comparison.records import MethodRecord
from bqn.comparison.statistics import mean, paired_t_test, standard_error


class Figure(NamedTuple):
    """A figure of merit: its key in a record, whether less is better."""

    key: str
    less_is_better: bool


# The figures by which methods are ranked and tested, and those that are only told.
RANKED = {
    "regression": (Figure("rmse", True), Figure("log_likelihood", False)),
    "classification": (Figure("error", True), Figure("nll", True)),
}
TOLD = {"regression": ("coverage_90",), "classification": ("ece",)}
COSTS = ("size", "train_seconds", "predict_seconds")


def summarize(plan: Plan, records: Mapping[str, MethodRecord]) -> dict[str, Any]:
    """The comparison as one object, ready for JSON.

    Only splits that all methods have finished count. In "rows" there is one entry a method and mode of prediction: each
    figure with its "mean", "standard_error" and the "p" of its difference to the best row, None for the best itself.
    """
    chosen = [records[method] for method in plan.methods if method in records]
    common = set(range(plan.replicates)).intersection(*(record.replicates for record in chosen))
    complete = len(chosen) == len(plan.methods)
    splits = sorted(common) if complete else []
    rows = [_row(record, mode, splits, plan.task) for record in chosen if splits for mode in record.modes]
    overlap = chosen[0].examples["test"] / chosen[0].examples["train"] if plan.resampled and chosen else 0.0
    for figure in RANKED[plan.task]:
        _test(rows, figure, overlap)
    return {
        "data": plan.data,
        "source": plan.source,
        "task": plan.task,
        "splits": splits,
        "planned": plan.replicates,
        "replicates": "splits" if plan.resampled else "seeds",
        "test": test_name(plan),
        "rows": rows,
    }


def test_name(plan: Plan) -> str:
    """Which test the p-values come from."""
    if plan.resampled:
        return "paired t-test with the correction of Nadeau and Bengio for overlapping training sets"
    return "paired t-test over seeds"


def _row(record: MethodRecord, mode: str, splits: list[int], task: str) -> dict[str, Any]:
    places = [record.replicates.index(split) for split in splits]
    lists: dict[str, list[Any]] = {**record.common, **record.modes[mode]}
    ranked = [figure.key for figure in RANKED[task]]
    row: dict[str, Any] = {"method": record.method, "mode": mode, "usual": mode == next(iter(record.modes))}
    for name in (*ranked, *TOLD[task], *COSTS):
        values = [value for place in places if (value := lists[name][place]) is not None]
        row[name] = {"mean": mean(values) if values else None, "standard_error": _error(values)}
        if name in ranked:
            row[name]["values"] = [lists[name][place] for place in places]
    return row


def _error(values: list[float]) -> float | None:
    return standard_error(values) if values else None


def _test(rows: list[dict[str, Any]], figure: Figure, overlap: float) -> None:
    """Compare each row with the best one, in place."""
    whole = [row for row in rows if None not in row[figure.key]["values"]]
    if not whole:
        return
    sign = 1 if figure.less_is_better else -1
    best = min(whole, key=lambda row: sign * row[figure.key]["mean"])
    for row in rows:
        cell = row[figure.key]
        cell["best"] = row is best
        comparable = row is not best and any(row is each for each in whole)
        cell["p"] = paired_t_test(cell["values"], best[figure.key]["values"], overlap) if comparable else None
