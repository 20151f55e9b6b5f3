"""What does a training step cost on a CPU, in float32 and in bfloat16?

    python benchmarks/cpu_step.py [--models mlp cnn] [--threads 1] [--profile] [--out cpu_step.json]

A step (forward, backward, fused Adam) at batch 100, images of the size of MNIST's: ours in float32 and with
`--mixed-precision`, without drawn networks and with one in every step; beside it the plain real-valued network of the
same sizes with batch norm and ReLU, in float32 and under bfloat16's autocast. The floor is twice the plain network in
the same precision. Networks take turns of a few steps, and the median of the turns counts: what else the machine does
falls on all alike. On a CPU without products in bfloat16 those rows are left out. `--profile` says where the time of a
step goes instead, by the kind of operation; a profiler makes small operations look longer than they are.
"""

from __future__ import annotations

import argparse
import re
import statistics
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from bqn.data import to_input
from bqn.propagate import devices
from bqn.training import TrainConfig, build_model
from bqn.training.loop import Trainer
from gpu_step import SHAPES, body, images
from timing import hardware, kernels, run_all, write

BATCH = 100
TURN = {"mlp": 30, "cnn": 3, "vgg": 1}  # steps of one network before it is the next one's turn
Step = Callable[[], object]
# The first that matches counts. What a function of ours does beside torch's operations is passes in C.
KINDS = {
    "products": re.compile(r"aten::(mm|addmm|bmm|baddbmm|_addmm_activation)$|mkldnn.*linear"),
    "convolutions": re.compile(r"aten::(mkldnn_convolution|convolution_backward|_slow_conv.*|slow_conv.*)$"),
    "passes": re.compile(r"_[A-Z]"),
    "optimizer": re.compile(r"aten::_fused_adam_|Optimizer"),
}


def plain_step(model: str, low: bool) -> Step:
    net = body(model, nn.Linear, lambda i, o, k: nn.Conv2d(i, o, k, padding=k // 2, bias=False))
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3, fused=True)
    split = images(SHAPES[model])

    def step() -> None:
        x = to_input(split.x[:BATCH])
        with torch.autocast("cpu", torch.bfloat16) if low else nullcontext():
            for layer in net:
                x = layer(x)
        optimizer.zero_grad()
        F.cross_entropy(x.float(), split.y[:BATCH]).backward()
        optimizer.step()

    return step


def our_step(model: str, low: bool, drawn: bool) -> Step:
    config = TrainConfig.preset({
        "model": model, "data": "cifar10" if model == "vgg" else "mnist", "device": "cpu", "batch_size": BATCH,
        "mixed_precision": low, "validation_fraction": 0.0, "drawn_epochs": 10**6 if drawn else 0,
    })  # fmt: skip
    net = build_model(config, SHAPES[model], 10)
    net.validate = False
    net.train()
    trainer = Trainer(net, images(SHAPES[model]), None, config, torch.device("cpu"))
    batch = torch.arange(BATCH)
    return lambda: trainer._step(batch)


def steps_of(model: str) -> dict[tuple[str, str], Step]:
    """What is compared, by network and precision."""
    precisions = ("float32", "bfloat16") if devices.CPU_HAS_BFLOAT16 else ("float32",)
    steps: dict[tuple[str, str], Step] = {}
    for precision in precisions:
        low = precision == "bfloat16"
        steps["plain", precision] = plain_step(model, low)
        steps["ours", precision] = our_step(model, low, drawn=False)
        steps["ours, with a drawn network", precision] = our_step(model, low, drawn=True)
    return steps


def measure(model: str, turns: int) -> list[dict[str, object]]:
    steps = steps_of(model)
    times: dict[tuple[str, str], list[float]] = {name: [] for name in steps}
    for turn in range(turns + 1):  # the first warms up
        for name, step in steps.items():
            began = time.perf_counter()
            for _ in range(TURN[model]):
                step()
            if turn:
                times[name].append((time.perf_counter() - began) / TURN[model] * 1e3)
    rows: list[dict[str, object]] = []
    for (what, precision), values in times.items():
        each = statistics.median(values)
        rival = statistics.median(times["plain", precision])
        full = statistics.median(times[what, "float32"])
        print(
            f"{model} {what:27s}{precision:9s}{each:9.1f} ms {each / rival:5.2f} × plain (floor 2), "
            f"{full / each:4.2f} times as fast as in float32",
            flush=True,
        )
        rows.append({
            "what": f"training step, {model}, {what}, {precision}", "ours": each, "rival": rival,
            "ratio": each / rival, "floor": 2 * rival, "times_as_fast_as_float32": full / each, "turns": values,
        })  # fmt: skip
    return rows


def by_kind(step: Step, times: int) -> dict[str, float]:
    """Milliseconds of a step by the kind of operation."""
    found = dict.fromkeys((*KINDS, "small operations"), 0.0)
    for entry in kernels(lambda: run_all([step] * times), times, cuda=False):
        kind = next((kind for kind, names in KINDS.items() if names.match(entry["kernel"])), "small operations")
        found[kind] += entry["us"] / 1e3
    return found


def show_profile(model: str) -> list[dict[str, object]]:
    """Print where the time of each step goes, and return it as rows of a record."""
    rows: list[dict[str, object]] = []
    for (what, precision), step in steps_of(model).items():
        run_all([step] * TURN[model])  # warms up
        kinds = by_kind(step, TURN[model])
        print(
            f"{model} {what}, {precision}: " + ", ".join(f"{kind} {ms:.1f}" for kind, ms in kinds.items()), flush=True
        )
        rows.append({"what": f"training step, {model}, {what}, {precision}", "ms": kinds})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=tuple(SHAPES), default=["mlp", "cnn"])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--profile", action="store_true", help="where a step spends its time")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    torch.set_flush_denormal(True)  # as in a run
    print(hardware())
    rows = []
    for model in chosen.models:
        rows += show_profile(model) if chosen.profile else measure(model, chosen.turns)
    write(chosen.out, rows)


if __name__ == "__main__":
    main()
