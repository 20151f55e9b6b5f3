"""Cards: what is written can be read, and nothing else can."""

import json
from dataclasses import replace

import pytest

from bqn.deploy import PackedError
from bqn.zoo import Card

VALUES = {
    "name": "stars-mlp", "data": "stars", "data_size": "12 images", "data_licence": "MIT", "data_source": "the sky",
    "architecture": "mlp", "mode": "mc", "samples": 5, "recalibrated": True, "distilled": False,
    "temperature": None, "levels": [-1.0, 1.0],
    "activations": [-1, 0, 1], "weights": 1234, "size": 999, "sha256": "0" * 64,
    "test": {"examples": 10, "nll": 0.5, "error": 0.1, "ece": 0.02}, "training": {"epochs": 3, "hidden": [8]},
    "seed": 7, "draw_seed": None, "version": "1.0", "use": "To look at.", "limits": "Only at night.",
}  # fmt: skip


def test_round_trip():
    card = Card(**VALUES)
    assert Card.from_json(card.to_json()) == card
    assert json.loads(card.to_json()) == VALUES == card.to_dict()


@pytest.mark.parametrize(
    ("mode", "recalibrated", "words"),
    [("mc", True, "5 sampled, recalibrated"), ("mc", False, "5 sampled"), ("map", False, "most probable")],
)
def test_networks_in_words(mode, recalibrated, words):
    card = Card(**VALUES | {"mode": mode, "recalibrated": recalibrated})
    assert card.networks == words
    assert replace(card, temperature=1.5).networks == f"{words}, tempered"
    distilled = Card(**VALUES | {"mode": mode, "recalibrated": False, "distilled": True, "temperature": 1.2})
    assert distilled.networks.endswith(("sampled, distilled, tempered", "most probable, distilled, tempered"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"samples": "5"}, "samples must be of the kind int, got '5'"),
        ({"samples": True}, "samples must be of the kind int, got True"),
        ({"recalibrated": 1}, "recalibrated must be of the kind bool"),
        ({"levels": [-1, "1"]}, "levels must be of the kind"),
        ({"temperature": "2"}, "temperature must be of the kind float | None"),
        ({"draw_seed": 0.5}, "draw_seed must be of the kind"),
        ({"training": []}, "training must be of the kind"),
        ({"test": {"examples": 10, "nll": None, "error": 0.1, "ece": 0.1}}, "test must be of the kind"),
        ({"test": {"examples": 10, "nll": 0.1}}, "test must have the numbers examples, nll, error, ece"),
        ({"extra": 1}, "see extra"),
        ({"limits": "x" * 300 + "\n", "use": 3}, "use must be of the kind str, got 3"),
    ],
)
def test_wrong_entries(change, message):
    with pytest.raises(PackedError, match=r"^here: ") as caught:
        Card.from_json(json.dumps(VALUES | change), "here")
    assert message in str(caught.value)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"name": NaN}', '{"name": "a", "name": "b"}', b"\xff\xfe"])
def test_no_card_at_all(text):
    with pytest.raises(PackedError, match=r"^here"):
        Card.from_json(text, "here")


def test_a_missing_entry():
    text = json.dumps({key: value for key, value in VALUES.items() if key != "limits"})
    with pytest.raises(PackedError, match="see limits"):
        Card.from_json(text)
