"""A folder of packed networks: names, checksums, and files that are not what they should be."""

import json
import shutil

import pytest

import bqn
from bqn.deploy import PackedError
from bqn.zoo import PRETRAINED, Zoo
from bqn.zoo.folder import UnknownNameError

NAME = "digits-mlp"


@pytest.fixture
def zoo(tmp_path):
    """A copy of one entry, that a test may harm."""
    for suffix in ("bqn", "json"):
        shutil.copy(PRETRAINED.folder / f"{NAME}.{suffix}", tmp_path)
    return Zoo(tmp_path)


def test_names_are_those_of_the_cards(zoo):
    (zoo.folder / "notes.txt").write_text("")
    (zoo.folder / "No Name.json").write_text("")
    assert zoo.names() == [NAME]
    assert [card.name for card in zoo.cards()] == [NAME]
    assert zoo.read(NAME).members == 1


def test_an_empty_zoo(tmp_path):
    assert Zoo(tmp_path / "nowhere").names() == []
    with pytest.raises(UnknownNameError, match="there are none"):
        Zoo(tmp_path).read(NAME)


@pytest.mark.parametrize("name", ["digits-mpl", "Digits-MLP", "digit-mlp"])
def test_an_unknown_name_and_the_nearest(zoo, name):
    with pytest.raises(UnknownNameError, match=f"'{name}', did you mean {NAME}\\? \\(there are {NAME}\\)"):
        zoo.read(name)


@pytest.mark.parametrize("name", ["", "../models/digits-mlp", "digits-mlp.json", "zzz"])
def test_an_unknown_name_far_from_all(zoo, name):
    with pytest.raises(UnknownNameError, match="no pretrained network is called"):
        zoo.card(name)


@pytest.mark.parametrize("damage", ["a bit", "the end", "everything"])
def test_a_damaged_file(zoo, damage):
    path = zoo.folder / f"{NAME}.bqn"
    content = path.read_bytes()
    middle = len(content) // 2
    flipped = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
    path.write_bytes({"a bit": flipped, "the end": content[:-1], "everything": b""}[damage])
    with pytest.raises(PackedError, match=r"digits-mlp\.bqn is damaged: its sha256 is"):
        zoo.read(NAME)


def test_a_file_that_never_was_a_network(zoo):
    import hashlib

    path, card = zoo.folder / f"{NAME}.bqn", zoo.folder / f"{NAME}.json"
    path.write_bytes(b"no network")
    values = json.loads(card.read_text())
    card.write_text(json.dumps(values | {"sha256": hashlib.sha256(b"no network").hexdigest()}))
    with pytest.raises(PackedError, match=r"digits-mlp\.bqn: "):
        zoo.read(NAME)


def test_a_missing_file(zoo):
    (zoo.folder / f"{NAME}.bqn").unlink()
    with pytest.raises(PackedError, match=r"digits-mlp\.bqn is missing"):
        zoo.read(NAME)


def test_a_damaged_card(zoo):
    card = zoo.folder / f"{NAME}.json"
    card.write_text(card.read_text()[:-5])
    with pytest.raises(PackedError, match=r"digits-mlp\.json is not valid JSON"):
        zoo.read(NAME)


def test_the_card_of_another_network(zoo):
    (zoo.folder / f"{NAME}.json").rename(zoo.folder / "stars.json")
    (zoo.folder / f"{NAME}.bqn").rename(zoo.folder / "stars.bqn")
    with pytest.raises(PackedError, match="the card is that of 'digits-mlp'"):
        zoo.read("stars")


def test_from_the_top(monkeypatch, zoo):
    assert NAME in bqn.pretrained()
    with pytest.raises(ValueError, match="no pretrained network is called 'digts-mlp', did you mean digits-mlp"):
        bqn.load_pretrained("digts-mlp")
    assert bqn.load_pretrained(NAME, kernels="numpy").kernels == "numpy"
