"""Corruptions: how a network fares on images that are noisy, blurred or turned.

Pure functions on uint8 images `(N, C, H, W)`: what comes out is again uint8, as a camera would have given it. All
strengths fit images of any size, from 8 to some 224 pixels.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

# Five strengths each. Noise: standard deviation as a share of the range of the pixels. Blur: standard deviation of the
# kernel over the square root of the shorter side, in pixels: half a pixel to two for 28 pixels, 1.5 to 6 for 224.
# Rotation: degrees, either way.
STRENGTHS: dict[str, tuple[float, ...]] = {
    "noise": (0.05, 0.1, 0.2, 0.3, 0.4),
    "blur": (0.1, 0.15, 0.2, 0.3, 0.4),
    "rotation": (10.0, 20.0, 30.0, 45.0, 60.0),
}

_IMAGES_AT_ONCE = 1000
_KERNEL_RADIUS = 4.0  # in standard deviations


def corrupt(x: Tensor, kind: str, strength: float, generator: torch.Generator | None = None) -> Tensor:
    """Corrupted copies of the images `x`, uint8 `(N, C, H, W)`.

    Parameters
    ----------
    x : uint8 Tensor `(N, C, H, W)`
    kind : "noise", "blur" or "rotation"
    strength : float
        One of `STRENGTHS[kind]`, or any other number from zero up; zero changes nothing.
    generator : torch.Generator or None
        For the noise, and for the side to which each image turns; on the device of `x`.
    """
    if kind not in STRENGTHS:
        raise ValueError(f"kind must be one of {', '.join(STRENGTHS)}, got {kind!r}")
    require_images(x, "x")
    if not (strength >= 0 and math.isfinite(strength)):
        raise ValueError(f"strength must not be negative, got {strength}")
    parts = []
    for images in x.split(_IMAGES_AT_ONCE):
        if kind == "noise":
            parts.append(gaussian_noise(images, strength, generator))
        elif kind == "blur":
            parts.append(gaussian_blur(images, strength * math.sqrt(min(x.shape[-2:]))))
        else:
            coin = torch.randint(2, (len(images),), generator=generator, device=x.device)
            parts.append(rotate(images, strength * (2.0 * coin - 1.0)))
    return torch.cat(parts)


def gaussian_noise(x: Tensor, std: float, generator: torch.Generator | None = None) -> Tensor:
    """Independent normal noise on every value, of standard deviation `std` times 255; the result is clipped."""
    require_images(x, "x")
    noise = torch.empty(x.shape, dtype=torch.float32, device=x.device).normal_(generator=generator)
    return _to_pixels(x + 255 * std * noise)


def gaussian_blur(x: Tensor, sigma: float) -> Tensor:
    """Convolution with a normal kernel of standard deviation `sigma` pixels; the image is mirrored at its edges.

    Mirroring repeats the edge pixel itself, which makes the blur a symmetric matrix along each side whose rows sum to
    one: the mean of the image is conserved.
    """
    require_images(x, "x")
    rows, columns = (_blur_matrix(size, sigma).to(x.device) for size in x.shape[-2:])
    return _to_pixels(rows @ x.float() @ columns)


def rotate(x: Tensor, degrees: float | Tensor, size: float | Tensor = 1.0) -> Tensor:
    """Images turned counter-clockwise about their centre, bilinearly interpolated; black (0) comes in from outside.

    Parameters
    ----------
    x : uint8 Tensor `(N, C, H, W)`
    degrees : float or Tensor `(N,)`
    size : float or Tensor `(N,)`
        What they show becomes larger by this factor at the same time.
    """
    require_images(x, "x")
    for name, value in (("degrees", degrees), ("size", size)):
        if isinstance(value, Tensor) and value.shape != x.shape[:1]:
            raise ValueError(f"{name} must be a number or of shape {tuple(x.shape[:1])}, got {tuple(value.shape)}")
    if not len(x):
        return x  # torch refuses to interpolate no images
    angle = torch.deg2rad(torch.as_tensor(degrees, dtype=torch.float64).to(x.device)).expand(len(x))
    cos, sin = (angle.cos() / size).float(), (angle.sin() / size).float()
    height, width = x.shape[-2:]
    zero = torch.zeros_like(cos)
    # From an output position to the input position it shows, both in units of half the height and half the width.
    across = torch.stack((cos, -sin * (height / width), zero), -1)
    down = torch.stack((sin * (width / height), cos, zero), -1)
    grid = F.affine_grid(torch.stack((across, down), 1), list(x.shape), align_corners=False)
    return _to_pixels(F.grid_sample(x.float(), grid, mode="bilinear", padding_mode="zeros", align_corners=False))


def require_images(x: Tensor, name: str) -> None:
    """Raise unless `x` is a uint8 tensor `(N, C, H, W)`."""
    if x.dtype != torch.uint8 or x.dim() != 4:
        raise ValueError(f"{name} must be uint8 images (N, C, H, W), got {x.dtype} {tuple(x.shape)}")


@lru_cache(maxsize=32)
def _blur_matrix(size: int, sigma: float) -> Tensor:
    """What a blur along one side does, `(size, size)`."""
    if sigma == 0:
        return torch.eye(size)
    radius = int(_KERNEL_RADIUS * sigma + 0.5)
    offset = torch.arange(-radius, radius + 1)
    kernel = torch.exp(-0.5 * (offset.double() / sigma).square())
    kernel = kernel / kernel.sum()
    position = (torch.arange(size).unsqueeze(-1) + offset) % (2 * size)  # mirrored at both edges: period 2 * size
    source = torch.minimum(position, 2 * size - 1 - position)
    matrix = torch.zeros(size, size, dtype=torch.float64).scatter_add(1, source, kernel.expand(size, -1))
    return matrix.float()


def _to_pixels(x: Tensor) -> Tensor:
    return x.round().clamp(0, 255).to(torch.uint8)
