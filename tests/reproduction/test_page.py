"""The pages are written from records alone, and whole."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from bqn.reproduction import Cell, plan
from bqn.reproduction.page import pages, write_pages

VGG = Cell("vgg", "cifar10", "paper")


def test_pages_without_any_record(tmp_path: Path) -> None:
    made = pages(tmp_path)
    assert set(made) == {"results.md", "ablations.md"}
    for text in made.values():
        assert "{" not in text
    assert made["results.md"].count("Not measured yet.") == 4
    assert "- Not measured with the recipe `best`: all seven networks." in made["results.md"]
    assert "- Not measured with the recipe `paper`: all seven networks." in made["results.md"]
    assert "No idea has been measured yet." in made["ablations.md"]


def test_words_about_other_records_are_marked_as_such(tmp_path: Path) -> None:
    warning = "made from your records; the sentences are not"
    assert warning in pages(tmp_path)["results.md"]
    assert warning not in pages(Path(__file__).resolve().parents[2] / "results")["results.md"]


def test_figures_are_written_and_old_ones_removed(put: Any, tmp_path: Path) -> None:
    for cell in plan("figure-power", "paper", 1, models=["mlp"], data=["mnist"]):
        put(cell)
    docs = tmp_path / "docs"
    (docs / "figures").mkdir(parents=True)
    (docs / "figures/results-old.svg").write_text("")
    (docs / "figures/other.svg").write_text("")
    written = write_pages(tmp_path, docs)
    names = {path.relative_to(docs).as_posix() for path in written}
    assert names == {"results.md", "ablations.md", "figures/results-power-mlp.svg", "figures/results-gap-mlp-paper.svg"}
    assert sorted(path.name for path in (docs / "figures").iterdir()) == [
        "other.svg", "results-gap-mlp-paper.svg", "results-power-mlp.svg"
    ]  # fmt: skip
    page = (docs / "results.md").read_text()
    for path in (docs / "figures").glob("results-*.svg"):
        assert f"(figures/{path.name})" in page
    assert pages(tmp_path) == {name: (docs / name).read_text() for name in names}


def test_what_learned_nothing_is_said(put: Any, tmp_path: Path) -> None:
    put(VGG, 2.3026, 0.9)
    put(replace(VGG, seed=1), 0.6, 0.2)
    page = pages(tmp_path)["results.md"]
    assert "VGG CIFAR-10, recipe `paper`: 1 of 2 runs learned nothing" in page
    assert "from a Xavier start little of the signal" in page


def test_failures_are_said(put: Any, tmp_path: Path) -> None:
    put(VGG, failed="training stopped at epoch 3")
    assert "VGG CIFAR-10, recipe `paper`, seed 0 failed: training stopped at epoch 3." in pages(tmp_path)["results.md"]


def test_what_is_not_measured_is_said(put: Any, tmp_path: Path) -> None:
    """One network is missing, one has too few seeds; in every table its cells say so."""
    for cell in plan("table1", "best"):
        if cell.data != "kmnist" and (cell.architecture, cell.seed > 2) != ("vgg", True):
            put(cell)
    page = pages(tmp_path)["results.md"]
    assert "- Not measured with the recipe `best`: MLP KMNIST, CNN KMNIST.\n" in page
    assert "- Fewer seeds than planned with the recipe `best`: 3 of 5 for VGG CIFAR-10.\n" in page
    rows = [line for line in page.splitlines() if line.startswith("| CNN KMNIST |")]
    # rivals too; bounds; ratios, calibration
    assert [row.count("not measured") for row in rows] == [2 + 1, 2, 5 + 1, 5 + 1, 6, 8]


def test_failures_of_sweeps_and_ideas_are_said(put: Any, tmp_path: Path) -> None:
    put(replace(VGG, variant="lam-0.001", seed=2), failed="it diverged")
    page = pages(tmp_path)["results.md"]
    assert "- VGG CIFAR-10, recipe `paper-lam-0.001`, seed 2 failed: it diverged." in page


def test_overfitting_is_said(put: Any, tmp_path: Path) -> None:
    def curve(last: float) -> dict[str, Any]:
        found = {"epoch": [1, 3, 6], "train_nll": [0.9, 0.3, 0.02], "validation_nll": [0.8, 0.6, last]}
        return {"curve": found, "epochs": 6, "best_epoch": 3}

    put(VGG, 0.6, **curve(0.62))
    assert "overfits" not in pages(tmp_path)["results.md"]
    put(VGG, 0.6, **curve(0.72))
    page = pages(tmp_path)["results.md"]
    assert (
        "it overfits. The validation NLL of the analytic prediction is lowest at epoch 3 of 6, with 600.0, and" in page
    )
    assert "ends at 720.0, while that of training falls to 20.0." in page


def test_every_command_on_the_page_is_one(tmp_path: Path) -> None:
    import shlex

    from bqn.reproduction import TARGETS

    lines = [line for line in pages(tmp_path)["results.md"].splitlines() if line.startswith("$ ")]
    targets = {shlex.split(line)[3] for line in lines}
    assert {*TARGETS, "page"} - targets == {"ablations"}


def test_ablations(put: Any, tmp_path: Path) -> None:
    base = Cell("cnn", "kmnist", "best")
    put(base, 0.08, 0.02)
    for seed, (short, jensen) in enumerate(((0.1, 0.13), (0.11, 0.13))):
        put(replace(base, variant="short", seed=seed), short, 0.03)
        put(replace(base, variant="jensen", seed=seed), jensen, 0.03)
    put(replace(base, variant="jensen", seed=2), 9.0, 0.03)  # nothing to compare it with
    page = pages(tmp_path)["ablations.md"]
    assert "### CNN KMNIST, recipe `best`" in page
    (plain,) = (line for line in page.splitlines() if line.startswith("| recipe as it is"))
    assert plain.startswith(f"| recipe as it is | {base.config('cpu').epochs} | 80.0 / 2.00 (1) |")
    (short,) = (line for line in page.splitlines() if line.startswith("| `short`"))
    assert "105.0 ± 7.1 / 3.00 ± 0.00 (2)<br>+20.0 / +1.00 |" in short  # one seed in common
    (jensen,) = (line for line in page.splitlines() if line.startswith("| `jensen`"))
    assert "against `short`" in jensen
    assert "<br>+25.0 ± 5.0 / +0.00 ± 0.00 |" in jensen
    assert "| 20 |" in jensen


def test_records_of_other_settings_are_named(put: Any, tmp_path: Path) -> None:
    cell = Cell("mlp", "mnist", "best")
    put(cell)
    path = replace(cell, seed=1).path(tmp_path)
    put(replace(cell, seed=1))
    assert "was made with" not in pages(tmp_path)["results.md"]
    document = json.loads(path.read_text())
    document["config"]["epochs"] = 7
    path.write_text(json.dumps(document))
    told = "MLP MNIST, recipe `best`: seed 1 was made with epochs 7, not 60 as seed 0."
    assert told in pages(tmp_path)["results.md"]
