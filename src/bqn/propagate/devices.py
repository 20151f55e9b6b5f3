"""Where a tensor lies, and what is fast there: what is on a GPU is not always on a CPU.

All who decide by it ask here, so that a benchmark can ask what a GPU would do where there is none.
"""

from __future__ import annotations

import torch
from torch import Tensor


def _has_bfloat16() -> bool:
    """Whether this CPU has instructions for products in bfloat16, and torch the library that uses them."""
    if not torch.backends.mkldnn.is_available():
        return False
    # Private, but older than the public `get_capabilities`, which not every torch that we support has.
    asked = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return any(bool(getattr(torch.cpu, name, lambda: False)()) for name in asked)


# Other CPUs form such products slowly, and some stop at them.
CPU_HAS_BFLOAT16 = _has_bfloat16()


def kind(tensor: Tensor) -> str:
    """The type of its device: "cpu", "cuda", ..."""
    return tensor.device.type


def multiplies(tensor: Tensor) -> bool:
    """Whether products of such a tensor, in half precision, are fast where it lies."""
    return kind(tensor) != "cpu" or (CPU_HAS_BFLOAT16 and tensor.dtype == torch.bfloat16)
