"""`bqn train` and `bqn resume`: flags and files, refusing and replacing, interrupts."""

import json
import signal
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
import torch

from bqn import training
from bqn.cli import _settings
from bqn.training import TrainConfig, load_run
from tests.cli.files import QUICK, write_table


def test_train_as_in_the_readme(bqn):
    """The flags that scripts rely on, on a smaller network."""
    line = "train --data digits --model mlp --epochs 1 --lam 1e-4 --seed 0 --out runs/one --hidden 4 --threads 1"
    done = bqn(*line.split())
    assert done.code == 0
    assert done.out.splitlines()[-1] == "saved in runs/one; next: bqn evaluate runs/one"
    assert json.loads(done.err)["epoch"] == 1  # progress: one JSON object an epoch, where there is no terminal
    config = json.loads(Path("runs/one/config.json").read_text())
    assert (config["data"], config["model"], config["epochs"], config["lam"], config["seed"]) == (
        "digits", "mlp", 1, 1e-4, 0,
    )  # fmt: skip
    assert config["batch_size"] == TrainConfig.preset({"data": "digits"}).batch_size  # the rest is resolved too


def test_json_and_quiet(bqn, home):
    done = bqn("train", "--data", home.images, "--out", "run", "--json", *QUICK)
    assert (done.code, done.err) == (0, "")
    result = json.loads(done.out)
    assert result["run"] == "run"
    assert result["epochs"] == 2
    assert result["best"]["validation_nll"] > 0


def test_folder_by_default(bqn, home):
    assert "saved in runs/images-mlp;" in bqn("train", "--data", home.images, *QUICK).out
    assert "saved in runs/images-mlp-2;" in bqn("train", "--data", home.images, *QUICK).out


def test_the_data_choose_the_model(bqn, home, tmp_path):
    assert load_run(home.regression).config.model == "regressor"
    labels = write_table(tmp_path / "labels.csv", labels=True)
    assert bqn("train", "--data", labels, "--target", "kind", "--out", "run", *QUICK).code == 0
    run = load_run("run")
    assert run.config.model == "mlp"
    assert run.preprocessing.classes == ("cheap", "dear")
    assert bqn("train", "--data", "diabetes", "--out", "bundled", *QUICK).code == 0
    assert load_run("bundled").config.model == "regressor"


def test_flags_win_over_the_file(bqn, home):
    Path("config.toml").write_text(
        f'data = "{home.images}"\nepochs = 7\nlam = 0.5\nhidden = [8]\nlevels = "ternary"\nthreads = 1\n'
    )
    assert bqn("train", "--config", "config.toml", "--epochs", 1, "--out", "run", "-q").code == 0
    config = load_run("run").config
    assert (config.epochs, config.lam, config.hidden, config.levels) == (1, 0.5, (8,), (-1, 0, 1))


def test_the_config_of_another_run(bqn, home):
    """A run begun again from its own record is that run, bit by bit."""
    assert bqn("train", "--data", home.images, "--out", "again", "-q", "-c", home.classifier / "config.json").code == 0
    old, new = load_run(home.classifier), load_run("again")
    assert new.config == old.config
    theirs = old.net.state_dict()
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in new.net.state_dict().items())
    Path("broken.json").write_text('{"epochs": 1, "epochs": 2}')
    assert "broken.json: a key stands twice" in bqn("train", "-c", "broken.json").fails(code=2)


def test_kinds_of_settings(bqn, home):
    flags = ["--hidden", "8,4", "--levels", "-1,0.5,1", "--activations", "ternary", "--no-batch-norm"]
    assert bqn("train", "--data", home.images, "--out", "run", *QUICK, *flags).code == 0
    config = load_run("run").config
    assert (config.hidden, config.levels, config.batch_norm) == ((8, 4), (-1, 0.5, 1), False)


def test_every_setting_is_an_option():
    assert set(_settings.SETTINGS) == {field.name for field in fields(TrainConfig)}


@pytest.mark.parametrize(
    ("name", "expected"),
    [("data", "digits"), ("epochs", "10"), ("patience", ""), ("init", "signal"), ("lr_schedule", "cosine")],
)
def test_defaults_in_the_help(name, expected):
    assert _settings.describe_default(name).split(";")[0] == expected


def test_defaults_by_model_in_the_help_are_those_of_presets():
    shown = dict(part.rsplit(" ", 1) for part in _settings.describe_default("epochs").split("; ")[1:])
    assert shown
    for keys, epochs in shown.items():
        for key in keys.split(", "):
            values = {"model": key, "data": "my.csv"} if key in training.ARCHITECTURES else {"data": key}
            assert TrainConfig.preset(values).epochs == int(epochs)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--epochs", "0"], "epochs must be at least 1, got 0"),
        (["--levels", "septenary"], "levels must be one of binary, ternary, quaternary or ascending numbers"),
        (["--hidden", "8,x"], "hidden must be a list of at most 256 numbers, got '8,x'"),
        (["--model", "transformer"], "model must be one of mlp, "),
        (["--lr-schedule", "wild"], "lr_schedule must be one of cosine, exponential, constant, got 'wild'"),
        (["--channels", "3"], "channels is not an option of model mlp"),
        (["--model", "regressor"], "model regressor is for regression, but digits asks for classification"),
        (["--target", "x"], "target and task are for your own files"),
        (["--device", "cuda:99"], "device: cuda:99 is not there"),
        (["--config", "nowhere.toml"], "nowhere.toml: No such file or directory"),
    ],
)
def test_wrong_settings_are_wrong_usage(bqn, flags, message):
    assert message in bqn("train", "--out", "run", *flags).fails(code=2)
    assert not Path("run").exists()


