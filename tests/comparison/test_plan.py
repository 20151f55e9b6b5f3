"""What a plan holds, and what it refuses."""

from pathlib import Path

import numpy as np
import pytest

from bqn.comparison import make_plan
from bqn.training import ConfigError
from tests.comparison.tiny import tiny_plan


def test_all_methods_take_the_first_split_before_the_second(tmp_path: Path) -> None:
    plan = tiny_plan(tmp_path)
    assert [(task.method, task.replicate) for task in plan.tasks] == [("pbp", 0), ("npn", 0), ("pbp", 1), ("npn", 1)]
    assert [task.config.split for task in plan.tasks] == [0, 0, 1, 1]
    assert plan.resampled
    assert plan.task == "regression"


def test_boston_stands_for_its_published_splits() -> None:
    plan = make_plan("boston", ["pbp"])
    assert (plan.data, plan.source, plan.replicates) == ("boston", "bostonHousing", 20)
    with pytest.raises(ConfigError, match="boston has 20 splits, got splits 21"):
        make_plan("boston", ["pbp"], 21)


def test_one_split_for_all_replicates() -> None:
    plan = make_plan("boston", ["pbp", "npn"], 3, one_split=4)
    assert not plan.resampled
    assert [(task.config.split, task.config.seed) for task in plan.tasks[::2]] == [(4, 0), (4, 1), (4, 2)]
    with pytest.raises(ConfigError, match="boston has 20 splits, counted from 0, got one_split 20"):
        make_plan("boston", ["pbp"], one_split=20)
    with pytest.raises(ConfigError, match="mnist has no splits to choose from, got one_split 0"):
        make_plan("mnist", ["bqn"], one_split=0)


def test_where_the_test_examples_are_given_replicates_are_seeds() -> None:
    plan = make_plan("mnist", ["bqn", "qnn"])
    assert not plan.resampled
    assert [(task.config.split, task.config.seed) for task in plan.tasks[::2]] == [(0, seed) for seed in range(5)]


def test_a_file_with_its_own_test_examples_has_seeds_too(tmp_path: Path) -> None:
    x, y = np.random.default_rng(0).normal(size=(30, 2)).astype("float32"), np.zeros((30, 1), dtype="float32")
    path = tmp_path / "own.npz"
    np.savez(path, x_train=x, y_train=y + x[:, :1], x_test=x[:5], y_test=x[:5, :1])
    assert not make_plan(str(path), ["pbp"], 2).resampled


def test_settings_are_for_all_methods_or_for_one(tmp_path: Path) -> None:
    plan = tiny_plan(tmp_path, npn={"epochs": 7})
    assert [task.config.epochs for task in plan.tasks] == [2, 7, 2, 7]


@pytest.mark.parametrize(
    ("methods", "splits", "settings", "message"),
    [
        (["pbp", "pop"], 2, {}, "method must be one of .*, got 'pop'"),
        (["pbp", "pbp"], 2, {}, "each method once, got pbp,pbp"),
        ([], 2, {}, "at least one method"),
        (["pbp"], 0, {}, "splits must be at least 1, got 0"),
        (["pbp"], 2, {"npn": {"epochs": 3}}, "npn has settings, but is none of the methods: pbp"),
        (["pbp"], 2, {"": {"seed": 3}}, "seed cannot be set"),
        (["pbp"], 2, {"": {"epoch": 3}}, "'epoch' is not a setting; the nearest is 'epochs'"),
        (["pbp"], 2, {"pbp": {"epochs": -3}}, "epochs must be at least 1, got -3"),
        (["pbp"], 2, {"pbp": {"levels": "ternary"}}, "levels is not an option"),
        (["qnn"], 2, {}, "model regressor is not for method qnn"),
    ],
)
def test_what_cannot_be_compared_is_said(methods, splits, settings, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_plan("boston", methods, splits, settings)


def test_target_is_for_files() -> None:
    with pytest.raises(ConfigError, match="target is for your own files"):
        make_plan("boston", ["pbp"], 2, target="MEDV")
