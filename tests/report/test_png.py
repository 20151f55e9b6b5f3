from __future__ import annotations

import base64
import struct
import zlib

import numpy as np
import pytest
import torch

from bqn.report.png import data_uri, encode, thumbnail


def decode(file: bytes) -> np.ndarray:
    """Read what `encode` wrote, by the letter of the format: signature, chunks with checksums, rows without filter."""
    assert file[:8] == b"\x89PNG\r\n\x1a\n"
    chunks, place = {}, 8
    while place < len(file):
        (length,) = struct.unpack_from(">I", file, place)
        kind, content = file[place + 4 : place + 8], file[place + 8 : place + 8 + length]
        assert struct.unpack_from(">I", file, place + 8 + length) == (zlib.crc32(kind + content),)
        chunks[kind] = content
        place += 12 + length
    assert list(chunks) == [b"IHDR", b"IDAT", b"IEND"]
    width, height, depth, colour, *rest = struct.unpack(">IIBBBBB", chunks[b"IHDR"])
    assert (depth, rest) == (8, [0, 0, 0])
    rows = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8).reshape(height, -1)
    assert (rows[:, 0] == 0).all()
    return rows[:, 1:].reshape(height, width, {0: 1, 2: 3, 6: 4}[colour])


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_pixels_come_back(channels: int) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (5, 7, channels), np.uint8)
    assert (decode(encode(pixels)) == pixels).all()


def test_a_data_address_holds_the_file() -> None:
    pixels = np.full((2, 3, 1), 200, np.uint8)
    kind, _, content = data_uri(pixels).partition(",")
    assert kind == "data:image/png;base64"
    assert base64.b64decode(content) == encode(pixels)


@pytest.mark.parametrize(
    "pixels",
    [np.zeros((2, 2), np.uint8), np.zeros((2, 2, 2), np.uint8), np.zeros((2, 2, 3)), np.zeros((0, 2, 1), np.uint8)],
)
def test_other_arrays_are_refused(pixels: np.ndarray) -> None:
    with pytest.raises(ValueError, match="pixels must be uint8"):
        encode(pixels)


def test_small_images_stay_as_they_are() -> None:
    image = torch.randint(0, 256, (3, 28, 20), dtype=torch.uint8)
    assert (thumbnail(image) == image.permute(1, 2, 0).numpy()).all()


def test_large_images_shrink_and_keep_their_shape_and_mean() -> None:
    image = torch.randint(0, 256, (3, 256, 128), dtype=torch.uint8)
    small = thumbnail(image, 64)
    assert small.shape == (64, 32, 3)
    assert abs(small.mean() - image.double().mean()) < 1


def test_a_line_of_pixels_does_not_vanish() -> None:
    assert thumbnail(torch.zeros(1, 1000, 2, dtype=torch.uint8), 64).shape == (64, 1, 1)


def test_odd_channels_become_gray() -> None:
    image = torch.stack([torch.full((4, 4), value, dtype=torch.uint8) for value in (100, 201)])
    assert (thumbnail(image) == 150).all()
