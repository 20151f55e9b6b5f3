"""What is said about a packed file must be so."""

import json

import numpy as np
import pytest

import bqn
from bqn.deploy import pack_in_memory, to_bytes
from bqn.deploy.inspection import describe
from tests.deploy.networks import disturb, sampled


@pytest.fixture(scope="module")
def facts():
    shape = (1, 8, 8)
    net = disturb(bqn.models.resnet(shape, 5, channels=(4, 6), blocks=1, levels=bqn.TERNARY), shape)
    packed = pack_in_memory(sampled(net, 3), input_shape=shape, about={"seed": 1})
    return packed, describe(packed)


def test_the_bytes_add_up(facts):
    packed, told = facts
    assert sum(told["bytes"].values()) == told["file_bytes"] == len(to_bytes(packed))
    assert all(count >= 0 for count in told["bytes"].values())
    assert sum(layer["bytes"] for layer in told["layers"]) == sum(
        told["bytes"][kind] for kind in ("weights", "biases", "thresholds")
    )


def test_weights_and_bits(facts):
    _, told = facts
    weights = 4 * 9 + 2 * 4 * 4 * 9 + 4 * 6 * 9 + 2 * 6 * 6 * 9 + 6 * 5
    assert told["weights"] == weights
    assert told["bits_per_weight"] == 2
    assert told["float32_bytes"] == 4 * weights
    assert told["bytes"]["weights"] == pytest.approx(3 * 2 * weights / 8, abs=3 * 2 * len(told["layers"]))


def test_layers(facts):
    packed, told = facts
    by_name = {layer["name"]: layer for layer in told["layers"]}
    assert list(by_name) == [op.name for op in packed.program.ops]
    first = by_name["0"]
    assert (first["op"], first["what"], first["size"]) == ("Conv2d", "1 → 4, 3 × 3 padded 1, ternary", [4, 8, 8])
    behind_shortcut = by_name["4"]
    assert behind_shortcut["what"] == "2 levels, 2 cases"
    assert told["members"] == 3
    assert told["about"] == {"seed": 1}


def test_it_is_json(facts):
    _, told = facts
    assert json.loads(json.dumps(told, allow_nan=False))["task"] == "classification"


def test_without_a_shape_and_with_a_regression():
    told = describe(pack_in_memory(bqn.models.regressor(4).mode()))
    assert told["task"] == "regression"
    assert {layer["size"] for layer in told["layers"]} == {None}
    assert told["input"] == {"kind": "features", "shape": None}
    assert np.isclose(told["bits_per_weight"], 1)
