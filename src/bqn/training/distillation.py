"""Distillation: plain quantized networks learn to predict what the posterior that they come from predicts.

The analytic prediction averages over all networks of a posterior; a packed network is one of them, or five. Each starts
with weights of the posterior, drawn or the most probable ones, and learns, with straight-through gradients, to give the
analytic prediction of the same training examples. The posterior stays as it is: what makes one network better makes it
a worse description of all the others, so this is a step on the way to a packed file and not a part of training.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor

from bqn.beliefs import Belief
from bqn.data import Split
from bqn.heads import SoftmaxHead
from bqn.network import Network, QuantizedNetwork, evaluating
from bqn.nn import Conv1d, Conv2d, Draws, HiddenVariableLayer, Linear, drawn
from bqn.propagate import half
from bqn.training.config import TrainConfig
from bqn.training.distributed import require_alone
from bqn.training.errors import ConfigError, DivergedError
from bqn.training.loop import Trainer
from bqn.training.records import EpochRecord
from bqn.training.replicas import Together, Told
from bqn.training.run import Run
from bqn.training.surroundings import as_here, surroundings, takes_mixed_precision
from bqn.training.validation import validate

MODES = ("map", "mc")
LEARNING_RATE = 0.01
# So many networks learn side by side: each takes as much memory as a training run.
_AT_ONCE = 5


@dataclass(frozen=True, eq=False)
class Distillation:
    """Networks that have learned from a posterior.

    Attributes
    ----------
    networks : tuple of QuantizedNetwork, ready to be packed
    mode : "map" or "mc"
    seed : int
    epochs : int
        How many epochs each has learned.
    kept : tuple of int
        Of each network the epoch whose weights it has; 0 where none was better than none.
    before, after : tuple of float or None
        Its validation NLL before the first epoch and as it is now; None without validation examples.
    """

    networks: tuple[QuantizedNetwork, ...]
    mode: str
    seed: int
    epochs: int
    kept: tuple[int, ...]
    before: tuple[float | None, ...]
    after: tuple[float | None, ...]


def distill(
    run: Run,
    train: Split,
    validation: Split | None = None,
    *,
    mode: str = "map",
    samples: int = 5,
    seed: int = 0,
    epochs: int = 5,
    learning_rate: float = LEARNING_RATE,
    report: Told | None = None,
    tick: Callable[[], None] | None = None,
) -> Distillation:
    """Networks of a run, taught to predict what its analytic pass predicts.

    Labels of `train` must be such, but are not used. Augmentation, batch size and precision are those of the run, the
    learning rate falls to zero as a cosine. The run is left as it was. On a CPU deterministic for a seed.

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
    tick : function called between groups of steps, which may raise KeyboardInterrupt
    """
    require_alone("distillation")
    if mode not in MODES:
        raise ValueError(f"mode must be one of {', '.join(MODES)}, got {mode!r}")
    if samples < 1:
        raise ValueError(f"samples must be at least 1, got {samples}")
    require_posterior(run)
    device = next(run.net.parameters()).device
    settings = _settings(run, device, epochs, learning_rate)
    generator = torch.Generator(device).manual_seed(seed)
    count = samples if mode == "mc" else 1
    lessons: list[_Lesson] = []
    with surroundings(settings), evaluating(run.net):
        for first in range(0, count, _AT_ONCE):
            group = []
            for number in range(first, min(first + _AT_ONCE, count)):
                pupil = Pupil(run.net)
                if mode == "mc":
                    pupil.begin_as_drawn_(generator)
                config = replace(settings, seed=seed + number)
                group.append(_Lesson(Trainer(pupil, train, validation, config, device, run.preprocessing)))
            failures = Together([lesson.trainer for lesson in group], _from(first, report), tick).run()
            for number, failure in failures.items():
                where = f"{failure.where}, in the distillation of network {first + number + 1} of {count}"
                raise DivergedError(failure.epoch, failure.step, failure.term, where) from failure
            lessons += group
        return Distillation(
            networks=tuple(lesson.outcome() for lesson in lessons),
            mode=mode,
            seed=seed,
            epochs=epochs,
            kept=tuple(lesson.kept for lesson in lessons),
            before=tuple(lesson.before for lesson in lessons),
            after=tuple(lesson.after for lesson in lessons),
        )


def require_posterior(run: Run) -> None:
    """Raise unless there is something to learn from."""
    if run.config.method != "bqn":
        raise ConfigError(f"distillation needs a run with a posterior: method must be bqn, got {run.config.method}")


def _from(first: int, report: Told | None) -> Told | None:
    """Count networks from `first` on."""

    def tell(number: int, record: EpochRecord) -> None:
        assert report is not None
        report(first + number, record)

    return None if report is None else tell


class Pupil(Network):
    """One plain quantized network that is being trained, and the Network whose predictions it learns.

    Its weights are the most probable ones of posteriors of its own, which begin as those of the teacher: the surer the
    teacher is of a weight, the longer it takes to change. Its one mode is "map".
    """

    modes = ("map",)

    def __init__(self, teacher: Network) -> None:
        super().__init__(copy.deepcopy(teacher.body), copy.deepcopy(teacher.head))
        self.requires_grad_(True)
        self._teacher = (teacher,)  # in a tuple, so that it is no part of this network
        for layer in self.body.modules():
            if isinstance(layer, Linear | Conv1d | Conv2d):
                layer.centred_batches.zero_()  # what known weights make of the mean input is left to batch norm

    @torch.no_grad()
    def begin_as_drawn_(self, generator: torch.Generator) -> None:
        """Let drawn weights be the most probable ones, by exchanging the logits of two levels of each weight.

        Where two levels are exactly as probable as each other the lower one stays.
        """
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

    def _log_likelihoods(self, x: Tensor, y: Tensor, **options: str | float) -> Tensor:
        """Of labels as the teacher expects them, in the place of `y`."""
        (teacher,) = self._teacher
        with torch.no_grad():
            belief = half.raised(teacher.body(x), torch.float32)
            method = {"method": "coarse"} if isinstance(teacher.head, SoftmaxHead) else {}
            expected = teacher.head.predict(belief, **method)
        given = cast(Tensor, half.raised(self(x), torch.float32))
        return self.head.expected_log_likelihood(given, expected)  # type: ignore[arg-type]


class _Lesson:
    """What a pupil was, and what it has become."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self.before: float | None = None
        self._start: dict[str, Tensor] = {}
        if trainer.held_out is not None:
            trainer.settle()
            self.before = validate(trainer.net, *trainer.held_out, trainer.preprocessing).nll
            self._start = {name: tensor.clone() for name, tensor in trainer.net.state_dict().items()}

    def outcome(self) -> QuantizedNetwork:
        """The network with the weights that count."""
        if self.kept == 0:
            self.trainer.net.load_state_dict(self._start)
        return self.trainer.net.mode()

    @property
    def kept(self) -> int:
        """The epoch that counts; 0 for the start."""
        best = self.trainer.history().best
        if best is None or best.validation_nll is None:
            return self.trainer.config.epochs
        return best.epoch if best.validation_nll <= (math.inf if self.before is None else self.before) else 0

    @property
    def after(self) -> float | None:
        best = self.trainer.history().best
        return None if best is None else best.validation_nll if self.kept else self.before


def _settings(run: Run, device: torch.device, epochs: int, learning_rate: float) -> TrainConfig:
    """Those of the run, for as much as they concern a plain network."""
    config = run.config
    hides = any(isinstance(layer, HiddenVariableLayer) for layer in run.net.modules())
    return replace(
        as_here(config, str(device)),
        epochs=epochs,
        learning_rate=learning_rate,
        lr_schedule="cosine",
        lam=0.0,
        lam_schedule="constant",
        drawn_epochs=0,
        drawn_alone=0,
        label_smoothing=0.0,
        mode_share=0.0,
        best_by="nll",
        patience=None,
        checkpoint_every=None,
        checkpoint_activations=config.checkpoint_activations and not hides,  # they could not be drawn twice alike
        mixed_precision=config.mixed_precision and takes_mixed_precision(device),
    )
