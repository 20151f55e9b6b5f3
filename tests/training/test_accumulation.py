"""Gradient accumulation: the weighted mean over parts, the KL once, statistics of each part, exact resume."""

from __future__ import annotations

import copy

import pytest
import torch
from torch.testing import assert_close

from bqn.data import to_input
from bqn.training import ConfigError, DivergedError, build_model, fit, loop, resume, train
from bqn.training.loop import Trainer
from bqn.training.run import data_parts
from tests.training import tiny

CPU = torch.device("cpu")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def trainer_of(**values) -> Trainer:
    config = tiny.config(**{"epochs": 1, "validation_fraction": 0.0, **values})
    return Trainer(build_model(config, (1, 6, 6), 3), tiny.images(), None, config, CPU)


def gradients(trainer: Trainer) -> list[torch.Tensor]:
    return [parameter.grad for parameter in trainer.net.parameters()]


def same_weights(a, b):
    return all(torch.equal(tensor, b.state_dict()[name]) for name, tensor in a.state_dict().items())


@pytest.mark.parametrize("parts", [2, 3, 5])
def test_without_batch_norm_parts_make_no_difference(parts):
    """Parts of unequal size: 17 examples; a sum of unweighted means would differ."""
    whole, cut = (trainer_of(batch_norm=False, lam=5.0, accumulate=count) for count in (1, parts))
    batch = torch.arange(17)
    expected, found = whole.backward(batch), cut.backward(batch)
    for ours, theirs in zip(gradients(cut), gradients(whole), strict=True):
        assert_close(ours, theirs, rtol=1e-4, atol=1e-6)
    assert_close(torch.stack(found), torch.stack(expected), rtol=1e-5, atol=0)
    assert float(found.kl.detach()) > 1
    assert_close(found.value, found.log_likelihood - 5.0 / 60 * found.kl)


def test_with_batch_norm_each_part_has_statistics_of_its_own():
    trainer = trainer_of(accumulate=3, lam=5.0)
    net, batch = copy.deepcopy(trainer.net).train(), torch.arange(17)
    trainer.net.train()
    trainer.backward(batch)
    total = 0
    for part in batch.tensor_split(3):
        x, y = to_input(trainer.x[part]), trainer.y[part]
        total = total + len(part) / 17 * net.elbo(x, y, 60, 5.0)
    (-total).backward()
    for ours, parameter in zip(gradients(trainer), net.parameters(), strict=True):
        assert_close(ours, parameter.grad, rtol=1e-4, atol=1e-6)
    for name, buffer in net.named_buffers():
        assert torch.equal(buffer, dict(trainer.net.named_buffers())[name])
    assert int(trainer.net.body[2].num_batches_tracked) == 3


def test_images_are_augmented_as_without_parts():
    whole, cut = (trainer_of(batch_norm=False, shift=2, flip=True, accumulate=count) for count in (1, 4))
    for _ in range(2):
        batch = torch.arange(18)
        assert_close(torch.stack(cut.backward(batch)), torch.stack(whole.backward(batch)), rtol=1e-5, atol=0)
    assert torch.equal(whole.state.augmentation.get_state(), cut.state.augmentation.get_state())


def test_a_run_makes_as_many_steps_and_learns():
    ticks = []
    config = tiny.config(epochs=12, seed=1, accumulate=3)
    net = build_model(config, (1, 6, 6), 3)
    history = fit(net, tiny.images(200), tiny.images(50, seed=2), config, tick=lambda *step: ticks.append(step))
    assert ticks[-1] == (12 * 12, 12 * 12)
    assert history.best.validation_error < 0.1
    for record in history.records:
        assert record.elbo == pytest.approx(record.log_likelihood - record.lam / 200 * record.kl, rel=1e-5)


def test_stopped_and_resumed_equals_uninterrupted(tmp_path):
    config = tiny.config(epochs=2, shift=1, accumulate=2, checkpoint_every=1)
    whole = train(config, dataset=tiny.dataset())

    def stop(done, total):
        if done == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(config, dataset=tiny.dataset(), out=tmp_path / "run", tick=stop)
    examples, held_out, _ = data_parts(config, tiny.dataset())
    assert same_weights(resume(tmp_path / "run", train=examples, validation=held_out).net, whole.net)


@pytest.mark.parametrize("values", [{"accumulate": 2}, {"checkpoint_activations": True}, {"shift": 1}])
def test_recorded_steps_are_those_that_are_launched_one_by_one(monkeypatch, values):
    """On a GPU; elsewhere nothing is recorded, and both are the same bit by bit."""
    config = tiny.config(device=DEVICE, epochs=1, **values)
    recorded = train(config, dataset=tiny.dataset()).net.state_dict()
    monkeypatch.setattr(loop, "can_record", lambda trainer: False)
    launched = train(config, dataset=tiny.dataset()).net.state_dict()
    for name, tensor in recorded.items():
        tolerance = {"rtol": 0, "atol": 0} if DEVICE == "cpu" else {"rtol": 1e-3, "atol": 1e-3}
        assert_close(tensor, launched[name], **tolerance, msg=name)


def test_divergence_in_one_part_is_found_and_undone(monkeypatch):
    """In the second part of the third step."""
    objective = loop.Trainer.objective

    def overflow(self, x, y, lam=None, draws=None):
        found = objective(self, x, y, lam, draws)
        _, second = self.state.draw_order(60).tensor_split(4)[2].tensor_split(2)
        return found._replace(kl=found.kl / 0, value=found.value / 0) if torch.equal(y, self.y[second]) else found

    config = tiny.config(epochs=1, accumulate=2, shift=1)
    net = build_model(config, (1, 6, 6), 3)
    monkeypatch.setattr(loop.Trainer, "objective", overflow)
    with pytest.raises(DivergedError, match="epoch 1, step 3: the KL is not finite"):
        fit(net, tiny.images(), None, config)
    assert int(net.body[2].num_batches_tracked) == 4  # of the two good steps


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"accumulate": 0}, "accumulate must be at least 1, got 0"),
        ({"accumulate": 2.0}, "accumulate must be an integer"),
        ({"accumulate": 19}, "accumulate must be at most batch_size, 18, got 19"),
        ({"accumulate": 2, "method": "qnn", "lam": 0.0}, "accumulate is for method bqn, got qnn"),
    ],
)
def test_bad_settings(values, message):
    with pytest.raises(ConfigError, match=message):
        tiny.config(**values)


def test_a_batch_that_is_too_small():
    with pytest.raises(ConfigError, match="a batch of 15 is too small for accumulate 16"):
        trainer_of(accumulate=16)
