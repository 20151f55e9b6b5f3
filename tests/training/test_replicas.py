"""Runs side by side against the same runs alone; recorded as one program on a GPU, in turns on a CPU."""

from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

from bqn.training import ConfigError, DivergedError, EpochRecord, Run, load_run, loop, replicas, train, train_together
from bqn.training.folder import RunFolder
from tests.training import tiny

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
pytestmark = pytest.mark.gpu
STEPS = 3  # an epoch, of 54 examples in batches of 18


def weights(run: Run) -> dict[str, torch.Tensor]:
    return {name: tensor.cpu() for name, tensor in run.net.state_dict().items()}


def assert_same_run(ours: Run | DivergedError, alone: Run) -> None:
    assert isinstance(ours, Run)
    assert ours.config == alone.config
    assert [record.epoch for record in ours.history.records] == [record.epoch for record in alone.history.records]
    assert ours.history.best_epoch == alone.history.best_epoch
    theirs = weights(alone)
    for name, tensor in weights(ours).items():
        if DEVICE == "cpu":
            assert torch.equal(tensor, theirs[name]), name
        else:
            assert_close(tensor, theirs[name], rtol=1e-3, atol=1e-3)


def configs():
    """They differ in seed, λ, learning rate and patience."""
    return [
        tiny.config(seed=0, device=DEVICE),
        tiny.config(seed=1, lam=0.5, device=DEVICE),
        tiny.config(seed=2, learning_rate=0.2, device=DEVICE, epochs=5, patience=1),
        tiny.config(seed=3, shift=1, device=DEVICE),
    ]


def test_each_run_ends_as_it_would_alone(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    folders = [tmp_path / str(number) for number in range(4)]
    together = train_together(
        configs(), tiny.dataset(), folders=folders, report=lambda run, record: told.append((run, record.epoch))
    )
    for number, config in enumerate(configs()):
        alone = train(config, dataset=tiny.dataset())
        assert_same_run(together[number], alone)
        assert_same_run(load_run(folders[number]), alone)
        assert [epoch for run, epoch in told if run == number] == [record.epoch for record in alone.history.records]


@pytest.mark.skipif(DEVICE == "cuda", reason="on a GPU all draw by one generator")
@pytest.mark.parametrize("method", ["gaussian-bnn", "mc-dropout", "bayesbinn"])
def test_runs_that_draw_by_torchs_own_generator_keep_theirs_apart(tmp_path: Path, method: str) -> None:
    """However many there are, and though one is stopped and goes on by itself."""
    wanted = [tiny.config(seed=seed, method=method, lam=0.01, device=DEVICE) for seed in range(3)]
    alone = [train(config, dataset=tiny.dataset()) for config in wanted]
    for ours, run in zip(train_together(wanted, tiny.dataset()), alone, strict=True):
        assert_same_run(ours, run)
    folders = [tmp_path / str(number) for number in range(2)]
    ticks = 0

    def stop() -> None:
        nonlocal ticks
        ticks += 1
        if ticks == 2 * STEPS + 2:  # in the second epoch of the first
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_together(wanted[:2], tiny.dataset(), folders=folders, tick=stop)
    for number in (1, 0):
        (ours,) = train_together([wanted[number]], tiny.dataset(), folders=[folders[number]])
        assert_same_run(ours, alone[number])


def test_runs_that_were_stopped_go_on(tmp_path: Path) -> None:
    """Stopped in the middle of an epoch; then the one that is behind catches up first."""
    folders = [tmp_path / str(number) for number in range(4)]
    calls = 0

    def stop() -> None:
        nonlocal calls
        calls += 1
        if calls == 5:
            raise KeyboardInterrupt

    if DEVICE == "cpu":  # on a GPU these short runs pass between two calls
        with pytest.raises(KeyboardInterrupt):
            train_together(configs(), tiny.dataset(), folders=folders, tick=stop)
    together = train_together(configs(), tiny.dataset(), folders=folders)
    for number, config in enumerate(configs()):
        assert_same_run(together[number], train(config, dataset=tiny.dataset()))
    again = train_together(configs(), tiny.dataset(), folders=folders)  # finished: read, not trained
    assert_same_run(again[0], train(configs()[0], dataset=tiny.dataset()))


class StepByStep:
    """In the place of a `Recording`, for runs that are not on a GPU."""

    def __init__(self, trainers: list[loop.Trainer]) -> None:
        self.trainers = tuple(trainers)

    def begin_epoch(self, orders: list[torch.Tensor]) -> None:
        self.batches = [order.tensor_split(self.trainers[0].steps) for order in orders]

    def advance(self, start: int, count: int) -> list[torch.Tensor]:
        pairs = zip(self.trainers, self.batches, strict=True)
        return [sum(trainer._step(batch) for batch in batches[start : start + count]) for trainer, batches in pairs]


@pytest.mark.parametrize("together", [True, False], ids=["recorded", "in turns"])
@pytest.mark.parametrize("calls", [1, 2, 4, 5, 6])
def test_an_interrupt_loses_no_step_of_any_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, together: bool, calls: int
) -> None:
    """No epoch is saved as it ends, as on a GPU: an interrupt must save all runs, wherever they are."""
    monkeypatch.setitem(loop.SAVE_EVERY, "cpu", 1e9)
    monkeypatch.setattr(replicas, "Recording", StepByStep)
    monkeypatch.setattr(replicas, "_alike", lambda trainers: together)
    monkeypatch.setitem(loop.LOOK_EVERY, "cuda", 2)
    plans = [tiny.config(seed=seed, epochs=3) for seed in range(3)]
    folders = [tmp_path / str(number) for number in range(3)]
    called = 0

    def stop() -> None:
        nonlocal called
        called += 1
        if called == calls:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_together(plans, tiny.dataset(), folders=folders, tick=stop)
    facts = [RunFolder(folder).read_checkpoint().facts for folder in folders]
    done = [each["epoch"] * STEPS + each["position"] for each in facts]
    if together:  # of each run two steps, then the last of the epoch
        assert done == [{1: 2, 2: 3, 4: 6, 5: 8, 6: 9}[calls]] * 3
        assert all(each["seconds"] > 0 for each in facts)
    else:
        assert sum(done) == calls
    monkeypatch.undo()
    for run, config in zip(train_together(plans, tiny.dataset(), folders=folders), plans, strict=True):
        assert_same_run(run, train(config, dataset=tiny.dataset()))


