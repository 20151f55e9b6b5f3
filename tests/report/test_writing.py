from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from bqn import report
from bqn.data import DataError
from bqn.training import CheckpointError, TrainConfig, train
from tests.report.pages import Reader, images


def test_a_report_is_written_into_the_run(shared_run: Path) -> None:
    path = report.write(shared_run, ood=shared_run.parent / "elsewhere.npz", corruptions=True, samples=2)
    assert path == shared_run / "report.html"
    page = Reader(path.read_text(encoding="utf-8"))
    assert "known.npz · mlp" in page.text
    assert "MC recal." in page.text
    assert "elsewhere.npz" in page.text
    assert not list(shared_run.glob("*.tmp"))


def test_the_same_seed_gives_the_same_file(shared_run: Path, tmp_path: Path) -> None:
    first = report.write(shared_run, tmp_path / "a.html", samples=2, seed=1).read_bytes()
    assert report.write(shared_run, tmp_path / "b.html", samples=2, seed=1).read_bytes() == first
    assert report.write(shared_run, tmp_path / "c.html", samples=2, seed=2).read_bytes() != first


def test_a_regression_is_reported(tmp_path: Path) -> None:
    lines = ["a,b,price", *(f"{n},{n % 7},{3 * n + n % 5}.5" for n in range(80))]
    (tmp_path / "houses.csv").write_text("\n".join(lines))
    config = TrainConfig(data=str(tmp_path / "houses.csv"), model="regressor", hidden=(6,), epochs=1, threads=1)
    train(config, out=tmp_path / "run")
    page = Reader(report.write(tmp_path / "run", samples=2).read_text(encoding="utf-8"))
    assert {"Predicted and true", "Residuals", "Interval coverage", "Largest surprises"} <= set(page.text)
    assert "MC recal." not in page.text  # nothing to recalibrate


def test_ood_is_for_classification_only(tmp_path: Path, shared_run: Path) -> None:
    test_a_regression_is_reported(tmp_path)
    with pytest.raises(ValueError, match="ood and corruptions are for classification"):
        report.write(tmp_path / "run", ood=shared_run.parent / "elsewhere.npz")


def test_an_outside_set_of_another_shape_is_refused(shared_run: Path, tmp_path: Path) -> None:
    split = images(20, 2, 0, (1, 9, 9))
    np.savez(tmp_path / "large.npz", x=split.x.numpy(), y=split.y.numpy())
    with pytest.raises(ValueError, match="ood must hold examples like those of test"):
        report.write(shared_run, tmp_path / "report.html", ood=tmp_path / "large.npz")
    assert not (tmp_path / "report.html").exists()


def test_a_failed_report_leaves_the_old_one(shared_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "report.html"
    target.write_text("old")

    def fail(source: object, destination: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(CheckpointError, match="No space left on device"):
        report.write(shared_run, target, samples=1)
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_a_place_that_cannot_be_written_is_told_first(shared_run: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="out must be a file, got the folder"):
        report.write(shared_run, tmp_path)
    with pytest.raises(ValueError, match="out must be in a folder that exists"):
        report.write(shared_run, tmp_path / "nowhere" / "report.html")


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="holds no run"):
        report.write(tmp_path)


def test_data_that_have_changed_since_are_refused(shared_run: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(shared_run, tmp_path / "run")
    settings = json.loads((copy / "config.json").read_text())
    for shape, classes, words in (((1, 9, 9), 3, "trained was classification on"), ((1, 6, 6), 2, "trained were 3")):
        split = images(40, classes, 0, shape)
        np.savez(tmp_path / "other.npz", x=split.x.numpy(), y=split.y.numpy())
        (copy / "config.json").write_text(json.dumps({**settings, "data": str(tmp_path / "other.npz")}))
        with pytest.raises(DataError, match=words):
            report.write(copy)


def test_other_training_examples_of_the_same_form_are_refused(shared_run: Path, tmp_path: Path) -> None:
    """A new split of the data would put examples into the test that were trained on."""
    copy = shutil.copytree(shared_run, tmp_path / "run")
    settings = json.loads((copy / "config.json").read_text())
    other = str(shared_run.parent / "elsewhere.npz")
    (copy / "config.json").write_text(json.dumps({**settings, "data": other}))
    with pytest.raises(DataError, match="was trained on other data than"):
        report.write(copy)


def test_missing_data_are_named(shared_run: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(shared_run, tmp_path / "run")
    settings = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**settings, "data": str(tmp_path / "gone.npz")}))
    with pytest.raises(DataError, match=r"gone\.npz"):
        report.write(copy)
