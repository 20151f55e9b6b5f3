"""Several processes against one: the same network, the same images, one folder; whoever fails stops all."""

from __future__ import annotations

import json
import multiprocessing
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.testing import assert_close

from bqn.data import Split, to_input
from bqn.training import (
    ConfigError,
    DivergedError,
    LostProcessError,
    Preprocessing,
    TrainConfig,
    build_model,
    distributed,
    fit,
    load_run,
    resume,
    train,
    train_together,
)
from bqn.training.distributed import ALONE, Processes
from bqn.training.loop import Trainer
from bqn.training.run import data_parts
from bqn.training.surroundings import find_device
from tests.training import tiny

CPU = torch.device("cpu")


# --- two processes, as torchrun would start them -------------------------------------------------------------------


def _work(rank: int, count: int, port: int, task: Callable[[Path], None], folder: Path) -> None:
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(count), "LOCAL_RANK": str(rank)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    outcome = {"error": None, "message": ""}
    try:
        task(folder)
        distributed.leave()
    except Exception as error:
        outcome = {"error": type(error).__name__, "message": str(error)}
    (folder / f"outcome-{rank}.json").write_text(json.dumps(outcome))
    os._exit(0)  # as a process that fails: without a word to the others


def together(task: Callable[[Path], None], folder: Path, count: int = 2) -> list[dict[str, str | None]]:
    """Run `task` in `count` processes; how each of them ended."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["bqn.training", "tests.training.test_distributed"])
    folder.mkdir(exist_ok=True)
    processes = [context.Process(target=_work, args=(rank, count, port, task, folder)) for rank in range(count)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(50)
        if process.is_alive():
            process.kill()
            pytest.fail("the processes wait for each other")
    return [json.loads((folder / f"outcome-{rank}.json").read_text()) for rank in range(count)]


def all_well(outcomes: list[dict[str, str | None]]) -> bool:
    return all(outcome == {"error": None, "message": ""} for outcome in outcomes)


# --- the same network ----------------------------------------------------------------------------------------------

NETWORKS = {
    "mlp": tiny.config(hidden=(12, 8)),
    "wide mlp": tiny.config(hidden=(40, 40)),  # so wide that its logits know what units have in common
    "cnn": tiny.config(model="cnn", channels=(3, 4), hidden=(8,)),
    "cnn, pooled last": tiny.config(model="cnn", channels=(3, 4), hidden=(8,), pool_first=False),
    "levels": tiny.config(levels="ternary", activations="ternary"),
    "parts": tiny.config(accumulate=3, checkpoint_activations=True),
    "regressor": tiny.regression_config(batch_norm=True, hidden=(8, 6), batch_size=18, levels="quaternary"),
}


def train_in_double(config: TrainConfig, processes: Processes) -> dict[str, torch.Tensor]:
    """Two epochs in float64, where Adam does not blow a rounding error up; the state at their end.

    Batches of 15 or 17 examples, which two processes share unequally.
    """
    split = tiny.table(66) if config.model == "regressor" else tiny.images(66)
    x = split.x if split.x.is_floating_point() else to_input(split.x)
    split = Split(x, split.y)
    preprocessing = Preprocessing.of(split)
    net = build_model(config, preprocessing.input_shape, preprocessing.outputs).double()
    trainer = Trainer(net, split, None, config, CPU, preprocessing, processes)
    trainer.x = trainer.x.double()
    trainer.y = trainer.y.double() if trainer.y.is_floating_point() else trainer.y
    trainer.run(None, None)
    return {name: tensor for name, tensor in trainer.moment().tensors.items() if not name.startswith("generator/torch")}


def _networks(folder: Path) -> None:
    processes = distributed.join(CPU)
    for name, config in NETWORKS.items():
        state = train_in_double(config, processes)
        save_file({key: tensor.clone() for key, tensor in state.items()}, folder / f"{name}-{processes.rank}")


def test_two_processes_train_the_network_that_one_trains(tmp_path):
    assert all_well(together(_networks, tmp_path))
    for name, config in NETWORKS.items():
        alone = train_in_double(config, ALONE)
        first, second = (load_file(tmp_path / f"{name}-{rank}") for rank in range(2))
        assert alone.keys() == first.keys()
        for key, tensor in alone.items():
            assert_close(first[key], tensor, rtol=1e-6, atol=1e-7, msg=f"{name}: {key}")
            assert torch.equal(first[key], second[key]), f"{name}: {key}"


CONFIG = tiny.config(epochs=3, shift=1, flip=True, lam=0.5, checkpoint_every=1)


def same_run(ours: Path, theirs: Path) -> None:
    a, b = load_run(ours), load_run(theirs)
    assert len(a.history.records) == len(b.history.records) == CONFIG.epochs
    for ours_epoch, theirs_epoch in zip(a.history.records, b.history.records, strict=True):
        assert ours_epoch.elbo == pytest.approx(theirs_epoch.elbo, rel=1e-4)
        assert ours_epoch.validation_nll == pytest.approx(theirs_epoch.validation_nll, rel=1e-4)
    theirs_weights = b.net.state_dict()
    for name, tensor in a.net.state_dict().items():
        assert_close(tensor, theirs_weights[name], rtol=1e-3, atol=1e-3, msg=name)


def _images(folder: Path) -> None:
    processes = distributed.join(CPU)
    trainer = Trainer(build_model(CONFIG, (1, 6, 6), 3), tiny.images(), None, CONFIG, CPU, processes=processes)
    for step in range(2):
        parts = [processes.part(part) for part in trainer.examples(torch.arange(17))]
        save_file({"x": parts[0].clone(), "y": parts[1].clone()}, folder / f"step-{step}-{processes.rank}")


def test_images_are_those_of_one_process(tmp_path):
    assert all_well(together(_images, tmp_path))
    alone = Trainer(build_model(CONFIG, (1, 6, 6), 3), tiny.images(), None, CONFIG, CPU)
    for step in range(2):
        x, y = alone.examples(torch.arange(17))
        files = [load_file(tmp_path / f"step-{step}-{rank}") for rank in range(2)]
        assert [len(file["y"]) for file in files] == [9, 8]
        assert torch.equal(torch.cat([file["x"] for file in files]), x)
        assert torch.equal(torch.cat([file["y"] for file in files]), y)


def _meet(folder: Path) -> None:
    if not distributed.here().first:
        meet = torch.distributed.init_process_group

        def slowly(backend: str) -> None:
            meet(backend)
            time.sleep(1)
            (folder / "met").touch()

        torch.distributed.init_process_group = slowly
    distributed.join(CPU)
    assert (folder / "met").exists()


def test_nobody_goes_on_before_all_are_here(tmp_path):
    """Otherwise the first might fail and end while others still read from it where to meet."""
    assert all_well(together(_meet, tmp_path))


def _part(folder: Path) -> None:
    train(CONFIG, dataset=tiny.dataset())
    assert any("gloo" in name for name in threads())
    distributed.leave()
    assert not any("gloo" in name for name in threads())


def threads() -> list[str]:
    return [(path / "comm").read_text() for path in Path("/proc/self/task").iterdir()]


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="threads are looked up as Linux has them")
def test_no_thread_stays_behind(tmp_path):
    """One that frees a tensor while the interpreter ends would abort the process."""
    assert all_well(together(_part, tmp_path))


# --- one folder, and runs that change their number of processes ----------------------------------------------------


class StoppedError(Exception):
    """In place of a kill."""


def stop(done: int, total: int) -> None:
    if done == 5:
        raise StoppedError


def _whole(folder: Path) -> None:
    told: list[int] = []
    run = train(CONFIG, dataset=tiny.dataset(), out=folder / "run", report=lambda record: told.append(record.epoch))
    assert told == ([1, 2, 3] if distributed.here().first else [])
    save_file(dict(run.net.state_dict()), folder / f"net-{distributed.here().rank}")
    train(CONFIG, dataset=tiny.dataset())  # and once more in the same processes


def _begin(folder: Path) -> None:
    train(CONFIG, dataset=tiny.dataset(), out=folder / "run", tick=stop)


def _continue(folder: Path) -> None:
    examples, held_out, _ = data_parts(CONFIG, tiny.dataset())
    resume(folder / "run", train=examples, validation=held_out)


@pytest.fixture(scope="module")
def one_process(tmp_path_factory):
    folder = tmp_path_factory.mktemp("one") / "run"
    train(CONFIG, dataset=tiny.dataset(), out=folder)
    return folder


def test_a_run_of_two_processes_is_one_folder(tmp_path, one_process):
    assert all_well(together(_whole, tmp_path))
    same_run(tmp_path / "run", one_process)
    first, second = (load_file(tmp_path / f"net-{rank}") for rank in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not list((tmp_path / "run").glob("*.tmp"))


@pytest.mark.parametrize("counts", [(2, 1), (1, 2), (2, 3)])
def test_resumed_by_another_number_of_processes(tmp_path, one_process, counts):
    before, after = counts
    if before == 1:
        with pytest.raises(StoppedError):
            _begin(tmp_path)
    else:
        outcomes = together(_begin, tmp_path, before)
        assert [outcome["error"] for outcome in outcomes] == ["StoppedError", "LostProcessError"]
    assert load_run(tmp_path / "run").history.records[0].epoch == 1
    if after == 1:
        _continue(tmp_path)
    else:
        assert all_well(together(_continue, tmp_path, after))
    same_run(tmp_path / "run", one_process)


# --- what goes wrong -----------------------------------------------------------------------------------------------


def _diverge(folder: Path) -> None:
    config = tiny.config(learning_rate=1e38, epochs=1)
    train(config, dataset=tiny.dataset(), out=folder / "run")


def _fail_alone(folder: Path) -> None:
    def break_down(self: Trainer, *given: object) -> None:
        raise MemoryError

    if distributed.here().rank == 1:
        Trainer.objective = break_down  # type: ignore[method-assign, assignment]
    train(CONFIG, dataset=tiny.dataset(), out=folder / "run")


def _differ(folder: Path) -> None:
    config = tiny.config(seed=distributed.here().rank)
    train(config, dataset=tiny.dataset(), out=folder / "run")


def _differ_in_fit(folder: Path) -> None:
    config = tiny.config(seed=distributed.here().rank)
    fit(build_model(config, (1, 6, 6), 3), tiny.images(), None, config, out=folder / "run")


def _differ_resumed(folder: Path) -> None:
    examples, held_out, _ = data_parts(CONFIG, tiny.dataset())
    if distributed.here().first:
        train(CONFIG, dataset=tiny.dataset(), out=folder / "run")
    else:
        resume(folder / "other", train=examples, validation=held_out)


def _other_method(folder: Path) -> None:
    train(tiny.config(method="qnn", lam=0.0), dataset=tiny.dataset())


def _too_many(folder: Path) -> None:
    train(tiny.config(batch_size=1), dataset=tiny.dataset())


def _side_by_side(folder: Path) -> None:
    train_together([CONFIG], tiny.dataset())


@pytest.mark.parametrize(
    ("task", "errors", "message"),
    [
        (_diverge, [DivergedError, DivergedError], "not finite"),
        (_fail_alone, [LostProcessError, MemoryError], "another process of the run has ended"),
        (_differ, [ConfigError, ConfigError], "process 1 has other settings, data or weights than process 0"),
        (_other_method, [ConfigError, ConfigError], "several processes can train bqn, not qnn"),
        (_too_many, [ConfigError, ConfigError], "a batch of 1 is too small"),
        (_side_by_side, [ConfigError, ConfigError], "is for one process, but torchrun has started 2"),
    ],
)
def test_failures_stop_all(tmp_path, task, errors, message):
    outcomes = together(task, tmp_path)
    assert [outcome["error"] for outcome in outcomes] == [error.__name__ for error in errors]
    assert message in str(outcomes[0]["message"])


@pytest.mark.parametrize("task", [_differ, _differ_in_fit])
def test_a_start_that_is_refused_leaves_no_folder(tmp_path, task):
    outcomes = together(task, tmp_path)
    assert [outcome["error"] for outcome in outcomes] == ["ConfigError"] * 2
    assert not (tmp_path / "run").exists()


def test_a_run_that_is_resumed_where_another_begins(tmp_path):
    with pytest.raises(StoppedError):
        train(CONFIG, dataset=tiny.dataset(), out=tmp_path / "other", tick=stop)
    before = (tmp_path / "other/checkpoint.safetensors").read_bytes()
    outcomes = together(_differ_resumed, tmp_path)
    assert [outcome["error"] for outcome in outcomes] == ["ConfigError"] * 2
    assert not (tmp_path / "run").exists()
    assert (tmp_path / "other/checkpoint.safetensors").read_bytes() == before


def launched(monkeypatch, **values: str) -> None:
    for name, value in {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1", **values}.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"RANK": "1", "WORLD_SIZE": "3"}, Processes(1, 3)),
        ({"RANK": "0", "WORLD_SIZE": "1"}, ALONE),
        ({"WORLD_SIZE": "3"}, ALONE),  # somebody else's variable
        ({"RANK": "one", "WORLD_SIZE": "3"}, ALONE),
    ],
)
def test_where_we_are(monkeypatch, values, expected):
    launched(monkeypatch, **values)
    assert distributed.here() == expected


@pytest.mark.parametrize(("rank", "count"), [("1", "1"), ("3", "3"), ("4", "2"), ("0", "0")])
def test_a_number_that_no_process_can_have(monkeypatch, capsys, rank, count):
    """Trained alone, it would write where the process 0 writes."""
    from bqn.cli import main

    launched(monkeypatch, RANK=rank, WORLD_SIZE=count)
    message = f"RANK must be below WORLD_SIZE, {count}, got {rank}"
    with pytest.raises(ConfigError, match=message):
        distributed.here()
    with pytest.raises(ConfigError, match=message):
        train(tiny.config(), dataset=tiny.dataset())
    assert main(["train", "--data", "digits"]) == 1
    error = capsys.readouterr().err
    assert message in error
    assert len(error.splitlines()) == 1


def test_each_process_has_a_gpu_of_its_own(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    launched(monkeypatch, RANK="3", WORLD_SIZE="4", LOCAL_RANK="1")
    assert find_device(tiny.config(device="auto")) == torch.device("cuda", 1)
    with pytest.raises(ConfigError, match="cuda:0 is one GPU for several processes"):
        find_device(tiny.config(device="cuda:0"))
    monkeypatch.delenv("LOCAL_RANK")
    assert find_device(tiny.config(device="cuda")) == torch.device("cuda", 1)
    monkeypatch.setenv("LOCAL_RANK", "2")
    with pytest.raises(ConfigError, match="process 2 of this machine finds no GPU of its own, torch sees 2"):
        find_device(tiny.config(device="cuda"))


# --- the command line ----------------------------------------------------------------------------------------------


def torchrun(*arguments: str) -> subprocess.CompletedProcess[str]:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "bqn"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [*launcher, *arguments], capture_output=True, text=True, env=environment, timeout=100, check=False
    )


def test_torchrun(tmp_path):
    folder = str(tmp_path / "run")
    settings = ("--data", "digits", "--hidden", "16", "--epochs", "2", "--device", "cpu", "--threads", "1")
    done = torchrun("train", *settings, "--out", folder, "--json")
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 1  # one process speaks
    assert json.loads(done.stdout)["epochs"] == 2
    assert len([line for line in done.stderr.splitlines() if line.startswith("{")]) == 2
    assert len(load_run(folder).history.records) == 2


def test_torchrun_is_not_for_replicas(monkeypatch, capsys):
    from bqn.cli import main

    launched(monkeypatch, RANK="0", WORLD_SIZE="2")
    assert main(["train", "--data", "digits", "--replicas", "2"]) == 2
    assert "--replicas trains its networks in one process" in capsys.readouterr().err
    assert main(["data", "list"]) == 2
    assert "torchrun is for bqn train and bqn resume, not for bqn data" in capsys.readouterr().err
    monkeypatch.setenv("RANK", "1")
    assert main(["data", "list"]) == 2
    assert capsys.readouterr().err == ""  # the first process has said it


def test_nothing_is_exchanged_alone():
    assert ALONE.from_first([1.0, 2.0], CPU) == [1.0, 2.0]
    with nullcontext():
        assert ALONE.part(torch.arange(3)).tolist() == [0, 1, 2]
