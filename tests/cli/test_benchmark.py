"""`bqn benchmark`: the table, the records, going on, and what it refuses."""

import json

import pytest

from bqn.comparison import run as running

QUICK = ("--splits", 2, "--jobs", 1, "--set", "epochs=2", "--set", "hidden=4", "--set", "device=cpu")


@pytest.fixture(name="quick")
def quick_benchmark(bqn, home):
    def call(*arguments, methods="bqn,pbp"):
        return bqn("benchmark", "--data", home.table, "--target", "price", "--methods", methods, *QUICK, *arguments)

    return call


def test_table_records_and_page(quick, tmp_path):
    done = quick("--out", tmp_path / "out")
    assert done.code == 0, done.err
    assert done.err.count("trained in") == 4
    lines = done.out.splitlines()
    assert [line.split()[0] for line in lines[2:6]] == ["bqn", "bqn", "bqn", "pbp"]
    assert max(map(len, lines[:6])) <= 80
    assert sum("best" in line for line in lines[2:6]) in (1, 2)
    for method in ("bqn", "pbp"):
        record = json.loads((tmp_path / "out" / f"{method}.json").read_text())
        assert len(record["rmse"]) == len(record["log_likelihood"]) == 2
    assert (tmp_path / "out" / "comparison.html").read_text().startswith("<!doctype html>")


def test_json_is_all_that_is_printed(quick, tmp_path):
    done = quick("--json", "--quiet", "--out", tmp_path / "out")
    assert (done.code, done.err) == (0, "")
    result = json.loads(done.out)
    assert [(row["method"], row["mode"]) for row in result["rows"]] == [
        ("bqn", "analytic"), ("bqn", "mc"), ("bqn", "map"), ("pbp", "analytic"),
    ]  # fmt: skip
    assert result == json.loads((tmp_path / "out" / "comparison.json").read_text())
    assert all(row["rmse"]["best"] or 0 <= row["rmse"]["p"] <= 1 for row in result["rows"])


def test_it_goes_on_where_it_was(quick, tmp_path, monkeypatch):
    assert quick("--quiet", "--out", tmp_path / "out", methods="pbp").code == 0
    done = quick("--out", tmp_path / "out", methods="pbp,npn")
    assert "2 of 4 trainings are recorded already" in done.err
    assert "pbp, split" not in done.err
    assert done.err.count("npn, split") == 2
    monkeypatch.setattr(running, "measure", None)  # nothing is left to do
    assert quick("--out", tmp_path / "out", methods="pbp,npn").code == 0


def test_ctrl_c_keeps_what_is_done(quick, tmp_path, monkeypatch):
    measure = running.measure

    def interrupted(task, root=None):
        if task.replicate == 1:
            raise KeyboardInterrupt
        return measure(task, root)

    monkeypatch.setattr(running, "measure", interrupted)
    done = quick("--quiet", "--out", tmp_path / "out", methods="pbp")
    assert (done.code, done.out) == (130, "")
    assert "interrupted; the same command goes on from here" in done.err
    assert json.loads((tmp_path / "out" / "pbp.json").read_text())["splits"] == [0]


def test_the_default_folder_has_the_name_of_the_data(quick):
    assert quick("--quiet", methods="pbp").out.rstrip().endswith("runs/benchmark-table/comparison.html")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--methods", "pbp,pop"), "method must be one of"),
        (("--splits", "0"), "splits must be at least 1, got 0"),
        (("--set", "epochs"), "--set must be NAME=VALUE or METHOD.NAME=VALUE, got 'epochs'"),
        (("--set", "epoch=3"), "'epoch' is not a setting; the nearest is 'epochs'"),
        (("--set", "epochs=many"), "epochs must be an integer, got 'many'"),
        (("--set", "npn.epochs=3"), "npn has settings, but is none of the methods"),
        (("--set", "method=npn"), "method cannot be set"),
        (("--jobs", "0"), "invalid value for '--jobs'"),
    ],
)
def test_wrong_usage_is_said_before_any_work(bqn, home, arguments, message):
    given = {"--data": home.table, "--target": "price", "--methods": "pbp", "--splits": 2}
    changed = {**given, **dict([arguments])} if arguments[0] in given else given
    rest = () if arguments[0] in given else arguments
    done = bqn("benchmark", *(part for pair in changed.items() for part in pair), *rest)
    assert message in done.fails(2)


def test_bad_data_are_said_by_the_same_words_as_elsewhere(bqn, tmp_path):
    missing = bqn("benchmark", "--data", tmp_path / "none.csv", "--methods", "pbp").fails()
    assert "no such file or folder" in missing
    trained = bqn("train", "--data", tmp_path / "none.csv").fails()
    assert missing == trained
    unknown = bqn("benchmark", "--data", "bostn", "--methods", "pbp").fails()
    assert "boston" in unknown


def test_records_of_other_settings_are_not_overwritten(quick, tmp_path):
    assert quick("--quiet", "--out", tmp_path / "out", methods="pbp").code == 0
    before = (tmp_path / "out" / "pbp.json").read_bytes()
    done = quick("--quiet", "--set", "pbp.epochs=5", "--out", tmp_path / "out", methods="pbp")
    assert "pbp.json was made with epochs 2, not 5" in done.fails()
    assert (tmp_path / "out" / "pbp.json").read_bytes() == before


def test_classification(bqn, tmp_path):
    given = ("--data", "iris", "--methods", "bqn,npn", *QUICK, "--out", tmp_path / "out")
    done = bqn("benchmark", *given, "--json", "--quiet")
    assert done.code == 0, done.err
    row = json.loads(done.out)["rows"][0]
    assert {"error", "nll", "ece", "size", "train_seconds", "predict_seconds"} <= set(row)
