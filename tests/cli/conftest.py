"""A command line to call, and runs to call it on."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from bqn.cli import main
from tests.cli.files import QUICK, write_images, write_table


class Result(NamedTuple):
    """How a command ended and what it printed."""

    code: int
    out: str
    err: str

    def fails(self, code: int = 1) -> str:
        """The one line about what went wrong; there must be nothing else."""
        assert self.code == code, self
        assert self.out == ""
        assert self.err.startswith("bqn: error: ")
        assert self.err.count("\n") == 1
        assert self.err.endswith("\n")
        return self.err.removeprefix("bqn: error: ").rstrip("\n")


Bqn = Callable[..., Result]


@pytest.fixture
def bqn(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bqn:
    """Call the command line in an empty folder, with no data sets but those that are bundled."""
    monkeypatch.setenv("BQN_DATA", str(tmp_path / "no-data"))
    monkeypatch.setenv("COLUMNS", "80")
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")

    def call(*arguments: object) -> Result:
        capsys.readouterr()
        code = main([str(each) for each in arguments])
        return Result(code, *capsys.readouterr())

    return call


class Home(NamedTuple):
    """Files and runs that tests only read."""

    images: Path
    table: Path
    classifier: Path
    regression: Path


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    folder = tmp_path_factory.mktemp("home")
    made = Home(
        write_images(folder / "images.npz"), write_table(folder / "table.csv"), folder / "classes", folder / "prices"
    )
    assert main(["train", "--data", str(made.images), "--out", str(made.classifier), *QUICK]) == 0
    target = ("--target", "price")
    assert main(["train", "--data", str(made.table), *target, "--out", str(made.regression), *QUICK]) == 0
    return made


@pytest.fixture
def run(home: Home, tmp_path: Path) -> Path:
    """A run of a classifier that a test may harm."""
    shutil.copytree(home.classifier, tmp_path / "run")
    return tmp_path / "run"
