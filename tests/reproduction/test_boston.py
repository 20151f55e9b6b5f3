"""Table 4: the comparison's records, and the words about them."""

import json
import math
from pathlib import Path

import pytest

from bqn.reproduction.boston import METHODS, plan_boston
from bqn.reproduction.regression import boston, boston_one_split
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


def test_who_is_ahead_and_whether_it_is_luck(out: Path) -> None:
    text = " ".join(boston(out).split())
    # differences of RMSE, -1 and 0.2: t = -0.4 / √((1/2 + 51/455) 0.72), of likelihood: 0.1 twice
    p = 1 - 2 / math.pi * math.atan(0.4 / math.sqrt((0.5 + 51 / 455) * 0.72))
    assert f"ahead of our PBP (p = {p:.2f} and 0.00) in both means; not ahead of EBP" in text
    (out / "regression/boston/npn.json").unlink()
    assert "ahead" not in boston(out)


def test_one_split_beside_many(out: Path) -> None:
    """The spread over seeds of one split, beside that over splits."""
    one = out / "regression/boston-split-0"
    one.mkdir()
    (one / "bqn.json").write_text(record("bqn", [2.5, 2.6, 2.7], [-2.4, -2.5, -2.6]))
    text = boston_one_split(out)
    assert "| BQN, recipe `best` | 2.04 ± 0.07 | 2.60 ± 0.10 | -2.50 ± 0.10 | 2.50 – 2.70 | 3 |" in text
    words = " ".join(text.split())
    assert "from split to split the RMSE has a standard deviation of 1.56, from seed to seed of one split 0.10" in words
    assert "1 of 2 splits are at or below the paper's 2.04" in words
    assert "Recipe `paper`" not in words
    assert "On this one split" not in words
    for name, rmse in (("npn", [2.0, 2.2]), ("pbp", [2.7, 2.8])):
        (one / f"{name}.json").write_text(record(name, rmse, [-2.4] * len(rmse)))
    assert "On this one split these have a lower RMSE than recipe `best`: NPN." in boston_one_split(out)


def test_no_split_reaches_the_papers_figure(out: Path) -> None:
    """That is said when all splits were run with the paper's recipe, and none of them reaches it."""
    for folder, rmse in (("boston-paper", [3.04] * 19 + [5.0]), ("boston-paper-split-0", [3.0, 3.2, 3.4])):
        (out / "regression" / folder).mkdir()
        (out / "regression" / folder / "bqn.json").write_text(record("bqn", rmse, [-2.9] * len(rmse)))
    words = " ".join(boston_one_split(out).split())
    assert "Its lowest split is 3.04, 5.0 of those deviations of a seed above the paper's figure" in words
    for rmse in ([3.0] * 19, [2.0] + [3.0] * 19):
        (out / "regression/boston-paper/bqn.json").write_text(record("bqn", rmse, [-2.9] * len(rmse)))
        assert "Its lowest split" not in boston_one_split(out)


def test_nothing_measured(tmp_path: Path) -> None:
    for text in (boston(tmp_path), boston_one_split(tmp_path)):
        assert text.count("| not measured | not measured | not measured | not measured |") == 6
        assert "Recipe" not in text


def test_plan_of_one_split() -> None:
    """The first published split with ten seeds; single methods and seeds of it, too."""
    wanted = plan_boston("best", one_split=True)
    assert not wanted.resampled
    assert len(wanted.tasks) == 50
    assert {(task.config.split, task.config.seed) for task in wanted.tasks} == {(0, seed) for seed in range(10)}
    (task,) = plan_boston("best", one_split=True, methods=["pbp"], seed=12).tasks
    assert (task.method, task.config.split, task.config.seed) == ("pbp", 0, 12)
    (task,) = plan_boston("paper", methods=["bqn"], seed=7).tasks
    assert (task.config.split, task.config.seed, task.config.hidden) == (7, 7, (50,))
    with pytest.raises(ConfigError, match="boston has 20 splits, got splits 21"):
        plan_boston("best", seed=20)
    with pytest.raises(ConfigError, match="method must be one of bqn"):
        plan_boston("paper", methods=["pbp"])


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
