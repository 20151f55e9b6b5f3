"""npz files: kinds of input and target, and nothing hostile gets through."""

from __future__ import annotations

import io
import pickle
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bqn.data import DataError, Dataset, load

ONE_FILE = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=100)
LABELS = np.arange(20) % 4


@pytest.fixture
def npz(tmp_path: Path) -> Path:
    return tmp_path / "mine.npz"


def pixels(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)


def test_a_split_of_its_own_is_kept(npz: Path) -> None:
    x, y = pixels(20, 3, 4, 5), LABELS.astype(np.uint8)
    np.savez_compressed(npz, x_train=x[:15], y_train=y[:15], x_test=x[15:], y_test=y[15:])
    data = load(npz)
    assert (data.task, data.classes, data.input_shape) == ("classification", ("0", "1", "2", "3"), (3, 4, 5))
    assert torch.equal(data.train.x, torch.from_numpy(x[:15]))
    assert torch.equal(data.test.y, torch.from_numpy(LABELS[15:]))


def test_without_one_it_is_split_by_number(npz: Path) -> None:
    np.savez(npz, x=np.arange(20.0)[:, None], y=LABELS)
    first, other = load(npz), load(npz, split=1)
    assert sorted(first.test.y.tolist()) == [0, 1, 2, 3]
    assert first.test.x.tolist() != other.test.x.tolist()
    everything = torch.cat([first.train.x, first.test.x])[:, 0].tolist()
    assert sorted(everything) == list(range(20))


@pytest.mark.parametrize(
    ("x", "shape"),
    [
        (pixels(20, 6, 5), (1, 6, 5)),
        (pixels(20, 1, 6, 5), (1, 6, 5)),
        (pixels(20, 6, 5, 3), (3, 6, 5)),
        (pixels(20, 6, 5, 1), (1, 6, 5)),
        (pixels(20, 7), (7,)),
        (np.ones((20, 7), ">f8"), (7,)),
        (np.ones((20, 7), bool), (7,)),
        (np.ones((20, 7), np.int16), (7,)),
    ],
)
def test_images_and_features_in_all_layouts(npz: Path, x: np.ndarray, shape: tuple[int, ...]) -> None:
    np.savez(npz, x=x, y=LABELS)
    data = load(npz)
    assert data.input_shape == shape
    assert data.train.x.dtype == (torch.uint8 if len(shape) == 3 else torch.float32)
    assert data.train.x.double().mean() == pytest.approx(x.mean(), rel=0.2)


def test_the_order_in_memory_does_not_matter(npz: Path) -> None:
    x = pixels(20, 3, 6, 5)
    np.savez(npz, x_train=np.asfortranarray(x), y_train=LABELS, x_test=x, y_test=LABELS)
    data = load(npz)
    assert torch.equal(data.train.x, data.test.x)


def test_channels_last_are_moved_not_reshaped(npz: Path) -> None:
    x = pixels(20, 6, 5, 3)
    np.savez(npz, x_train=x, y_train=LABELS, x_test=x, y_test=LABELS)
    assert torch.equal(load(npz).train.x.permute(0, 2, 3, 1), torch.from_numpy(x))


@pytest.mark.parametrize(
    ("y", "task", "classes", "shape"),
    [
        (LABELS, None, ("0", "1", "2", "3"), (16,)),
        (LABELS[:, None], None, ("0", "1", "2", "3"), (16,)),
        (np.array(["cat", "dog"])[LABELS % 2], None, ("cat", "dog"), (16,)),
        (LABELS * 1.0, None, (), (16, 1)),
        (np.ones((20, 3), np.float32), None, (), (16, 3)),
        (LABELS, "regression", (), (16, 1)),
        (LABELS * 1.0, "classification", ("0", "1", "2", "3"), (16,)),
    ],
)
def test_targets(npz: Path, y: np.ndarray, task: Any, classes: tuple[str, ...], shape: tuple[int, ...]) -> None:
    np.savez(npz, x=np.ones((20, 2)), y=y)
    data = load(npz, task=task)
    assert data.classes == classes
    assert tuple(data.train.y.shape) == shape
    assert data.task == ("classification" if classes else "regression")


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"a": LABELS}, "holds a; expected x_train, y_train, x_test, y_test, or x, y"),
        ({"x_train": LABELS, "x": LABELS, "y": LABELS}, "expected x_train, y_train"),
        ({}, "holds nothing"),
        ({"x": np.ones((20, 2)), "y": LABELS[:9]}, "9 targets for 20 examples|y has 9"),
        ({"x": np.ones((20, 2, 2, 2)), "y": LABELS}, "store images as uint8"),
        ({"x": np.ones(20), "y": LABELS}, "x must be uint8 images or numeric features"),
        ({"x": pixels(20, 2, 6, 5), "y": LABELS}, "1 or 3 channels"),
        ({"x": np.ones((20, 2)) * np.nan, "y": LABELS}, "x has NaN, infinite"),
        ({"x": np.ones((20, 2)) * 1e39, "y": LABELS}, "too large values"),
        ({"x": np.ones((20, 2)), "y": np.full(20, np.inf)}, "y has NaN, infinite"),
        ({"x": np.ones((20, 2)), "y": np.ones((20, 2, 2))}, "y must be targets"),
        ({"x": np.ones((20, 2)), "y": np.ones((20, 2), int)}, "one label an example"),
        ({"x": np.ones((20, 2)), "y": np.ones(20, complex)}, "complex128, expected numbers or text"),
        ({"x": np.ones((0, 2)), "y": np.ones((0, 1))}, "y must be targets"),
    ],
)
def test_errors_say_what_is_wrong(npz: Path, arrays: dict[str, Any], message: str) -> None:
    np.savez(npz, **arrays)
    with pytest.raises(DataError, match=message), np.errstate(all="ignore"):
        load(npz)


