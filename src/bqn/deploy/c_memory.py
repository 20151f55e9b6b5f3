"""Where the values of a network lie in fixed memory: how each is stored, which share a place, and when.

Operations are grouped. A group begins with any operation and goes on through those that work channel by channel (pools,
thresholds, encodings), as long as nobody else reads what is in between: a group runs for a few channels at a time, so
that only the last of its values ever exists as a whole. Between groups, a value lies where others lay before.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from functools import cached_property

from bqn.deploy.program import (
    INT32_MAX,
    Conv2d,
    Encode,
    Flatten,
    Input,
    Lattice,
    Linear,
    MaxPool,
    Op,
    Packed,
    PackedError,
    Product,
    SumPool,
    Threshold,
)
from bqn.deploy.shapes import Size, infer_sizes

BLOCK = 4  # channels of an image that a group works on at a time
_CHANNELWISE = (SumPool, MaxPool, Threshold, Encode)


@dataclass(frozen=True)
class Place:
    """How one value is stored.

    `form` is "pixels" (the caller's), "words" (bit-planes, words of 32 channels), "bytes" (a code each), "integers", or
    "wide" (64 bits, behind real-valued features). `channels` are all of them, or those of a block.
    """

    form: str
    size: Size
    channels: int
    lattice: Lattice

    @property
    def pixels(self) -> int:
        return self.size[1] * self.size[2]

    @property
    def width(self) -> int:
        """Words of a bit-plane of one pixel."""
        return -(-self.channels // 32)

    @property
    def planes(self) -> int:
        return self.lattice.planes

    @property
    def words(self) -> int:
        """What it takes of the common memory, in words of 32 bits."""
        if self.form == "words":
            return self.pixels * self.planes * self.width
        count = self.pixels * self.channels
        return {"integers": count, "bytes": -(-count // 4)}.get(self.form, 0)


@dataclass(frozen=True)
class Group:
    """Operations that run together, `block` of `channels` at a time."""

    ops: tuple[Op, ...]
    channels: int
    block: int

    @property
    def last(self) -> Op:
        return self.ops[-1]


class Layout:
    """The memory of a packed network for examples of its own shape.

    Attributes
    ----------
    groups : list of Group
        What runs, in order; an operation that costs nothing is in no group.
    places : dict
        The place of every value by the name of its operation.
    offsets : dict
        Where values begin in the common memory, in words.
    windows : dict
        Where the window of a product begins, by the name of the product, if it needs one.
    words : int
        The common memory.
    """

    def __init__(self, packed: Packed) -> None:
        program = self.program = packed.program
        if program.input.shape is None:
            raise PackedError("the file does not say what shape its examples have; pack with input_shape")
        self.sizes = infer_sizes(program, program.input.shape)
        self.readers = Counter(source for op in program.ops for source in op.sources)
        self.readers[program.output] += 1
        self.wide = self._wide_values()
        self.groups: list[Group] = []
        self.places: dict[str, Place] = {}
        self.same: dict[str, str] = {}  # values that are others, seen as vectors
        for ops in self._runs():
            self._add(ops)
        self.windows: dict[str, int] = {}
        self.offsets, self.words = self._allocate()

    def root(self, name: str) -> str:
        """The value that a name stands for in memory."""
        while name in self.same:
            name = self.same[name]
        return name

    def kernel(self, op: Product) -> str:
        """How a product is computed: on "wide" integers, by "xor" or "and" of words, or from "windows" of integers."""
        if op.source in self.wide:
            return "wide_linear"
        source = self.places[op.source]
        grouped = isinstance(op, Conv2d) and op.groups > 1
        # Words that are half empty would make the weights twice as large.
        if source.form != "words" or grouped or 32 * source.width > 2 * source.channels:
            return "windows"
        return "xor" if source.lattice.symmetric and op.weight.symmetric else "and"

    # --- what runs together -----------------------------------------------------------------------------------------

    def _wide_values(self) -> set[str]:
        wide: set[str] = set()
        for op in self.program.ops:
            real = op.kind == "features" if isinstance(op, Input) else op.sources[0] in wide
            if real and isinstance(op, (Input, Linear, Flatten)):
                wide.add(op.name)
        return wide

    def _runs(self) -> list[list[Op]]:
        runs: list[list[Op]] = []
        for op in self.program.ops:
            before = runs[-1][-1] if runs else None
            if (
                before is not None
                and isinstance(op, _CHANNELWISE)
                and not isinstance(before, (Input, Flatten))
                and op.source == before.name
                and before.name not in self.wide
                and self.readers[before.name] == 1
            ):
                runs[-1].append(op)
            else:
                runs.append([op])
        return runs

    def _add(self, ops: list[Op]) -> None:
        first = ops[0]
        channels = self.sizes[first.name][0]
        image = any(self.sizes[op.name][1:] != (1, 1) for op in ops)
        block = min(BLOCK, channels) if len(ops) > 1 and image else channels
        for op in ops:
            _require_fit(self, op)
            self.places[op.name] = self._place(op, channels if op is ops[-1] else block)
        if isinstance(first, Input):
            if first.name in self.wide:
                self.groups.append(Group((first,), channels, channels))
            return
        if isinstance(first, Flatten):
            source, made = self.places[first.source], self.places[first.name]
            if source.form == made.form and (made.form != "words" or source.pixels == 1):
                self.same[first.name] = first.source
                return
        self.groups.append(Group(tuple(ops), channels, block))

    def _place(self, op: Op, channels: int) -> Place:
        size = self.sizes[op.name]
        lattice = self.program.lattices.get(op.name)
        if op.name in self.wide or lattice is None:
            return Place("wide" if op.name in self.wide else "integers", size, channels, Lattice(0, 1, 1))
        lattice = settled(lattice)
        source = self.places.get(op.sources[0]) if isinstance(op, Flatten) else None
        if isinstance(op, Input) or (source is not None and source.form == "pixels"):
            return Place("pixels", size, channels, lattice)
        words = Place("words", size, channels, lattice)
        if 4 * words.planes * words.width < channels:  # fewer bytes than channels
            return words
        return Place("bytes" if lattice.planes <= 8 else "integers", size, channels, lattice)

    # --- what lies where --------------------------------------------------------------------------------------------

    @cached_property
    def _spans(self) -> dict[str, tuple[int, int]]:
        """The first and the last group that needs each value."""
        spans: dict[str, tuple[int, int]] = {}
        for position, group in enumerate(self.groups):
            for op in group.ops:
                spans[op.name] = (position, position)
                for source in map(self.root, op.sources):
                    spans[source] = (spans.get(source, (position,))[0], position)
        output = self.root(self.program.output)
        spans[output] = (spans.get(output, (0,))[0], len(self.groups))
        return spans

    def _allocate(self) -> tuple[dict[str, int], int]:
        """Largest first, each at the lowest offset that is free as long as it is needed."""
        needs = {name: (self.places[name].words, span) for name, span in self._spans.items()}
        for position, group in enumerate(self.groups):  # windows: under names that no value can have
            first = group.ops[0]
            if isinstance(first, (Linear, Conv2d)) and self.kernel(first) == "windows":
                needs[f"{first.name}\n"] = (math.prod(first.weight_shape[1:]), (position, position))
        offsets: dict[str, int] = {}
        for name in sorted(needs, key=lambda name: -needs[name][0]):
            words, (begin, end) = needs[name]
            offset = 0
            for other in sorted(offsets, key=offsets.__getitem__):
                size, (start, stop) = needs[other]
                if (
                    start <= end
                    and begin <= stop
                    and offsets[other] < offset + words
                    and offset < offsets[other] + size
                ):
                    offset = offsets[other] + size
            offsets[name] = offset
        self.windows = {name[:-1]: offset for name, offset in offsets.items() if name not in self.places}
        return offsets, max((offsets[name] + needs[name][0] for name in needs), default=0)


def settled(lattice: Lattice) -> Lattice:
    """A lattice of one level has no stride; one that divides spares a case."""
    return lattice if lattice.planes else Lattice(lattice.low, 1, 1)


def _require_fit(layout: Layout, op: Op) -> None:
    """C must not overflow on the way either: sums of inputs alone are formed, whatever the weights are."""
    if isinstance(op, (Linear, Conv2d)) and op.source not in layout.wide:
        lattice = settled(layout.program.lattices[op.source])
        extent = abs(lattice.low) + lattice.stride * ((1 << lattice.planes) - 1)
        if math.prod(op.weight_shape[1:]) * extent > INT32_MAX:
            raise PackedError(f"{op.name}: its inputs can sum to more than 32 bits hold, and cannot be exported to C")
