"""What falls short is listed with the best of its columns, and says what was tried."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from bqn.reproduction import Cell, paper
from bqn.reproduction.aims import AIMS
from bqn.reproduction.page import pages
from bqn.reproduction.shortfalls import TRIED, shortfalls

RESULTS = Path(__file__).resolve().parents[2] / "results"
CNN = Cell("cnn", "kmnist", "best")  # aims: 120 / 2.5, MC-5 120 / 2.7, MAP 140 / 3.2


def rows(text: str) -> list[list[str]]:
    lines = [line for line in text.splitlines() if line.startswith("| ") and "| mode |" not in line]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_nothing_measured_and_nothing_missed(put: Any, tmp_path: Path) -> None:
    assert shortfalls(tmp_path) == "Every aim that has been measured is met by a column of its table."
    put(CNN, 0.05, 0.01)
    assert shortfalls(tmp_path) == "Every aim that has been measured is met by a column of its table."


def test_the_best_column_counts(put: Any, tmp_path: Path) -> None:
    put(CNN, 0.119, 0.0251)  # as they are 142.8 / 3.01 and 178.5 / 3.77, recalibrated 130.9 / 2.76 and 166.6 / 3.51
    put(replace(CNN, seed=1), 0.119, 0.0251)
    text = shortfalls(tmp_path)
    assert rows(text) == [
        ["CNN KMNIST", "analytic", "error", "2.50", "2.51 ± 0.00 (2)", "0.4 %"],
        ["CNN KMNIST", "MC-5, recalibrated", "NLL", "120", "130.9 ± 0.0 (2)", "9.1 %"],
        ["CNN KMNIST", "MC-5, recalibrated", "error", "2.70", "2.76 ± 0.00 (2)", "2.3 %"],
        ["CNN KMNIST", "MAP, recalibrated", "NLL", "140", "166.6 ± 0.0 (2)", "19.0 %"],
        ["CNN KMNIST", "MAP, recalibrated", "error", "3.20", "3.51 ± 0.00 (2)", "9.8 %"],
    ]
    assert text.endswith("9.8 % |")  # the words quote a rival that has no record here
    path = CNN.path(tmp_path)
    document = json.loads(path.read_text())
    document["test"]["map_distilled"] = {"nll": 0.13, "error": 0.03, "ece": 0.01}
    path.write_text(json.dumps(document))
    assert all("MAP" not in row[1] for row in rows(shortfalls(tmp_path)))


def test_words_about_a_network_need_its_own_records_alone(tmp_path: Path) -> None:
    """A record that is missing elsewhere takes nothing away."""
    shutil.copytree(RESULTS / "cnn-kmnist/best", tmp_path / "cnn-kmnist/best")
    shutil.copytree(RESULTS / "rivals", tmp_path / "rivals")
    text = shortfalls(tmp_path)
    assert "- **CNN KMNIST.** NLL meets the aims" in text
    assert "**CNN MNIST" not in text


def test_all_that_is_missed_here_has_its_words() -> None:
    """Every missed aim of the committed records is on the page with what was tried; the figures are the records'."""
    text = shortfalls(RESULTS)
    missed = dict.fromkeys(row[0] for row in rows(text))
    assert len(missed) >= 1
    for name in missed:
        assert f"- **{name}.** " in text
    assert "{" not in text
    assert "not measured" not in text
    assert "real weights in the same layers have 0.54 (Gaussian BNN) and 0.47 % (MC dropout)" in text
    assert text in pages(RESULTS)["results.md"]
    assert set(TRIED) <= set(AIMS) == set(paper.NETWORKS)
