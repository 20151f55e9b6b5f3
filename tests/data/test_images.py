"""Folders of pictures."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from bqn.data import DataError, load


def write(path: Path, pixels: np.ndarray, mode: str | None = None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    picture = Image.fromarray(pixels)
    (picture.convert(mode) if mode else picture).save(path)
    return path


def gray(value: int, height: int = 4, width: int = 5) -> np.ndarray:
    return np.full((height, width), value, np.uint8)


def fill(folder: Path, per_class: int = 5, classes: str = "ab") -> None:
    for label, name in enumerate(classes):
        for number in range(per_class):
            write(folder / name / f"{number}.png", gray(100 * label + number))


def test_train_and_test_folders(tmp_path: Path) -> None:
    fill(tmp_path / "train", 3, "abc")
    fill(tmp_path / "test", 2, "ac")
    (tmp_path / "notes").mkdir()
    data = load(tmp_path)
    assert (data.task, data.classes, data.input_shape) == ("classification", ("a", "b", "c"), (1, 4, 5))
    assert data.train.x[:, 0, 0, 0].tolist() == [0, 1, 2, 100, 101, 102, 200, 201, 202]
    assert data.train.y.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert data.test.y.tolist() == [0, 0, 2, 2]


def test_one_level_is_split_by_number(tmp_path: Path) -> None:
    fill(tmp_path, 10)
    first, other = load(tmp_path), load(tmp_path, split=1)
    assert (len(first.train), sorted(first.test.y.tolist())) == (16, [0, 0, 1, 1])
    assert first.test.x.tolist() != other.test.x.tolist()
    for split in (first.train, first.test):
        assert torch.equal(split.x[:, 0, 0, 0] // 100, split.y)


def test_colours_keep_their_places(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    pictures = {name: rng.integers(0, 256, (4, 5, 3), dtype=np.uint8) for name in "ab"}
    for part in ("train", "test"):
        for name, pixels in pictures.items():
            write(tmp_path / part / name / "x.png", pixels)
    data = load(tmp_path)
    assert data.input_shape == (3, 4, 5)
    assert torch.equal(data.train.x.permute(0, 2, 3, 1), torch.from_numpy(np.stack(list(pictures.values()))))


def test_gray_among_colours_becomes_colour(tmp_path: Path) -> None:
    for part in ("train", "test"):
        write(tmp_path / part / "a" / "gray.png", gray(9))
        write(tmp_path / part / "b" / "colour.bmp", np.full((4, 5, 3), [1, 2, 3], np.uint8))
        write(tmp_path / part / "b" / "palette.gif", np.full((4, 5, 3), 255, np.uint8), "P")
        write(tmp_path / part / "b" / "transparent.png", np.full((4, 5, 4), [7, 8, 9, 0], np.uint8))
    data = load(tmp_path)
    assert data.train.x[:, :, 0, 0].tolist() == [[9, 9, 9], [1, 2, 3], [255, 255, 255], [7, 8, 9]]


def test_what_desktops_leave_behind_is_passed_over(tmp_path: Path) -> None:
    fill(tmp_path)
    for name in (".DS_Store", "Thumbs.db"):
        (tmp_path / name).write_bytes(b"x")
        (tmp_path / "a" / name).write_bytes(b"x")
    assert len(load(tmp_path).train) == 8


@pytest.mark.parametrize("data", [b"", b"no picture", b"\x89PNG\r\n\x1a\n" + bytes(40)])
def test_an_unreadable_picture_is_named(tmp_path: Path, data: bytes) -> None:
    fill(tmp_path)
    broken = tmp_path / "b" / "3.png"
    broken.write_bytes(data)
    with pytest.raises(DataError) as caught:
        load(tmp_path)
    assert str(caught.value).startswith(f"{broken}: cannot be read as a picture (")
    assert "\n" not in str(caught.value)


NOISE = np.random.default_rng(0).integers(0, 256, (4, 5), dtype=np.uint8)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 60), st.sampled_from(["png", "bmp", "gif", "pgm"]))
def test_a_truncated_picture_is_named(tmp_path: Path, length: int, kind: str) -> None:
    fill(tmp_path, 5)
    broken = tmp_path / "a" / f"0.{kind}"
    (tmp_path / "a" / "0.png").unlink()
    write(broken, NOISE)
    whole = broken.read_bytes()
    broken.write_bytes(whole[: min(length, len(whole) // 2)])
    try:
        with pytest.raises(DataError, match=rf"0\.{kind}: "):
            load(tmp_path)
    finally:
        broken.unlink()


@pytest.mark.parametrize(
    ("name", "pixels", "message"),
    [
        ("odd.png", gray(1, 4, 6), "6 × 4 pixels, the first picture has 5 × 4"),
        ("deep.png", np.full((4, 5), 70000, np.int32), "pixels of the kind 'I"),
    ],
)
def test_a_picture_that_does_not_fit_is_named(tmp_path: Path, name: str, pixels: np.ndarray, message: str) -> None:
    fill(tmp_path)
    path = tmp_path / "b" / name
    if pixels.dtype == np.int32:
        Image.fromarray(np.clip(pixels, 0, 65535).astype(np.uint16)).save(path)
    else:
        write(path, pixels)
    with pytest.raises(DataError, match=f"{name}: {message}"):
        load(tmp_path)


def test_a_giant_picture_is_not_decoded(tmp_path: Path) -> None:
    fill(tmp_path / "train")
    fill(tmp_path / "test")
    Image.new("1", (5000, 5000)).save(tmp_path / "train" / "a" / "0.png")
    with pytest.raises(DataError, match=r"0\.png: 5000 × 5000 pixels, at most 16,777,216 are read"):
        load(tmp_path)


def test_layouts_that_make_no_sense(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="expected a folder of pictures for each class, found none"):
        load(tmp_path)
    fill(tmp_path / "train")
    with pytest.raises(DataError, match="has train but no test folder"):
        load(tmp_path)
    fill(tmp_path / "test", 1, "abz")
    with pytest.raises(DataError, match="the class 'z' has no folder in"):
        load(tmp_path)
    (tmp_path / "train").rename(tmp_path / "training")
    with pytest.raises(DataError, match="has test but no train folder"):
        load(tmp_path)


def test_strange_files_and_empty_folders_are_named(tmp_path: Path) -> None:
    fill(tmp_path)
    (tmp_path / "a" / "notes.txt").write_text("hello")
    with pytest.raises(DataError, match=r"notes\.txt: not a picture, expected a file that ends in \.png"):
        load(tmp_path)
    (tmp_path / "a" / "notes.txt").unlink()
    (tmp_path / "c").mkdir()
    with pytest.raises(DataError, match="c: no pictures in this folder"):
        load(tmp_path)


def test_without_pillow_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path)
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ImportError, match=r'reading pictures needs PIL: pip install "bqn\[images\]"'):
        load(tmp_path)
