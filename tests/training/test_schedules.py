"""Learning rate and λ over time."""

import pytest

from bqn.training import TrainConfig
from bqn.training.schedules import kl_weight, learning_rate


def at(schedule, *epochs):
    return [schedule(epoch) for epoch in epochs]


def test_learning_rate():
    base = {"learning_rate": 0.1, "epochs": 4}
    assert at(learning_rate(TrainConfig(lr_schedule="constant", **base)), 0, 3.7) == [0.1, 0.1]
    cosine = at(learning_rate(TrainConfig(lr_schedule="cosine", **base)), 0, 1, 2, 3, 4)
    assert cosine == pytest.approx([0.1, 0.0853553, 0.05, 0.0146447, 0.0], abs=1e-7)
    exponential = at(learning_rate(TrainConfig(lr_schedule="exponential", lr_decay=0.5, **base)), 0, 0.9, 1, 2.5)
    assert exponential == pytest.approx([0.1, 0.1, 0.05, 0.025])


def test_kl_weight():
    base = {"lam": 0.1, "epochs": 4}
    assert at(kl_weight(TrainConfig(**base)), 0, 3.9) == [0.1, 0.1]
    warm_up = TrainConfig(lam_schedule="warm-up", warm_up_epochs=2, warm_up_lam=-1.0, **base)
    assert at(kl_weight(warm_up), 0, 1.9, 2, 3) == [-1.0, -1.0, 0.1, 0.1]
    decay = TrainConfig(lam_schedule="decay", lam_end=0.02, **base)
    assert at(kl_weight(decay), 0, 2, 4) == pytest.approx([0.1, 0.06, 0.02])
