"""Recipes that take a second, and records that nobody has trained for."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bqn.reproduction import Cell, recipes, records

TINY = {"hidden": (8,), "epochs": 2, "batch_size": 300, "threads": 1}


@pytest.fixture
def tiny_recipes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both recipes with small networks and two epochs; what tells them apart stays."""
    small = {name: {"mlp": {**table["mlp"], **TINY}} for name, table in recipes.RECIPES.items()}
    monkeypatch.setattr(recipes, "RECIPES", small)
    monkeypatch.setattr(recipes, "DISTILLATION", {"best": 2})


Put = Callable[..., Path]


@pytest.fixture
def put(tmp_path: Path) -> Put:
    """Write a record with given figures, NLL and error alike in all modes but for a factor."""

    def write(cell: Cell, nll: float = 0.1, error: float = 0.02, **more: Any) -> Path:
        factors = {"analytic": 1.0, "mc": 1.2, "map": 1.5, "mc_recalibrated": 1.1, "map_recalibrated": 1.4}
        scores = {
            mode: {"nll": nll * by, "error": min(error * by, 1.0), "ece": 0.01 * by} for mode, by in factors.items()
        }
        scores["analytic"]["bound"] = 1.3 * nll
        document = {
            "architecture": cell.architecture,
            "data": cell.data,
            "recipe": cell.folder,
            "seed": cell.seed,
            "config": json.loads(cell.config("cpu").to_json()),
            "hardware": "none",
            "seconds": 60.0,
            "entropy": 0.25,
            "validation": scores,
            **({"test": scores} if cell.judged_on_test else {}),
            **more,
        }
        if "failed" in more:
            document = {name: value for name, value in document.items() if name not in ("test", "validation")}
        records.write(cell.path(tmp_path), document)
        return tmp_path

    return write
