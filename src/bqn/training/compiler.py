"""Whether torch.compile may make the steps of a run: it must follow the network as a whole, with the right gradients.

Where a compiler goes wrong nothing shows it but the result, and where it gives up it falls back in silence. So it is
told to follow the whole network or to fail, and its gradients are compared with plain ones before the first step.
"""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Callable, Hashable, Mapping, Sequence
from textwrap import shorten
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from bqn.objective import ElboTerms

if TYPE_CHECKING:
    from bqn.training.loop import Trainer

Gradients = Mapping[str, Tensor]

# By so much of its norm the gradient of a parameter may change: rounding, in bfloat16 above all.
WITHIN = {"full": 0.05, "half": 0.25}
# In a plain quantized network rounding decides signs, and with each sign the gradient of all that lies behind it jumps.
WITHIN_OF_SIGNS = 0.7
# Beside the largest gradient an element that changes by less than this is zero as far as float32 can tell. No more: the
# gradient of the scale of the head is a million times as large as that of a weight.
NEGLIGIBLE = 1e-7


def compiled(objective: Callable[..., ElboTerms], frugal: bool = False) -> Callable[..., ElboTerms]:
    """The objective of a network, compiled when it is called; once for all networks of one architecture.

    Raises when it is called, unless the whole of it can be compiled. The compiler's limit, eight architectures or sizes
    of a batch in one process, is meant for functions that are compiled at every call; steps are recorded once.

    Parameters
    ----------
    objective : function, a method of a Network
    frugal : bool
        Whether backward forms again what plain steps form again, to spare memory. Left to itself the compiler sees that
        forward has formed the same already, makes one of the two and keeps it.
    """
    from torch._dynamo import config as settings
    from torch._functorch import config as of_gradients

    def again(*arguments: object, **options: object) -> ElboTerms:
        return objective(*arguments, **options)

    # The compiler remembers what it has made by the function it was asked for: each of the two has one of its own.
    whole = torch.compile(again if frugal else objective, dynamic=False, fullgraph=True)

    def call(*arguments: object, **options: object) -> ElboTerms:
        with (
            settings.patch(cache_size_limit=sys.maxsize, accumulated_cache_size_limit=sys.maxsize),
            of_gradients.patch(cse=of_gradients.cse and not frugal),
        ):
            return whole(*arguments, **options)

    return call


class Change(NamedTuple):
    """The parameter whose gradient the compiler changes most, and by how much of its norm."""

    parameter: str
    amount: float

    def __str__(self) -> str:
        words = f"by {self.amount:.0%}" if math.isfinite(self.amount) else "beyond all measure"
        return f"changes the gradient of {self.parameter} {words}"


def largest_change(ours: Gradients, plain: Gradients) -> Change | None:
    """How far gradients are from the plain ones, by the worst of all parameters.

    Parameter by parameter, since one of them may be nearly all of the norm of the whole. None if the plain gradients
    are not finite themselves: that is for the guard, which finds the cause.
    """
    if not all(bool(torch.isfinite(gradient).all()) for gradient in plain.values()):
        return None
    largest = max((_size(gradient) for gradient in plain.values()), default=0.0)
    changes = []
    for name, gradient in plain.items():
        difference, size = _size(ours[name] - gradient), _size(gradient)
        if not math.isfinite(difference):
            changes.append(Change(name, math.inf))
        elif difference > NEGLIGIBLE * largest:
            changes.append(Change(name, difference / size if size else math.inf))
    return max(changes, key=lambda change: change.amount, default=Change("", 0.0))


def check(trainers: Sequence[Trainer], gradients: Callable[[Trainer], Gradients]) -> None:
    """Do without the compiler where it fails or is wrong; decided by one run for all of the same architecture.

    Parameters
    ----------
    trainers : those that are to be recorded
    gradients : function
        The gradients of the step of a trainer that comes next, compiled if its `compiles` is set.
    """
    verdicts: dict[Hashable, bool] = {}
    for trainer in trainers:
        if not trainer.compiles:
            continue
        config = trainer.config
        objective = config.bound, trainer.step_kind, config.checkpoint_activations
        program = str(trainer.net), config.mixed_precision, config.accumulate, objective
        if program not in verdicts:
            verdicts[program] = _trusted(trainer, gradients)
        trainer.compiles = verdicts[program]


def _trusted(trainer: Trainer, gradients: Callable[[Trainer], Gradients]) -> bool:
    from torch._dynamo.exc import TorchDynamoException

    try:
        ours = gradients(trainer)
    except TorchDynamoException as error:
        return _refused(f"cannot follow this network ({shorten(str(error), 200, placeholder=' …')})")
    trainer.compiles = False
    change = largest_change(ours, gradients(trainer))
    limit = WITHIN["half" if trainer.config.mixed_precision else "full"]
    if trainer.step_kind == "drawn" or trainer.net.modes == ("map",):  # numbers pass through it, not distributions
        limit = WITHIN_OF_SIGNS
    return change is None or change.amount <= limit or _refused(str(change))


def _refused(why: str) -> bool:
    warnings.warn(
        f"compile: torch.compile of torch {torch.__version__} {why}, so the steps are not compiled", stacklevel=2
    )
    return False


def _size(gradient: Tensor) -> float:
    """The root of the mean square of the elements."""
    return float(gradient.double().square().mean().sqrt()) if gradient.numel() else 0.0
