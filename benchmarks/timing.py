"""Timing that benchmarks share: device time without launches, wall time on a CPU, and the record that they write."""

from __future__ import annotations

import datetime
import json
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from bqn.atomic import write_atomic
from bqn.reproduction import measuring

Work = Callable[[], Any]


def hardware() -> str:
    return f"{measuring.hardware('auto')}, torch {torch.__version__}"


def recorded(work: Work) -> Work:
    """`work` as a CUDA graph: its launches cost nothing."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph.replay


def median_ms(work: Work, cuda: bool, seconds: float = 0.03, repeats: int = 5) -> float:
    """Milliseconds of one `work`: the median of `repeats` stretches of about `seconds`, after one to warm up."""
    count = max(1, int(seconds / max(_stretch(work, 1, cuda), 1e-6)))
    _stretch(work, count, cuda)
    times = sorted(_stretch(work, count, cuda) / count for _ in range(repeats))
    return times[len(times) // 2] * 1e3


def _stretch(work: Work, count: int, cuda: bool) -> float:
    if not cuda:
        began = time.perf_counter()
        for _ in range(count):
            work()
        return time.perf_counter() - began
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start.record()
    for _ in range(count):
        work()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / 1e3


def each_ms(works: Sequence[Work], cuda: bool, seconds: float = 0.03) -> float:
    """Milliseconds of one of several equal works on different buffers, taken in turns so that no cache holds them."""

    all_of_them = partial(run_all, works)
    return median_ms(recorded(all_of_them) if cuda else all_of_them, cuda, seconds) / len(works)


def run_all(works: Sequence[Work]) -> None:
    for work in works:
        work()


def kernels(work: Work, times: int, cuda: bool) -> list[dict[str, Any]]:
    """The kernels of `work`, on a CPU operations, which is `times` of what is asked for: how often each comes and what
    it takes, the longest first."""
    with profile(activities=[ProfilerActivity.CUDA if cuda else ProfilerActivity.CPU]) as seen:
        work()
        if cuda:
            torch.cuda.synchronize()
    found = [
        {"kernel": entry.key, "times": entry.count / times, "us": spent / times}
        for entry in seen.key_averages()
        if (spent := entry.self_device_time_total if cuda else entry.self_cpu_time_total) > 0
    ]
    return sorted(found, key=lambda kernel: -kernel["us"])


def write(path: Path | None, rows: list[dict[str, Any]], **facts: Any) -> None:
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        about = {"hardware": hardware(), "date": str(datetime.date.today()), **measuring.code()}
        record = {**about, **facts, "rows": rows}
        write_atomic(path, f"{json.dumps(record, indent=1)}\n".encode())
