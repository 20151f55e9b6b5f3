"""Table 4: the comparison's records, and the words about them."""

import json
from pathlib import Path

import pytest

from bqn.reproduction.boston import METHODS, plan_boston
from bqn.reproduction.regression import boston
from bqn.training import ConfigError


def record(method: str, rmse: list[float], likelihood: list[float]) -> str:
    splits = list(range(len(rmse)))
    document = {
        "format": "bqn-comparison-1",
        "method": method,
        "data": "boston",
        "mode": "analytic",
        "config": {},
        "examples": {"train": 455, "test": 51},
        "splits": splits,
        "train_seconds": [1.0] * len(rmse),
        "epochs": [1] * len(rmse),
        "rmse": rmse,
        "log_likelihood": likelihood,
        "modes": {},
    }
    return json.dumps(document)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    folder = tmp_path / "regression/boston"
    folder.mkdir(parents=True)
    (folder / "bqn.json").write_text(record("bqn", [2.0, 4.2], [-2.4, -2.8]))
    (folder / "pbp.json").write_text(record("pbp", [3.0, 4.0], [-2.5, -2.9]))
    (folder / "ebp.json").write_text(record("ebp", [2.9, 3.0], [-2.5, -2.9]))
    (folder / "npn.json").write_text(record("npn", [3.5, 3.5], [-2.1, -2.1]))
    return tmp_path


def test_table(out: Path) -> None:
    lines = boston(out).splitlines()
    assert "| BQN, recipe `best` | 2.04 ± 0.07 | 3.10 ± 1.10 ✗ | -2.60 ± 0.20 ✗ | 2.00 – 4.20 | 2 |" in lines
    assert "| BQN, recipe `paper` | 2.04 ± 0.07 | not measured | not measured | not measured | not measured |" in lines
    assert "| PBP | 2.79 ± 0.16 | 3.50 ± 0.50 | -2.70 ± 0.20 | 3.00 – 4.00 | 2 |" in lines
    assert "| NPN | 2.57 | 3.50 ± 0.00 | -2.10 ± 0.00 | 3.50 – 3.50 | 2 |" in lines
    assert "| MC dropout | – | not measured | not measured | not measured | not measured |" in lines


def test_words(out: Path) -> None:
    text = " ".join(boston(out).split())
    assert "Recipe `best` has an RMSE between 2.00 and 4.20, by split; 1 of 2 splits are at or below" in text
    assert "does not explain" not in text
    (out / "regression/boston-paper").mkdir()
    (out / "regression/boston-paper/bqn.json").write_text(record("bqn", [3.0, 5.0], [-2.9, -3.0]))
    few = boston(out)
    assert "Only 2 of the 20 splits were run with it: too few" in few
    assert "does not explain" not in few
    (out / "regression/boston-paper/bqn.json").write_text(record("bqn", [3.0] * 20, [-2.9] * 20))
    all_of_them = boston(out)
    assert "the choice of a split alone does not explain the paper's figure" in all_of_them
    assert "too few" not in all_of_them
    assert "ahead of our PBP in both means; not ahead of EBP, NPN in both" in text


def test_nothing_measured(tmp_path: Path) -> None:
    text = boston(tmp_path)
    assert text.count("| not measured | not measured | not measured | not measured |") == 6
    assert "by split" not in text


def test_plan() -> None:
    wanted = plan_boston("best", 2)
    assert wanted.methods == METHODS["best"]
    assert len(wanted.tasks) == 10
    paper = plan_boston("paper", 1).tasks[0].config
    assert (paper.hidden, paper.batch_size, paper.epochs, paper.lr_decay) == ((50,), 4, 400, 0.99)
    assert paper.data == "bostonHousing"
    with pytest.raises(ConfigError, match="recipe must be one of best, paper"):
        plan_boston("worst")
    with pytest.raises(ConfigError, match="has 20 splits"):
        plan_boston("best", 21)
