"""When a run is saved, and that whoever interrupts it between two steps loses no step."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from bqn.network import Network
from bqn.training import CheckpointError, DivergedError, History, Run, TrainConfig, build_model, fit, loop, resume
from bqn.training.folder import RunFolder
from tests.training import tiny

STEPS = 4  # an epoch, of sixty examples in batches of at most 18


class Clock:
    """A clock in the place of the module `time`, which stands still unless it is turned on."""

    def __init__(self) -> None:
        self.now = 0.0
        self.time = SimpleNamespace(monotonic=lambda: self.now, perf_counter=time.perf_counter)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Ten seconds between two saves, as on a GPU, by a clock for this test."""
    clock = Clock()
    monkeypatch.setattr(loop, "time", clock.time)
    monkeypatch.setitem(loop.SAVE_EVERY, "cpu", loop.SAVE_EVERY["cuda"])
    return clock


def train_tiny(config: TrainConfig, **options) -> tuple[Network, History]:
    net = build_model(config, (1, 6, 6), 3)
    return net, fit(net, tiny.images(), tiny.images(seed=1), config, **options)


def resume_tiny(folder: Path) -> Run:
    return resume(folder, train=tiny.images(), validation=tiny.images(seed=1))


def interrupting(step: int):
    def tick(done: int, total: int) -> None:
        if done == step:
            raise KeyboardInterrupt

    return tick


def numbers(history: History) -> list[dict[str, object]]:
    """The records without the times in them."""
    timeless = [record.to_dict() for record in history.records]
    return [{name: value for name, value in each.items() if name not in ("seconds", "eta")} for each in timeless]


def assert_same(ours: Run, net: Network, history: History) -> None:
    assert all(torch.equal(tensor, ours.net.state_dict()[name]) for name, tensor in net.state_dict().items())
    assert numbers(ours.history) == numbers(history)
    assert ours.history.best_epoch == history.best_epoch
    assert ours.history.stopped_early == history.stopped_early


def saved_epochs(folder: Path) -> int:
    """How many epochs the checkpoint has, after a look at the files that are drawn from it."""
    run = RunFolder(folder)
    moment = run.read_checkpoint()
    epochs = len(moment.facts["records"])
    assert len(run.history.read_text().splitlines()) == epochs
    if epochs:
        net = build_model(run.read_config(), (1, 6, 6), 3)
        net.load(run.best)
        best = {name: moment.tensors[f"best/{name}"] for name in net.state_dict()}
        assert all(torch.equal(tensor, best[name]) for name, tensor in net.state_dict().items())
    return epochs


# --- interrupts ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", range(1, 2 * STEPS + 1))
def test_no_step_is_lost(tmp_path: Path, step: int) -> None:
    """Within an epoch, at the last step of one, and at the last step of all."""
    config = tiny.config(epochs=2, shift=1)
    with pytest.raises(KeyboardInterrupt):
        train_tiny(config, out=tmp_path / "run", tick=interrupting(step))
    facts = RunFolder(tmp_path / "run").read_checkpoint().facts
    assert facts["epoch"] * STEPS + facts["position"] == step
    assert facts["position"] > 0
    assert saved_epochs(tmp_path / "run") == (step - 1) // STEPS
    assert_same(resume_tiny(tmp_path / "run"), *train_tiny(config))


