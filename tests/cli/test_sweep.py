"""`bqn sweep` and `bqn train --replicas`: many runs in one folder."""

import json
import os
import re
import signal
from pathlib import Path

import torch

from bqn.training import load_run, loop
from tests.cli.files import QUICK


def test_a_grid_of_settings_and_seeds(bqn, home):
    done = bqn("sweep", "--data", home.images, "--lam", "0.001,0.01", "--seeds", "2", "--out", "s", "--json", *QUICK)
    assert done.code == 0
    result = json.loads(done.out)
    names = ["lam-0.001_seed-0", "lam-0.001_seed-1", "lam-0.01_seed-0", "lam-0.01_seed-1"]
    assert [run["run"] for run in result["runs"]] == names
    assert {path.name for path in Path("s").iterdir()} == set(names)
    for name in names:
        config = load_run(Path("s") / name).config
        assert name == f"lam-{config.lam:g}_seed-{config.seed}"
    settings = result["settings"]
    assert {row["setting"] for row in settings} == {"lam-0.001", "lam-0.01"}
    assert settings[0]["validation_nll"]["mean"] <= settings[1]["validation_nll"]["mean"]
    assert all(row["runs"] == 2 and row["failed"] == 0 for row in settings)


def test_the_same_command_again_trains_nothing(bqn, home):
    line = ("sweep", "--data", home.images, "--learning-rate", "0.01,0.1", "--out", "s", *QUICK)
    first = bqn(*line)
    before = load_run("s/learning_rate-0.1_seed-0").net.state_dict()
    again = bqn(*line)
    assert (first.code, again.code) == (0, 0)
    assert again.out == first.out
    assert again.err == ""
    after = load_run("s/learning_rate-0.1_seed-0").net.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_a_setting_is_named_whole(bqn, home):
    line = ("--lam", "0.001,0.01", "--learning-rate", "0.01,0.1", "--out", "s", "--json", *QUICK)
    settings = json.loads(bqn("sweep", "--data", home.images, *line).out)["settings"]
    assert {row["setting"] for row in settings} == {
        f"lam-{lam}, learning_rate-{rate}" for lam in ("0.001", "0.01") for rate in ("0.01", "0.1")
    }


def test_settings_that_hang_together_are_checked_with_what_is_swept(bqn, home):
    accumulated = ("--accumulate", 25, "--batch-size", "30,40", "--out", "my runs")
    done = bqn("sweep", "--data", home.images, "--hidden", 8, "--epochs", 1, "--device", "cpu", *accumulated)
    assert done.code == 0, done.err
    assert "next: bqn compare 'my runs'/*" in " ".join(done.out.split())
    assert "accumulate must be at most batch_size, 20" in bqn(
        "sweep", "--data", home.images, "--accumulate", 25, "--batch-size", "20,40"
    ).fails(2)


def test_values_that_are_nearly_the_same_have_folders_of_their_own(bqn, home):
    done = bqn("sweep", "--data", home.images, "--lam", "0.1234567,0.12345671", "--out", "near", *QUICK)
    assert done.code == 0, done.err
    assert {path.name for path in Path("near").iterdir()} == {"lam-0.1234567_seed-0", "lam-0.12345671_seed-0"}


def test_interrupted_and_continued(bqn, home, monkeypatch):
    """Ctrl-C in the first epoch, without --out: the message names the folder that the same command needs."""
    score = loop.Trainer._score

    def pressed(self, started):
        os.kill(os.getpid(), signal.SIGINT)
        return score(self, started)

    line = ("train", "--data", home.images, "--replicas", "2", *QUICK)
    monkeypatch.setattr(loop.Trainer, "_score", pressed)
    stopped = bqn(*line)
    monkeypatch.setattr(loop.Trainer, "_score", score)
    assert stopped.code == 130
    folder = re.search(r"the same command with --out (\S+) continues them", " ".join(stopped.err.split()))[1]
    assert Path(folder, "seed-0").is_dir()
    assert "name one of them, or give the command that began them again" in bqn("resume", folder).fails()
    assert bqn(*line, "--out", folder).code == 0
    assert [path.name for path in Path("runs").iterdir()] == [Path(folder).name]


def test_replicas_of_train(bqn, home):
    done = bqn("train", "--data", home.images, "--replicas", "2", "--seed", "5", "--out", "two", *QUICK)
    assert done.code == 0
    assert "± " in done.out
    assert [load_run(f"two/seed-{seed}").config.seed for seed in (5, 6)] == [5, 6]
    assert bqn("train", "--data", home.images, "--seed", "5", "--out", "alone", *QUICK).code == 0
    ours, alone = load_run("two/seed-5").net.state_dict(), load_run("alone").net.state_dict()
    assert all(torch.equal(ours[name], alone[name]) for name in alone)


def test_runs_that_fail_are_told_one_by_one(bqn, home):
    done = bqn("sweep", "--data", home.images, "--learning-rate", "0.01,1e300", "--out", "s", *QUICK)
    assert done.code == 0
    assert done.err.startswith("bqn: learning_rate-1e+300_seed-0 failed: training stopped at epoch ")
    assert done.err.count("\n") == 1
    assert "next: bqn compare s/*" in done.out


def test_if_all_runs_fail_so_does_the_command(bqn, home):
    line = ("train", "--data", home.images, "--replicas", "2", "--learning-rate", "1e300", *QUICK)
    done = bqn(*line, "--out", "x")
    assert done.code == 1
    assert [text.partition(": training stopped")[0] for text in done.err.splitlines()] == [
        "bqn: seed-0 failed", "bqn: seed-1 failed",
    ]  # fmt: skip
    assert "2, 2 failed" in " ".join(done.out.split())
    assert "next:" not in done.out
    shown = bqn(*line, "--out", "y", "--json")
    assert shown.code == 1
    assert all("training stopped" in run["failed"] for run in json.loads(shown.out)["runs"])


def test_bad_input(bqn, home):
    base = ("sweep", "--data", home.images, "--out", "s", *QUICK)
    assert "--lam must be one or more different numbers" in bqn(*base, "--lam", "a,b").fails(2)
    assert "--lam must be one or more different numbers" in bqn(*base, "--lam", "1,1").fails(2)
    assert "learning_rate must be positive" in bqn(*base, "--learning-rate", "0.1,-1").fails(2)
    assert "more than 1000" in bqn(*base, "--lam", ",".join(str(i) for i in range(501)), "--seeds", "2").fails(2)
    refused = bqn("train", "--data", home.images, "--replicas", "2", "--force", "--out", "x", *QUICK)
    assert "--replicas goes with neither" in refused.fails(2)
