"""Several processes that train one network together, each on its part of every batch: started by torchrun.

Every process holds the whole network, its optimizer and all data, and draws the same order and the same augmentation;
so whatever one process would do, all do, but each goes forward and backward with its own part of a batch only. Two sums
join them: statistics of the batch (`bqn.propagate.batch`) and gradients. The sums of gradients are made by hand, not by
`DistributedDataParallel`: parts may differ in size, the objective is no `forward`, and what batch norm exchanges within
the backward pass would have to be kept in order with what the wrapper does. The first process alone shows, validates
and writes; nothing that it writes depends on how many they are.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from textwrap import shorten

import torch
from torch import Tensor
from torch import distributed as dist

from bqn.training.errors import ConfigError, LostProcessError

_LAUNCHER = ("RANK", "WORLD_SIZE", "MASTER_PORT")  # numbers that torchrun sets, beside MASTER_ADDR


@dataclass(frozen=True)
class Processes:
    """The processes of a run, seen from one of them.

    Attributes
    ----------
    rank, count : int
        Which one this is, from 0, and how many there are.
    """

    rank: int = 0
    count: int = 1

    @property
    def first(self) -> bool:
        """Whether this is the one that shows, validates and writes."""
        return self.rank == 0

    @property
    def several(self) -> bool:
        return self.count > 1

    def part(self, batch: Tensor) -> Tensor:
        """This process's part of a batch `(N, ...)`; parts are of nearly equal size."""
        return batch.tensor_split(self.count)[self.rank]

    def add_up(self, tensor: Tensor) -> Tensor:
        """The sum of a tensor over all processes: a new tensor, the same everywhere."""
        total = tensor.detach().clone(memory_format=torch.contiguous_format)
        _call(lambda: dist.all_reduce(total))
        return total

    def add_up_in_place(self, tensors: Sequence[Tensor]) -> None:
        """Replace each of the tensors by its sum over all processes; one exchange for all."""
        flat = self.add_up(torch.cat([tensor.detach().reshape(-1) for tensor in tensors]))
        parts = flat.split([tensor.numel() for tensor in tensors])
        for tensor, part in zip(tensors, parts, strict=True):
            tensor.detach().copy_(part.view_as(tensor))

    def from_first(self, numbers: Sequence[float], device: torch.device) -> list[float]:
        """The numbers that the first process has; the others give as many, of any value."""
        if not self.several:
            return list(numbers)
        told = torch.tensor(numbers, dtype=torch.float64, device=device)
        _call(lambda: dist.broadcast(told, 0))
        return told.tolist()

    def require_same(self, digest: str, device: torch.device) -> None:
        """Raise, in all processes, unless all begin with the same: `digest` is a checksum of it."""
        rows = torch.zeros(self.count, len(digest), dtype=torch.int64, device=device)
        rows[self.rank] = torch.tensor(list(digest.encode()), device=device)
        rows = self.add_up(rows)
        different = (rows != rows[0]).any(1).nonzero().flatten().tolist()
        if different:
            raise ConfigError(f"process {different[0]} has other settings, data or weights than process 0")


ALONE = Processes()


def here() -> Processes:
    """This process among those that torchrun has started, or that torch.distributed has joined; usually alone."""
    if dist.is_available() and dist.is_initialized():
        return Processes(dist.get_rank(), dist.get_world_size())
    if not os.environ.get("MASTER_ADDR") or not all(os.environ.get(name, "").isdecimal() for name in _LAUNCHER):
        return ALONE
    rank, count = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if rank >= count:
        raise ConfigError(
            f"RANK must be below WORLD_SIZE, {count}, got {rank}: it is the number of this process, from 0"
        )
    return Processes(rank, count)


def join(device: torch.device) -> Processes:
    """Meet the other processes, if there are any; this process stays with them until `leave`."""
    processes = here()
    if not processes.several:
        return processes
    if not dist.is_available():
        raise ConfigError("several processes need torch.distributed, which this build of torch lacks")
    if dist.is_initialized():
        return processes
    if device.type == "cuda":
        torch.cuda.set_device(device)
    # Imported later, as optimizers do, its functions would take the group for their default and keep it beyond `leave`,
    # with threads that free tensors while the interpreter ends: that aborts the process now and then.
    import_module("torch.distributed.nn.functional")
    _call(lambda: dist.init_process_group("nccl" if device.type == "cuda" else "gloo"))
    # One that is ready sooner might fail and end, and with it what the others still read in order to meet: they would
    # tell of a lost process, not of what they would have found wrong themselves. So nobody goes on before all are here.
    processes.add_up(torch.zeros((), device=device))
    return processes


def leave() -> None:
    """Part from the other processes in good order. One that fails does not wait for this: it ends, and all end."""
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()


def own_device() -> int | None:
    """The number of the GPU that is for this process alone; None where one process has the choice."""
    processes, local = here(), os.environ.get("LOCAL_RANK", "")
    if not processes.several:
        return None
    return int(local) if local.isdecimal() else processes.rank % max(torch.cuda.device_count(), 1)


def require_alone(what: str) -> None:
    """Raise if this is one of several processes: `what` is the work of one."""
    if here().several:
        raise ConfigError(f"{what} is for one process, but torchrun has started {here().count}")


def _call(collective: Callable[[], object]) -> None:
    try:
        collective()
    except RuntimeError as error:  # a closed connection, a time-out, or nobody there
        reason = shorten(str(error), 100, placeholder=" …")
        raise LostProcessError(
            f"another process of the run has ended or cannot be reached, look for its last words ({reason})"
        ) from error
