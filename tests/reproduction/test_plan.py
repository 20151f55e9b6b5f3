"""Which runs a target needs."""

import pytest

from bqn.reproduction import TARGETS, Cell, plan
from bqn.training import ConfigError


def test_tables_share_their_runs() -> None:
    cells = plan("table1", "paper")
    assert cells == plan("table2", "paper") == plan("table3", "paper")
    assert len(cells) == len(set(cells)) == 6 * 10 + 5
    assert {cell.folder for cell in cells} == {"paper"}


def test_a_single_cell() -> None:
    assert plan("table1", "best", 1, models=["cnn"], data=["kmnist"]) == [Cell("cnn", "kmnist", "best", "", 0)]


def test_a_name_given_twice_counts_once() -> None:
    assert plan("table1", "best", 2, data=["digits", "digits"]) == plan("table1", "best", 2, data=["digits"])


def test_sweeps_reuse_the_run_of_the_recipe() -> None:
    cells = plan("figure-power", "paper", 1, models=["mlp"], data=["mnist"])
    assert [cell.folder for cell in cells] == [
        "paper-lam-0.0001", "paper-lam-0.0002", "paper-lam-0.0005", "paper-lam-0.001", "paper-lam-0.002", "paper"
    ]  # fmt: skip
    wide = plan("figure-gap", "paper", 1, models=["cnn"], data=["mnist"])
    assert len(wide) == 10
    assert wide[0].config("cpu").lam == 1e-6
    assert {cell.architecture for cell in plan("figure-gap", "paper", 1)} == {"mlp", "cnn"}


def test_levels() -> None:
    cells = plan("levels", "best", 1, models=["mlp"], data=["mnist"])
    assert [len(cell.config("cpu").levels or ()) for cell in cells] == [2, 3, 4, 8]
    assert cells[0].config("cpu") == Cell("mlp", "mnist", "best").config("cpu")  # trained again beside the others


def test_one_point_of_a_sweep_and_one_number_of_levels() -> None:
    assert plan("figure-power", "best", 1, models=["cnn"], data=["mnist"], lams=[0.1, 0.03]) == [
        Cell("cnn", "mnist", "best", "", 0),
        Cell("cnn", "mnist", "best", "lam-0.1", 0),
    ]
    assert plan("levels", "best", 1, models=["mlp"], data=["mnist"], levels=[3]) == [
        Cell("mlp", "mnist", "best", "levels-3", 0)
    ]
    # a value that one network has and another has not
    assert {cell.architecture for cell in plan("figure-power", "best", 1, lams=[2e-4])} == {"mlp"}
    assert plan("figure-power", "best", 1, models=["mlp"], data=["mnist"], lams=[0.1000000001])[0].variant == "lam-0.1"
    with pytest.raises(ConfigError, match="lam is not for table1"):
        plan("table1", lams=[0.1])
    with pytest.raises(ConfigError, match="levels is not for figure-gap"):
        plan("figure-gap", levels=[3])
    with pytest.raises(ConfigError, match=r"lam must be one of 0.0001, .*, got 0.07"):
        plan("figure-power", "best", 1, lams=[0.07])
    with pytest.raises(ConfigError, match="levels must be one of 2, 3, 4, 8, got 5"):
        plan("levels", "best", 1, levels=[5])


def test_one_seed_of_many() -> None:
    cells = plan("table1", "best", models=["cnn"], data=["kmnist"], seed=7)
    assert cells == [Cell("cnn", "kmnist", "best", "", 7)]
    with pytest.raises(ConfigError, match="seed must be at least 0, got -1"):
        plan("table1", "best", seed=-1)


def test_ablations_come_with_what_they_are_compared_with() -> None:
    cells = plan("ablations", "best", 1, models=["cnn"], data=["kmnist"], ideas=["jensen"])
    assert [cell.variant for cell in cells] == ["short", "jensen"]
    assert [
        cell.variant for cell in plan("ablations", "paper", 1, models=["mlp"], data=["mnist"], ideas=["tilted"])
    ] == [
        "",
        "tilted",
    ]
    assert "no-batch-norm" not in {cell.variant for cell in plan("ablations", "best", 1, models=["cnn"])}


def test_ideas_on_other_data_are_those_of_the_architecture() -> None:
    for architecture in ("mlp", "cnn"):
        cells = plan("ablations", "best", 1, models=[architecture], data=["digits"])
        assert ("no-batch-norm" in {cell.variant for cell in cells}) == (architecture == "mlp")
        assert all(cell.config("cpu") for cell in cells)


def test_other_data_if_named() -> None:
    assert plan("table1", "best", 1, data=["digits"]) == [Cell("mlp", "digits", "best", "", 0)]


def test_every_target_has_a_plan() -> None:
    for target in TARGETS:
        if target != "table4":
            assert plan(target)


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (("table5",), {}, "target must be one of"),
        (("table4",), {}, "target must be one of"),
        (("table1", "worst"), {}, "recipe must be one of"),
        (("table1", "best", 0), {}, "seeds must be at least 1"),
        (("table1",), {"models": ["resnet"]}, "model must be one of mlp, cnn, vgg"),
        (("table1",), {"data": ["kmnst"]}, "data must be one of"),
        (("table1",), {"data": ["boston"]}, "data must be one of"),
        (("table1",), {"models": ["vgg"], "data": ["mnist"]}, "has no runs"),
        (("ablations",), {"ideas": ["luck"]}, "idea must be one of"),
        (("ablations", "paper"), {"ideas": ["jensen"]}, "ablations has no runs with the recipe paper"),
        (("levels", "paper"), {}, "recipe must be best for levels, got 'paper'"),
    ],
)
def test_bad_input(arguments: tuple, options: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        plan(*arguments, **options)
