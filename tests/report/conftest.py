"""A browser for the tests that look at pages, and one small trained run for those that write reports."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from bqn.training import TrainConfig, train
from tests.report.browser import Browser, start_browser
from tests.report.pages import HOSTILE, images


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with start_browser() as started:
        yield started


@pytest.fixture(scope="session")
def shared_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run on a file of images whose class names are hostile; beside it another such file."""
    folder = tmp_path_factory.mktemp("report")
    names = np.array([name.replace("\x00", "").replace("\ud800", "") for name in HOSTILE])
    for file, seed in (("known", 0), ("elsewhere", 10)):
        training, test = images(60, 3, seed), images(40, 3, seed + 1)
        np.savez(
            folder / f"{file}.npz",
            x_train=training.x.numpy(),
            y_train=names[training.y.numpy()],
            x_test=test.x.numpy(),
            y_test=names[test.y.numpy()],
        )
    config = TrainConfig(data=str(folder / "known.npz"), hidden=(8,), epochs=2, batch_size=20, threads=1)
    train(config, out=folder / "run")
    return folder / "run"
