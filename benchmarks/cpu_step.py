"""What does a training step cost on a CPU, in float32 and in bfloat16?

    python benchmarks/cpu_step.py [--models mlp cnn] [--threads 1] [--out cpu_step.json]

A step (forward, backward, fused Adam) at batch 100, images of the size of MNIST's: ours in float32 and with
`--mixed-precision`, without drawn networks and with one in every step; beside it the plain real-valued network of the
same sizes with batch norm and ReLU, in float32 and under bfloat16's autocast. The floor is twice the plain network in
the same precision. Networks take turns of a few steps, and the median of the turns counts: what else the machine does
falls on all alike. On a CPU without products in bfloat16 those rows are left out.
"""

from __future__ import annotations

import argparse
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
from timing import hardware, write

BATCH = 100
TURN = {"mlp": 30, "cnn": 3, "vgg": 1}  # steps of one network before it is the next one's turn
Step = Callable[[], object]


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


def measure(model: str, turns: int) -> list[dict[str, object]]:
    precisions = ("float32", "bfloat16") if devices.CPU_HAS_BFLOAT16 else ("float32",)
    steps: dict[tuple[str, str], Step] = {}
    for precision in precisions:
        low = precision == "bfloat16"
        steps["plain", precision] = plain_step(model, low)
        steps["ours", precision] = our_step(model, low, drawn=False)
        steps["ours, with a drawn network", precision] = our_step(model, low, drawn=True)
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=tuple(SHAPES), default=["mlp", "cnn"])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--out", type=Path, help="JSON file to write")
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    torch.set_flush_denormal(True)  # as in a run
    print(hardware())
    rows = [row for model in chosen.models for row in measure(model, chosen.turns)]
    write(chosen.out, rows)


if __name__ == "__main__":
    main()
