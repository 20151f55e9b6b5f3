"""Recipes are configs, and say what the paper says."""

import pytest

from bqn.propagate import devices
from bqn.reproduction import Cell, paper, recipes
from bqn.training import ConfigError


@pytest.mark.parametrize(("architecture", "data"), paper.NETWORKS)
def test_recipe_of_the_paper(architecture: str, data: str) -> None:
    config = recipes.config("paper", architecture, data, seed=3)
    assert (config.model, config.data, config.seed) == (architecture, data, 3)
    assert (config.learning_rate, config.lr_schedule, config.lr_decay) == (1e-2, "exponential", 0.98)
    assert (config.bound, config.init, config.batch_size) == ("jensen", "xavier", 100)
    assert (config.lam_schedule, config.warm_up_lam, config.warm_up_epochs) == ("warm-up", -1e-4, 5)
    assert config.epochs == (300 if architecture == "vgg" else 100)
    assert (config.shift, config.flip) == ((4, True) if architecture == "vgg" else (2, False))
    assert config.batch_norm is (False if architecture == "mlp" else None)


@pytest.mark.parametrize(("architecture", "data"), paper.NETWORKS)
def test_lam_of_the_paper_is_where_its_curve_is_lowest(architecture: str, data: str) -> None:
    points = paper.sweep("figure-power", architecture, data, "bqn", "nll")
    assert recipes.config("paper", architecture, data).lam == min(points, key=lambda point: point.value).lam


@pytest.mark.parametrize(("architecture", "data"), paper.NETWORKS)
def test_best_keeps_the_networks_of_the_paper(architecture: str, data: str) -> None:
    ours, theirs = (recipes.config(name, architecture, data) for name in ("best", "paper"))
    for name in ("hidden", "channels", "levels", "activations", "validation_fraction"):
        assert getattr(ours, name) == getattr(theirs, name)
    assert ours.levels == (-1.0, 1.0)


def test_variants() -> None:
    assert recipes.config("paper", "mlp", "mnist", recipes.lam_variant(1e-3)).lam == 1e-3
    assert recipes.config("paper", "cnn", "mnist", recipes.lam_variant(5e-6)).lam == 5e-6
    four = recipes.config("best", "cnn", "mnist", recipes.levels_variant(4))
    assert four.levels == four.activations == (-1.5, -0.5, 0.5, 1.5)
    assert recipes.config("best", "vgg", "cifar10", "short").best_after == 0, "drawn in all epochs that there are"
    for name, idea in recipes.IDEAS.items():
        for network in idea.networks:
            config = recipes.config(idea.recipe, *network, name)
            assert all(getattr(config, setting) == value for setting, value in idea.settings.items())
            assert idea.against in ("", *recipes.IDEAS)


@pytest.mark.parametrize("network", paper.NETWORKS)
def test_sweeps(network: tuple[str, str]) -> None:
    """Of the recipe `best` its own λ among others on both sides, so that one sees whether it is the best."""
    assert recipes.swept("figure-power", "paper", *network) == tuple(paper.swept("figure-power")[network])
    lams = recipes.swept("figure-power", "best", *network)
    assert list(lams) == sorted(set(lams))
    assert lams[0] < recipes.settings("best", *network)["lam"] < lams[-1]
    assert recipes.settings("best", *network)["lam"] in lams
    assert recipes.swept("figure-gap", "best", *network) == (lams if network[0] != "vgg" else ())
    assert recipes.swept("figure-power", "best", network[0], "digits") == ()


def test_what_is_distilled() -> None:
    assert recipes.distillation("best") == 5
    assert recipes.distillation("paper") == recipes.distillation("best", "lam-0.1") == 0


@pytest.mark.parametrize("variant", ["lam-", "lam-x", "lam--1", "levels-5", "levels-2.0", "nonsense", "lam-1\n"])
def test_unknown_variants(variant: str) -> None:
    with pytest.raises(ConfigError, match="variant must be one of"):
        recipes.config("best", "mlp", "mnist", variant)


@pytest.mark.parametrize("network", paper.NETWORKS)
def test_images_as_they_are(network: tuple[str, str]) -> None:
    assert not recipes.config("best", *network, "no-shift").augmentation


def test_bad_input() -> None:
    with pytest.raises(ConfigError, match="recipe must be one of paper, best"):
        recipes.config("worst", "mlp", "mnist")
    with pytest.raises(ConfigError, match="recipe best is for mlp, cnn, vgg, got 'resnet'"):
        recipes.config("best", "resnet", "mnist")


def test_a_cell_knows_its_place() -> None:
    cell = Cell("cnn", "kmnist", "paper", "lam-0.001", 4)
    assert str(cell.path("results")) == "results/cnn-kmnist/paper-lam-0.001/seed-4.json"
    assert cell.judged_on_test
    assert not Cell("mlp", "mnist", variant="jensen").judged_on_test
    assert cell.config("cpu").device == "cpu"


@pytest.mark.parametrize("has", [False, True])
def test_half_precision_is_for_what_has_it(has: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "CPU_HAS_BFLOAT16", has)
    cell = Cell("vgg", "cifar10", "best")
    assert cell.config("cuda").mixed_precision == recipes.BEST["vgg"].get("mixed_precision", False)
    assert cell.config("cpu").mixed_precision is has
    assert not cell.config("cpu").compile
    assert not Cell("mlp", "mnist", "best").config("cpu").mixed_precision  # the recipe has none
