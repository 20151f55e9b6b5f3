"""Records of other methods are read with suspicion too."""

import json
from pathlib import Path
from typing import Any

import pytest

from bqn.reproduction import RecordError, rivals, tables

SCORES = {"nll": 0.1, "error": 0.02, "epistemic": None}


def record(**changed: Any) -> str:
    document = {
        "method": "e-qnn",
        "model": "mlp",
        "data": "mnist",
        "config": {"members": 10},
        "seeds": [{"seed": 0, "test": {"logits": SCORES}}],
    }
    return json.dumps({**document, **changed})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "rivals").mkdir()
    return tmp_path / "rivals/e-qnn-mlp-mnist.json"


def cell(path: Path) -> str:
    return tables.rival(path.parents[1], "e-qnn", "mlp", "mnist", "logits")


def test_a_record(path: Path) -> None:
    assert rivals.read(path.parents[1], "e-qnn", "mlp", "mnist", "logits") is None
    path.write_text(record())
    assert cell(path) == "100.0 / 2.00 (1), 10 members"
    path.with_name("e-qnn-mlp-mnist-five.json").write_text(record(config={"members": 5}))
    assert cell(path) == "100.0 / 2.00 (1), 5 members"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not valid JSON"),
        ('{"a": 1, "a": 2}', "a key stands twice"),
        (record().replace("0.02", "NaN"), "NaN is not a JSON number"),
        (record().replace("0.02", "1e999"), "1e999 is too large"),
        (record(method="qnn"), "method must be 'e-qnn', got 'qnn'"),
        (record(data="kmnist"), "data must be 'mnist'"),
        (record(config=None), "config must be an object with members"),
        (record(config={"members": "ten"}), "config must be an object with members"),
        (record(seeds=[]), "seeds must be a list of objects"),
        (record(seeds=[1]), "seeds must be a list of objects"),
        (record(seeds=[{"seed": 0}]), "seed 0, test must have the mode logits"),
        (record(seeds=[{"seed": 0, "test": {"map": SCORES}}]), "seed 0, test must have the mode logits"),
        (record(seeds=[{"seed": 0, "test": {"logits": {"nll": 0.1}}}]), "logits must have error"),
        (record(seeds=[{"seed": 0, "test": {"logits": {**SCORES, "nll": "low"}}}]), "logits, nll must be a number"),
        (record(seeds=[{"seed": 0, "test": {"logits": {**SCORES, "error": 3}}}]), "logits, error is out of range"),
    ],
)
def test_damaged_records(path: Path, text: str, message: str) -> None:
    path.write_text(text)
    with pytest.raises(RecordError, match=message) as caught:
        cell(path)
    assert path.name in str(caught.value)
