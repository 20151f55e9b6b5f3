"""Who reads the sums of a sampled network without their common shift, and who reads them as the weights make them.

Batch norm asked for sums without the shift that drawn weights give to the whole training set, and `WeightedSum` takes
it out. Average pooling, `Add` and `Flatten`, which pass the question on, hand on what was taken out. It is put back for
all other layers of `bqn.nn`, and for the head: in the analytic pass, too, they read the whole noise of a sum.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from bqn.nn._activation import Quantize, RandomThreshold
from bqn.nn._elementwise import Add, Dropout, Product
from bqn.nn._layer import note_taken_out, own_sums, taken_out
from bqn.nn._linear import WeightedSum
from bqn.nn._norm import _BatchNorm
from bqn.nn._pool import _AvgPool, _MaxPool, _ProbPool
from bqn.nn._shapes import Flatten

_HAND_ON = (Add, _AvgPool, Flatten)
_READ_OWN = (WeightedSum, Quantize, RandomThreshold, Product, Dropout, _MaxPool, _ProbPool)


def reads_own_sums(layer: nn.Module) -> bool:
    """Whether what was taken out of a sum is put back before `layer` reads it."""
    return isinstance(layer, _READ_OWN)


def let_others_read_own_sums(network: nn.Module) -> None:
    """Arrange it in a fixed network, in place."""
    layers = list(network.modules())
    if not any(isinstance(layer, _BatchNorm) for layer in layers):
        return  # nobody asked for sums without the shift
    for layer in layers:
        if reads_own_sums(layer):
            layer.register_forward_pre_hook(_put_back, with_kwargs=True)
        elif isinstance(layer, _HAND_ON):
            layer.register_forward_hook(_hand_on, with_kwargs=True)


def _put_back(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
    return tuple(own_sums(x) for x in args), {name: own_sums(x) for name, x in kwargs.items()}


def _hand_on(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
    """These layers are linear: what they would make of the shift alone was taken out of their output."""
    inputs = [x for x in (*args, *kwargs.values()) if isinstance(x, Tensor)]
    if any(taken_out(x) is not None for x in inputs):
        note_taken_out(output, layer.forward(*(_shift_of_one(x) for x in inputs)))


def _shift_of_one(x: Tensor) -> Tensor:
    """What was taken out of each example of `x`: `(1, ...)`."""
    shift = taken_out(x)
    return x.new_zeros((1, *x.shape[1:])) if shift is None else shift.expand(1, *x.shape[1:])
