"""Pictures inside a page: small PNG files as data addresses."""

from __future__ import annotations

import base64
import struct
import zlib

import numpy as np
import numpy.typing as npt
import torch.nn.functional as F
from torch import Tensor

_COLOUR_TYPES = {1: 0, 3: 2, 4: 6}  # gray, RGB, RGB with opacity
LARGEST = 64


def encode(pixels: npt.NDArray[np.uint8]) -> bytes:
    """A PNG file of `pixels`, uint8 `(H, W, C)`: gray, RGB, or RGB with opacity."""
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] not in _COLOUR_TYPES or pixels.size == 0:
        raise ValueError(f"pixels must be uint8 (H, W, 1, 3 or 4), got {pixels.dtype} {pixels.shape}")
    height, width, channels = pixels.shape
    header = struct.pack(">IIBBBBB", width, height, 8, _COLOUR_TYPES[channels], 0, 0, 0)
    unfiltered = np.zeros((height, 1), np.uint8)
    rows = np.concatenate([unfiltered, pixels.reshape(height, -1)], axis=1)
    body = zlib.compress(rows.tobytes(), 9)
    return b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", header) + _chunk(b"IDAT", body) + _chunk(b"IEND", b"")


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def data_uri(pixels: npt.NDArray[np.uint8]) -> str:
    """`pixels`, as for `encode`, as an address that holds the whole picture."""
    return f"data:image/png;base64,{base64.b64encode(encode(pixels)).decode()}"


def thumbnail(image: Tensor, largest: int = LARGEST) -> npt.NDArray[np.uint8]:
    """An image with sides of at most `largest` pixels, for `encode`.

    Parameters
    ----------
    image : uint8 Tensor `(C, H, W)`
        One or three channels; any other number is averaged to gray.
    """
    if image.shape[0] not in (1, 3):
        image = image.float().mean(0, keepdim=True).round().to(image.dtype)
    height, width = image.shape[1:]
    if max(height, width) > largest:
        size = [max(1, round(side * largest / max(height, width))) for side in (height, width)]
        image = F.interpolate(image.unsqueeze(0).float(), size, mode="area").squeeze(0).round().to(image.dtype)
    pixels: npt.NDArray[np.uint8] = image.permute(1, 2, 0).contiguous().cpu().numpy()
    return pixels
