"""From a run to an entry of the zoo."""

import json

import numpy as np
import pytest

from bqn.cli import main as command_line
from bqn.deploy import network
from bqn.deploy.model import PackedModel
from bqn.training import TrainConfig, train
from bqn.zoo import Zoo, build
from bqn.zoo.build import main
from tests.cli.files import write_images


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("zoo") / "run"
    train(TrainConfig(data="digits", hidden=(32,), epochs=3, device="cpu", threads=1, seed=4), out=folder)
    return folder


@pytest.mark.parametrize(("mode", "samples"), [("map", 1), ("mc", 3)])
def test_the_card_says_what_bqn_run_says(run, tmp_path, capsys, mode, samples):
    options = ["--mode", mode, "--samples", str(samples), "--seed", "9", "--out", str(tmp_path)]
    assert main([str(run), "--name", "tiny-mlp", *options]) == 0
    assert "tiny-mlp.bqn" in capsys.readouterr().out
    card = Zoo(tmp_path).card("tiny-mlp")
    assert command_line(["run", str(tmp_path / "tiny-mlp.bqn"), "--data", "digits", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert card.test == {name: told[name] for name in ("examples", "nll", "error", "ece")}
    assert (card.mode, card.samples, card.seed) == (mode, samples, 4)
    assert card.draw_seed == (9 if mode == "mc" else None)
    assert card.training["epochs"] == 3
    assert card.training["hidden"] == [32]
    assert not {"device", "lr_decay", "warm_up_lam"} & set(card.training)
    assert card.data_licence == "CC BY 4.0"


def test_recalibration_is_decided_on_validation_examples(run, tmp_path, monkeypatch):
    judged = []

    def evaluate(model, examples):
        judged.append((model.packed.about["recalibrated"], len(examples)))
        return {"nll": 1.0 if model.packed.about["recalibrated"] else 2.0, "error": 0.0, "ece": 0.0}

    monkeypatch.setattr(build.network, "evaluate", evaluate)
    card = build.build(run, "tiny-mlp", "mc", samples=2, out=tmp_path)
    assert card.recalibrated
    assert [again for again, _ in judged] == [False, True, True]
    validation, _, test = (count for _, count in judged)
    assert validation != test == card.test["examples"]


@pytest.mark.parametrize("wanted", [True, False])
def test_recalibration_can_be_said(run, tmp_path, wanted):
    card = build.build(run, "tiny-mlp", recalibrate=wanted, out=tmp_path)
    assert card.recalibrated is wanted
    packed = Zoo(tmp_path).read("tiny-mlp")
    assert packed.about["recalibrated"] is wanted
    assert (
        network.evaluate(PackedModel(packed), build.load_data(build.load_run(run).config).test)["nll"]
        == (card.test["nll"])
    )


def test_a_temperature_from_validation_examples(run, tmp_path):
    plain = build.build(run, "plain", recalibrate=False, out=tmp_path)
    card = build.build(run, "tempered", recalibrate=False, temper=True, out=tmp_path)
    assert plain.temperature is None
    assert card.temperature == Zoo(tmp_path).read("tempered").about["temperature"]
    assert card.test["error"] == plain.test["error"]
    assert card.test["nll"] != plain.test["nll"]


def fails(capsys, *arguments):
    assert main([str(argument) for argument in arguments]) == 1
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("python -m bqn.zoo.build: error: ")
    return told.err


def test_bad_input(run, tmp_path, capsys, monkeypatch):
    out = ("--out", tmp_path / "zoo")
    assert "name must be lower-case letters" in fails(capsys, run, "--name", "My Net", *out)
    assert "is not a folder" in fails(capsys, tmp_path / "nothing", "--name", "a", *out)
    monkeypatch.setattr(build, "MOST_BYTES", 100)
    assert "a file of the zoo has at most 100" in fails(capsys, run, "--name", "a", *out)
    assert not (tmp_path / "zoo").exists()


def test_runs_that_cannot_be_entries(tmp_path, capsys):
    out = ("--out", tmp_path / "zoo")
    prices = tmp_path / "prices"
    train(TrainConfig(data="diabetes", model="regressor", hidden=(4,), epochs=1, device="cpu", threads=1), out=prices)
    assert "the run of a classifier" in fails(capsys, prices, "--name", "a", *out)
    images = write_images(tmp_path / "images.npz")
    config = {"data": str(images), "hidden": (4,), "epochs": 1, "device": "cpu", "threads": 1}
    train(TrainConfig(**config), out=tmp_path / "own")
    assert "on a named data set" in fails(capsys, tmp_path / "own", "--name", "a", *out)
    train(TrainConfig(**config | {"data": "digits", "validation_fraction": 0.0}), out=tmp_path / "all")
    assert "say whether to recalibrate" in fails(capsys, tmp_path / "all", "--name", "a", *out)
    assert "to fit a temperature on" in fails(capsys, tmp_path / "all", "--name", "a", "--temper", *out)
    assert not (tmp_path / "zoo").exists()


def test_distilled_networks(run, tmp_path):
    plain = build.build(run, "plain", "mc", samples=2, recalibrate=True, out=tmp_path)
    card = build.build(run, "distilled", "mc", samples=2, seed=3, distill=3, out=tmp_path)
    packed = Zoo(tmp_path).read("distilled")
    trained = build.load_run(run)
    training, validation = build.own_parts(run, trained.config, build.load_data(trained.config))
    made = build.bqn.training.distill(trained, training, validation, mode="mc", samples=2, seed=3, epochs=3)
    again = build.pack_run(trained, "mc", distilled=made)
    assert packed.about == again.about
    assert all(np.array_equal(array, again.arrays[name]) for name, array in packed.arrays.items())
    assert card.distilled == any(made.kept)
    assert (card.samples, packed.members, card.draw_seed) == (2, 2, 3)
    assert not plain.distilled
    for options, words in (({"distill": 3, "recalibrate": True}, "recalibrate is not for distill"),
                           ({"distill": -1}, "distill must be a number of epochs, got -1")):  # fmt: skip
        with pytest.raises(ValueError, match=words):
            build.build(run, "distilled", out=tmp_path, **options)
    with pytest.raises(ValueError, match="distilled must hold networks of mode map, got those of mode mc"):
        build.pack_run(trained, "map", distilled=made)
    with pytest.raises(ValueError, match="recalibrate_on is not for distilled networks"):
        build.pack_run(trained, "mc", distilled=made, recalibrate_on=training.x)
