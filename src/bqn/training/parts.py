"""How a step fits into memory: a batch is cut into parts, each shared by all processes; layers are computed twice.

The objective of a batch is the mean over its examples, hence the mean over its parts, weighted by their sizes; so are
the gradients. The KL, which every part contains, counts once in that mean. Batch norm takes its statistics from one
part at a time, over all processes: with it a step in parts is not quite the step in one pass, but how many processes
there are makes no difference.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from bqn.network import Network
from bqn.nn import HiddenVariableLayer, Sequential
from bqn.objective import ElboTerms
from bqn.propagate import batch as shared_batch
from bqn.training.errors import ConfigError

if TYPE_CHECKING:
    from bqn.training.config import TrainConfig
    from bqn.training.distributed import Processes
    from bqn.training.loop import Trainer


def require_parts(examples: int, steps: int, config: TrainConfig, processes: Processes) -> None:
    """Raise unless every process has an example in every part of every batch."""
    if processes.several and config.method != "bqn":
        raise ConfigError(f"method: several processes can train bqn, not {config.method}")
    smallest = examples // steps
    if smallest < config.accumulate * processes.count:
        raise ConfigError(
            f"batch_size: a batch of {smallest} is too small for accumulate {config.accumulate} and {processes.count} "
            "process(es), each of which needs an example in every part"
        )


def require_drawable(net: Network, config: TrainConfig, processes: Processes) -> None:
    """Raise where a drawn network would have hidden variables of its own that cannot be drawn twice alike."""
    hides = any(isinstance(layer, HiddenVariableLayer) for layer in net.modules())
    if config.drawn_epochs and hides and (config.checkpoint_activations or processes.several):
        other = "checkpoint_activations" if config.checkpoint_activations else "several processes"
        raise ConfigError(f"drawn_epochs does not go with {other} where layers draw at every pass, as Dropout does")


def backward_in_parts(trainer: Trainer, batch: Tensor, lam: Tensor | None = None) -> ElboTerms:
    """Add the gradients of minus the objective on a batch `(B,)` to those of the parameters; returns the terms."""
    processes, parameters = trainer.processes, list(trainer.net.parameters())
    sums, draws = torch.zeros(3, device=trainer.device), trainer.draw()
    for x, y, size in own_parts(trainer, batch):
        share = shared_batch.Share(len(y), size, processes.add_up)
        with shared_batch.shared(share) if processes.several else nullcontext():
            terms = trainer.objective(x, y, lam, draws)
            weight = len(y) / len(batch)
            (-weight * terms.value).backward()
        sums += weight * torch.stack(terms).detach()
    if processes.several:
        processes.add_up_in_place([*(p.grad for p in parameters if p.grad is not None), sums])
    return ElboTerms(*sums.unbind())


def own_parts(trainer: Trainer, batch: Tensor) -> list[tuple[Tensor, Tensor, int]]:
    """Of each part of the batch this process's examples and targets, and the size of the whole part.

    Every process draws the augmentation of the whole batch, so that an image does not depend on how many they are.
    """
    x, y = trainer.examples(batch)
    count, own = trainer.config.accumulate, trainer.processes.part
    return [(own(a), own(b), len(b)) for a, b in zip(x.tensor_split(count), y.tensor_split(count), strict=True)]


@contextmanager
def recomputed(net: Network, again: bool = True) -> Iterator[None]:
    """Let backward passes compute the layers of `net` again inside the block or not, see `bqn.nn.Sequential`."""
    if not isinstance(net.body, Sequential):
        raise ConfigError(
            f"checkpoint_activations needs a network whose body is a bqn.nn.Sequential, got {type(net.body).__name__}"
        )
    before, net.body.recompute = net.body.recompute, again
    try:
        yield
    finally:
        net.body.recompute = before
