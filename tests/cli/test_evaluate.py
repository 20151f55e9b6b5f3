"""`bqn evaluate`, `bqn compare` and `bqn report`: figures as tables and as JSON, on the right examples."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from bqn import evaluation
from bqn.data import load, split_validation
from bqn.training import load_run
from tests.cli.files import QUICK, images, write_images, write_table


def evaluated(bqn, *arguments):
    """The JSON object that a command prints, and nothing beside it."""
    done = bqn(*arguments, "--json")
    assert (done.code, done.err) == (0, "")
    return json.loads(done.out)


def test_json(bqn, home):
    result = evaluated(bqn, "evaluate", home.classifier)
    run, data = load_run(home.classifier), load(str(home.images))
    expected = evaluation.evaluate(run.net, data.test, prepare=run.preprocessing.input)
    assert {name: result[name] for name in expected} == expected
    assert {"nll", "error", "ece", "bound"} <= set(result["analytic"])
    assert {"nll", "error", "ece"} <= set(result["mc"]) & set(result["map"])
    about = {"run": str(home.classifier), "model": "mlp", "data": str(home.images), "part": "test"}
    about |= {"task": "classification", "classes": ["a", "b", "c"]}
    assert {name: result[name] for name in about} == about


def test_regression(bqn, home):
    result = evaluated(bqn, "evaluate", home.regression)
    run = load_run(home.regression)
    data = load(str(home.table), target="price")
    expected = evaluation.evaluate(
        run.net, data.test, prepare=run.preprocessing.input, target_scale=run.preprocessing.target_scale
    )
    assert result["analytic"] == expected["analytic"]
    table = bqn("evaluate", home.regression)
    assert f"{result['analytic']['rmse']:.4g}" in table.out
    assert f"{result['map']['log_likelihood']:.4f}" in table.out


def test_table(bqn, home):
    result = evaluated(bqn, "evaluate", home.classifier, "--samples", 3, "--recalibrate")
    shown = bqn("evaluate", home.classifier, "--samples", 3, "--recalibrate")
    assert (shown.code, shown.err) == (0, "")
    rows = {line[:11].strip(): line[11:].split() for line in shown.out.splitlines()}
    for mode, name in (("analytic", "analytic"), ("mc", "mc"), ("map_recalibrated", "map recal.")):
        assert rows[name][0] == f"{result[mode]['nll']:.4f}"
        assert rows[name][2] == f"{result[mode]['error']:.2%}"
    assert rows["map"][-1] == "–"  # one network cannot doubt itself
    assert "mc: 3 sampled networks" in " ".join(shown.out.split())
    assert max(map(len, shown.out.splitlines()[1:])) <= 80


def test_a_narrow_terminal_loses_no_digit(bqn, home, monkeypatch):
    wide = bqn("evaluate", home.regression).out.splitlines()[2:7]
    monkeypatch.setenv("COLUMNS", "40")
    narrow = bqn("evaluate", home.regression).out
    assert all(line in narrow for line in wide)


def test_everything_at_once(bqn, home, tmp_path):
    other = write_images(tmp_path / "other.npz", "vw")
    flags = ["--ood", other, "--corruptions", "--samples", 2, "--seed", 1, "--bins", 7, "--device", "cpu"]
    result = evaluated(bqn, "evaluate", home.classifier, *flags)
    assert result["settings"]["bins"] == 7
    assert result["ood"]["examples"] == 30
    assert set(result["corruptions"]) == {"noise", "blur", "rotation"}
    shown = bqn("evaluate", home.classifier, *flags).out
    assert f"{result['ood']['mc']['epistemic']['auroc']:.2%}" in shown
    assert f"{result['corruptions']['blur']['map']['nll'][4]:.4f}" in shown
    assert max(map(len, shown.splitlines()[1:])) <= 80


def test_seed_and_samples_matter(bqn, home):
    first, same, other = (
        evaluated(bqn, "evaluate", home.classifier, "--samples", 2, "--seed", seed)["mc"]["nll"] for seed in (0, 0, 1)
    )
    assert first == same != other


def test_validation_examples_are_those_of_the_run(bqn, home):
    result = evaluated(bqn, "evaluate", home.classifier, "--part", "validation")
    run = load_run(home.classifier)
    assert result["analytic"]["nll"] == pytest.approx(run.history.best.validation_nll, rel=1e-5)
    _, held = split_validation(load(str(home.images)).train, 0.1, run.config.seed, True)
    assert result["settings"]["examples"] == len(held)


def test_other_data_are_matched_by_the_names_of_classes(bqn, home, tmp_path):
    x, y = images(40, classes=2, seed=5)
    np.savez(tmp_path / "few.npz", x=x, y=np.array(["c", "a"])[y])  # c, a are 0, 2 for the run and 1, 0 in the file
    result = evaluated(bqn, "evaluate", home.classifier, "--data", tmp_path / "few.npz", "--part", "all")
    run = load_run(home.classifier)
    labels = torch.tensor([2, 0])[torch.from_numpy(y)]
    wrong = (run.predict(torch.from_numpy(x).unsqueeze(1)).argmax(-1) != labels).float().mean()
    assert result["analytic"]["error"] == pytest.approx(float(wrong))
    assert result["settings"]["examples"] == 40


def test_other_data_of_one_class(bqn, home, tmp_path):
    """To judge by they are as good as any; to learn from they are not."""
    x, y = images(40, classes=2, seed=5)
    np.savez("ones.npz", x=x[y == 1], y=np.array(["c"] * 20))
    assert bqn("pack", home.classifier, "--out", "one.bqn").code == 0
    for command in ("evaluate", home.classifier), ("run", "one.bqn"):
        result = evaluated(bqn, *command, "--data", "ones.npz", "--part", "all")
        assert result.get("settings", result)["examples"] == 20
    assert "all examples are of the class 'c', expected at least two" in bqn("train", "--data", "ones.npz").fails()


def test_a_table_of_one_class(bqn):
    table = write_table(Path("kinds.csv"), 90, labels=True)
    assert bqn("train", "--data", table, "--target", "kind", "--out", "run", *QUICK).code == 0
    header, *rows = table.read_text().splitlines()
    Path("cheap.csv").write_text("\n".join([header, *(row for row in rows if "cheap" in row)]))
    assert evaluated(bqn, "evaluate", "run", "--data", "cheap.csv", "--part", "all")["analytic"]["nll"] > 0
    told = bqn("train", "--data", "cheap.csv", "--target", "kind").fails()
    assert "all examples are of the class 'cheap', expected at least two classes; is another column than 'kind'" in told


def test_another_table_is_read_as_the_runs_own(bqn, home, tmp_path):
    """Its target is the column of the same name."""
    other = shutil.copy(home.table, tmp_path / "other.csv")
    result = evaluated(bqn, "evaluate", home.regression, "--data", other)
    assert result["analytic"] == evaluated(bqn, "evaluate", home.regression)["analytic"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--part", "most"], "--part must be one of test, validation, all, got 'most'"),
        (["--part", "all"], "--part all needs --data"),
        (["--part", "validation", "--data", "DATA"], "leave --data out"),
        (["--recalibrate", "--data", "DATA"], "leave --data out"),
        (["--part", "validation", "--temper"], "--temper fits a temperature on the validation examples"),
        (["--seed", 2**63], "--seed"),
        (["--device", "abacus"], "device must be auto, cpu or cuda[:N], got 'abacus'"),
    ],
)
def test_wrong_usage(bqn, home, tmp_path, flags, message):
    other = shutil.copy(home.images, tmp_path / "other.npz")
    flags = [str(other) if flag == "DATA" else flag for flag in flags]
    assert message in bqn("evaluate", home.classifier, *flags).fails(code=2)


def test_its_own_data_by_name_are_split_as_for_training(bqn, tmp_path):
    """By another split most of the test examples would have been trained on."""
    table = write_table(tmp_path / "work" / "own.csv", 90, labels=True)
    train = ("train", "--target", "kind", *QUICK, "--data")
    assert bqn(*train, "own.csv", "--split", 3, "--out", "three").code == 0
    assert bqn(*train, "own.csv", "--out", "zero").code == 0
    assert bqn("pack", "three", "--out", "three.bqn").code == 0
    expected = evaluated(bqn, "evaluate", "three")
    packed = evaluated(bqn, "run", "three.bqn", "--data", "own.csv")
    for name in ("own.csv", "./own.csv", table):
        assert evaluated(bqn, "evaluate", "three", "--data", name) == expected
        assert evaluated(bqn, "run", "three.bqn", "--data", name)["nll"] == packed["nll"]
        assert evaluated(bqn, "compare", "three", "zero", "--data", name)["runs"][0]["map"] == expected["map"]
    assert "own.csv is the run's own" in bqn("evaluate", "three", "--data", "own.csv", "--part", "all").fails(2)
    assert "different data" in bqn("compare", "three", "zero").err
    assert bqn("compare", "three", "three").err == ""


@pytest.mark.parametrize("kind", ["csv", "npz", "folder"])
def test_its_own_data_by_another_path_are_split_as_for_training(bqn, monkeypatch, kind):
    """Labels are noise: who knows the test examples has seen them in training."""
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (120, 4, 4)).astype(np.uint8), rng.integers(0, 2, 120)
    noise = Path("noise" if kind == "folder" else f"noise.{kind}")
    if kind == "csv":
        rows = [",".join(map(str, [*row, f"k{label}"])) for row, label in zip(x.reshape(120, 16), y, strict=True)]
        noise.write_text("\n".join([",".join([*map("f{}".format, range(16)), "y"]), *rows]))
    elif kind == "npz":
        np.savez(noise, x=x, y=y)
    else:
        for number, (picture, label) in enumerate(zip(x, y, strict=True)):
            (noise / f"k{label}").mkdir(parents=True, exist_ok=True)
            Image.fromarray(picture).save(noise / f"k{label}" / f"{number}.png")
    flags = ("--split", 3, "--validation-fraction", 0, "--lam", 1e-5, *QUICK, "--hidden", 64, "--epochs", 60)
    assert bqn("train", "--data", noise, "--out", "run", *flags).code == 0
    assert bqn("train", "--data", noise, "--out", "zero", *QUICK).code == 0
    assert bqn("pack", "run", "--out", "run.bqn").code == 0
    expected = evaluated(bqn, "evaluate", "run")
    assert 0.2 < expected["analytic"]["error"] < 0.8
    Path("away").mkdir()
    monkeypatch.chdir("away")
    told = bqn("evaluate", "../run").fails()
    assert told.startswith(f"{noise}: no such file or folder; that is the path recorded at training, relative to the")
    result = evaluated(bqn, "evaluate", "../run", "--data", Path("..", noise))
    assert result["analytic"] == expected["analytic"]
    packed = evaluated(bqn, "run", "../run.bqn", "--data", Path("..", noise))
    assert packed["nll"] == pytest.approx(expected["map"]["nll"], rel=1e-5)
    shown = bqn("compare", "../run", "../zero", "--data", Path("..", noise))
    assert "the runs are evaluated on different data" in shown.err
    assert "(test, split 3)" in bqn("evaluate", "../run", "--data", Path("..", noise)).out.replace("\n", " ")


@pytest.mark.parametrize("kind", ["csv", "npz"])
def test_new_data_are_for_the_task_of_the_run(bqn, tmp_path, kind):
    """A few whole numbers look like classes; the run knows better."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(80, 2))
    price = np.round(100 + 40 * x[:, 0])
    for name, rows in (("prices", 80), ("new", 12)):
        if kind == "npz":
            np.savez(f"{name}.npz", x=x[:rows].astype(np.float32), y=price[:rows])
            continue
        lines = [f"{a},{b},{y:g}" for (a, b), y in zip(x[:rows].tolist(), price[:rows].tolist(), strict=True)]
        Path(f"{name}.csv").write_text("\n".join(["a,b,price", *lines]))
    assert bqn("train", "--data", f"prices.{kind}", "--task", "regression", "--out", "run", *QUICK).code == 0
    assert bqn("pack", "run", "--out", "run.bqn").code == 0
    for command in ("evaluate", "run"), ("run", "run.bqn"):
        assert bqn(*command, "--data", f"new.{kind}", "--part", "all").code == 0


