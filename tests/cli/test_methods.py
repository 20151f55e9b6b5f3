"""`--method`: every method from training to report, on a user's own data."""

import json
from pathlib import Path

import pytest

from tests.cli.files import QUICK

CLASSIFIERS = {
    "qnn": ["map"],
    "e-qnn": ["logits", "members"],
    "gaussian-bnn": ["mc", "map"],
    "bayesbinn": ["mc", "map"],
    "mc-dropout": ["mc", "map"],
    "ensemble": ["members", "logits"],
}
REGRESSIONS = {"gaussian-bnn": ["mc", "map"], "mc-dropout": ["mc", "map"], "ensemble": ["members"]}


def extra(method):
    return ("--members", "2") if method in ("e-qnn", "ensemble") else ()


@pytest.mark.parametrize("method", CLASSIFIERS)
def test_from_training_to_report(bqn, home, method):
    assert bqn("train", "--data", home.images, "--method", method, *extra(method), "--out", "run", *QUICK).code == 0
    assert json.loads(Path("run/config.json").read_text())["method"] == method
    result = json.loads(bqn("evaluate", "run", "--json", "--temper").out)
    assert result["method"] == method
    modes = CLASSIFIERS[method]
    assert [mode for mode in result if isinstance(result[mode], dict) and "nll" in result[mode]] == modes
    assert list(result["tempered"]) == modes
    shown = bqn("evaluate", "run", "--temper").out
    assert all(f"{mode} T" in shown for mode in modes)
    predicted = json.loads(bqn("predict", "run", home.images, "--format", "json").out)
    assert predicted["mode"] == modes[0]
    assert len(predicted["predictions"]) == 30
    assert sum(predicted["predictions"][0]["probabilities"].values()) == pytest.approx(1)
    wrong = bqn("predict", "run", home.images, "--mode", "analytic").fails(code=2)
    assert wrong == f"--mode must be one of {', '.join(modes)}, got 'analytic'"
    assert bqn("report", "run").code == 0
    page = Path("run/report.html").read_text()
    assert method in page
    assert bqn("resume", "run", "-q").code == 0


@pytest.mark.parametrize("method", REGRESSIONS)
def test_regression(bqn, home, method):
    data = ("--data", home.table, "--target", "price")
    assert bqn("train", *data, "--method", method, *extra(method), "--out", "run", *QUICK).code == 0
    result = json.loads(bqn("evaluate", "run", "--json").out)
    modes = REGRESSIONS[method]
    assert [mode for mode in result if isinstance(result[mode], dict) and "rmse" in result[mode]] == modes
    predicted = json.loads(bqn("predict", "run", home.table, "--format", "json").out)
    assert predicted["predictions"][0]["std"] > 0
    assert bqn("report", "run").code == 0
    assert "--temper are for classification" in bqn("evaluate", "run", "--temper").fails(code=2)


def test_methods_side_by_side(bqn, home):
    assert bqn("train", "--data", home.images, "--method", "qnn", "--out", "signs", *QUICK).code == 0
    shown = bqn("compare", home.classifier, "signs").out
    assert "method bqn" in shown
    assert "method qnn" in shown
    assert "usual mode" in shown
    assert "signs (map)" in shown
    result = json.loads(bqn("compare", home.classifier, "signs", "--json").out)
    assert [run["method"] for run in result["runs"]] == ["bqn", "qnn"]


def test_bad_method(bqn, home):
    line = bqn("train", "--data", home.images, "--method", "magic", *QUICK).fails(code=2)
    assert line.startswith("method must be one of bqn, qnn, e-qnn")
    line = bqn("train", "--data", home.table, "--target", "price", "--method", "qnn", *QUICK).fails(code=2)
    assert line == "model regressor is not for method qnn: mlp, cnn, vgg, resnet"


def test_tempering_needs_validation_examples(bqn, home):
    flags = ("--data", home.images, "--validation-fraction", "0", "--out", "run", *QUICK)
    assert bqn("train", *flags).code == 0
    assert "--temper needs validation examples" in bqn("evaluate", "run", "--temper").fails(code=2)
