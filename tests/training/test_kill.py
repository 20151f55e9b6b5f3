"""A process killed at any moment leaves a run that continues to bitwise the same weights."""

import multiprocessing
import random
import signal
import time

import pytest
import torch

from bqn.training import CheckpointError, fit, load_run, resume
from bqn.training.models import build_model
from tests.training import tiny

KILLS = 20
CONFIG = tiny.config(epochs=20, batch_size=4, shift=1, patience=20, checkpoint_every=3, hidden=(6,))
MOST_STEPS = 24  # of a process before it is killed; KILLS times that is less than the run has


def data():
    return tiny.images(100), tiny.images(30, seed=1)


def work(out, steps):
    """Begin the run, or continue it: what a user does who finds the machine restarted."""

    def count(done, total):
        steps.value += 1

    train, validation = data()
    steps.value = 0
    try:
        resume(out, train=train, validation=validation, tick=count)
    except CheckpointError as error:
        if "config.json is missing" not in str(error) and "is not a folder" not in str(error):
            raise
        fit(build_model(CONFIG, (1, 6, 6), 3), train, validation, CONFIG, out=out, tick=count)


def live_and_die(process, steps, moments):
    """Let a process make some steps, or none, and a little more, then kill it."""
    wanted = moments.choice([0, moments.randint(1, MOST_STEPS)])
    process.start()
    while steps.value < wanted:
        assert process.is_alive()
        time.sleep(0.0005)
    time.sleep(moments.uniform(0, 0.02 if wanted else 0.5))
    process.kill()
    process.join()
    assert process.exitcode == -signal.SIGKILL


@pytest.fixture(scope="module")
def processes():
    """Processes that are forked from a clean one that has torch loaded: real, and quick to start."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["bqn.training", "tests.training.tiny"])
    return context


def test_twenty_kills(tmp_path, processes):
    moments = random.Random(0)
    out = tmp_path / "run"
    positions = []
    for _ in range(KILLS):
        steps = processes.Value("i", -1, lock=False)
        live_and_die(processes.Process(target=work, args=(out, steps)), steps, moments)
        if (out / "config.json").exists():
            run = load_run(out)  # loadable at every one of these moments
            positions.append(len(run.history.records))
    assert positions == sorted(positions)
    assert len(set(positions)) > 2
    train, validation = data()
    killed = resume(out, train=train, validation=validation)
    whole = build_model(CONFIG, (1, 6, 6), 3)
    history = fit(whole, train, validation, CONFIG)
    assert [record.validation_nll for record in killed.history.records] == [r.validation_nll for r in history.records]
    assert all(torch.equal(tensor, killed.net.state_dict()[name]) for name, tensor in whole.state_dict().items())
    assert not list(out.glob("*.tmp"))
