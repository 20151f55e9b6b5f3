"""Distillation: plain quantized networks learn to predict what the posterior that they come from predicts.

The analytic prediction averages over all networks of a posterior; a packed network is one of them, or five. Each starts
with weights of the posterior, drawn or the most probable ones, and learns, with straight-through gradients, to give the
analytic prediction of the same training images. The posterior stays as it is: what makes one network better makes it a
worse description of all the others, so this is a step on the way to a packed file and not a part of training.
"""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor

from bqn.beliefs import Belief
from bqn.data import Split
from bqn.heads import SoftmaxHead
from bqn.network import Network, QuantizedNetwork
from bqn.nn import Conv1d, Conv2d, Draws, Linear, drawn
from bqn.propagate import half
from bqn.training.config import TrainConfig
from bqn.training.errors import ConfigError
from bqn.training.loop import Trainer
from bqn.training.replicas import Together, Told
from bqn.training.run import Run
from bqn.training.surroundings import as_here, surroundings
from bqn.training.validation import validate

MODES = ("map", "mc")
LEARNING_RATE = 0.01


def distill(
    run: Run,
    train: Split,
    validation: Split | None = None,
    *,
    mode: str = "map",
    samples: int = 5,
    seed: int = 0,
    epochs: int = 10,
    learning_rate: float = LEARNING_RATE,
    report: Told | None = None,
) -> list[QuantizedNetwork]:
    """Networks of a run, taught to predict what its analytic pass predicts; labels of `train` are not used.

    Augmentation, batch size and precision are those of the run, the learning rate falls to zero as a cosine. The run is
    left as it was. Deterministic for a seed.

    Parameters
    ----------
    run : Run
        Of method bqn; on the device where the networks are to be trained.
    train : Split
        Examples as stored, usually those that the run was trained on.
    validation : Split or None
        Of each network the epoch with the lowest NLL on these counts, the start too, with batch norm statistics of its
        own; without them the last epoch.
    mode : "map" or "mc"
        The most probable network, or `samples` drawn ones: those that `bqn.evaluation.evaluate` draws for the seed.
    report : function of the number of a network and an EpochRecord, called after each epoch of each
    """
    if mode not in MODES:
        raise ValueError(f"mode must be one of {', '.join(MODES)}, got {mode!r}")
    if samples < 1:
        raise ValueError(f"samples must be at least 1, got {samples}")
    if run.config.method != "bqn":
        raise ConfigError(f"method must be bqn to have a posterior, got {run.config.method}")
    device = next(run.net.parameters()).device
    settings = _settings(run.config, device, epochs, learning_rate)
    generator = torch.Generator(device).manual_seed(seed)
    with surroundings(settings):
        pupils = [Pupil(run.net) for _ in range(samples if mode == "mc" else 1)]
        if mode == "mc":
            for pupil in pupils:
                pupil.begin_as_drawn_(generator)
        trainers = [
            Trainer(pupil, train, validation, replace(settings, seed=seed + number), device, run.preprocessing)
            for number, pupil in enumerate(pupils)
        ]
        starts = [_Start(trainer) for trainer in trainers]
        for failure in Together(trainers, report).run().values():
            raise failure
        for start in starts:
            start.return_if_better()
    return [pupil.mode() for pupil in pupils]


class Pupil(Network):
    """One plain quantized network that is being trained, and the Network whose predictions it learns.

    Its weights are the most probable ones of posteriors of its own, which begin as those of the teacher: the surer the
    teacher is of a weight, the longer it takes to change. Its one mode is "map".
    """

    modes = ("map",)
    has_beliefs = False

    def __init__(self, teacher: Network) -> None:
        super().__init__(copy.deepcopy(teacher.body), copy.deepcopy(teacher.head))
        self._teacher = (teacher,)  # in a tuple, so that it is no part of this network
        for layer in self.body.modules():
            if isinstance(layer, Linear | Conv1d | Conv2d):
                layer.centred_batches.zero_()  # what known weights make of the mean input is left to batch norm

    @torch.no_grad()
    def begin_as_drawn_(self, generator: torch.Generator) -> None:
        """Let drawn weights be the most probable ones, by exchanging the logits of two levels of each weight."""
        for _, posterior in self.posteriors():
            values = posterior.sample(generator)
            drawn_level = torch.bucketize(values, posterior.levels).unsqueeze(-1)
            logits = posterior.logits
            top, top_level = logits.max(-1, keepdim=True)
            exchanged = logits.scatter(-1, top_level, logits.gather(-1, drawn_level)).scatter(-1, drawn_level, top)
            logits.copy_(exchanged)

    def forward(self, x: Tensor) -> Belief:
        weights = tuple(posterior.mode() for _, posterior in self.posteriors())
        with drawn(self.body, Draws(weights)):
            return super().forward(x)

    def _log_likelihoods(self, x: Tensor, y: Tensor, **options: str) -> Tensor:
        """Of labels as the teacher expects them, in the place of `y`."""
        (teacher,) = self._teacher
        with torch.no_grad():
            belief = half.raised(teacher.body(x), torch.float32)
            method = {"method": "coarse"} if isinstance(teacher.head, SoftmaxHead) else {}
            expected = teacher.head.predict(belief, **method)
        given = cast(Tensor, half.raised(self(x), torch.float32))
        return self.head.expected_log_likelihood(given, expected)  # type: ignore[arg-type]


class _Start:
    """A pupil before its first step."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        trainer.settle()
        self.weights = {name: tensor.clone() for name, tensor in trainer.net.state_dict().items()}
        held_out = trainer.held_out
        self.nll = math.inf if held_out is None else validate(trainer.net, *held_out, trainer.preprocessing).nll

    def return_if_better(self) -> None:
        """Undo what has been learned where no epoch was better than none."""
        best = self.trainer.history().best
        if best is not None and best.validation_nll is not None and best.validation_nll > self.nll:
            self.trainer.net.load_state_dict(self.weights)


def _settings(config: TrainConfig, device: torch.device, epochs: int, learning_rate: float) -> TrainConfig:
    """Those of the run, for as much as they concern a plain network."""
    return replace(
        as_here(config, str(device)),
        epochs=epochs,
        learning_rate=learning_rate,
        lr_schedule="cosine",
        lam=0.0,
        lam_schedule="constant",
        drawn_epochs=0,
        drawn_alone=0,
        mode_share=0.0,
        best_by="nll",
        patience=None,
        mixed_precision=config.mixed_precision and device.type == "cuda",
    )