def test_a_run_without_validation(bqn, home):
    bqn("train", "--data", home.images, "--out", "run", *QUICK, "--validation-fraction", 0)
    assert bqn("evaluate", "run", "--part", "validation").fails(code=2) == "run has no validation examples"
    assert evaluated(bqn, "evaluate", "run")["analytic"]["nll"] > 0


def test_an_unfinished_run_is_told(bqn, run):
    config = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps({**config, "epochs": 9}))
    done = bqn("evaluate", run, "--json")
    assert done.err == f"{run} is not finished: 2 of 9 epochs\n"
    assert json.loads(done.out)["analytic"]["nll"] > 0


def test_a_folder_without_its_checkpoint_will_do(bqn, run, home):
    (run / "checkpoint.safetensors").unlink()
    assert evaluated(bqn, "evaluate", run)["map"] == evaluated(bqn, "evaluate", home.classifier)["map"]


def test_compare(bqn, home, tmp_path):
    bqn("train", "--data", home.images, "--out", "other", *QUICK, "--lam", 0.5, "--levels", "ternary")
    both = evaluated(bqn, "compare", home.classifier, "other")["runs"]
    assert [each["run"] for each in both] == [str(home.classifier), "other"]
    assert both[1]["mc"] == evaluated(bqn, "evaluate", "other")["mc"]
    shutil.copytree(home.classifier, "one")
    shown = bqn("compare", "one", "other")
    assert (shown.code, shown.err) == (0, "")
    words = " ".join(shown.out.split())
    assert "lam 0.5" in words
    assert "levels ternary" in words
    assert "hidden" not in shown.out  # the same in both
    rows = [line.split() for line in shown.out.splitlines()]
    found = [row[1] for row in rows if row[:1] == ["other"] and len(row) == 9]
    assert found == [f"{both[1][mode]['nll']:.4f}" for mode in ("analytic", "mc", "map")]