def test_an_interrupt_at_the_step_that_ends_patience(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def scripted(*scores: float) -> None:
        left = iter(scores)
        monkeypatch.setattr(loop, "validate_once", lambda *arguments: loop.Scores(next(left), 0.5, None))

    config = tiny.config(epochs=5, patience=1)
    scripted(0.5, 0.6)
    whole = train_tiny(config)
    scripted(0.5, 0.6)
    with pytest.raises(KeyboardInterrupt):
        train_tiny(config, out=tmp_path / "run", tick=interrupting(2 * STEPS))
    again = resume_tiny(tmp_path / "run")
    assert again.history.stopped_early
    assert len(again.history.records) == 2
    assert_same(again, *whole)
    assert saved_epochs(tmp_path / "run") == 2


def test_an_interrupt_after_epochs_that_were_not_saved(tmp_path: Path, clock: Clock) -> None:
    config = tiny.config(epochs=4)
    with pytest.raises(KeyboardInterrupt):
        train_tiny(config, out=tmp_path / "run", tick=interrupting(2 * STEPS + 1))
    assert saved_epochs(tmp_path / "run") == 2
    assert_same(resume_tiny(tmp_path / "run"), *train_tiny(config))


def test_an_interrupt_by_the_report(tmp_path: Path, clock: Clock) -> None:
    def report(record) -> None:
        if record.epoch == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_tiny(tiny.config(epochs=4), out=tmp_path / "run", report=report)
    assert saved_epochs(tmp_path / "run") == 2
    assert_same(resume_tiny(tmp_path / "run"), *train_tiny(tiny.config(epochs=4)))


def test_more_steps_than_an_epoch_has_are_refused(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        train_tiny(tiny.config(), out=tmp_path / "run", tick=interrupting(STEPS))
    folder = RunFolder(tmp_path / "run")
    moment = folder.read_checkpoint()
    moment.facts["position"] += 1
    folder.write_checkpoint(moment)
    with pytest.raises(CheckpointError, match="is further than"):
        resume_tiny(tmp_path / "run")


# --- every ten seconds ---------------------------------------------------------------------------------------------


def epochs_when_saved(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A list that grows with every save by the epochs that are over."""
    epochs: list[int] = []
    write = RunFolder.write_checkpoint

    def noted(self: RunFolder, moment) -> None:
        epochs.append(moment.facts["epoch"])
        write(self, moment)

    monkeypatch.setattr(RunFolder, "write_checkpoint", noted)
    return epochs


@pytest.mark.parametrize(("seconds", "expected"), [(0.0, [8]), (4.0, [3, 6, 8]), (10.0, list(range(1, 9)))])
def test_saves_are_seconds_apart(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch, seconds: float, expected: list[int]
) -> None:
    """Epochs of so many seconds: the last one is always saved."""
    saved = epochs_when_saved(monkeypatch)

    def tick(done: int, total: int) -> None:
        clock.now += seconds / STEPS

    train_tiny(tiny.config(epochs=8), out=tmp_path / "run", tick=tick)
    assert saved == expected
    assert saved_epochs(tmp_path / "run") == 8


def test_on_a_cpu_every_epoch_is_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "time", Clock().time)
    saved = epochs_when_saved(monkeypatch)
    train_tiny(tiny.config(epochs=3), out=tmp_path / "run")
    assert saved == [1, 2, 3]


def test_a_run_that_stops_early_is_saved(tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    scores = iter([0.5, 0.3, 0.4, 0.35])
    monkeypatch.setattr(loop, "validate_once", lambda *arguments: loop.Scores(next(scores), 0.5, None))
    saved = epochs_when_saved(monkeypatch)
    _, history = train_tiny(tiny.config(epochs=9, patience=2), out=tmp_path / "run")
    assert history.stopped_early
    assert saved == [4]
    assert saved_epochs(tmp_path / "run") == 4


def test_what_diverges_is_saved_with_all_its_epochs(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    terms = loop.Trainer.terms

    def overflow(self: loop.Trainer, batch, lam=None):
        found = terms(self, batch)
        return found if self.state.epoch < 2 else found._replace(value=found.value / 0)

    monkeypatch.setattr(loop.Trainer, "terms", overflow)
    with pytest.raises(DivergedError, match=r"epoch 3, step 1: .* the state before it is saved in"):
        train_tiny(tiny.config(epochs=4), out=tmp_path / "run")
    assert saved_epochs(tmp_path / "run") == 2
