"""Rows for the command line."""

from pathlib import Path
from typing import Any

import pytest

from bqn.reproduction import Cell, plan
from bqn.reproduction.summary import in_words, planned, summarize


def test_rows_beside_the_paper(put: Any, tmp_path: Path) -> None:
    cells = plan("table2", "best", 2, models=["cnn"], data=["kmnist"])
    (row,) = summarize("table2", cells, tmp_path)
    assert (row["seeds"], row["nll"]) == (0, None)
    assert in_words(row) == ["cnn kmnist", "best", "0", "–", "–", "179.1 ± 4.4", "5.00 ± 0.11"]
    for cell, nll in zip(cells, (0.1, 0.12), strict=True):
        put(cell, nll, 0.03)
    (row,) = summarize("table2", cells, tmp_path)
    assert row["nll"]["mean"] == pytest.approx(1.5 * 0.11)  # the mode map
    assert row["paper_nll"]["mean"] == pytest.approx(0.1791)
    assert in_words(row)[2:5] == ["2", "165.0 ± 21.2", "4.50 ± 0.00"]


def test_failed_runs_are_not_seeds(put: Any, tmp_path: Path) -> None:
    first, second = plan("table1", "best", 2, models=["cnn"], data=["kmnist"])
    put(first)
    put(second, failed="training stopped")
    (row,) = summarize("table1", [first, second], tmp_path)
    assert (row["seeds"], row["failed"]) == (1, 1)
    assert in_words(row)[2] == "1, 1 failed"


def test_sweeps_stand_beside_the_papers_points(put: Any, tmp_path: Path) -> None:
    """Not beside its tables, whose figures are the best over λ."""
    cells = plan("figure-gap", "paper", 1, models=["cnn"], data=["kmnist"])
    rows = {row["recipe"]: row for row in summarize("figure-gap", cells, tmp_path)}
    assert rows["paper-lam-0.0001"]["paper_nll"] == {"mean": pytest.approx(0.1863), "std": None}
    power = summarize("figure-power", plan("figure-power", "best", 1, models=["vgg"]), tmp_path)
    assert [row["paper_nll"] for row in power] == [None] * 3  # the paper has no such λ
    power = summarize("figure-power", plan("figure-power", "paper", 1, models=["vgg"]), tmp_path)
    assert [in_words(row)[5] for row in power] == ["530.6", "550.8", "565.9"]


def test_ideas_are_judged_on_validation(put: Any, tmp_path: Path) -> None:
    cell = Cell("mlp", "mnist", "best", "jensen")
    put(cell)
    (row,) = summarize("ablations", [cell], tmp_path)
    assert row["part"] == "validation"
    (recipe,) = summarize("ablations", [Cell("mlp", "mnist", "best")], tmp_path)
    assert recipe["part"] == "validation"  # beside ideas
    assert row["nll"]["mean"] == pytest.approx(0.1)
    assert row["paper_nll"] is None  # which is of the test set


def test_plans_are_counted() -> None:
    cells = plan("levels", "best", 2, models=["mlp"], data=["mnist"])
    rows = planned(cells, cells[:3])
    assert [row["run"] for row in rows] == [
        "mlp-mnist/best-levels-2", "mlp-mnist/best-levels-3", "mlp-mnist/best-levels-4", "mlp-mnist/best-levels-8"
    ]  # fmt: skip
    assert [row["recorded"] for row in rows] == [2, 1, 0, 0]
    assert {row["planned"] for row in rows} == {2}
