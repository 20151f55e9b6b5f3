"""How networks were trained and which commits made them, as the records say."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from bqn.reproduction import Cell, provenance

MLP = Cell("mlp", "mnist", "best")
PAPER = Cell("mlp", "mnist", "paper")


def rows(table: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]


def test_settings(put: Any, tmp_path: Path) -> None:
    assert provenance.settings(tmp_path) == "No run is recorded yet."
    put(PAPER)
    assert rows(provenance.settings(tmp_path)) == [
        ["MLP MNIST", "paper", "jensen", "100", "0.01 × 0.98 an epoch", "-0.0001 for 5 epochs, then 0.005", "xavier",
         "2"],
    ]  # fmt: skip


def test_cost(put: Any, tmp_path: Path) -> None:
    assert provenance.cost(tmp_path) == ""
    put(PAPER, hardware="CPU")
    put(MLP, seconds=600.0, distilled={"epochs": 5, "seconds": 120.0}, hardware="GPU")
    put(replace(MLP, seed=1), seconds=60.0, hardware="GPU")
    put(replace(MLP, variant="lam-0.1"), seconds=1e6)
    assert provenance.cost(tmp_path) == "Training took 13 minutes of GPU for `best`, 1 minutes of CPU for `paper`."


def test_commits(put: Any, tmp_path: Path) -> None:
    assert provenance.commits(tmp_path) == "No run is recorded yet."
    put(PAPER)
    for seed in (0, 1, 2, 5, 7, 8):
        put(replace(MLP, seed=seed), code="a" * 40 if seed in (0, 1, 2, 8) else "b" * 40, hardware="GPU")
    put(replace(MLP, seed=9), code="0123456789" * 4, code_changed=True)
    put(replace(MLP, variant="lam-0.1"), code="c" * 40)
    put(replace(MLP, variant="lam-0.2"), code="d" * 40)
    put(replace(MLP, variant="lam-0.2", seed=1), code="d" * 40)
    put(replace(MLP, variant="levels-3"), code="e" * 40)
    put(replace(MLP, variant="short"), code="f" * 40, failed="training stopped")
    put(replace(MLP, variant="jensen"), code="bqn 0.10.2")
    (tmp_path / "mlp-mnist/best-notes.txt").write_text("not a record")
    (tmp_path / "mlp-mnist/best-backup").mkdir()
    (tmp_path / "mlp-mnist/bestiary").mkdir()
    assert rows(provenance.commits(tmp_path)) == [
        ["MLP MNIST", "paper", "tables 1 to 3", "?", "none"],
        ["MLP MNIST", "best", "tables 1 to 3",
         "aaaaaaa: seeds 0 to 2, 8<br>bbbbbbb: seeds 5, 7<br>0123456+: seed 9", "GPU or none"],
        ["MLP MNIST", "best", "λ sweep", "ccccccc: 1 run<br>ddddddd: 2 runs", "none"],
        ["MLP MNIST", "best", "levels", "eeeeeee", "none"],
        ["MLP MNIST", "best", "ideas", "bqn 0.10.2: 1 run<br>fffffff: 1 run", "none"],
    ]  # fmt: skip
