"""Where a tensor lies: what is fastest on a GPU is not on a CPU.

All who decide by it ask here, so that a benchmark can ask what a GPU would do where there is none.
"""

from __future__ import annotations

from torch import Tensor


def kind(tensor: Tensor) -> str:
    """The type of its device: "cpu", "cuda", ..."""
    return tensor.device.type
