"""The one way in tells names from paths and refuses what makes no sense."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bqn.data import DataError, load
from tests.data.files import write_idx_set


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist", "kmnist"])
def test_named_sets_come_from_the_environment(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_idx_set(tmp_path / name)
    monkeypatch.setenv("BQN_DATA", str(tmp_path))
    data = load(name)
    assert (data.name, len(data.classes), data.input_shape) == (name, 10, (1, 28, 28))


def test_a_folder_with_the_name_of_a_set_needs_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "digits").mkdir()
    monkeypatch.chdir(tmp_path)
    assert load("digits").input_shape == (1, 8, 8)
    with pytest.raises(DataError, match="expected a folder of pictures for each class"):
        load("./digits")


def test_suffixes_in_any_case(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.ones((10, 2)), y=np.arange(10.0))
    (tmp_path / "a.npz").rename(tmp_path / "A.NPZ")
    assert load(tmp_path / "A.NPZ").task == "regression"


@pytest.mark.parametrize("name", ["none.csv", "none.npz", "folder/none", "/none"])
def test_paths_that_do_not_exist(name: str) -> None:
    with pytest.raises(DataError, match=f"{name}: no such file or folder"):
        load(name)


def test_an_unknown_kind_of_file(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    path.write_bytes(b"x")
    with pytest.raises(DataError, match=r"model\.pt: expected an \.npz file, a \.csv file or a folder of pictures"):
        load(path)


def test_an_unknown_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match="no data set is called 'digit', did you mean digits"):
        load("digit")


@pytest.mark.parametrize("split", [-1, 0.0, True, None])
def test_refuses_what_is_no_split(split: Any) -> None:
    with pytest.raises(ValueError, match="split must be a whole number from 0"):
        load("digits", split=split)


@pytest.mark.parametrize(("name", "last"), [("mnist", 0), ("cifar10", 0), ("protein-tertiary-structure", 4)])
def test_refuses_splits_that_a_set_does_not_have(name: str, last: int, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=f"{name}: split must be from 0 to {last}, got {last + 1}"):
        load(name, root=tmp_path, split=last + 1)


def test_refuses_options_that_do_not_apply(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="target and task are for your own files, digits has its own"):
        load("digits", task="regression")
    with pytest.raises(ValueError, match="task does not apply"):
        load(tmp_path, task="classification")
    np.savez(tmp_path / "a.npz", x=np.ones((10, 2)), y=np.arange(10.0))
    with pytest.raises(ValueError, match=r"target does not apply .* got 'y'"):
        load(tmp_path / "a.npz", target="y")


def test_importing_brings_no_extra() -> None:
    code = "import bqn.data, sys; print(sorted({'pooch', 'requests', 'PIL', 'sklearn'} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert result.stdout.strip() == "[]"
