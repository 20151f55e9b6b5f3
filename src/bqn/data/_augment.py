"""From stored pixels to network input, and random variations of images, on whatever device they live."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from bqn.corruptions import rotate


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


def augment(
    x: Tensor, shift: int, flip: bool, generator: torch.Generator, turn: float = 0.0, zoom: float = 0.0, cutout: int = 0
) -> Tensor:
    """Vary each image by itself, at random.

    Nothing waits for the device: all draws stay on it.

    Parameters
    ----------
    x : uint8 Tensor `(N, C, H, W)`
    shift : int
        Rows and columns move by whole pixels, uniform in `-shift .. shift`; what moves in has pixel value 0.
    flip : bool
        Mirror it left to right with probability one half.
    generator : torch.Generator
        On the device of `x`.
    turn : float
        Turn it around its middle by an angle uniform in ±`turn` degrees, before all else; pixels between others are
        interpolated.
    zoom : float
        Make it larger or smaller at the same time, by a factor uniform in 1 ± `zoom`.
    cutout : int
        Last, give pixel value 0 to a square of that side, whose middle is anywhere in the image.

    Returns
    -------
    uint8 Tensor `(N, C, H, W)`
    """
    if x.dtype != torch.uint8 or x.dim() != 4:
        raise TypeError(f"x must be uint8 images (N, C, H, W), got {x.dtype} {tuple(x.shape)}")
    height, width = x.shape[-2:]
    for name, pixels in (("shift", shift), ("cutout", cutout)):
        if isinstance(pixels, bool) or not isinstance(pixels, int) or not 0 <= pixels < min(height, width):
            raise ValueError(f"{name} must be an integer from 0 to {min(height, width) - 1}, got {pixels!r}")
    for name, value in (("turn", turn), ("zoom", zoom)):
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise TypeError(f"{name} must be a number, got {value!r}")
    if not 0 <= turn <= 180:
        raise ValueError(f"turn must be from 0 to 180, got {turn!r}")
    if not 0 <= zoom < 1:
        raise ValueError(f"zoom must be at least 0 and below 1, got {zoom!r}")
    examples = len(x)
    if turn or zoom:
        angle, size = 2 * torch.rand((2, examples), generator=generator, device=x.device) - 1
        x = rotate(x, turn * angle, 1 + zoom * size)
    if shift:
        # Every placement of an image is a window of the padded one; each example picks a window, a view, and only
        # the picked ones are copied.
        windows = F.pad(x, (shift,) * 4).unfold(2, height, 1).unfold(3, width, 1)
        row, column = torch.randint(2 * shift + 1, (2, examples), generator=generator, device=x.device)
        x = windows[torch.arange(examples, device=x.device), :, row, column]
    if flip:
        mirrored = torch.randint(2, (examples, 1, 1, 1), generator=generator, device=x.device, dtype=torch.bool)
        x = torch.where(mirrored, x.flip(-1), x)
    if cutout:
        down = _inside(height, cutout, examples, generator, x.device).unsqueeze(-1)
        across = _inside(width, cutout, examples, generator, x.device).unsqueeze(-2)
        x = x.masked_fill((down & across).unsqueeze(1), 0)
    return x


def _inside(size: int, cutout: int, examples: int, generator: torch.Generator, device: torch.device) -> Tensor:
    """Which of the rows, or columns, the square of each example covers: `(N, size)`."""
    first = torch.randint(size, (examples, 1), generator=generator, device=device) - cutout // 2
    places = torch.arange(size, device=device)
    return (places >= first) & (places < first + cutout)
