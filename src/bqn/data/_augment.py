"""From stored pixels to network input, and random variations of images, on whatever device they live."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def to_input(x: Tensor) -> Tensor:
    """What a network sees of stored examples.

    Pixels become `(2x - 255) / 256`, odd multiples of 1/256 between -1 and 1: symmetric, and exact in float32, so
    that integer inference can agree bit by bit. Floating-point features pass through unchanged.

    Parameters
    ----------
    x : Tensor `(N, ...)`, uint8 or floating point

    Returns
    -------
    Tensor `(N, ...)`, float32 for pixels
    """
    if x.is_floating_point():
        return x
    if x.dtype != torch.uint8:
        raise TypeError(f"x must be uint8 pixels or floating-point features, got {x.dtype}")
    return x.to(torch.float32).mul_(2 / 256).sub_(255 / 256)


def augment(x: Tensor, shift: int, flip: bool, generator: torch.Generator) -> Tensor:
    """Shift each image by its own random offset, and mirror it left to right with probability one half.

    Nothing waits for the device: all draws stay on it.

    Parameters
    ----------
    x : uint8 Tensor `(N, C, H, W)`
    shift : int
        Rows and columns move by whole pixels, uniform in `-shift .. shift`; what moves in has pixel value 0.
    flip : bool
    generator : torch.Generator
        On the device of `x`.

    Returns
    -------
    uint8 Tensor `(N, C, H, W)`
    """
    if x.dtype != torch.uint8 or x.dim() != 4:
        raise TypeError(f"x must be uint8 images (N, C, H, W), got {x.dtype} {tuple(x.shape)}")
    height, width = x.shape[-2:]
    if isinstance(shift, bool) or not isinstance(shift, int) or not 0 <= shift < min(height, width):
        raise ValueError(f"shift must be an integer from 0 to {min(height, width) - 1}, got {shift!r}")
    examples = len(x)
    if shift:
        # Every placement of an image is a window of the padded one; each example picks a window, a view, and only
        # the picked ones are copied.
        windows = F.pad(x, (shift,) * 4).unfold(2, height, 1).unfold(3, width, 1)
        row, column = torch.randint(2 * shift + 1, (2, examples), generator=generator, device=x.device)
        x = windows[torch.arange(examples, device=x.device), :, row, column]
    if flip:
        mirrored = torch.randint(2, (examples, 1, 1, 1), generator=generator, device=x.device, dtype=torch.bool)
        x = torch.where(mirrored, x.flip(-1), x)
    return x
