"""Preprocessing: into the network's units and back, through JSON without loss."""

import json

import pytest
import torch

from bqn import Moments
from bqn.data import DataError, to_input
from bqn.training import CheckpointError, Preprocessing
from tests.training import tiny


def test_images_keep_their_pixels():
    split = tiny.images()
    preprocessing = Preprocessing.of(split, classes=("a", "b", "c"))
    assert preprocessing.task == "classification"
    assert (preprocessing.input_shape, preprocessing.outputs) == ((1, 6, 6), 3)
    assert torch.equal(preprocessing.input(split.x), to_input(split.x))
    assert preprocessing.input(to_input(split.x).double()).dtype == torch.float32
    assert preprocessing.target(split.y) is split.y
    assert preprocessing.log_scale == 0
    assert preprocessing.target_scale is None


def test_regression_returns_to_the_units_of_the_data():
    split = tiny.table(outputs=2)
    preprocessing = Preprocessing.of(split)
    x, y = preprocessing.input(split.x), preprocessing.target(split.y)
    for standardized in (x, y):
        torch.testing.assert_close(standardized.mean(0), torch.zeros(standardized.shape[1]), atol=1e-4, rtol=0)
        torch.testing.assert_close(standardized.std(0, correction=0), torch.ones(standardized.shape[1]))
    back = preprocessing.output(Moments(y, torch.ones_like(y), torch.zeros_like(y), 3 * torch.ones_like(y)))
    torch.testing.assert_close(back.mean, split.y)
    torch.testing.assert_close(back.var[0], split.y.var(0, correction=0))
    mean, std = preprocessing.target_scale
    torch.testing.assert_close(y * std + mean, split.y)
    # the density of a scaled variable: log p(y) = log p(z) - log |dy/dz|
    torch.testing.assert_close(preprocessing.log_scale, float(split.y.double().std(0, correction=0).log().sum()))


def test_json_loses_nothing():
    split = tiny.table(outputs=2)
    preprocessing = Preprocessing.of(split)
    again = Preprocessing.from_json(preprocessing.to_json(), "file")
    assert torch.equal(again.input(split.x), preprocessing.input(split.x))
    assert torch.equal(again.target(split.y), preprocessing.target(split.y))
    assert "name" not in preprocessing.to_json()  # nothing that older versions would not read
    named = Preprocessing.of(split, feature_names=("a", "ü", "", "d"), target_name="t")
    again = Preprocessing.from_json(named.to_json(), "file")
    assert (again.feature_names, again.target_name) == (("a", "ü", "", "d"), "t")
    images = Preprocessing.of(tiny.images(), classes=("a", "ü", "c"))
    assert Preprocessing.from_json(images.to_json(), "file").classes == ("a", "ü", "c")


def test_other_shape():
    with pytest.raises(DataError, match=r"x must have shape \(N, 4\), got \(60, 1, 6, 6\)"):
        Preprocessing.of(tiny.table()).input(tiny.images().x)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "other"}, "is not a bqn-preprocessing-1 object"),
        ({"more": 1}, "is not a bqn-preprocessing-1 object"),
        ({"input_shape": []}, "must be positive integers"),
        ({"input_shape": [10**9]}, "must be positive integers"),
        ({"input_shape": [2**20, 2**20]}, "must be positive integers"),
        ({"outputs": True}, "must be positive integers"),
        ({"classes": "ab"}, "classes must be a list of names"),
        ({"classes": ["a", "b"]}, "2 classes for 1 outputs"),
        ({"inputs": {"mean": [0.0] * 4}}, "must hold mean and std"),
        ({"inputs": [1]}, "must hold a mean and a std"),
        ({"inputs": {"mean": [0.0], "std": [1.0]}}, "must hold 4 numbers each"),
        ({"targets": {"mean": [0.0], "std": ["1"]}}, "must hold 1 numbers each"),
        ({"targets": {"mean": [0.0], "std": [0.0]}}, "std must be positive"),
        ({"targets": {"mean": [1e300], "std": [1.0]}}, "mean must be finite"),
        ({"feature_names": "abcd"}, "feature_names must be a list of names"),
        ({"feature_names": ["a", "b", "c", 4]}, "feature_names must be a list of names"),
        ({"target_name": 0}, "target_name a name"),
        ({"feature_names": ["a", "b"]}, "2 feature_names for .4., expected one name a feature"),
        ({"feature_names": ["a", "b", "c", "a"]}, "expected one name a feature"),
    ],
)
def test_bad_json(change, message):
    values = {**json.loads(Preprocessing.of(tiny.table()).to_json()), **change}
    with pytest.raises(CheckpointError, match=message):
        Preprocessing.from_json(json.dumps(values), "file")