def test_an_interrupt_by_the_report_saves_all_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(loop.SAVE_EVERY, "cpu", 1e9)
    folders = [tmp_path / str(number) for number in range(2)]

    def report(index: int, record: EpochRecord) -> None:
        if (index, record.epoch) == (1, 2):
            raise KeyboardInterrupt

    plans = [tiny.config(seed=seed, epochs=3) for seed in range(2)]
    with pytest.raises(KeyboardInterrupt):
        train_together(plans, tiny.dataset(), folders=folders, report=report)
    assert [RunFolder(folder).read_checkpoint().facts["epoch"] for folder in folders] == [2, 2]


def test_an_interrupt_does_not_save_what_has_failed(tmp_path: Path) -> None:
    """The weights of the first run overflow; its good checkpoint stays when the second is interrupted."""
    folders = [tmp_path / str(number) for number in range(2)]
    plans = [tiny.config(learning_rate=1e38), tiny.config(seed=1)]
    called = 0

    def stop() -> None:
        nonlocal called
        called += 1
        if called == STEPS + 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_together(plans, tiny.dataset(), folders=folders, tick=stop)
    load_run(folders[0])
    facts = RunFolder(folders[1]).read_checkpoint().facts
    assert facts["epoch"] * STEPS + facts["position"] > 0


def test_one_failure_leaves_the_others_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    terms = loop.Trainer.terms

    def broken(self, batch, lam=None):
        result = terms(self, batch, lam)
        return result._replace(value=result.value * float("nan")) if self.config.seed == 1 else result

    monkeypatch.setattr(loop.Trainer, "terms", broken)
    results = train_together(configs()[:3], tiny.dataset())
    assert isinstance(results[1], DivergedError)
    monkeypatch.undo()
    assert_same_run(results[0], train(configs()[0], dataset=tiny.dataset()))
    assert_same_run(results[2], train(configs()[2], dataset=tiny.dataset()))


def test_another_config_in_the_folder_is_refused(tmp_path: Path) -> None:
    train_together([tiny.config()], tiny.dataset(), folders=[tmp_path / "a"])
    with pytest.raises(ConfigError, match=r"another config: lam is 0.001, got 0.7"):
        train_together([tiny.config(lam=0.7)], tiny.dataset(), folders=[tmp_path / "a"])


def test_bad_input() -> None:
    with pytest.raises(ConfigError, match="at least one"):
        train_together([], tiny.dataset())
    with pytest.raises(ConfigError, match="device and threads"):
        train_together([tiny.config(threads=1), tiny.config(threads=2)], tiny.dataset())
    with pytest.raises(ConfigError, match="replicas must be at least 1"):
        replicas.seeds_of(tiny.config(), 0)