def test_a_split_must_fit_together(npz: Path) -> None:
    good = {"x_train": np.ones((20, 2)), "y_train": LABELS, "x_test": np.ones((4, 2)), "y_test": LABELS[:4]}
    for change, message in (
        ({"y_test": LABELS[:4] + 3}, "y_test has the class '4', which y_train does not know"),
        ({"y_test": LABELS[:4] * 1.0}, "y_train is int64 .* but y_test is float64"),
        ({"y_train": LABELS[:19]}, "y_train has 19 targets for 20 examples"),
        ({"y_test": LABELS[:5]}, "25 targets for 24 examples"),
        ({"x_test": np.ones((4, 3))}, "test examples are"),
    ):
        np.savez(npz, **(good | change))
        with pytest.raises(DataError, match=message):
            load(npz)


class Trap:
    """Pickles to something that makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def test_nothing_is_unpickled(npz: Path, tmp_path: Path) -> None:
    sprung = tmp_path / "sprung"
    np.savez(npz, x=np.ones((20, 2)), y=np.array([Trap(sprung)] * 20, dtype=object))
    with pytest.raises(DataError, match="holds object, expected numbers or text"):
        load(npz)
    npz.write_bytes(pickle.dumps(Trap(sprung)))
    with pytest.raises(DataError, match=r"not a readable \.npz file"):
        load(npz)
    assert not sprung.exists()


def member(header: str, data: bytes) -> bytes:
    text = header.encode().ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + data


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ("(1000000000000,)", "promises"),
        ("(99999999, 99999999)", "promises"),
        ("(-1,)", "promises"),
        ("(-4, -2)", "promises"),
        ("(7,)", "promises"),
        ("(9,)", "promises"),
        ("(2**9,)", "not a readable"),
        ("'x'", "not a readable"),
    ],
)
def test_a_false_shape_takes_no_memory(npz: Path, shape: str, message: str) -> None:
    header = f"{{'descr': '|u1', 'fortran_order': False, 'shape': {shape}, }}"
    with zipfile.ZipFile(npz, "w") as archive:
        archive.writestr("x.npy", member(header, bytes(8)))
        archive.writestr("y.npy", member(header, bytes(8)))
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match=rf"mine\.npz: .*{message}"):
            load(npz)
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()


def test_other_compressions_and_versions_are_refused(npz: Path) -> None:
    with zipfile.ZipFile(npz, "w", zipfile.ZIP_BZIP2) as archive:
        archive.writestr("x.npy", member("{}", b""))
        archive.writestr("y.npy", member("{}", b""))
    with pytest.raises(DataError, match="a way that numpy does not write"):
        load(npz)
    with zipfile.ZipFile(npz, "w") as archive:
        archive.writestr("x.npy", b"\x93NUMPY\x03\x00")
        archive.writestr("y.npy", b"")
    with pytest.raises(DataError, match=r"npy version \(3, 0\)"):
        load(npz)


def valid_bytes() -> bytes:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, x=np.ones((20, 2), np.float32), y=LABELS)
    return buffer.getvalue()


VALID = valid_bytes()


@ONE_FILE
@given(st.integers(0, len(VALID) - 1))
def test_truncated(npz: Path, length: int) -> None:
    npz.write_bytes(VALID[:length])
    with pytest.raises(DataError, match=r"not a readable \.npz file"):
        load(npz)


@ONE_FILE
@given(st.lists(st.tuples(st.integers(0, len(VALID) - 1), st.integers(1, 255)), min_size=1, max_size=3))
def test_changed_bytes_are_a_data_error_or_do_not_matter(npz: Path, changes: list[tuple[int, int]]) -> None:
    """Some bytes of a zip file, such as dates, do not matter; content always does."""
    damaged = bytearray(VALID)
    for position, change in changes:
        damaged[position] ^= change
    npz.write_bytes(damaged)
    outcome: Dataset | DataError
    try:
        outcome = load(npz)
    except DataError as error:
        outcome = error
    if isinstance(outcome, DataError):
        assert str(npz) in str(outcome)
    else:
        assert outcome.train.x.eq(1).all()
        assert outcome.train.y.sum() + outcome.test.y.sum() == LABELS.sum()
