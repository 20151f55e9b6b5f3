"""Carrying a comparison out: in turn, at once, and again after a kill."""

import json
import math
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bqn.comparison import ComparisonError, RecordFolder, run_plan, summarize
from bqn.comparison import run as running
from bqn.training import DivergedError
from tests.comparison.tiny import tiny_plan


def test_everything_is_measured_once(tmp_path: Path) -> None:
    plan, folder = tiny_plan(tmp_path, ("bqn", "npn")), RecordFolder(tmp_path / "out")
    told = []
    run_plan(plan, folder, report=lambda task, seconds: told.append((task.method, task.replicate, seconds)))
    assert [entry[:2] for entry in told] == [("bqn", 0), ("npn", 0), ("bqn", 1), ("npn", 1)]
    document = json.loads(folder.file("bqn").read_text())
    assert len(document["rmse"]) == len(document["log_likelihood"]) == len(document["modes"]["map"]["size"]) == 2
    assert all(math.isfinite(value) and value > 0 for value in document["rmse"] + document["predict_seconds"])
    assert sum(document["examples"].values()) == 60
    rows = summarize(plan, folder.read_all(plan))["rows"]
    assert [(row["method"], row["mode"]) for row in rows] == [
        ("bqn", "analytic"), ("bqn", "mc"), ("bqn", "map"), ("npn", "analytic"),
    ]  # fmt: skip
    told.clear()
    run_plan(plan, folder, report=lambda task, seconds: told.append(task))
    assert told == []


def test_a_plan_with_more_splits_or_methods_goes_on_from_the_records(tmp_path: Path) -> None:
    folder = RecordFolder(tmp_path / "out")
    run_plan(tiny_plan(tmp_path, ("npn",), 1), folder)
    before = json.loads(folder.file("npn").read_text())["rmse"]
    told = []
    run_plan(
        tiny_plan(tmp_path, ("npn", "pbp"), 2),
        folder,
        report=lambda task, _: told.append((task.method, task.replicate)),
    )
    assert told == [("pbp", 0), ("npn", 1), ("pbp", 1)]
    assert json.loads(folder.file("npn").read_text())["rmse"][0] == before[0]


def test_at_once_gives_what_in_turn_gives(tmp_path: Path) -> None:
    plan = tiny_plan(tmp_path, ("pbp",), 2)
    one, two = RecordFolder(tmp_path / "one"), RecordFolder(tmp_path / "two")
    run_plan(plan, one, jobs=1)
    run_plan(plan, two, jobs=2)
    scores = [json.loads(folder.file("pbp").read_text())["rmse"] for folder in (one, two)]
    assert scores[0] == pytest.approx(scores[1], rel=1e-12)


def test_a_failure_names_its_training_and_keeps_what_is_done(tmp_path: Path, monkeypatch) -> None:
    plan, folder = tiny_plan(tmp_path, ("npn",), 2), RecordFolder(tmp_path / "out")
    train = running.train

    def fail_on_second(config, **rest):
        if config.split == 1:
            raise DivergedError(1, 1, "loss", "", "")
        return train(config, **rest)

    monkeypatch.setattr(running, "train", fail_on_second)
    with pytest.raises(ComparisonError, match="npn, split 1: "):
        run_plan(plan, folder)
    assert json.loads(folder.file("npn").read_text())["splits"] == [0]


def test_a_failure_among_several_at_once_ends_them_all(tmp_path: Path) -> None:
    plan = tiny_plan(tmp_path, ("bqn", "pbp"), 1, bqn={"learning_rate": 1e300}, pbp={"epochs": 10**6})
    with pytest.raises(ComparisonError, match="bqn, split 0: "):
        run_plan(plan, RecordFolder(tmp_path / "out"), jobs=2)
    assert_workers_end()


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Who starts in the background of a shell ignores interrupts, and so do its tests."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_ends_the_workers(tmp_path: Path) -> None:
    plan, folder = tiny_plan(tmp_path, ("npn", "pbp"), 1, pbp={"epochs": 10**6}), RecordFolder(tmp_path / "out")

    def press(*_) -> None:  # a moment later, when it waits for the other one
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()

    with pytest.raises(KeyboardInterrupt):
        run_plan(plan, folder, jobs=2, report=press)
    assert_workers_end()
    assert json.loads(folder.file("npn").read_text())["splits"] == [0]


def assert_workers_end() -> None:
    left = multiprocessing.active_children()
    for process in left:
        process.join(10)
    alive = [process for process in left if process.is_alive()]
    for process in alive:
        process.kill()
    assert not alive


KILLED = """
import sys
from pathlib import Path
from bqn.comparison import RecordFolder, run_plan
from tests.comparison.tiny import tiny_plan
if __name__ == "__main__":
    folder = Path(sys.argv[1])
    run_plan(tiny_plan(folder, ("npn",), 3, npn={"epochs": int(sys.argv[2])}), RecordFolder(folder / "out"))
"""


def test_after_a_kill_it_goes_on_where_it_was(tmp_path: Path) -> None:
    tiny_plan(tmp_path)
    script = tmp_path / "killed.py"
    script.write_text(KILLED)
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen([sys.executable, str(script), str(tmp_path), "20"], env=environment)
    folder = RecordFolder(tmp_path / "out")
    deadline = time.monotonic() + 60
    while not folder.file("npn").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    before = json.loads(folder.file("npn").read_text())
    plan = tiny_plan(tmp_path, ("npn",), 3, npn={"epochs": 20})
    told = []
    run_plan(plan, folder, report=lambda task, _: told.append(task.replicate))
    after = json.loads(folder.file("npn").read_text())
    assert after["splits"] == [0, 1, 2]
    assert told == [split for split in range(3) if split not in before["splits"]]
    assert after["rmse"][: len(before["rmse"])] == before["rmse"]
    assert not list(folder.path.glob("*.tmp"))
