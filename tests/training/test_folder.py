"""One process at a time in the folder of a run."""

from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path

import pytest

from bqn.cli import main
from bqn.training import CheckpointError, load_run, resume, train, train_together
from bqn.training import folder as folders
from bqn.training.folder import RunFolder
from tests.training import tiny

pytest.importorskip("fcntl")
ANOTHER = "another process is training here"


def test_a_live_run_is_left_alone(tmp_path: Path) -> None:
    """Neither continued nor replaced, and what it is just writing stays."""
    out, config = tmp_path / "run", tiny.config(data="digits", hidden=(4,), batch_size=500)
    refused = []

    def intrude(_: object) -> None:
        half = out / "checkpoint.safetensors.1.tmp"
        half.write_bytes(b"half")
        before = {file.name: file.read_bytes() for file in out.iterdir()}
        with pytest.raises(CheckpointError, match=ANOTHER):
            resume(out)
        with pytest.raises(CheckpointError, match=ANOTHER):
            train_together([config], tiny.dataset(), folders=[out])
        flags = ["--out", str(out), "--force", "--epochs", "1", "--hidden", "2", "--device", "cpu", "--quiet"]
        assert main(["train", "--data", "digits", *flags]) == 1
        assert {file.name: file.read_bytes() for file in out.iterdir()} == before
        half.unlink()
        refused.append(True)

    train(config, out=out, report=intrude)
    assert len(refused) == config.epochs
    assert resume(out).history.records == load_run(out).history.records  # free again
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]


def test_runs_side_by_side_hold_their_folders(tmp_path: Path) -> None:
    configs = [tiny.config(seed=seed) for seed in range(2)]
    places = [tmp_path / str(seed) for seed in range(2)]
    refused = []

    def intrude(run: int, _: object) -> None:
        for place in places:
            with pytest.raises(CheckpointError, match=ANOTHER), RunFolder(place).held():
                pass
        refused.append(run)

    train_together(configs, tiny.dataset(), folders=places, report=intrude)
    assert len(refused) == 4
    for place in places:
        with RunFolder(place).held():
            assert not list(place.glob("*lock*"))


def test_a_process_that_was_killed_holds_nothing(tmp_path: Path) -> None:
    script = (
        "import sys, time; from bqn.training.folder import RunFolder\n"
        "with RunFolder(sys.argv[1]).held(): print('held', flush=True); time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    with pytest.raises(CheckpointError, match=ANOTHER), RunFolder(tmp_path).held():
        pass
    process.kill()
    process.communicate()
    with RunFolder(tmp_path).held():
        pass


def test_without_locks_nothing_is_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the system has none, and where the file system has none."""

    def flock(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    with monkeypatch.context() as patched:
        patched.setattr(folders.fcntl, "flock", flock)
        with RunFolder(tmp_path).held(), RunFolder(tmp_path).held():
            pass
    monkeypatch.setattr(folders, "fcntl", None)
    with RunFolder(tmp_path).held(), RunFolder(tmp_path).held():
        pass
