"""Several runs side by side: seeds, weights λ, learning rates or whatever else their configs differ in.

On a GPU the steps of all runs are parallel branches of one CUDA graph (`graph.Recording`): small networks share a
card that one of them would leave idle. Everywhere else the runs take turns, an epoch each. Every run keeps its own
optimizer, schedules, early stop and folder, and ends as it would have ended alone; on a GPU but for networks that draw
by torch's own generator, which is one for all there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import fields, replace
from pathlib import Path

import torch

from bqn.data import Dataset
from bqn.training.config import TrainConfig
from bqn.training.distributed import require_alone
from bqn.training.errors import ConfigError, DivergedError
from bqn.training.folder import RunFolder
from bqn.training.graph import Recording, can_record
from bqn.training.loop import LOOK_EVERY, Trainer, copied
from bqn.training.models import build_model
from bqn.training.records import EpochRecord
from bqn.training.run import Run, data_parts
from bqn.training.surroundings import surroundings

_MOST_HELD = 100  # folders locked at a time: each takes a file descriptor, and there may be as few as 256
Told = Callable[[int, EpochRecord], None]


def train_together(
    configs: Sequence[TrainConfig],
    dataset: Dataset,
    *,
    folders: Sequence[str | Path] | None = None,
    report: Told | None = None,
    tick: Callable[[], None] | None = None,
) -> list[Run | DivergedError]:
    """Carry out several runs on the same data at once.

    A folder that holds a run with the same config already is continued; with another config it is refused.

    Parameters
    ----------
    configs : TrainConfigs on one device
    dataset : Dataset
    folders : one folder a run, or None to keep nothing
    report : function of the number of a run and an EpochRecord, called after each epoch of each run
    tick : function called between groups of steps, which may raise KeyboardInterrupt

    Returns
    -------
    list, one entry a config: its Run, or the error with which it alone failed
    """
    require_alone("training several networks side by side")
    if not configs:
        raise ConfigError("configs must hold at least one config")
    if len({(config.device, config.threads) for config in configs}) > 1:
        raise ConfigError("device and threads must be the same for runs that are trained together")
    with surroundings(configs[0]) as device:
        trainers = [_trainer(config, dataset, device) for config in configs]
        with ExitStack() as held:
            pairs = zip(trainers, map(RunFolder, folders or ()), strict=folders is not None)
            for number, (trainer, folder) in enumerate(pairs):
                if number < _MOST_HELD:
                    held.enter_context(folder.held())
                _keep_or_continue(trainer, folder)
            failures = Together(trainers, report, tick).run()
    return [
        failures.get(index) or Run(trainer.net, trainer.config, trainer.history(), trainer.preprocessing)
        for index, trainer in enumerate(trainers)
    ]


def seeds_of(config: TrainConfig, replicas: int) -> list[TrainConfig]:
    """The config with `replicas` seeds, from its own on."""
    if replicas < 1:
        raise ConfigError(f"replicas must be at least 1, got {replicas}")
    return [replace(config, seed=config.seed + number) for number in range(replicas)]


def _trainer(config: TrainConfig, dataset: Dataset, device: torch.device) -> Trainer:
    training, validation, preprocessing = data_parts(config, dataset)
    net = build_model(config, preprocessing.input_shape, preprocessing.outputs)
    trainer = Trainer(net, training, validation, config, device, preprocessing)
    if device.type != "cuda":  # there all steps are one program, which draws by one generator
        trainer.state.put_aside()
    return trainer


def _keep_or_continue(trainer: Trainer, folder: RunFolder) -> None:
    if not folder.config.exists():
        trainer.keep_in(folder)
        return
    there = folder.read_config()
    for field in fields(TrainConfig):
        old, new = getattr(there, field.name), getattr(trainer.config, field.name)
        if old != new:
            raise ConfigError(f"{folder.path} holds a run with another config: {field.name} is {old!r}, got {new!r}")
    trainer.continue_from(folder)


class Together:
    """Runs under way side by side; `report` and `tick` as for `train_together`."""

    def __init__(
        self, trainers: Sequence[Trainer], report: Told | None = None, tick: Callable[[], None] | None = None
    ) -> None:
        self.trainers, self.report, self.tick = trainers, report, tick
        self.failures: dict[int, DivergedError] = {}
        self.recording: Recording | None = None

    def run(self) -> dict[int, DivergedError]:
        """Train all to their ends; the errors of those that failed, by their numbers."""
        with ExitStack() as stack:
            for trainer in self.trainers:
                stack.enter_context(trainer.at_work())
            while active := self._next():
                self._epoch(active)
        return self.failures

    def _next(self) -> list[int]:
        """The runs whose turn it is: those that are furthest behind."""
        going = [
            index
            for index, trainer in enumerate(self.trainers)
            if index not in self.failures and not trainer.finished()
        ]
        behind = min((self.trainers[index].state.epoch for index in going), default=0)
        return [index for index in going if self.trainers[index].state.epoch == behind]

    def _epoch(self, active: list[int]) -> None:
        trainers = [self.trainers[index] for index in active]
        together = len(active) > 1 and _alike(trainers) and self._steps_together(trainers)
        for index, trainer in zip(active, trainers, strict=True):
            try:
                with trainer.state.turn():
                    record = (
                        trainer.end_epoch(self.started) if together else trainer.epoch(lambda done, total: self._tick())
                    )
            except DivergedError as error:
                self.failures[index] = error
                continue
            if self.report is not None:
                with self._saved_if_interrupted():
                    self.report(index, record)

    def _tick(self) -> None:
        if self.tick is not None:
            with self._saved_if_interrupted():
                self.tick()

    @contextmanager
    def _saved_if_interrupted(self) -> Iterator[None]:
        """As `Trainer.saved_if_interrupted`, for all runs: on a GPU not every epoch is saved as it ends."""
        with ExitStack() as stack:
            for index, trainer in enumerate(self.trainers):
                if index not in self.failures:  # one that failed has been saved if it was worth it
                    stack.enter_context(trainer.saved_if_interrupted())
            yield

    def _steps_together(self, trainers: list[Trainer]) -> bool:
        """All steps of an epoch; if any run fails in it, all return to the last look, and false is returned."""
        self.started = time.perf_counter()
        if self.recording is None or list(self.recording.trainers) != trainers:
            self.recording = Recording(trainers)
        self.recording.begin_epoch([trainer.state.draw_order(len(trainer.x)) for trainer in trainers])
        steps, every = trainers[0].steps, LOOK_EVERY["cuda"]
        for start in range(0, steps, every):
            before = [copied(trainer.moment()) for trainer in trainers]
            healthy = self.recording.advance(start, min(every, steps - start))
            if not bool(torch.isfinite(torch.stack(healthy)).all()):
                self.recording = None  # it knows tensors that are replaced now
                for trainer, moment in zip(trainers, before, strict=True):
                    trainer.state.restore(moment, "the state a few steps ago")
                return False
            for trainer in trainers:
                trainer.state.seconds = time.perf_counter() - self.started
            self._tick()
        return True


def _alike(trainers: Sequence[Trainer]) -> bool:
    """Whether the steps of these runs can be recorded as one program."""
    first = trainers[0]
    return all(
        can_record(trainer)
        and trainer.steps == first.steps
        and len(trainer.x) == len(first.x)
        and trainer.state.position == 0
        and trainer.config.checkpoint_every is None
        for trainer in trainers
    )
