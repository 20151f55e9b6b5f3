"""`bqn reproduce`: plan, train, record, skip, and write the page."""

import json
import os
import signal
from pathlib import Path

import pytest

from bqn.reproduction import recipes
from tests.reproduction.conftest import TINY


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    small = {name: {"mlp": {**table["mlp"], **TINY}} for name, table in recipes.RECIPES.items()}
    monkeypatch.setattr(recipes, "RECIPES", small)


LINE = ("reproduce", "table1", "--data", "digits", "--seeds", "2", "--device", "cpu")


def test_a_table_of_records(bqn):
    planned = bqn(*LINE, "--dry-run", "--json")
    assert json.loads(planned.out) == {
        "recorded": 0,
        "missing": 2,
        "runs": [{"run": "mlp-digits/best", "epochs": 2, "planned": 2, "recorded": 0}],
    }
    assert not Path("results").exists()
    first = bqn(*LINE)
    assert first.code == 0
    assert first.err.startswith("2 runs of 2 epochs, 4 in all, on cpu\n")
    assert "mlp digits" in first.out
    assert "2/2 mlp-digits/best/seed-1: test NLL / error analytic" in first.err
    documents = [json.loads(Path(f"results/mlp-digits/best/seed-{seed}.json").read_text()) for seed in range(2)]
    again = bqn(*LINE, "--json")
    assert again.err == ""
    (row,) = json.loads(again.out)["rows"]
    assert row["seeds"] == 2
    assert row["nll"]["mean"] == pytest.approx(sum(each["test"]["analytic"]["nll"] for each in documents) / 2)
    three = json.loads(bqn("reproduce", "table3", *LINE[2:], "--json").out)
    assert three["rows"][0]["mode"] == "mc"
    assert three["rows"][0]["nll"]["mean"] == pytest.approx(sum(each["test"]["mc"]["nll"] for each in documents) / 2)
    assert "2 runs are recorded, 0 are not" in bqn(*LINE, "--dry-run").out


def test_one_run_again(bqn):
    """What is recorded is not trained, and that is said; in another folder one seed alone comes out the same."""
    assert "nothing was trained" not in bqn(*LINE).out
    assert "nothing was trained: all is recorded; --out FOLDER trains it anew\nrecords are in" in bqn(*LINE).out
    one = (*LINE[:-4], "--seed", "1", "--device", "cpu", "--out", "again", "--work", "again/work")
    assert "nothing was trained" not in bqn(*one).out
    assert [path.name for path in Path("again").rglob("seed-*.json")] == ["seed-1.json"]
    tests = [
        json.loads(Path(folder, "mlp-digits/best/seed-1.json").read_text())["test"] for folder in ("results", "again")
    ]
    assert tests[0] == tests[1]


def test_another_recipe(bqn, monkeypatch):
    assert bqn(*LINE, "--quiet").code == 0
    edited = {**recipes.RECIPES, "best": {"mlp": {**recipes.RECIPES["best"]["mlp"], "lam": 0.5}}}
    monkeypatch.setattr(recipes, "RECIPES", edited)
    assert "was made with lam" in bqn(*LINE).fails(1)
    assert "give --redo" in bqn(*LINE, "--dry-run").fails(1)  # as without: a plan that would be refused is none
    assert "0 runs are recorded, 2 are not" in bqn(*LINE, "--dry-run", "--redo").out
    done = bqn(*LINE, "--redo", "--quiet")
    assert (done.code, done.err) == (0, "")
    assert json.loads(Path("results/mlp-digits/best/seed-0.json").read_text())["config"]["lam"] == 0.5


def test_interrupted_and_continued(bqn, monkeypatch):
    """Ctrl-C in the first epoch: the step is finished, and the same command goes on."""
    from bqn.training import loop

    score = loop.Trainer._score

    def pressed(self, started):
        os.kill(os.getpid(), signal.SIGINT)
        return score(self, started)

    monkeypatch.setattr(loop.Trainer, "_score", pressed)
    stopped = bqn(*LINE, "--quiet")
    assert stopped.code == 130
    assert "the same command goes on from there" in stopped.err
    monkeypatch.setattr(loop.Trainer, "_score", score)
    assert bqn(*LINE, "--quiet").code == 0
    assert len(list(Path("results").rglob("seed-*.json"))) == 2


def test_the_page(bqn):
    assert bqn(*LINE, "--quiet").code == 0
    written = json.loads(bqn("reproduce", "page", "--json").out)["written"]
    assert written == ["docs/results.md", "docs/ablations.md"]
    assert "# The paper's tables" in Path("docs/results.md").read_text()