def test_a_run_is_not_overwritten(bqn, run, home):
    before = contents(run)
    told = bqn("train", "--data", home.images, "--out", run, *QUICK).fails()
    assert told.startswith(f"{run} already holds a run: continue it with bqn resume {run}, replace it with --force")
    assert contents(run) == before


def test_force_replaces_a_run_and_keeps_other_files(bqn, run, home):
    (run / "notes.txt").write_text("mine")
    (run / "report.html").write_text("about the old run")
    before = contents(run)
    done = bqn("train", "--data", home.images, "--out", run, "--force", "--seed", 1, *QUICK)
    assert done.code == 0
    assert load_run(run).config.seed == 1
    assert contents(run) != before
    aside = run.with_name("run.replaced")
    assert [file.name for file in aside.iterdir()] == ["notes.txt"]
    assert str(aside) in done.err
    assert bqn("train", "--data", home.images, "--out", run, "--force", *QUICK).code == 0
    assert sorted(each.name for each in run.parent.glob("run*")) == ["run", "run.replaced"]


@pytest.mark.parametrize("lam", ["0.1", "1e38"], ids=["replaced", "kept"])
def test_force_replaces_the_run_behind_a_link(bqn, run, home, lam):
    link = Path("link")
    link.symlink_to(run)
    before = contents(run)
    done = bqn("train", "--data", home.images, "--out", link, "--force", *QUICK, "--hidden", 99, "--lam", lam)
    assert link.is_symlink()
    assert link.resolve() == run.resolve()
    if lam == "0.1":
        assert done.code == 0, done
        assert load_run(run).config.lam == 0.1
    else:  # not finite in the first step
        assert done.code == 1
        assert contents(run) == before
    assert [each.name for each in run.parent.glob("run*")] == ["run"]


@pytest.mark.parametrize(
    "flags",
    [
        ["--epochs", "0"],
        ["--data", "nowhere.csv"],
        ["--shift", "7"],  # found out once the data are there
        ["--hidden", "99", "--lam", "1e38"],  # not finite in the first step
    ],
)
def test_force_keeps_the_old_run_until_the_new_one_is_under_way(bqn, run, home, flags):
    before = contents(run)
    failed = bqn("train", "--data", home.images, "--out", run, "--force", *QUICK, *flags)
    assert failed.code != 0
    assert contents(run) == before
    assert not list(run.parent.glob("run.*"))


def test_force_does_not_pull_the_folder_from_under_ones_feet(bqn, run, home, monkeypatch):
    monkeypatch.chdir(run)
    assert "leave the folder first" in bqn("train", "--data", home.images, "--out", ".", "--force", *QUICK).fails()
    assert load_run(run)


def test_resume(bqn, run):
    finished = bqn("resume", run, "-q")
    assert (finished.code, finished.err) == (0, f"{run} was finished already\n")
    assert bqn("resume", "nowhere").fails() == "nowhere is not a folder, so it holds no run"
    assert "device must be auto, cpu or cuda[:N]" in bqn("resume", run, "--device", "abacus").fails(code=2)


def test_tensorboard(bqn, home):
    assert bqn("train", "--data", home.images, "--out", "run", "--tensorboard", *QUICK).code == 0
    assert list(Path("run/tensorboard").iterdir())


def test_ctrl_c_saves_the_run_and_says_how_to_go_on(bqn, home, tmp_path):
    flags = ["--data", str(home.images), *QUICK[:-1], "--epochs", "10", "--batch-size", "3"]
    command = [sys.executable, "-m", "bqn", "train", *flags, "--out", str(tmp_path / "a run")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    for _ in range(3):
        process.stderr.readline()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
    told = f"bqn: interrupted; the run is saved, continue it with: bqn resume '{tmp_path / 'a run'}'"
    assert err.splitlines()[-1] == told
    done = len(load_run(tmp_path / "a run").history.records)
    assert 3 <= done < 10
    resumed = bqn("resume", tmp_path / "a run", "--json")
    assert resumed.code == 0
    assert json.loads(resumed.out)["epochs"] == 10
    assert json.loads(resumed.err.splitlines()[0])["epoch"] == done + 1
    assert bqn("train", *flags, "--out", "whole", "-q").code == 0
    assert (tmp_path / "a run/best.safetensors").read_bytes() == Path("whole/best.safetensors").read_bytes()


def contents(folder):
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}
