"""Carrying a comparison out: one training after the other, or several at a time, each kept as soon as it is done."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from multiprocessing.connection import wait as wait_for_end
from pathlib import Path
from typing import Any

import torch

from bqn.comparison.plan import Plan, Task
from bqn.comparison.records import ComparisonError, RecordFolder
from bqn.comparison.size import stored_bytes
from bqn.evaluation import evaluate
from bqn.network import Network
from bqn.training import DivergedError, Run, load_data, train

_REPEATS = 3
_BATCH = 500

Report = Callable[[Task, float], None]
Measurements = Generator[tuple[Task, dict[str, Any]], None, None]


def run_plan(
    plan: Plan,
    folder: RecordFolder,
    *,
    root: str | Path | None = None,
    jobs: int = 1,
    report: Report | None = None,
) -> None:
    """Do what is not yet recorded in `folder`.

    Parameters
    ----------
    plan : Plan
    folder : RecordFolder
    root : folder of the data sets
    jobs : int
        Trainings at a time, each in a process with one thread; 1 works in this process with torch's threads.
    report : function of a Task and the seconds that it took, called when it is recorded
    """
    done = {method: set(record.replicates) for method, record in folder.read_all(plan).items()}
    missing = [task for task in plan.tasks if task.replicate not in done.get(task.method, ())]
    measurements = _in_turn(missing, root) if jobs == 1 else _at_once(missing, root, jobs)
    with closing(measurements):  # an interrupt while a record is written ends the others too
        for task, measured in measurements:
            folder.add(plan, task, measured)
            if report is not None:
                report(task, measured["train_seconds"])


def measure(task: Task, root: str | Path | None = None) -> dict[str, Any]:
    """Train once and judge the result on the test examples, in every mode."""
    try:
        dataset = load_data(task.config, root)
        started = time.perf_counter()
        run = train(task.config, dataset=dataset)
        seconds = time.perf_counter() - started
    except DivergedError as error:
        raise ComparisonError(f"{task.method}, split {task.replicate}: {error}") from error
    scale = run.preprocessing.target_scale
    seed, samples = task.config.seed, run.net.usual_samples
    scores = evaluate(
        run.net, dataset.test, samples=samples, seed=seed, prepare=run.preprocessing.input, target_scale=scale
    )
    modes = {}
    for mode in run.net.modes:
        speed = _seconds_to_predict(run, dataset.test.x, mode, samples) / len(dataset.test)
        size = stored_bytes(run.net, mode, samples, seed)
        modes[mode] = {**scores[mode], "size": size, "predict_seconds": speed}
    return {
        "examples": {"train": len(dataset.train), "test": len(dataset.test)},
        "train_seconds": seconds,
        "epochs": len(run.history.records),
        "modes": modes,
    }


def _seconds_to_predict(run: Run, x: torch.Tensor, mode: str, samples: int) -> float:
    """The least of a few times."""
    net: Network = run.net
    device = next(net.parameters()).device
    batches = [run.preprocessing.input(part.to(device)) for part in x.split(_BATCH)]
    times = []
    for _ in range(_REPEATS):
        started = time.perf_counter()
        for batch in batches:
            net.predict(batch, mode, samples, torch.Generator(device).manual_seed(0))
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append(time.perf_counter() - started)
    return min(times)


def _in_turn(tasks: Sequence[Task], root: str | Path | None) -> Measurements:
    for task in tasks:
        yield task, measure(task, root)


def _at_once(tasks: Sequence[Task], root: str | Path | None, jobs: int) -> Measurements:
    """In processes of their own, started afresh: torch's threads do not survive a fork."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(jobs, len(tasks) or 1), context, _begin_worker) as pool:
        waiting: dict[Future[dict[str, Any]], Task] = {}
        try:
            waiting.update((pool.submit(measure, task, root), task) for task in tasks)
            while waiting:
                for future in wait(waiting, return_when=FIRST_COMPLETED).done:
                    yield waiting.pop(future), future.result()
        except BrokenProcessPool:
            raise ComparisonError(
                "a training process ended without a word; out of memory? fewer jobs need less"
            ) from None
        finally:
            processes = list(pool._processes.values())  # the pool forgets them as it shuts down
            pool.shutdown(wait=False, cancel_futures=True)
            if waiting:
                for process in processes:  # what they are at is of no use any more
                    process.terminate()


def _begin_worker() -> None:
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that waits
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A process whose parent was killed would train on for nobody."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait_for_end([parent.sentinel])
    os._exit(1)
