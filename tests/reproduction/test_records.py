"""Records are read with suspicion."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bqn.reproduction import Cell, RecordError, records

CELL = Cell("mlp", "mnist", "best", "", 0)


def test_round_trip(put: Any, tmp_path: Path) -> None:
    put(CELL, 0.07)
    document = records.read(CELL, tmp_path)
    assert document is not None
    assert document["test"]["analytic"]["nll"] == 0.07
    assert records.difference(document, CELL.config("cpu")) is None
    assert records.read(Cell("mlp", "mnist", "best", "", 1), tmp_path) is None
    assert records.seeds("mlp", "mnist", "best", tmp_path) == [document]
    assert not list(tmp_path.rglob("*.tmp"))


def test_seeds_in_order_and_nothing_else(put: Any, tmp_path: Path) -> None:
    for seed in (10, 2, 0):
        put(replace(CELL, seed=seed))
    (tmp_path / "mlp-mnist/best/seed-x.json").write_text("{}")
    put(replace(CELL, variant="lam-0.001"))
    assert [row["seed"] for row in records.seeds("mlp", "mnist", "best", tmp_path)] == [0, 2, 10]
    assert len(records.seeds("mlp", "mnist", "best-lam-0.001", tmp_path)) == 1
    assert records.seeds("cnn", "mnist", "best", tmp_path) == []


def test_difference_names_the_setting(put: Any, tmp_path: Path) -> None:
    put(CELL)
    document = records.read(CELL, tmp_path)
    assert document is not None
    config = CELL.config("cpu")
    assert records.difference(document, replace(config, lam=0.5)) == f"lam {config.lam!r}, not 0.5"
    assert records.difference(document, replace(config, threads=3, device="cuda", mixed_precision=True)) is None
    del document["config"]["best_by"]  # a setting that is newer than the record
    assert records.difference(document, config) is None
    assert records.difference(document, replace(config, best_by="error")) == "best_by 'nll', not 'error'"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": 1}, "seed must be 0, got 1"),
        ({"recipe": "paper"}, "recipe must be 'best'"),
        ({"config": []}, "config must be an object"),
        ({"test": []}, "test must hold one object a mode"),
        ({"test": {"mc": 1}}, "test must hold one object a mode"),
        ({"test": {"mc_distilled": 5}}, "test must hold one object a mode"),
        ({"test": {"mc": {"nll": "low"}}}, "test, mc, nll must be a number"),
        ({"validation": {"mc": {"nll": True}}}, "validation, mc, nll must be a number"),
        ({"test": {"mc": {"nll": float("nan")}}}, "NaN"),
        (
            {"test": {"analytic": {"nll": 0.1, "error": 0.1, "ece": 0.1}}},
            "test must have nll of every mode .* mc has none",
        ),
        ({"validation": {mode: {"nll": 0.1, "error": 0.1} for mode in records.MODES}}, "validation must have ece"),
        ({"test": {}}, "test must have nll of every mode"),
        ({"test": {"mc": {"error": 1.5}}}, "test, mc, error is out of range"),
        ({"test": {"mc": {"nll": -0.1}}}, "test, mc, nll is out of range"),
        ({"config": {"epochs": "many"}}, "config: epochs must be an integer"),
        ({"hardware": 3}, "hardware must be words"),
        ({"failed": ""}, "failed must be words"),
        ({"seconds": "long"}, "seconds must be a number"),
        ({"together": None}, "together must be a number"),
        ({"distilled": [5]}, "distilled must be an object"),
        ({"distilled": {"epochs": 5}}, "distilled, seconds must be a number"),
        ({"distilled": {"epochs": 5, "seconds": 1, "failed": 3}}, "distilled, failed must be words"),
        (
            {"test": {mode: {"nll": 0.1, "error": 0.1, "ece": 0.1} for mode in records.MODES} | {"map_distilled": {}}},
            "test, map_distilled must have nll, error, ece",
        ),
        ({"curve": [1]}, "curve must hold one list a figure"),
        ({"curve": {"epoch": [1]}}, "curve must have epoch, train_nll and validation_nll"),
        ({"curve": {"epoch": [1], "train_nll": [], "validation_nll": [1]}}, "lists of curve must be of one length"),
        ({"curve": {"epoch": [1], "train_nll": ["x"], "validation_nll": [1]}}, "curve, train_nll must be a number"),
        ({"curve": {"epoch": [1], "train_nll": [1], "validation_nll": [None]}}, "epochs must be a number"),
    ],
)
def test_damaged_records(put: Any, tmp_path: Path, change: dict[str, Any], message: str) -> None:
    put(CELL)
    path = CELL.path(tmp_path)
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(RecordError, match=message):
        records.read(CELL, tmp_path)


def test_a_record_needs_what_it_is_judged_by(put: Any, tmp_path: Path) -> None:
    idea = replace(CELL, variant="jensen")
    for cell, part in ((CELL, "test"), (idea, "validation")):
        put(cell)
        path = cell.path(tmp_path)
        document = json.loads(path.read_text())
        del document[part]
        path.write_text(json.dumps(document))
        with pytest.raises(RecordError, match=rf"{part} must have nll of every mode"):
            records.read(cell, tmp_path)
        put(cell, failed="training stopped")  # it has neither
        assert records.read(cell, tmp_path) is not None


def test_infinity_is_refused(put: Any, tmp_path: Path) -> None:
    put(CELL)
    path = CELL.path(tmp_path)
    path.write_text(path.read_text().replace('"entropy": 0.25', '"entropy": 1e999'))
    with pytest.raises(RecordError, match="1e999 is too large"):
        records.read(CELL, tmp_path)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"seed": 0, "seed": 0}'])
def test_no_record_at_all(tmp_path: Path, text: str) -> None:
    CELL.path(tmp_path).parent.mkdir(parents=True)
    CELL.path(tmp_path).write_text(text)
    with pytest.raises(RecordError, match=r"seed-0\.json"):
        records.read(CELL, tmp_path)


def test_statistics(put: Any, tmp_path: Path) -> None:
    for seed, nll in enumerate((0.1, 0.2, 0.3)):
        put(replace(CELL, seed=seed), nll)
    found = records.figure(records.seeds("mlp", "mnist", "best", tmp_path), "test", "analytic", "nll")
    assert found is not None
    assert found.mean == pytest.approx(0.2)
    assert found.std == pytest.approx(0.1)
    assert found.seeds == 3
    assert records.statistic([]) is None
    assert records.statistic([1.0]) == (1.0, None, 1)