def test_compare_of_different_data_says_so(bqn, home, tmp_path):
    bqn("train", "--data", write_images(tmp_path / "more.npz", "ab"), "--out", "other", *QUICK)
    assert "different data" in bqn("compare", home.classifier, "other").err
    told = bqn("compare", home.classifier, home.regression).fails(code=2)
    assert "have no figures in common" in told


def test_report(bqn, home, monkeypatch):
    from bqn import report

    asked = []

    def write(run, out=None, **options):
        asked.append((run, out, options))
        return Path("page [1].html")

    monkeypatch.setattr(report, "write", write)
    done = bqn("report", home.classifier, "--ood", "kmnist", "--samples", 7, "--out", "page.html", "--device", "cpu")
    assert done == (0, "page [1].html\n", "")
    options = {"data_dir": None, "ood": "kmnist", "corruptions": False, "samples": 7, "seed": 0, "device": "cpu"}
    ((run, out, given),) = asked
    assert callable(given.pop("tell"))
    assert (run, out, given) == (home.classifier, Path("page.html"), options)


def test_report_of_a_run(bqn, run):
    done = bqn("report", run)
    assert (done.code, done.err) == (0, "")
    page = Path(done.out.strip())
    assert page.read_text().lstrip().lower().startswith("<!doctype html>")
