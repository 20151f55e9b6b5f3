"""Training steps without waiting: recorded once as a CUDA graph and replayed, for one run or several side by side.

A step of a small network is a hundred kernels of a few microseconds each; launching them one by one takes the host
longer than the GPU needs. Recorded, they cost one launch. All that changes from step to step lies on the device: the
order of the examples, the position in it, the learning rate and λ. Several runs (replicas) become parallel branches of
one graph, so that they share the GPU; each branch is exactly the step that the run would make alone.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from bqn.training import compiler
from bqn.training.guard import health

if TYPE_CHECKING:
    from bqn.training.loop import Trainer
    from bqn.training.objectives import StepKind

_WARM_UP = 3  # steps before recording: libraries set themselves up and choose their algorithms


def can_record(trainer: Trainer) -> bool:
    """Whether the steps of this run can be recorded: on a GPU, by an optimizer that takes its rate from the device.

    Steps of several processes are not: within them the processes wait for each other.
    """
    alone = not trainer.processes.several
    return alone and trainer.device.type == "cuda" and type(trainer.state.optimizer) is torch.optim.Adam


class Schedule:
    """What the steps of an epoch need from outside, on the device.

    Attributes
    ----------
    position : int64 Tensor `(1,)`
        The step that comes next; every step counts it on.
    healthy : float32 Tensor, a scalar that is finite as long as every loss and gradient was
    """

    def __init__(self, trainer: Trainer) -> None:
        device, steps = trainer.device, trainer.steps
        self.order = torch.zeros(len(trainer.x), dtype=torch.int64, device=device)
        sizes = [len(part) for part in torch.empty(len(trainer.x)).tensor_split(steps)]
        self.sizes = sizes
        self.starts = torch.tensor([0, *sizes[:-1]], device=device).cumsum(0)
        self.within = torch.arange(max(sizes), device=device)
        self.rates, self.lams = (torch.zeros(steps, device=device) for _ in range(2))
        self.rate = torch.zeros((), device=device)
        self.position = torch.zeros(1, dtype=torch.int64, device=device)
        self.healthy = torch.zeros((), device=device)

    def begin(self, trainer: Trainer, order: Tensor) -> None:
        """Lay out an epoch."""
        times = [trainer.state.epoch + step / trainer.steps for step in range(trainer.steps)]
        self.order.copy_(order)
        self.rates.copy_(torch.tensor([trainer.learning_rate(time) for time in times]))
        self.lams.copy_(torch.tensor([trainer.lam(time) for time in times]))

    def look_up(self, table: Tensor) -> Tensor:
        return table.index_select(0, self.position).squeeze(0)

    def batch(self, size: int) -> Tensor:
        return self.order.index_select(0, self.look_up(self.starts) + self.within[:size])


class Recording:
    """The steps of one or more runs of the same length, recorded together.

    Parameters
    ----------
    trainers : Trainers on one CUDA device with equally many steps an epoch and equal batch sizes
    """

    def __init__(self, trainers: Sequence[Trainer]) -> None:
        self.trainers = tuple(trainers)
        self.schedules = [Schedule(trainer) for trainer in self.trainers]
        self.graphs: dict[tuple[int, tuple[StepKind, ...]], torch.cuda.CUDAGraph] = {}
        self.streams = [torch.cuda.Stream(trainer.device) for trainer in self.trainers]

    def begin_epoch(self, orders: Sequence[Tensor]) -> None:
        """Take over the order of the examples of each run, as its state has drawn it."""
        for trainer, schedule, order in zip(self.trainers, self.schedules, orders, strict=True):
            schedule.begin(trainer, order)

    def advance(self, start: int, count: int) -> list[Tensor]:
        """Make `count` steps from step `start` on; for each run a scalar that is finite if all went well."""
        for schedule in self.schedules:
            schedule.position.fill_(start)
            schedule.healthy.zero_()
        for step in range(start, start + count):
            self._graph(self.schedules[0].sizes[step]).replay()
            for trainer in self.trainers:
                trainer.state.position += 1
        return [schedule.healthy for schedule in self.schedules]

    def _graph(self, size: int) -> torch.cuda.CUDAGraph:
        kind = size, tuple(trainer.step_kind for trainer in self.trainers)
        if kind not in self.graphs:
            self.graphs[kind] = self._record(size)
        return self.graphs[kind]

    def _record(self, size: int) -> torch.cuda.CUDAGraph:
        positions = [schedule.position.clone() for schedule in self.schedules]
        health_so_far = [schedule.healthy.clone() for schedule in self.schedules]
        before = [_Snapshot(trainer) for trainer in self.trainers]
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            check_compiler(self.trainers, self.schedules, size)
            for _ in range(_WARM_UP):
                for trainer, schedule, kept in zip(self.trainers, self.schedules, positions, strict=True):
                    schedule.position.copy_(kept)
                    _step(trainer, schedule, size)
        torch.cuda.current_stream().wait_stream(side)
        for index, schedule in enumerate(self.schedules):
            before[index].put_back()
            schedule.position.copy_(positions[index])
            schedule.healthy.copy_(health_so_far[index])
        graph = torch.cuda.CUDAGraph()
        for trainer in self.trainers:
            graph.register_generator_state(trainer.state.augmentation)
        pool = next(iter(self.graphs.values())).pool() if self.graphs else None
        with nothing_collected(), torch.cuda.graph(graph, pool=pool):
            self._branches(size)
        return graph

    def _branches(self, size: int) -> None:
        main = torch.cuda.current_stream()
        for trainer, schedule, stream in zip(self.trainers, self.schedules, self.streams, strict=True):
            stream.wait_stream(main)
            with torch.cuda.stream(stream):
                _step(trainer, schedule, size)
        for stream in self.streams:
            main.wait_stream(stream)


@contextmanager
def nothing_collected() -> Iterator[None]:
    """Keep the garbage collector away: a graph of an earlier run that it frees while another is recorded ends that."""
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _step(trainer: Trainer, schedule: Schedule, size: int) -> None:
    """What `Trainer._step` does, without a number from the host."""
    optimizer = trainer.state.optimizer
    schedule.rate.copy_(schedule.look_up(schedule.rates))
    for group in optimizer.param_groups:
        group["lr"], group["capturable"] = schedule.rate, True
    terms = trainer.backward(schedule.batch(size), schedule.look_up(schedule.lams))
    schedule.healthy += health(terms.value, trainer.net.parameters())
    optimizer.step()
    trainer.state.term_sums += torch.stack(terms).detach()
    schedule.position += 1


def check_compiler(trainers: Sequence[Trainer], schedules: Sequence[Schedule], size: int) -> None:
    """Do without the compiler where its gradients of the step that comes next are wrong, see `compiler.check`."""
    own = dict(zip(trainers, schedules, strict=True))
    compiler.check(trainers, lambda trainer: _gradients(trainer, own[trainer], size))


def _gradients(trainer: Trainer, schedule: Schedule, size: int) -> dict[str, Tensor]:
    """The gradients of the step that comes next, by parameter; the state of the generators stays as it is."""
    generators = trainer.state.generator_states()
    trainer.backward(schedule.batch(size), schedule.look_up(schedule.lams))
    trainer.state.set_generator_states(generators)
    return {
        name: torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        for name, parameter in trainer.net.named_parameters()
    }


class _Snapshot:
    """The state of a run, to be put back in place: a recorded graph knows tensors by their address."""

    def __init__(self, trainer: Trainer) -> None:
        self.state = trainer.state
        self.weights = {name: tensor.clone() for name, tensor in trainer.net.state_dict().items()}
        self.moments = {
            parameter: {key: tensor.clone() for key, tensor in held.items()}
            for parameter, held in self.state.optimizer.state.items()
        }
        self.sums = self.state.term_sums.clone()
        self.generators = self.state.generator_states()

    def put_back(self) -> None:
        self.state.net.load_state_dict(self.weights)
        for parameter, held in self.state.optimizer.state.items():
            kept = self.moments.get(parameter)
            for key, tensor in held.items():  # what the warm-up steps made was not there before: zero
                tensor.zero_() if kept is None else tensor.copy_(kept[key])
        self.state.term_sums.copy_(self.sums)
        self.state.set_generator_states(self.generators)
