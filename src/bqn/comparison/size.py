"""How many bytes a trained network needs to predict."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from bqn.network import Network

_FEW = 256  # values in a tensor that are worth a table: an index of at most eight bits stands for each entry
_REAL = 32  # bits of a number


def stored_bytes(net: Network, mode: str, samples: int, seed: int = 0) -> int:
    """Bytes of what predicts in `mode`.

    Real numbers take four bytes, whatever precision they were trained in. An analytic prediction needs the parameters
    of all beliefs. The others need their member networks, where a tensor with few values takes an index for each entry
    and a table: one bit a binary weight, two a ternary one. Members that differ by masks alone are stored once, and
    where the beliefs take less than the members, draws can be made anew and the beliefs count.
    """
    beliefs = _bits(_needed(net.state_dict(), getattr(net, "training_only", ())))
    if mode == "analytic":
        return _bytes(beliefs)
    generator = torch.Generator(next(net.parameters()).device).manual_seed(seed)
    seen: dict[bytes, int] = {}
    for member in net.members(mode, samples, generator):
        for tensor in _needed(member.state_dict()):
            seen[f"{tuple(tensor.shape)}".encode() + tensor.cpu().numpy().tobytes()] = _bits([tensor])
    return _bytes(min(sum(seen.values()), beliefs) if mode != "map" else sum(seen.values()))


def _needed(state: Mapping[str, Tensor], training_only: tuple[str, ...] = ()) -> list[Tensor]:
    """All tensors of numbers but those that serve training alone, or are counters."""
    numbers = {name: tensor for name, tensor in state.items() if tensor.is_floating_point()}
    return [tensor for name, tensor in numbers.items() if not name.startswith(training_only)]


def _bits(tensors: Iterable[Tensor]) -> int:
    total = 0
    for tensor in tensors:
        values = tensor.unique().numel()
        with_table = math.ceil(math.log2(max(values, 1))) * tensor.numel() + _REAL * values
        total += min(with_table if values <= _FEW else _REAL * tensor.numel(), _REAL * tensor.numel())
    return total


def _bytes(bits: int) -> int:
    return -(-bits // 8)
