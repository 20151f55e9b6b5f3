"""Windows: the inputs that each output of a pooling or convolution reads, side by side."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def windows(
    tensor: Tensor,
    kernel: tuple[int, ...],
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...] | None = None,
    fill: float = 0.0,
    trailing: int = 0,
) -> Tensor:
    """Gather windows over the spatial dimensions.

    Parameters
    ----------
    tensor : Tensor `(..., *spatial, *rest)`
        `rest` has `trailing` dimensions that are carried along, such as the probabilities of the levels.
    kernel, stride, padding, dilation : one entry per spatial dimension
    fill : the value of padded elements

    Returns
    -------
    Tensor `(..., *output, K, *rest)` with K the number of elements of the kernel, row-major. A view where nothing is
    padded.
    """
    spatial = len(kernel)
    first = tensor.dim() - trailing - spatial
    if any(padding):
        pads = [0, 0] * trailing + [side for pad in reversed(padding) for side in (pad, pad)]
        tensor = F.pad(tensor, pads, value=fill)
    for axis, (size, step) in enumerate(zip(kernel, stride, strict=True)):
        spread = 1 if dilation is None else dilation[axis]
        tensor = tensor.unfold(first + axis, (size - 1) * spread + 1, step)[..., ::spread]
    # unfold appends one dimension per axis; they belong before the carried ones
    for offset in range(spatial):
        tensor = tensor.movedim(tensor.dim() - spatial + offset, first + spatial + offset)
    return tensor.flatten(first + spatial, first + 2 * spatial - 1)


def output_size(size: int, kernel: int, stride: int, padding: int, dilation: int = 1) -> int:
    return (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1


def padded(tensor: Tensor, padding: tuple[int, ...]) -> Tensor:
    """With zeros around the last dimensions, as many on both sides of each; a negative number cuts off."""
    return F.pad(tensor, [side for size in reversed(padding) for side in (size, size)])


def over_places(per_place: Tensor) -> Tensor:
    """The mean over the places of a kernel, `(C, *kernel)` to `(C, 1, ...)`."""
    return per_place.mean(tuple(range(1, per_place.dim())), keepdim=True)