def test_no_page_without_records(bqn):
    assert "results is not a folder" in bqn("reproduce", "page").fails(1)
    assert not Path("docs").exists()


def test_table4_is_a_comparison(bqn, monkeypatch):
    plan = json.loads(bqn("reproduce", "table4", "--dry-run", "--json").out)
    assert plan["missing"] == 100
    assert [row["run"] for row in plan["runs"]] == [
        f"boston/{name}" for name in ("bqn", "pbp", "ebp", "npn", "mc-dropout")
    ]
    assert all(row["epochs"] > 1 for row in plan["runs"])
    called = []
    monkeypatch.setattr("bqn.cli.reproduce.run_plan", lambda plan, folder, **options: called.append((plan, folder)))
    done = bqn("reproduce", "table4", "--recipe", "paper", "--seeds", "2")
    assert done.code == 0
    assert [task.replicate for task in called[-1][0].tasks] == [0, 1]
    assert "results/regression/boston-paper" in done.out.replace("\n", "")
    done = bqn("reproduce", "table4", "--recipe", "best", "--one-split", "--method", "pbp,npn", "--seed", "3")
    assert done.code == 0
    plan, folder = called[-1]
    assert [(task.method, task.config.split, task.config.seed) for task in plan.tasks] == [("pbp", 0, 3), ("npn", 0, 3)]
    assert folder.path == Path("results/regression/boston-split-0")


def test_what_is_recorded_of_table4_is_shown(bqn):
    kept = Path(__file__).resolve().parents[2] / "results"
    shown = bqn("reproduce", "table4", "--recipe", "paper", "--out", kept)
    assert shown.code == 0
    assert "4.59" in shown.out
    assert f"next: bqn reproduce page --out {kept} --docs {kept}/docs" in " ".join(shown.out.split())
    (row, *_) = json.loads(bqn("reproduce", "table4", "--recipe", "paper", "--out", kept, "--json").out)["rows"]
    assert row["rmse"]["mean"] == pytest.approx(4.594, abs=1e-3)


def test_the_page_has_no_place_for_other_data(bqn):
    assert "bqn reproduce page" not in bqn(*LINE, "--quiet").out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("table5",), "TARGET must be one of table1"),
        (("table1", "--recipe", "worst"), "recipe must be one of"),
        (("table1", "--model", "mlp,resnet"), "model must be one of"),
        (("table1", "--data", "kmnst"), "data must be one of"),
        (("table1", "--idea", "jensen"), "--idea is not for table1"),
        (("table1", "--out", "file"), "--out takes a folder, and file is a file"),
        (("page", "--docs", "file"), "--docs takes a folder, and file is a file"),
        (("table1", "--seeds", "2", "--seed", "1"), "--seeds and --seed cannot be given together"),
        (("table1", "--one-split"), "--one-split is not for table1"),
        (("table1", "--method", "pbp"), "--method is not for table1"),
        (("table4", "--method", "qnn"), "method must be one of"),
        (("table4", "--seed", "20"), "has 20 splits"),
        (("table1", "--lam", "0.1"), "--lam is not for table1"),
        (("figure-gap", "--levels", "3"), "--levels is not for figure-gap"),
        (("figure-gap", "--lam", "large"), "--lam takes numbers with commas between them, got 'large'"),
        (("figure-gap", "--lam", "0.07"), "lam must be one of"),
        (("levels", "--levels", "3,x"), "--levels takes numbers with commas between them, got '3,x'"),
        (("table4", "--data", "mnist"), "not for table4"),
        (("table4", "--redo"), "--redo is not for table4"),
        (("table4", "--device", "cpu"), "--device is not for table4"),
        (("table1", "--docs", "pages"), "--docs is not for table1"),
        (("page", "--dry-run"), "--dry-run is not for page"),
        (("page", "--recipe", "best"), "--recipe is not for page"),
        (("page", "--seeds", "1"), "--seeds is not for page"),
        (("table4", "--seeds", "21"), "has 20 splits"),
        (("table1", "--device", "tpu"), "device must be"),
        (("table1", "--seeds", "0"), "--seeds"),
    ],
)
def test_bad_input(bqn, arguments, message):
    Path("file").touch()
    assert message in bqn("reproduce", *arguments).fails(2)


def test_damaged_record(bqn):
    path = Path("results/mlp-digits/best/seed-0.json")
    path.parent.mkdir(parents=True)
    path.write_text("{")
    assert "seed-0.json is not valid JSON" in bqn(*LINE).fails(1)
