"""Several steps without a look between them, recorded on a GPU, against the same steps one by one."""

import gc
import weakref
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

from bqn.training import Run, build_model, graph, loop, resume, train
from bqn.training.run import data_parts
from tests.training import tiny


def assert_same(ours: Run, theirs: Run, device: str) -> None:
    """To the last bit on a CPU; on a GPU within what the order of a sum may change."""
    wanted = theirs.net.state_dict()
    for name, tensor in ours.net.state_dict().items():
        if device == "cpu":
            assert torch.equal(tensor, wanted[name]), name
        else:
            assert_close(tensor, wanted[name], rtol=1e-3, atol=1e-3, msg=lambda text, name=name: f"{name}: {text}")
    for mine, yours in zip(ours.history.records, theirs.history.records, strict=True):
        assert mine.elbo == pytest.approx(yours.elbo, rel=1e-3)
        assert mine.validation_nll == pytest.approx(yours.validation_nll, rel=1e-3)


SETTINGS = {
    "mlp": {},
    "augmented": {"shift": 1, "flip": True, "turn": 10.0, "zoom": 0.1, "cutout": 1},
    "scheduled": {"lr_schedule": "cosine", "lam": 0.1},
    "uneven": {"batch_size": 17},
    "alternating": {"drawn_epochs": 2, "drawn_alone": 2, "mode_share": 0.5, "shift": 1},
    "drawn": {"drawn_epochs": 2, "mode_share": 0.5, "shift": 1},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_recorded_steps_are_those_made_one_by_one(name: str, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tiny.config(device=device, epochs=3, **SETTINGS[name])
    monkeypatch.setitem(loop.LOOK_EVERY, device, 1)
    one_by_one = train(config, dataset=tiny.dataset())
    monkeypatch.setitem(loop.LOOK_EVERY, device, 100)
    assert_same(train(config, dataset=tiny.dataset()), one_by_one, device)
    monkeypatch.setattr(loop, "can_record", lambda trainer: False)
    assert_same(train(config, dataset=tiny.dataset()), one_by_one, device)


def test_steps_are_recorded_on_a_gpu_only(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[graph.Recording] = []

    class Noted(graph.Recording):
        def __init__(self, *arguments) -> None:
            super().__init__(*arguments)
            made.append(self)

    monkeypatch.setattr(loop, "Recording", Noted)
    monkeypatch.setitem(loop.LOOK_EVERY, device, 100)
    train(tiny.config(device=device), dataset=tiny.dataset())
    assert len(made) == (device == "cuda")


def test_a_run_goes_on_where_it_stopped(device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Saved in the middle of an epoch, on a GPU between two recorded stretches."""
    monkeypatch.setitem(loop.LOOK_EVERY, device, 100)
    config = tiny.config(device=device, epochs=3, checkpoint_every=2)
    calls = 0

    def stop(done: int, total: int) -> None:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(config, dataset=tiny.dataset(), out=tmp_path / "run", tick=stop)
    learned_from, held_out, _ = data_parts(config, tiny.dataset())
    again = resume(tmp_path / "run", net=build_model(config, (1, 6, 6), 3), train=learned_from, validation=held_out)
    assert_same(again, train(config, dataset=tiny.dataset()), device)


@pytest.mark.parametrize("model", ["mlp", "cnn"])
def test_half_precision_learns_as_much(model: str, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run takes it on a GPU only; a trainer does as it is told."""
    monkeypatch.setitem(loop.LOOK_EVERY, device, 100)
    sizes = {"mlp": {"hidden": (64,)}, "cnn": {"channels": (16, 16), "hidden": (32,)}}[model]
    reached = []
    for low in (False, True):
        config = tiny.config(model=model, epochs=8, learning_rate=1e-2, mixed_precision=low, **sizes)
        net = build_model(config, (1, 6, 6), 3)
        trainer = loop.Trainer(net, tiny.images(300), tiny.images(100, seed=1), config, torch.device(device))
        reached.append(trainer.run(None, None).best.validation_nll)
    full, half = reached
    assert full < 0.5
    assert half == pytest.approx(full, rel=0.3, abs=0.03)


class Ring:
    """Garbage that only the collector finds."""

    def __init__(self) -> None:
        self.itself = self


def test_garbage_waits_until_the_recording_is_done() -> None:
    before = weakref.ref(Ring())
    with graph.nothing_collected():
        assert before() is None, "what was garbage before is freed before"
        during = weakref.ref(Ring())
        rings = [Ring() for _ in range(10_000)]  # enough for the collector to come by itself
        assert len(rings) == 10_000
        assert during() is not None
    assert gc.isenabled()
