"""The training loop: Adam on the ELBO, in plain torch."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import cached_property, partial
from pathlib import Path

import torch
from torch import Tensor

from bqn.data import Split, augment, to_input
from bqn.network import Network
from bqn.nn import Draws, recalibrate
from bqn.objective import ElboTerms
from bqn.predictions import RECALIBRATION_INPUTS
from bqn.training.checkpoint import Moment, digest
from bqn.training.config import TrainConfig
from bqn.training.distributed import ALONE, Processes, join
from bqn.training.errors import CheckpointError, DivergedError
from bqn.training.folder import RunFolder
from bqn.training.graph import Recording, can_record
from bqn.training.guard import Cause, find_cause, health
from bqn.training.objectives import Objectives, StepKind, step_kind
from bqn.training.parts import backward_in_parts, own_parts, recomputed, require_drawable, require_parts
from bqn.training.prepare import count_outputs, fingerprint, prepare, require_fitting
from bqn.training.preprocessing import Preprocessing
from bqn.training.records import EpochRecord, History
from bqn.training.schedules import kl_weight, learning_rate
from bqn.training.state import TrainingState
from bqn.training.surroundings import surroundings
from bqn.training.validation import BATCH, Scores, validate_once

Report = Callable[[EpochRecord], None]
Tick = Callable[[int, int], None]

# Steps between looks at the health of a run on a GPU: looking makes the GPU wait. On a CPU every step is looked at.
LOOK_EVERY = {"cpu": 1, "cuda": 100}
# Seconds between two saves at the end of an epoch: on a GPU a small network ends one faster than a disk takes it.
SAVE_EVERY = {"cpu": 0.0, "cuda": 10.0}


def fit(
    net: Network,
    train: Split,
    validation: Split | None,
    config: TrainConfig,
    *,
    out: str | Path | None = None,
    report: Report | None = None,
    tick: Tick | None = None,
    preprocessing: Preprocessing | None = None,
) -> History:
    """Train `net` in place. Afterwards it holds the weights of the best epoch, where there is one, by validation NLL or
    as `config.best_by` says; of the last `config.drawn_epochs`, if there are such.

    Parameters
    ----------
    net : Network
    train, validation : Split
        Examples as stored: uint8 images or features in their own units. The best epoch is chosen on `validation`;
        without it, the last one counts.
    config : TrainConfig
        Its settings for the loop; those for data and model describe what was handed in.
    out : folder or None
        Where the run is kept, so that `resume` can continue it and `load_run` can read it.
    report : function of an EpochRecord, called after each epoch
    tick : function of the steps done and the steps in all, called after each step, on a GPU after some
    preprocessing : Preprocessing or None
        Learned from `train` by default.

    Raises
    ------
    DivergedError
        The loss, a gradient or the validation NLL was not finite. `out` then holds the state before that step.
    """
    with surroundings(config) as device:
        trainer = Trainer(net, train, validation, config, device, preprocessing, join(device))
        trainer.require_same()
        if out is not None:
            trainer.keep_in(RunFolder(out))
        return trainer.run(report, tick)


class Trainer:
    """A run under way: the state, the data on the device, and the folder that keeps it."""

    def __init__(
        self,
        net: Network,
        train: Split,
        validation: Split | None,
        config: TrainConfig,
        device: torch.device,
        preprocessing: Preprocessing | None = None,
        processes: Processes = ALONE,
    ) -> None:
        require_fitting(train, validation, config)
        self.processes = processes
        self.config, self.net, self.device = config, net.to(device), device
        self.preprocessing = preprocessing or Preprocessing.of(train, count_outputs(net, train))
        self.x, self.y = prepare(net, train, self.preprocessing, device, "train")
        self.held_out = None
        if validation is not None:
            self.held_out = prepare(net, validation, self.preprocessing, device, "validation")
        self.fingerprint = fingerprint(train, validation)
        self.steps = -(-len(train) // config.batch_size)
        require_parts(len(train), self.steps, config, processes)
        require_drawable(net, config, processes)
        self.in_one = config.accumulate == 1 and not processes.several
        self._checkpoint_every = config.checkpoint_every or self.steps
        self.learning_rate, self.lam = learning_rate(config), kl_weight(config)
        optimizer = net.make_optimizer(config.learning_rate)
        self.state = TrainingState(net, optimizer, config.seed, device, config.best_by, config.best_after)
        self.folder: RunFolder | None = None
        self.recording: Recording | None = None
        self._recorded_epoch: int | None = None
        self.compiles = config.compile
        self.objectives = Objectives(net, config, len(train))
        self._saved_at = time.monotonic()
        self._best_written: int | None = None

    def require_same(self) -> None:
        """Raise, in all processes, unless all begin with the same; for all of them, before a folder is begun."""
        if self.processes.several:
            self.processes.require_same(digest(self.moment(), self.config.to_json()), self.device)

    def keep_in(self, folder: RunFolder) -> None:
        """Begin a run folder."""
        if not self.processes.first:
            return
        folder.begin(self.config, self.preprocessing, self.moment())
        self.folder = folder

    def continue_from(self, folder: RunFolder) -> None:
        """Return to where the run in `folder` was last saved."""
        moment, source = folder.read_checkpoint(), str(folder.checkpoint)
        if moment.facts.get("data") != self.fingerprint:
            raise CheckpointError(f"{source}: the run was trained on other data than these")
        self.state.restore(moment, source)
        if self.state.position > self.steps or self.state.epoch > self.config.epochs:
            raise CheckpointError(f"{source} is further than the {self.config.epochs} epochs of its config")
        if not self.processes.first:
            return
        self.folder = folder
        folder.clean()
        self._write_derived_files(folder)

    def run(self, report: Report | None, tick: Tick | None) -> History:
        """Train until the last epoch or until patience ends."""
        if not self.processes.first:
            report = tick = None
        with self.at_work():
            while not self.finished():
                record = self.epoch(tick)
                if report is not None:
                    with self.saved_if_interrupted():
                        report(record)
        return self.history()

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """The network in training mode inside the block; afterwards, if all went well, with its best weights."""
        with recomputed(self.net) if self.config.checkpoint_activations else nullcontext():
            checked, self.net.validate = self.net.validate, False  # the data were checked once, when they were prepared
            self.net.train()
            try:
                yield
            finally:
                self.net.validate = checked
        if self.state.best is not None:
            self.net.load_state_dict(self.state.best)
        self.net.eval()

    def history(self) -> History:
        records = tuple(self.state.records)
        return History(records, self.state.best_epoch(), self.finished() and len(records) < self.config.epochs)

    def finished(self) -> bool:
        """Whether the last epoch is done or patience has ended."""
        best, patience = self.state.best_epoch(), self.config.patience
        out_of_patience = patience is not None and best is not None and self.state.epoch - best >= patience
        return out_of_patience or self.state.epoch >= self.config.epochs

    def epoch(self, tick: Tick | None = None) -> EpochRecord:
        """Train to the end of the epoch, from wherever it was left."""
        state = self.state
        # Batches of nearly equal size: a last batch of one example would give batch norm no statistics.
        batches = state.draw_order(len(self.x)).to(self.device).tensor_split(self.steps)
        started = time.perf_counter() - state.seconds
        while state.position < self.steps:
            self._advance(batches)
            state.seconds = time.perf_counter() - started
            if tick is not None:
                with self.saved_if_interrupted():
                    tick(self._steps_done(), self.config.epochs * self.steps)
            if self._steps_since_checkpoint() == 0 and state.position < self.steps and self.folder is not None:
                self.folder.write_checkpoint(self.moment())
        return self.end_epoch(started)

    def end_epoch(self, started: float) -> EpochRecord:
        """Put down what the epoch gave, after its last step."""
        record = self._score(started)
        self.state.end_epoch(record)
        if self.finished() or time.monotonic() >= self._saved_at + SAVE_EVERY[self.device.type]:
            self.save()
        return record

    @contextmanager
    def saved_if_interrupted(self) -> Iterator[None]:
        """The block, between two steps, lets the caller know; if that interrupts the run here, no step is lost."""
        try:
            yield
        except KeyboardInterrupt:
            self.save()
            raise

    def _steps_done(self) -> int:
        return self.state.epoch * self.steps + self.state.position

    def _steps_since_checkpoint(self) -> int:
        return self._steps_done() % self._checkpoint_every

    def _advance(self, batches: tuple[Tensor, ...]) -> None:
        """Make a step, or on a GPU as many as may pass before the next look at their health."""
        start = self.state.position
        until_checkpoint = self._checkpoint_every - self._steps_since_checkpoint()
        count = min(LOOK_EVERY[self.device.type], self.steps - start, until_checkpoint)
        ahead = batches[start : start + count]
        if count > 1:
            before = copied(self.moment())
            if bool(torch.isfinite(self._steps(start, ahead)).all()):
                return
            self.recording = None  # it knows tensors that are replaced now
            self.state.restore(before, "the state a few steps ago")
        for batch in ahead:
            self._careful_step(batch)

    def _steps(self, start: int, ahead: tuple[Tensor, ...]) -> Tensor:
        """Several steps without a look in between; a number that is finite if all went well."""
        if not can_record(self):
            return torch.stack([self._step(batch) for batch in ahead])
        if self.recording is None:
            self.recording = Recording([self])
            self._recorded_epoch = None
        if self._recorded_epoch != self.state.epoch:
            self.recording.begin_epoch([self.state.draw_order(len(self.x))])
            self._recorded_epoch = self.state.epoch
        return self.recording.advance(start, len(ahead))[0]

    def _step(self, batch: Tensor) -> Tensor:
        terms, healthy = self._gradients(batch)
        self._update(terms)
        return healthy

    def _careful_step(self, batch: Tensor) -> None:
        """A step that is undone if a number in it is not finite."""
        buffers = [buffer.clone() for buffer in self.net.buffers()]
        generators = self.state.generator_states()

        def undo() -> None:
            for buffer, kept in zip(self.net.buffers(), buffers, strict=True):
                buffer.copy_(kept)
            self.state.set_generator_states(generators)

        def forward(part: int) -> ElboTerms:
            undo()
            if self.in_one:
                return self.terms(batch)
            draws = self.draw()
            return self.objective(*own_parts(self, batch)[part][:2], draws=draws)

        terms, healthy = self._gradients(batch)
        if not bool(torch.isfinite(healthy)):
            searches = (find_cause(self.net, partial(forward, part)) for part in range(self.config.accumulate))
            cause = next((found for found in searches if found), Cause("gradient", "though no term of it shows why"))
            undo()
            raise self._diverged(self.state.position + 1, cause)
        self._update(terms)

    def _gradients(self, batch: Tensor) -> tuple[ElboTerms, Tensor]:
        terms = self.backward(batch)
        return terms, health(terms.value, self.net.parameters())

    def backward(self, batch: Tensor, lam: Tensor | None = None) -> ElboTerms:
        """Give the parameters the gradients of minus the objective on a batch; arguments and result as for `terms`."""
        self.state.optimizer.zero_grad()
        if not self.in_one:
            return backward_in_parts(self, batch, lam)
        terms = self.terms(batch, lam)
        (-terms.value).backward()
        return terms

    def _update(self, terms: ElboTerms) -> None:
        for group in self.state.optimizer.param_groups:
            group["lr"] = self.learning_rate(self._time())
        self.state.optimizer.step()
        self.state.term_sums += torch.stack(terms).detach()
        self.state.position += 1

    def _time(self) -> float:
        """Epochs gone by, the current one in part."""
        return self.state.epoch + self.state.position / self.steps

    def terms(self, batch: Tensor, lam: Tensor | None = None) -> ElboTerms:
        """The objective on a batch, with the λ of the present moment; or, to be recorded, with a λ on the device."""
        draws = self.draw()
        return self.objective(*self.examples(batch), lam, draws)

    def draw(self) -> Draws | None:
        """The network that a step draws from the posterior, one for all parts of its batch; None if it draws none."""
        draws = self.step_kind != "analytic"
        return self.net.draw(self.state.augmentation, self.config.mode_share) if draws else None

    def examples(self, batch: Tensor) -> tuple[Tensor, Tensor]:
        """The examples of a batch `(B,)`, augmented, and their targets."""
        rows = self.net.choose_examples(batch, len(self.x))
        x, y = self.x[rows], self.y[rows]
        if asked := self.config.augmentation:
            images = augment(x.flatten(0, rows.dim() - 1), generator=self.state.augmentation, **asked)
            x = images.reshape(x.shape)
        return x, y

    @property
    def step_kind(self) -> StepKind:
        """What the step that comes next trains."""
        return step_kind(self.config, self.state.epoch, self._steps_done())

    def objective(self, x: Tensor, y: Tensor, lam: Tensor | None = None, draws: Draws | None = None) -> ElboTerms:
        """The objective on some examples as stored, with λ as in `terms` and what `draw` gave."""
        weight = self.lam(self._time()) if lam is None else lam
        return self.objectives(self.step_kind, x, y, weight, draws, self.compiles and lam is not None)

    def _score(self, started: float) -> EpochRecord:
        state, config = self.state, self.config
        elbo, log_likelihood, kl = (state.term_sums / self.steps).tolist()
        scores: Scores | None = None
        if self.held_out is not None or state.epoch + 1 == config.epochs:
            self.settle()
        if self.held_out is not None:
            scores = validate_once(self.net, *self.held_out, self.preprocessing, self.processes)
            if not math.isfinite(scores.nll):
                raise self._diverged(self.steps, Cause("validation NLL", "though all training steps were"))
        seconds = time.perf_counter() - started
        spent = sum(record.seconds for record in state.records) + seconds
        return EpochRecord(
            epoch=state.epoch + 1,
            elbo=elbo,
            log_likelihood=log_likelihood,
            kl=kl,
            train_nll=self.preprocessing.log_scale - log_likelihood,
            validation_nll=scores and scores.nll,
            validation_error=scores and scores.error,
            validation_rmse=scores and scores.rmse,
            learning_rate=self.learning_rate(state.epoch),
            lam=self.lam(state.epoch),
            seconds=seconds,
            eta=spent / (state.epoch + 1) * (config.epochs - state.epoch - 1),
        )

    def settle(self) -> None:
        """Bring the running statistics of batch norm up to the weights, behind which they lag while these move.

        On examples as stored, always the same ones, so that a resumed run and every process find the same.
        """
        if len(self.x) < 2:
            return
        generators = self.state.generator_states()
        recalibrate(self.net, to_input(self.x[self._settling]), BATCH)
        self.state.set_generator_states(generators)

    @cached_property
    def _settling(self) -> Tensor:
        """Which training examples the statistics are taken from."""
        generator = torch.Generator().manual_seed(self.config.seed)
        return torch.randperm(len(self.x), generator=generator)[:RECALIBRATION_INPUTS].to(self.device)

    def _diverged(self, step: int, cause: Cause) -> DivergedError:
        saved = ""
        if self.folder is not None and all(bool(torch.isfinite(p).all()) for p in self.net.parameters()):
            self.save()
            saved = f"; the state before it is saved in {self.folder.path}"
        elif self.folder is not None:  # the step before broke the weights: what was saved earlier is better
            saved = f"; the last good checkpoint is in {self.folder.path}"
        return DivergedError(self.state.epoch + 1, step, cause.term, cause.where, saved)

    def moment(self) -> Moment:
        moment = self.state.capture()
        moment.facts["data"] = self.fingerprint
        return moment

    def save(self) -> None:
        """Write the run as it is now, between two steps, to its folder: the checkpoint, then what follows from it."""
        self._saved_at = time.monotonic()
        if self.folder is not None:
            self.folder.write_checkpoint(self.moment())
            self._write_derived_files(self.folder)

    def _write_derived_files(self, folder: RunFolder) -> None:
        folder.write_history(self.history())
        best = self.state.best_epoch()
        if self.state.records and (best is None or best != self._best_written):
            folder.write_best(self.net, self.state.best)
            self._best_written = best


def copied(moment: Moment) -> Moment:
    """A moment that stays what it is while the run goes on."""
    return Moment({name: tensor.clone() for name, tensor in moment.tensors.items()}, moment.facts)
