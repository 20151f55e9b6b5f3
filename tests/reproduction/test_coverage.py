"""What has been measured: counted from the records."""

from pathlib import Path
from typing import Any

from bqn.reproduction import Cell, plan
from bqn.reproduction.coverage import many_settings


def row(out: Path, target: str, recipe: str) -> list[str]:
    """What the table says of a target and recipe."""
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in many_settings(out).splitlines()]
    (found,) = (line[2:] for line in lines if line[:2] == [f"`{target}`", recipe])
    return found


def test_settings_are_counted(put: Any, tmp_path: Path) -> None:
    assert row(tmp_path, "levels", "best") == ["0 of 28", "–", "all"]
    put(Cell("mlp", "mnist", "best"))  # which is no setting of its own
    assert row(tmp_path, "figure-power", "best") == ["0 of 38", "–", "all"]
    for cell in plan("figure-power", "best", 1, models=["mlp", "vgg"]):
        put(cell)
    assert row(tmp_path, "figure-power", "best") == ["29 of 38", "1", "CNN MNIST, CNN Fashion-MNIST, CNN KMNIST"]
    put(Cell("mlp", "kmnist", "best", "lam-0.3", 1))
    assert row(tmp_path, "figure-power", "best")[1] == "1 to 2"
    assert row(tmp_path, "figure-power", "paper") == ["0 of 30", "–", "all"]
    for cell in plan("figure-gap", "paper", 1):
        put(cell)
    assert row(tmp_path, "figure-gap", "paper") == ["32 of 32", "1", "none"]
