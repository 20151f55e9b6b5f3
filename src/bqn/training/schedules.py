"""Learning rate and λ as functions of the time in epochs: nothing to save but the position."""

from __future__ import annotations

import math

from bqn import objective
from bqn.training.config import TrainConfig


def learning_rate(config: TrainConfig) -> objective.Schedule:
    """Adam's rate at a (fractional) epoch, counted from 0."""
    start = config.learning_rate
    if config.lr_schedule == "cosine":
        return lambda epoch: start * 0.5 * (1 + math.cos(math.pi * min(epoch / config.epochs, 1.0)))
    if config.lr_schedule == "exponential":
        return lambda epoch: start * config.lr_decay ** math.floor(epoch)
    return lambda epoch: start


def kl_weight(config: TrainConfig) -> objective.Schedule:
    """λ at a (fractional) epoch, counted from 0."""
    if config.lam_schedule == "warm-up":
        return objective.warm_up(config.lam, config.warm_up_epochs, config.warm_up_lam)
    if config.lam_schedule == "decay":
        return objective.decay(config.lam, config.lam_end, config.epochs)
    return objective.constant(config.lam)
