"""Bits and bytes of the packed arrays."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bqn.deploy.program import Array


def pack_bits(bits: Array) -> Array:
    """A flat array of zeros and ones as bytes, the least significant bit first."""
    return np.packbits(bits.reshape(-1).astype(np.uint8), bitorder="little")


def smallest(arrays: Sequence[Array]) -> list[Array]:
    """Integer arrays in the smallest signed type that holds all of them."""
    low = min(int(array.min(initial=0)) for array in arrays)
    high = max(int(array.max(initial=0)) for array in arrays)
    for kind in (np.int8, np.int16, np.int32, np.int64):
        if np.iinfo(kind).min <= low and high <= np.iinfo(kind).max:
            return [array.astype(kind) for array in arrays]
    raise ValueError(f"arrays hold integers from {low} to {high}, more than 64 bits")
