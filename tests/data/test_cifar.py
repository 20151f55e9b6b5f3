"""CIFAR-10 batches in their binary layout."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bqn.data import DataError
from bqn.data._cifar import BATCHES, read_cifar, read_cifar_batch
from tests.data.files import cifar_bytes


def test_labels_and_colour_planes_are_where_they_belong(tmp_path: Path) -> None:
    image = np.arange(3072, dtype=np.uint16).reshape(3, 32, 32).astype(np.uint8)
    path = tmp_path / "batch.bin"
    path.write_bytes(b"".join([bytes([7]), image.tobytes(), bytes([2]), (255 - image).tobytes()]))
    split = read_cifar_batch(path)
    assert split.y.tolist() == [7, 2]
    assert torch.equal(split.x[0], torch.from_numpy(image))
    assert torch.equal(split.x[1], torch.from_numpy(255 - image))


def test_training_batches_follow_each_other(tmp_path: Path) -> None:
    paths = {name: tmp_path / name for name in BATCHES}
    for seed, path in enumerate(paths.values()):
        path.write_bytes(cifar_bytes(3, seed))
    train, test = read_cifar(paths)
    parts = [read_cifar_batch(path) for path in paths.values()]
    assert torch.equal(train.x, torch.cat([part.x for part in parts[:5]]))
    assert torch.equal(train.y, torch.cat([part.y for part in parts[:5]]))
    assert torch.equal(test.x, parts[5].x)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 2 * 3073 + 5))
def test_truncated_or_longer_files(tmp_path: Path, length: int) -> None:
    path = tmp_path / "batch.bin"
    path.write_bytes((cifar_bytes(2) + bytes(10))[:length])
    if length and length % 3073 == 0:
        assert len(read_cifar_batch(path)) == length // 3073
    else:
        with pytest.raises(DataError, match=r"batch\.bin: truncated or not CIFAR-10"):
            read_cifar_batch(path)


def test_refuses_an_unknown_label(tmp_path: Path) -> None:
    path = tmp_path / "batch.bin"
    path.write_bytes(bytes([10]) + bytes(3072))
    with pytest.raises(DataError, match="label 10, expected 0 to 9"):
        read_cifar_batch(path)
