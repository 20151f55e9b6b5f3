"""Rows of the tables: figures, marks, and dashes for what nobody has measured."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from bqn.reproduction import Cell, records, rivals, tables
from bqn.reproduction.records import Statistic

RESULTS = Path(__file__).resolve().parents[2] / "results"
MLP = Cell("mlp", "mnist", "best")
CNN = Cell("cnn", "kmnist", "best")


def row(table: str, start: str) -> list[str]:
    (line,) = (line for line in table.splitlines() if line.startswith(f"| {start} |"))
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_nothing_measured_is_said(tmp_path: Path) -> None:
    for make, best in ((tables.table1, 5), (tables.table2, 6), (tables.table3, 6)):
        cells = row(make(tmp_path), "CNN KMNIST")
        assert cells[3] == cells[best] == "not measured"
        assert tables.SHORT not in make(tmp_path)
    assert row(tables.ratios(tmp_path), "MLP MNIST")[1:] == ["not measured"] * 6 + [tables.NOTHING]  # there is no aim
    assert set(row(tables.calibration(tmp_path), "MLP MNIST")[1:]) == {"not measured"}
    assert tables.rival(tmp_path, "qnn", "vgg", "cifar10", "map") == "not measured"
    assert tables.levels(tmp_path) == "Not measured yet."


def test_marks_what_falls_short(put: Any, tmp_path: Path) -> None:
    put(MLP, 0.049, 0.0141)  # the aim is 50 / 1.4
    put(replace(MLP, seed=1), 0.049, 0.0141)
    assert row(tables.table1(tmp_path), "MLP MNIST")[5] == "49.0 ± 0.0 / 1.41 ± 0.00 ✗ (2)"
    assert row(tables.table3(tmp_path), "MLP MNIST")[6:8] == [
        "58.8 ± 0.0 / 1.69 ± 0.00 (2)",
        "53.9 ± 0.0 / 1.55 ± 0.00 (2)",
    ]
    put(replace(MLP, recipe="paper"), 0.130, 0.0249)  # just what the paper has
    assert row(tables.table1(tmp_path), "MLP MNIST")[3] == "130.0 / 2.49 (1)"
    assert row(tables.table2(tmp_path), "MLP MNIST")[3:5] == ["195.0 ✗ / 3.73 ✗ (1)", "182.0 ✗ / 3.49 (1)"]


def test_rounding_decides_nothing() -> None:
    assert tables.shown(Statistic(0.0500499, None, 1), "nll", 50) == "50.0"
    assert tables.shown(Statistic(0.050051, None, 1), "nll", 50) == "50.1 ✗"
    assert tables.shown(None, "nll", 50) == "not measured"


def test_paper_and_aim_stand_in_every_row(tmp_path: Path) -> None:
    first = row(tables.table1(tmp_path), "CNN Fashion-MNIST")
    assert first[1:3] == ["3755.7 ± 465.1 / 11.49 ± 1.16", "295.5 ± 1.4 / 9.95 ± 0.15"]
    assert first[4] == "220 / 7.80"
    assert first[6] == "273.9 / 8.28"
    assert row(tables.table2(tmp_path), "CNN Fashion-MNIST")[1] == "4734.5 ± 1697.2 / 14.20 ± 2.29"
    assert row(tables.table3(tmp_path), "VGG CIFAR-10")[1:3] == [tables.NOTHING] * 2  # the paper's table 3 has no VGG
    assert row(tables.table3(tmp_path), "CNN Fashion-MNIST")[1] == "3755.7 ± 465.1 / 11.49 ± 1.16"


def test_scoreboard(put: Any, tmp_path: Path) -> None:
    put(MLP, 0.049, 0.0141)
    board = tables.scoreboard(tmp_path)
    assert row(board, "analytic")[1:] == ["1", "1", "12", "2 of 2"]
    assert row(board, "MC-5")[1:] == ["2", "0", "12", "2 of 2"]
    put(replace(MLP, architecture="vgg", data="cifar10"), 0.53, 0.15)  # the paper's NLL is 530.6, its error 13.74
    board = tables.scoreboard(tmp_path)
    assert row(board, "analytic")[1:] == ["1", "3", "10", "2 of 4"]  # our bound, 689, is not below the paper's
    assert row(board, "MAP")[4:] == ["2 of 2"]  # the paper has no MAP of the VGG


def test_bounds_stand_beside_the_papers(put: Any, tmp_path: Path) -> None:
    put(MLP, 0.1, 0.02)
    put(replace(MLP, recipe="paper"), 0.2, 0.02)
    table = tables.bounds(tmp_path)
    assert row(table, "MLP MNIST")[1:] == ["130.0 ± 3.5", "260.0 ✗ (1)", "130.0 (1)"]
    assert row(table, "CNN KMNIST")[1:] == ["209.5 ± 2.8", "not measured", "not measured"]


def test_rivals_are_counted_by_architecture(put: Any, tmp_path: Path) -> None:
    assert row(tables.beside_rivals(tmp_path), "analytic")[2:] == ["not measured"] * 3
    shutil.copytree(RESULTS / "rivals", tmp_path / "rivals")
    qnn = rivals.read(tmp_path, "qnn", "mlp", "mnist", "map")
    assert qnn is not None
    score = qnn.seeds[0]["test"]["map"]
    put(MLP, score["nll"] / 1.4, score["error"] / 1.4 + 0.001)  # recalibrated just as good, and a little worse
    assert row(tables.beside_rivals(tmp_path), "MAP, recalibrated")[2:] == ["1 of 2", "not measured", "not measured"]


def test_every_lam_of_the_sweep_has_its_row(put: Any, tmp_path: Path) -> None:
    put(CNN, 0.1, 0.02)
    put(replace(CNN, variant="lam-0.1"), 0.2, 0.03)
    lines = [line for line in tables.sweep(tmp_path).splitlines() if line.startswith("| CNN KMNIST |")]
    found = [[cell.strip() for cell in line.strip("|").split("|")][1:3] for line in lines]
    assert found == [
        ["0.001", "not measured"], ["0.01", "not measured"], ["0.03, the recipe", "100.0 / 2.00 (1)"],
        ["0.1", "200.0 / 3.00 (1)"],
    ]  # fmt: skip


def test_ratios_against_the_aim(put: Any, tmp_path: Path) -> None:
    put(CNN)
    put(MLP)
    assert row(tables.ratios(tmp_path), "CNN KMNIST") == [
        "CNN KMNIST", "1.20 ✗", "1.10", "not measured", "1.50", "1.40", "not measured", "1.1"
    ]  # fmt: skip
    assert row(tables.ratios(tmp_path), "MLP MNIST")[1:3] == ["1.20", "1.10"]


def test_calibration_and_entropy(put: Any, tmp_path: Path) -> None:
    put(CNN)
    assert row(tables.calibration(tmp_path), "CNN KMNIST")[1:] == [
        "1.00", "1.20", "1.10", "not measured", "1.50", "1.40", "not measured", "25%"
    ]  # fmt: skip


def test_distilled_networks_have_columns_of_their_own(put: Any, tmp_path: Path) -> None:
    scores = {mode: {"nll": 0.1, "error": 0.02, "ece": 0.01} for mode in records.MODES}
    scores |= {f"{mode}_distilled": {"nll": 0.13, "error": 0.031, "ece": 0.02} for mode in ("mc", "map")}
    put(CNN, validation=scores, test=scores)  # the aims are 120 / 2.7 and 140 / 3.2
    put(replace(CNN, seed=1))
    assert row(tables.table2(tmp_path), "CNN KMNIST")[8] == "130.0 / 3.10 (1)"
    assert row(tables.table3(tmp_path), "CNN KMNIST")[8] == "130.0 ✗ / 3.10 ✗ (1)"
    assert row(tables.ratios(tmp_path), "CNN KMNIST")[3:7:3] == ["1.30 ✗", "1.30"]
    assert row(tables.calibration(tmp_path), "CNN KMNIST")[4:8:3] == ["2.00", "2.00"]
    assert row(tables.scoreboard(tmp_path), "MAP, distilled")[1:] == ["2", "0", "12", "2 of 2"]


def test_a_failed_distillation_is_not_left_out(put: Any, tmp_path: Path) -> None:
    scores = {mode: {"nll": 0.01, "error": 0.001, "ece": 0.01} for mode in (*records.MODES, *records.DISTILLED_MODES)}
    put(CNN, validation=scores, test=scores)
    assert row(tables.scoreboard(tmp_path), "MAP, distilled")[1:] == ["2", "0", "12", "2 of 2"]
    put(replace(CNN, seed=1), distilled={"epochs": 5, "seconds": 1.0, "failed": "training stopped"})
    assert row(tables.scoreboard(tmp_path), "MAP, distilled")[1:] == ["0", "2", "12", "0 of 2"]
    assert row(tables.table2(tmp_path), "CNN KMNIST")[8] == "10.0 / 0.10 (1), 1 failed ✗"
    assert row(tables.table2(tmp_path), "CNN KMNIST")[7].endswith("(2)")
    assert row(tables.ratios(tmp_path), "CNN KMNIST")[6] == "1.00, 1 failed"


def test_levels(put: Any, tmp_path: Path) -> None:
    put(MLP, 0.05)
    assert tables.levels(tmp_path) == "Not measured yet."
    put(replace(MLP, variant="levels-2"), 0.06)
    put(replace(MLP, variant="levels-4"), 0.04)
    lines = [line for line in tables.levels(tmp_path).splitlines() if line.startswith("| MLP MNIST")]
    assert [line.split("|")[2].strip() for line in lines] == ["2", "3", "4", "8"]
    assert "60.0 / 2.00 (1)" in lines[0]  # not those of table 1, whose seconds were taken elsewhere
    assert lines[1].count("not measured") == 6
    assert "| 2 | 40.0 / 2.00 (1)" in lines[2]
    assert lines[2].endswith("| 60 | not measured | none |")
    for seed, together in enumerate((3, 10)):
        put(replace(MLP, variant="levels-4", seed=seed), 0.04, together=together)
    lines = [line for line in tables.levels(tmp_path).splitlines() if line.startswith("| MLP MNIST")]
    assert lines[2].endswith("| 60 | 3 or 10 | none |")


def test_a_failed_run_shows(put: Any, tmp_path: Path) -> None:
    put(MLP, failed="training stopped")
    assert row(tables.table1(tmp_path), "MLP MNIST")[5] == "1 failed ✗"
    assert row(tables.scoreboard(tmp_path), "analytic")[1:] == ["0", "2", "12", "0 of 2"]


def test_a_failed_run_among_good_ones_shows_and_is_not_met(put: Any, tmp_path: Path) -> None:
    for seed in range(2):
        put(replace(MLP, seed=seed), 0.030, 0.010)  # far below the aim
        put(replace(CNN, seed=seed), 0.01, 0.01)
    assert row(tables.scoreboard(tmp_path), "analytic")[1:] == ["4", "0", "10", "4 of 4"]
    for cell in (MLP, CNN):
        put(replace(cell, seed=2), failed="training stopped")
    assert row(tables.scoreboard(tmp_path), "analytic")[1:] == ["0", "4", "10", "0 of 4"]
    assert row(tables.table1(tmp_path), "MLP MNIST")[5] == "30.0 ± 0.0 / 1.00 ± 0.00 (2), 1 failed ✗"
    assert row(tables.ratios(tmp_path), "CNN KMNIST")[1:5] == [
        "1.20 ± 0.00, 1 failed ✗", "1.10 ± 0.00, 1 failed ✗", "1 failed", "1.50 ± 0.00, 1 failed"
    ]  # fmt: skip
    assert row(tables.calibration(tmp_path), "CNN KMNIST, 1 failed")[1] == "1.00 ± 0.00"
    put(replace(MLP, variant="levels-3"), failed="training stopped")
    assert "| 1.58 | 1 failed | 1 failed | 1 failed |" in tables.levels(tmp_path)
