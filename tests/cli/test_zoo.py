"""`bqn zoo`, and names of pretrained networks in the place of packed files."""

import csv
import io
import json
import shutil

import numpy as np
import pytest
from PIL import Image

import bqn as package
from bqn.zoo import PRETRAINED

NAME = "digits-mlp-mc5"


def test_all_networks(bqn):
    shown = bqn("zoo")
    assert shown.code == 0
    listed = json.loads(bqn("zoo", "--json").out)["networks"]
    assert [each["name"] for each in listed] == package.pretrained()
    for card in PRETRAINED.cards():
        assert card.name in shown.out
        assert f"{card.test['nll']:.4f}" in shown.out
    assert max(map(len, shown.out.splitlines())) <= 80


def test_one_card(bqn):
    shown = " ".join(bqn("zoo", NAME).out.split())
    card = PRETRAINED.card(NAME)
    for text in (card.sha256, card.data_licence, card.use, card.limits, "epochs", "5 sampled"):
        assert text in shown
    assert f"error {card.test['error']:.2%}, ECE {card.test['ece']:.2%}" in shown
    assert "True" not in shown
    assert "False" not in shown
    assert json.loads(bqn("zoo", NAME, "--json").out) == card.to_dict()


def test_run_by_name_gives_the_figures_of_the_card(bqn):
    result = json.loads(bqn("run", NAME, "--data", "digits", "--json").out)
    card = PRETRAINED.card(NAME)
    assert {name: result[name] for name in card.test} == card.test
    assert result["file"] == NAME


def test_inspect_and_export_by_name(bqn, tmp_path):
    assert json.loads(bqn("inspect", NAME, "--json").out)["file_bytes"] == PRETRAINED.card(NAME).size
    assert bqn("export", NAME, "--to", "html").code == 0
    assert (tmp_path / "work" / f"{NAME}.html").exists()
    assert bqn("export", NAME, "--to", "c", "--out", tmp_path / "net.h").code == 0


@pytest.mark.parametrize("command", ["run", "predict"])
def test_predictions_by_name(bqn, tmp_path, command):
    picture = np.random.default_rng(1).integers(0, 256, (8, 8), dtype=np.uint8)
    Image.fromarray(picture).save(tmp_path / "a.png")
    done = bqn(command, NAME, tmp_path / "a.png")
    assert done.code == 0
    (row,) = csv.DictReader(io.StringIO(done.out))
    expected = package.load_pretrained(NAME)(picture[None, None])[0]
    assert [float(row[f"p_{digit}"]) for digit in range(10)] == pytest.approx(expected.tolist(), abs=1e-6)


def test_a_file_of_that_name_wins(bqn, tmp_path):
    shutil.copy(PRETRAINED.folder / "digits-mlp.bqn", tmp_path / "work" / NAME)
    assert json.loads(bqn("inspect", NAME, "--json").out)["members"] == 1
    (tmp_path / "work" / NAME).write_bytes(b"nothing")
    assert bqn("inspect", NAME).fails().startswith(f"{NAME}: ")
    for command in (("run", NAME, "--data", "digits"), ("export", NAME, "--to", "c"), ("predict", NAME, "a.png")):
        assert bqn(*command).fails().startswith(f"{NAME}: ")


def test_a_folder_of_that_name_does_not(bqn, tmp_path):
    (tmp_path / "work" / NAME).mkdir()
    np.savez(tmp_path / "x.npz", x=np.zeros((3, 8, 8), np.uint8))
    assert bqn("inspect", NAME).code == 0
    assert bqn("predict", NAME, tmp_path / "x.npz").code == 0
    assert f"use bqn run {NAME}" in bqn("evaluate", NAME).fails(2)


def test_a_run_of_that_name_does(bqn, home, tmp_path):
    shutil.copytree(home.classifier, tmp_path / "work" / NAME)
    for command in (["inspect", NAME], ["run", NAME, "--data", "digits"]):
        assert f"{NAME} is a folder, not a packed network: bqn pack {NAME} makes one" in bqn(*command).fails()


def test_a_packed_file_for_predict(bqn, tmp_path):
    shutil.copy(PRETRAINED.folder / f"{NAME}.bqn", tmp_path / "mine.bqn")
    np.savez(tmp_path / "x.npz", x=np.zeros((3, 8, 8), np.uint8))
    assert bqn("predict", tmp_path / "mine.bqn", tmp_path / "x.npz").out.count("\n") == 4
    told = bqn("predict", NAME, tmp_path / "x.npz", "--mode", "mc").fails(2)
    assert told == f"--mode, --samples and --seed are for runs; {NAME} holds the networks that it holds"


@pytest.mark.parametrize("command", [("zoo",), ("inspect",), ("export", "--to", "c"), ("run", "--data", "digits")])
def test_names_that_are_not_there(bqn, command):
    told = bqn(command[0], "digts-mlp", *command[1:]).fails()
    assert "no pretrained network is called 'digts-mlp', did you mean digits-mlp?" in told
    assert f"there are {', '.join(PRETRAINED.names()[:2])}" in told


def test_a_damaged_installation(bqn, tmp_path, monkeypatch):
    for path in PRETRAINED.folder.glob(f"{NAME}.*"):
        shutil.copy(path, tmp_path)
    monkeypatch.setattr(PRETRAINED, "folder", tmp_path)
    (tmp_path / f"{NAME}.bqn").write_bytes(b"")
    assert "is damaged: its sha256 is" in bqn("run", NAME, "--data", "digits").fails()
    (tmp_path / f"{NAME}.json").write_text("{}")
    assert "a card must have the entries" in bqn("zoo").fails()
