"""idx files: real content comes through, everything else is one DataError, and no file takes more memory than it
can fill."""

from __future__ import annotations

import gzip
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from bqn.data import DataError
from bqn.data._idx import read_idx, read_idx_set
from tests.data.files import digits, idx_bytes, write_idx_set

ONE_FILE = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
IMAGES, _ = digits(7)
PLAIN = idx_bytes(IMAGES)
ZIPPED = gzip.compress(PLAIN, mtime=0)


@pytest.mark.parametrize("data", [PLAIN, ZIPPED, gzip.compress(PLAIN, 1), gzip.compress(PLAIN, 0)])
def test_reads_the_same_array_zipped_or_not(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "images"
    path.write_bytes(data)
    result = read_idx(path, dims=3)
    assert result.dtype == np.uint8
    np.testing.assert_array_equal(result, IMAGES)


@pytest.mark.parametrize("zipped", [True, False])
def test_reads_a_whole_set(tmp_path: Path, zipped: bool) -> None:
    arrays = write_idx_set(tmp_path, zipped=zipped)
    train, test = read_idx_set({path.name.removesuffix(".gz"): path for path in tmp_path.iterdir()}, classes=10)
    for split, part in ((train, "train"), (test, "t10k")):
        np.testing.assert_array_equal(split.x[:, 0].numpy(), arrays[f"{part}-images-idx3-ubyte"])
        np.testing.assert_array_equal(split.y.numpy(), arrays[f"{part}-labels-idx1-ubyte"])


@ONE_FILE
@given(st.integers(0, len(ZIPPED) - 1))
def test_truncated_zipped_file(tmp_path: Path, length: int) -> None:
    path = tmp_path / "cut.gz"
    path.write_bytes(ZIPPED[:length])
    with pytest.raises(DataError, match=r"cut\.gz: "):
        read_idx(path, dims=3)


@ONE_FILE
@given(st.integers(0, len(PLAIN) - 1))
def test_truncated_plain_file(tmp_path: Path, length: int) -> None:
    path = tmp_path / "cut"
    path.write_bytes(PLAIN[:length])
    with pytest.raises(DataError, match="cut: t"):
        read_idx(path, dims=3)


@ONE_FILE
@given(st.integers(10, len(ZIPPED) - 1), st.integers(1, 255))
def test_a_changed_byte_in_the_gzip_data_is_found(tmp_path: Path, position: int, change: int) -> None:
    """Bytes 4 to 9 of the header hold time, flags and system, which do not matter; all others are checked."""
    damaged = bytearray(ZIPPED)
    damaged[position] ^= change
    path = tmp_path / "damaged.gz"
    path.write_bytes(damaged)
    with pytest.raises(DataError, match=r"damaged\.gz: "):
        read_idx(path, dims=3)


@ONE_FILE
@given(st.binary(max_size=200))
def test_random_bytes_are_no_idx_file(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "random"
    path.write_bytes(data)
    with pytest.raises(DataError):
        read_idx(path, dims=3)


@ONE_FILE
@given(st.lists(st.integers(0, 2**32 - 1), min_size=3, max_size=3), st.booleans())
def test_no_header_makes_a_large_allocation(tmp_path: Path, shape: list[int], zipped: bool) -> None:
    data = struct.pack(">4I", 0x0803, *shape) + bytes(20)
    path = tmp_path / "absurd"
    path.write_bytes(gzip.compress(data) if zipped else data)
    assume(np.prod([float(size) for size in shape]) != 20)
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match="absurd: "):
            read_idx(path, dims=3)
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()


def test_a_zip_bomb_is_not_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "bomb.gz"
    path.write_bytes(gzip.compress(idx_bytes(np.zeros((1, 28, 28), np.uint8)) + bytes(30_000_000), 1))
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match="more than the expected 800 bytes"):
            read_idx(path, dims=3)
        assert tracemalloc.get_traced_memory()[1] < 3_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "0 of 16 header bytes"),
        (idx_bytes(np.zeros(20, np.uint8)), "magic number 0x00000801, expected 0x00000803"),
        (PLAIN.replace(b"\x08", b"\x0d", 1), "magic number 0x00000d03"),
        (PLAIN + b"\0", "bytes, expected"),
        (gzip.compress(PLAIN + b"\0"), "more than the expected"),
        (ZIPPED + b"\0\0", "2 surplus bytes after the gzip data"),
        (ZIPPED[:-1], "truncated gzip data"),
        (ZIPPED[:-8], "truncated gzip data"),
        (gzip.compress(PLAIN[:-1]), "truncated, 5,503 of 5,504 bytes"),
    ],
)
def test_errors_say_what_is_wrong(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(data)
    with pytest.raises(DataError, match=message):
        read_idx(path, dims=3)


def test_missing_file_and_folder(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="none: cannot be read: No such file"):
        read_idx(tmp_path / "none", dims=3)
    with pytest.raises(DataError, match="cannot be read"):
        read_idx(tmp_path, dims=3)


def test_images_and_labels_must_match(tmp_path: Path) -> None:
    write_idx_set(tmp_path)
    paths = {path.name.removesuffix(".gz"): path for path in tmp_path.iterdir()}
    labels = tmp_path / "train-labels-idx1-ubyte.gz"
    labels.write_bytes(gzip.compress(idx_bytes(np.zeros(11, np.uint8))))
    with pytest.raises(DataError, match=r"12 images but .* 11 labels"):
        read_idx_set(paths, classes=10)
    labels.write_bytes(gzip.compress(idx_bytes(np.full(12, 10, np.uint8))))
    with pytest.raises(DataError, match="label 10, expected 0 to 9"):
        read_idx_set(paths, classes=10)
