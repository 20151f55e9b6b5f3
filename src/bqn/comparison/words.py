"""The table of a comparison in words and digits, the same on a terminal and on a page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_HEADS = {"regression": ("RMSE", "log-lik.", "in 90%"), "classification": ("error", "NLL", "ECE")}
_KEYS = {"regression": ("rmse", "log_likelihood", "coverage_90"), "classification": ("error", "nll", "ece")}


def label(row: Mapping[str, Any]) -> str:
    """The name of a row: the method, and the mode where it is not the method's usual one."""
    return row["method"] if row["usual"] else f"{row['method']} {row['mode']}"


def heads(summary: Mapping[str, Any]) -> list[str]:
    """The heads of the columns."""
    first, second, told = _HEADS[summary["task"]]
    return ["method", first, "p", second, "p", told, "size", "train", "predict"]


def describe_rows(summary: Mapping[str, Any]) -> list[list[str]]:
    """One list of cells a row."""
    first, second, told = _KEYS[summary["task"]]
    share = summary["task"] == "classification"
    return [
        [
            label(row),
            _with_error(row[first], percent=share),
            _p(row[first]),
            _with_error(row[second]),
            _p(row[second]),
            "–" if row[told]["mean"] is None else f"{row[told]['mean']:.{1 if share else 0}%}",
            _bytes(row["size"]["mean"]),
            _seconds(row["train_seconds"]["mean"]),
            _seconds(row["predict_seconds"]["mean"]),
        ]
        for row in summary["rows"]
    ]


def notes(summary: Mapping[str, Any]) -> str:
    """What the columns mean."""
    told = "in 90%: share of targets in that interval" if summary["task"] == "regression" else "ECE over 15 bins"
    splits = "the published splits" if summary["replicates"] == "splits" else "one of the published splits"
    source = "" if summary["source"] == summary["data"] else f"{splits} of {summary['source']}; "
    count = len(summary["splits"])
    unit = summary["replicates"] if count != 1 else summary["replicates"].removesuffix("s")
    return (
        f"{source}mean ± standard error over {count} {unit}; p: {summary['test']}, "
        f"against the best row; {told}; size: bytes that a prediction needs; train: time of one training; predict: "
        "time of one example"
    )


def _with_error(cell: Mapping[str, Any], percent: bool = False) -> str:
    if cell["mean"] is None:
        return "–"
    factor, unit = (100.0, "%") if percent else (1.0, "")
    mean = f"{cell['mean'] * factor:.3g}" if abs(cell["mean"] * factor) < 0.1 else f"{cell['mean'] * factor:.2f}"
    error = cell["standard_error"]
    digits = len(mean.partition(".")[2])
    return f"{mean}{unit}" if error is None else f"{mean}±{error * factor:.{digits}f}{unit}"


def _p(cell: Mapping[str, Any]) -> str:
    if cell.get("best"):
        return "best"
    p = cell.get("p")
    return "–" if p is None else "<.001" if p < 0.001 else f"{p:.3f}".lstrip("0") if p < 1 else "1"


def _bytes(size: float | None) -> str:
    if size is None:
        return "–"
    for limit, unit in ((1e3, "B"), (1e6, "kB"), (1e9, "MB")):
        if size < limit:
            return f"{size / limit * 1e3:.3g} {unit}"
    return f"{size / 1e9:.3g} GB"


def _seconds(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    for limit, factor, unit in ((1e-3, 1e6, "µs"), (1.0, 1e3, "ms"), (120.0, 1.0, "s")):
        if seconds < limit:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds / 60:.3g} min"
