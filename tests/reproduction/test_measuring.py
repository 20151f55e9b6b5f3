"""Records hold what was measured."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

import bqn
from bqn import metrics
from bqn.evaluation import evaluate
from bqn.reproduction import Cell, measuring, plan, records
from bqn.reproduction.measuring import code, describe, entropy_share, thin
from bqn.training import DivergedError, distill, load_data, load_run, own_parts, train

pytestmark = pytest.mark.usefixtures("tiny_recipes")


def cells(seeds: int = 2, recipe: str = "best") -> list[Cell]:
    return plan("table1", recipe, seeds, data=["digits"])


def folders(tmp_path: Path) -> dict[str, Any]:
    return {"out": tmp_path / "results", "work": tmp_path / "work", "device": "cpu"}


def test_a_record_holds_what_evaluation_says(tmp_path: Path) -> None:
    epochs: list[tuple[Cell, int]] = []
    done: list[Cell] = []
    made = bqn.reproduction.run(
        cells(),
        **folders(tmp_path),
        report=lambda cell, record: epochs.append((cell, record.epoch)),
        done=lambda cell, _: done.append(cell),
    )
    assert list(made) == done == cells()
    assert len(epochs) == 4
    for cell in cells()[1:]:
        document = json.loads(cell.path(tmp_path / "results").read_text())
        assert document == json.loads(json.dumps(made[cell]))
        expected = {"architecture": "mlp", "data": "digits", "recipe": "best", "seed": cell.seed, "epochs": 2}
        assert {name: document[name] for name in expected} == expected
        assert document["config"]["seed"] == cell.seed
        assert set(document["test"]) == set(document["validation"]) == {*records.MODES, *records.DISTILLED_MODES}
        assert document["distilled"]["epochs"] == 2
        (folder,) = (tmp_path / "work/mlp-digits/best").glob(f"seed-{cell.seed}-*")
        trained = load_run(folder)
        dataset = load_data(trained.config)
        training, validation = own_parts(folder, trained.config, dataset)
        for part, split in (("test", dataset.test), ("validation", validation)):
            assert split is not None
            scores = evaluate(
                trained.net,
                split,
                seed=cell.seed,
                recalibrate_on=training,
                prepare=trained.preprocessing.input,
                batch_size=1000,
            )
            for mode in records.DISTILLED_MODES:
                made = distill(trained, training, validation, mode=mode.partition("_")[0], seed=cell.seed, epochs=2)
                x = trained.preprocessing.input(split.x)
                probs = torch.stack([network.predict(x) for network in made.networks]).mean(0)
                scores[mode] = {"nll": metrics.nll(probs, split.y), "error": metrics.error(probs, split.y),
                                "ece": metrics.ece(probs, split.y)}  # fmt: skip
            for mode, entry in document[part].items():
                for name, value in entry.items():
                    assert value == pytest.approx(scores[mode][name], rel=1e-4, abs=1e-6), (part, mode, name)
        best = trained.history.best
        assert best is not None
        assert document["validation"]["analytic"]["nll"] == pytest.approx(best.validation_nll, rel=1e-5)


def test_curve_is_thin() -> None:
    epochs = [{"epoch": n, "train_nll": 1 / n, "validation_nll": None, "validation_error": None, "kl": 0.0}
              for n in range(1, 301)]  # fmt: skip
    curve = thin(epochs)
    assert (curve["epoch"][0], curve["epoch"][-1], len(curve["epoch"])) == (1, 300, 25)
    assert curve["epoch"] == sorted(set(curve["epoch"]))
    assert thin(epochs[:3])["epoch"] == [1, 2, 3]
    assert thin(epochs[:1])["epoch"] == [1]
    assert thin([])["epoch"] == []


def test_entropy_share() -> None:
    net = bqn.models.mlp(4, 2, hidden=(3,), levels=(-1, 0, 1))
    with torch.no_grad():
        for _, posterior in net.posteriors():
            posterior.logits.zero_()
    assert entropy_share(net) == pytest.approx(1)
    with torch.no_grad():
        for _, posterior in net.posteriors():
            posterior.logits[..., 0] = 50.0
    assert entropy_share(net) == pytest.approx(0, abs=1e-6)


def test_a_distillation_that_fails_does_not_take_the_record_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    cell = cells(1)[0]
    trained = train(cell.config("cpu"))
    dataset = load_data(trained.config)
    for error in (DivergedError(1, 2, "gradient", "of a layer"), torch.OutOfMemoryError("no more")):

        def fail(*_: object, error: Exception = error, **__: object) -> None:
            raise error

        monkeypatch.setattr(measuring, "distill", fail)
        document = describe(cell, trained, dataset, 1.0, 1, "cpu")
        assert document["distilled"]["failed"] == str(error)
        assert set(document["test"]) == set(records.MODES)


def test_code_is_that_of_the_clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Outside a clone, and within a clone of something else, only the version is known."""
    for inside in (False, True):
        if inside:
            subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
            name = ["-c", "user.name=a", "-c", "user.email=a@b"]
            subprocess.run(["git", "-C", str(tmp_path), *name, "commit", "-q", "--allow-empty", "-m", "a"], check=True)
        monkeypatch.setattr(bqn, "__file__", str(tmp_path / "__init__.py"))
        code.cache_clear()
        assert code() == {"code": f"bqn {bqn.__version__}"}
    (tmp_path / "__init__.py").touch()
    subprocess.run(["git", "-C", str(tmp_path), "add", "."], check=True)
    code.cache_clear()
    found = code()
    code.cache_clear()
    assert re.fullmatch("[0-9a-f]{40}", found["code"])
    assert found["code_changed"] is True
