"""The sets of scikit-learn."""

from __future__ import annotations

import sys

import pytest
import torch
from sklearn.datasets import load_diabetes, load_digits, load_iris

from bqn.data import available, load

NAMES = ("digits", "iris", "wine", "breast-cancer", "diabetes")


@pytest.mark.parametrize("name", NAMES)
def test_loads_without_files_and_always_the_same(name: str) -> None:
    first, again, other = load(name), load(name, download=False), load(name, split=1)
    assert torch.equal(first.test.x, again.test.x)
    assert not torch.equal(first.test.x, other.test.x)
    assert len(first.test) == round(0.2 * (len(first.train) + len(first.test)))


def test_digits_are_pixels_from_0_to_255() -> None:
    data, raw = load("digits"), load_digits()
    assert data.train.x.dtype == torch.uint8
    assert (data.input_shape, data.classes) == ((1, 8, 8), tuple("0123456789"))
    together = torch.cat([data.train.x, data.test.x]).flatten(1)
    assert together.unique().tolist() == [round(level * 255 / 16) for level in range(17)]
    levels = (together * 16.0 / 255).round().int().tolist()
    assert sorted(levels) == sorted(raw.data.astype(int).tolist())


def test_digits_are_stratified() -> None:
    data = load("digits")
    shares = torch.bincount(data.test.y) / torch.bincount(torch.cat([data.train.y, data.test.y]))
    assert (shares - 0.2).abs().max() < 0.01


def test_features_and_targets_are_the_raw_ones() -> None:
    iris, diabetes = load("iris"), load("diabetes")
    raw = load_iris()
    pairs = {(*row, label) for row, label in zip(raw.data.astype("float32").tolist(), raw.target.tolist(), strict=True)}
    assert {(*row, label) for row, label in zip(iris.test.x.tolist(), iris.test.y.tolist(), strict=True)} <= pairs
    assert iris.classes == ("setosa", "versicolor", "virginica")
    assert diabetes.test.x[:, 0].max() > 40  # years, not yet standardized
    assert set(diabetes.test.y[:, 0].tolist()) <= set(load_diabetes().target.tolist())


def test_all_are_listed() -> None:
    assert tuple(info.name for info in available())[: len(NAMES)] == NAMES


def test_without_scikit_learn_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(ImportError, match=r'the set iris needs sklearn: pip install "bqn\[sklearn\]"'):
        load("iris")
