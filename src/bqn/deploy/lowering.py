"""Lowering: from the layers of quantized networks to the operations of a program, layer by layer.

The members of an ensemble are walked through together: they share the operations and differ in arrays. Adding a layer
takes one function in `rules`, registered with `@lowers`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any, TypeAlias, cast

import numpy as np
import torch
from torch import Tensor
from torch.nn import Module

from bqn.deploy.bits import pack_bits, smallest
from bqn.deploy.folding import Symbol, UnpackableError, find_thresholds, lattice_of
from bqn.deploy.program import (
    FEATURE_BITS,
    FEATURE_LIMIT,
    PIXELS,
    Array,
    Encode,
    Input,
    Lattice,
    MaxPool,
    Op,
    Threshold,
)
from bqn.nn._own_sums import reads_own_sums

ACTIVATION_LEVELS = 256
# Sums that enter a product are cut into bit-planes too; more than these would be slower than a float product.
CODE_LEVELS = 2**16

Layers: TypeAlias = Sequence[Module]


class Lowering:
    """A program under construction.

    Parameters
    ----------
    members : int
        S.
    kind : "pixels" or "features"
    shape : shape of one example, or None
    """

    def __init__(self, members: int, kind: str, shape: tuple[int, ...] | None) -> None:
        self.members = members
        self.ops: list[Op] = [Input("input", kind, shape)]
        self.arrays: dict[str, Array] = {}
        self.calls = Counter(["input", "head"])  # names of the input and of what is stored for the head
        channels = None if shape is None else shape[0]
        if kind == "pixels":
            lattice = PIXELS
            self.input = Symbol(
                "input", Fraction(1, 256), lattice.low, lattice.high, lattice.stride, lattice, channels, shape
            )
        else:
            most = FEATURE_LIMIT << FEATURE_BITS
            self.input = Symbol(
                "input", Fraction(1, 1 << FEATURE_BITS), -most, most, channels=channels, shape=shape, real=True
            )

    def call(self, name: str, layers: Layers, inputs: Sequence[Symbol]) -> Symbol:
        """What the layers, one a member, make of their inputs."""
        lower = _RULES.get(type(layers[0]))
        if lower is None:
            raise UnpackableError(f"{name}: a {type(layers[0]).__name__} cannot be packed; {_known()}")
        if reads_own_sums(layers[0]):
            inputs = [x.own_sums(name) for x in inputs]
        return lower(self, self.unused(name), layers, *inputs)

    def require_rank(self, x: Symbol, rank: int, name: str) -> None:
        """Note that a layer takes examples of so many dimensions, where no shape says how many there are."""
        first = cast(Input, self.ops[0])
        if first.shape is None and not x.flat:
            if first.rank not in (None, rank):
                raise UnpackableError(f"{name} takes examples of {rank} dimensions, a layer before it of {first.rank}")
            self.ops[0] = replace(first, rank=rank)
        elif x.flat and rank != 1:
            raise UnpackableError(f"{name} takes examples of {rank} dimensions, but reads what is flattened")

    def unused(self, name: str) -> str:
        """The name, or the name with a number where a layer is used several times."""
        self.calls[name] += 1
        return name if self.calls[name] == 1 else f"{name}#{self.calls[name]}"

    def emit(self, op: Op) -> str:
        self.ops.append(op)
        return op.name

    def store(self, name: str, values: Sequence[Array]) -> None:
        """Keep an array for each member, once if all are equal."""
        stacked = np.stack([values[0]] if all(np.array_equal(values[0], other) for other in values) else values)
        self.arrays[name] = stacked

    # --- what several layers need -----------------------------------------------------------------------------------

    def codes(self, name: str, x: Symbol, layer: str) -> Symbol:
        """`x` as codes, ready for a product."""
        settled = x.settled()
        if settled is None:
            raise UnpackableError(f"{layer} {REASON}")
        if settled.lattice is not None or settled.real:
            return settled
        lattice = Lattice(settled.low, settled.spacing, (settled.high - settled.low) // settled.spacing + 1)
        if lattice.levels > CODE_LEVELS:
            raise UnpackableError(
                f"{layer} would multiply integers of {lattice.levels} values; put a quantizer before it"
            )
        return replace(settled, name=self.emit(Encode(f"{name}/codes", settled.name, lattice)), lattice=lattice)

    def threshold(self, name: str, x: Symbol, quantizers: Layers, layer: str) -> Symbol:
        """Fold all that waits, and the quantizers behind it, one a member."""
        levels: tuple[float, ...] = cast(Any, quantizers[0]).levels
        if any(cast(Any, quantizer).levels != levels for quantizer in quantizers):
            raise UnpackableError(f"{layer}: the networks have different levels here")
        values = torch.tensor(levels).unique()  # in float32, as the layer has them, where two may be one
        unit, lattice = lattice_of(values.tolist(), ACTIVATION_LEVELS, layer)
        exact = [Fraction(value) / unit for value in values.tolist()]
        codes = [int(value - lattice.low) // lattice.stride for value in exact]
        if x.channels is None:
            raise UnpackableError(f"{layer}: the number of channels is unknown; say what input_shape is")
        thresholds, flips = [], []
        with torch.no_grad():
            for member, quantizer in enumerate(quantizers):
                found = find_thresholds(x, member, _position(quantizer, values), codes, layer)
                thresholds.append(found[0])
                flips.append(pack_bits(found[1]))
        self.store(f"{name}.thresholds", smallest(thresholds))
        self.store(f"{name}.flips", flips)
        selector = x.selector
        cases = 1 if selector is None or selector.lattice is None else selector.lattice.levels
        self.emit(Threshold(name, x.name, x.channels, lattice, None if selector is None else selector.name, cases))
        result = Symbol(name, unit, lattice.low, lattice.high, lattice.stride, lattice, x.channels, x.shape, x.flat)
        for position, pool in enumerate(x.pools):
            result = replace(
                result,
                name=self.emit(MaxPool(f"{name}/pool{position}", result.name, pool.kernel, pool.stride, pool.padding)),
            )
        return result


Rule: TypeAlias = Callable[..., Symbol]
_RULES: dict[type[Module], Rule] = {}
REASON = (
    "reads what a batch norm, a product or a shifted sum has scaled, which lies on no lattice of integers; put a "
    "quantizer such as Sign before it"
)


def lowers(*kinds: type[Module]) -> Callable[[Rule], Rule]:
    """Register the function that lowers layers of these classes."""

    def register(rule: Rule) -> Rule:
        _RULES.update(dict.fromkeys(kinds, rule))
        return rule

    return register


def is_known(layer: Module) -> bool:
    """Whether a layer is lowered as a whole, or refused as a whole, and not looked into."""
    return type(layer) in _RULES


def _known() -> str:
    return f"known are {', '.join(sorted(kind.__name__ for kind in _RULES))}"


def _position(quantizer: Module, values: Tensor) -> Callable[[Tensor], Tensor]:
    """The position among the levels of what a quantizer makes of `(M, C)`."""
    return lambda x: torch.searchsorted(values, cast(Tensor, quantizer(x)))
