"""Tuning runs: read with suspicion, shown as they are, quoted by reference."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from bqn.reproduction import RecordError, tables, tuning
from bqn.reproduction.page import pages

RESULTS = Path(__file__).resolve().parents[2] / "results"


@pytest.fixture
def out(tmp_path: Path) -> Path:
    shutil.copytree(RESULTS / "tuning", tmp_path / "tuning")
    return tmp_path


def edit(path: Path, change: Any) -> None:
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


def test_without_records(tmp_path: Path) -> None:
    assert tuning.section(tmp_path) == ""
    assert "How the recipe `best` was chosen" not in pages(tmp_path)["ablations.md"]


def test_every_run_stands_on_the_page(out: Path) -> None:
    page = pages(out)["ablations.md"]
    assert "[[" not in page
    count = 0
    for path in (out / "tuning").glob("*.json"):
        document = json.loads(path.read_text())
        assert "seconds" not in path.read_text()  # of runs that shared a card
        assert document["code"] in page
        for run in document["runs"]:
            cells = [f"{nll:.1f} / {error:.2f}" for nll, error in (run["scores"][mode] for mode in tables.MODES)]
            assert f"| {' | '.join(cells)} | {run['entropy']:.3f} | {run['best_epoch'] or '–'} |" in page
            count += 1
    assert count == page.count(" | 0.03 | ") + page.count(" | 0.1 | ") + page.count(" | 0.01 | ") + page.count(
        " | 0.3 | "
    )
    assert "| 0.01 to -10 | 1 | 0.03 | 0 | 275.2 / 9.63 |" in page
    assert "| 0.003 | 4 and flip | 0.03 | 0 | 448.8 / 13.70 |" in page, "whatever the preset has come to draw"
    assert "### VGG CIFAR-10, round 2, 10 epochs" in page


def test_some_rounds_are_enough_for_a_page(out: Path) -> None:
    (out / "tuning/cnn-2.json").unlink()
    section = tuning.section(out)
    assert "to not measured and not measured, is that to shift 1." in " ".join(section.split())
    assert "### CNN Fashion-MNIST, round 2" not in section
    assert "### CNN KMNIST, round 1" in section


def test_words_follow_the_records(out: Path) -> None:
    def change(document: Any) -> None:
        (run,) = (run for run in document["runs"] if run["data"] == "fashion-mnist" and run["name"] == "s1l1e-2")
        run["scores"]["mc_recalibrated"] = [123.4, 5.67]

    before = tuning.section(out)
    assert "to 224.4 / 7.73 and 271.5 / 8.58, is that to shift 1." in " ".join(before.split())
    edit(out / "tuning/cnn-2.json", change)
    assert "to 123.4 / 5.67 and 271.5 / 8.58, is that to shift 1." in " ".join(tuning.section(out).split())


def test_conclusions_hold(out: Path) -> None:
    """What the words claim in general is true of the records."""
    runs = {
        (path.stem, run["data"], run["name"]): run["scores"]
        for path in (out / "tuning").glob("*.json")
        for run in json.loads(path.read_text())["runs"]
    }

    def lower(
        better: tuple[str, str, str], worse: tuple[str, str, str], modes: Any = ("analytic",), place: int = 0
    ) -> bool:
        return all(runs[better][mode][place] < runs[worse][mode][place] for mode in modes)

    for data in ("mnist", "fashion-mnist"):
        for other in ("s2l3e-3", "s2l1e-1", "s2l3e-1"):
            assert lower(("mlp-1", data, "s2l3e-2"), ("mlp-1", data, other))
        assert lower(("mlp-1", data, "s1l3e-2"), ("mlp-1", data, "s1l1e-1"))
        for rate in ("s2l1e-1lr.1", "s2l3e-2lr.1"):
            assert lower(("mlp-1", data, "s2l3e-2"), ("mlp-1", data, rate))
    for data in ("kmnist", "fashion-mnist"):
        for other in ("l1e-4", "l1e-3", "l3e-2", "l1e-2lr.1"):
            assert lower(("cnn-1", data, "l1e-2"), ("cnn-1", data, other))
    fashion = ("cnn-2", "fashion-mnist")
    for place in (0, 1):
        assert lower((*fashion, "s1l1e-2"), (*fashion, "s2l1e-2"), tables.MODES, place)
    kmnist = ("mlp-2", "kmnist")
    assert lower((*kmnist, "s1l3e-2"), (*kmnist, "s1l3e-2d0"), set(tables.MODES) - {"map"}, 1)
    assert lower((*kmnist, "s1l3e-2d0"), (*kmnist, "s1l3e-2"), ("map",), 1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda document: document.update(code=""), "code must be words"),
        (lambda document: document.update(round=1), "architecture and round must be those of the file's name"),
        (lambda document: document.update(runs=[]), "runs must be a list of objects"),
        (lambda document: document.update(settings=None), "settings must be an object"),
        (lambda document: document["settings"].update(epochs="many"), "epochs must be an integer"),
        (lambda document: document["settings"].update(luck=1), "'luck' is not a setting"),
        (lambda document: document["runs"].append(document["runs"][0]), "a run stands twice"),
        (lambda document: document["runs"][0].pop("data"), "data and name must be words"),
        (lambda document: document["runs"][0]["scores"].pop("mc"), "scores must have the modes"),
        (lambda document: document["runs"][0]["scores"].update(mc=[1]), "mc must be NLL and error"),
        (lambda document: document["runs"][0]["scores"].update(mc=[1, None]), "mc must be a number"),
        (lambda document: document["runs"][0].update(entropy="low"), "entropy must be a number"),
        (lambda document: document["runs"][0].update(best_epoch=11), "best_epoch must be one of 10, got 11"),
        (lambda document: document["runs"].pop(), r"no figure for \[\[vgg-2 cifar10 d-10"),
    ],
)
def test_damaged_records(out: Path, change: Any, message: str) -> None:
    edit(out / "tuning/vgg-2.json", change)
    with pytest.raises(RecordError, match=message):
        tuning.section(out)


def test_a_round_that_the_page_does_not_know(out: Path) -> None:
    (out / "tuning/mlp-99.json").write_bytes((out / "tuning/mlp-1.json").read_bytes())
    with pytest.raises(RecordError, match="the page does not know mlp-99"):
        tuning.section(out)


def test_every_round_is_kept() -> None:
    """The page does without one that is missing, so that here it would vanish in silence."""
    assert {path.stem for path in (RESULTS / "tuning").glob("*.json")} == set(tuning._RECORDS)
