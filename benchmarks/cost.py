"""What does a training step cost as D, fan-in, batch and the number of replicas grow?

    python benchmarks/cost.py [--device cuda] [--out results/benchmarks/cost.json] [--figures docs/figures]
    python benchmarks/cost.py --from results/benchmarks/cost.json --figures docs/figures

Each step is forward, backward and Adam; on a GPU recorded as a CUDA graph, in bfloat16 where that is safe. One thing
varies at a time, all else is the MLP 784-512-256-10 at batch 100:

- levels: weights of D = 2, 3, 4, 8, 16 levels, activations of two;
- fan-in: inputs of a network with one hidden layer of 256 units;
- batch;
- replicas: networks side by side, time per network.

The floor beside it is the same plain real-valued network with batch norm and ReLU in the same precision, times the
products that ours needs for one of its: two, or three for more than two levels. The second form draws recorded figures.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import bqn
from bqn.atomic import write_atomic
from bqn.levels import BINARY
from bqn.propagate import half
from bqn.report.axis import Axis
from bqn.report.chart import Chart
from timing import Work, hardware, median_ms, recorded, write

BATCH = 100
HIDDEN = (512, 256)
AXES: dict[str, tuple[str, tuple[int, ...]]] = {
    "levels": ("levels of a weight (D)", (2, 3, 4, 8, 16)),
    "fan-in": ("fan-in", (64, 128, 256, 512, 1024, 2048, 4096, 8192)),
    "batch": ("batch", (10, 32, 100, 256, 512, 1024, 2048, 4096)),
    "replicas": ("networks side by side", (1, 2, 4, 8, 16)),
}
STYLE = """
svg { background: #fff; font: 13px system-ui, sans-serif } text { fill: #444 }
.grid { stroke: #ddd; fill: none } .base { stroke: #888; fill: none } .line { fill: none; stroke-width: 2 }
.ours { stroke: #1f5fbf } .floor { stroke: #888; stroke-dasharray: 5 4 }
.marker.ours { fill: #1f5fbf; stroke: none } .marker.floor { fill: #888; stroke: none; stroke-dasharray: none }
.note { stroke: none } .note.ours { fill: #1f5fbf } .note.floor { fill: #666 }
"""


def levels(count: int) -> tuple[float, ...]:
    return BINARY if count == 2 else tuple(torch.linspace(-1, 1, count, dtype=torch.float64).tolist())


def trained(net: nn.Module, loss: Callable[[], Tensor], cuda: bool) -> Work:
    """One step of Adam on `loss`."""
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3, fused=True, capturable=cuda)

    def step() -> None:
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()

    return step


def our_step(inputs: int, hidden: Sequence[int], batch: int, count: int, device: str) -> Work:
    net = bqn.models.mlp(inputs, 10, hidden, levels=levels(count)).to(device)
    net.validate = False  # as in the training loop, which checks its data once
    x, y = torch.rand(batch, inputs, device=device) * 2 - 1, torch.randint(10, (batch,), device=device)

    def loss() -> Tensor:
        with half.lowered() if device == "cuda" else nullcontext():
            return -net.elbo(x, y, 60_000, 1e-4)

    return trained(net, loss, device == "cuda")


def plain_step(inputs: int, hidden: Sequence[int], batch: int, device: str) -> Work:
    layers: list[nn.Module] = []
    for inside, outside in pairwise((inputs, *hidden)):
        layers += [nn.Linear(inside, outside), nn.BatchNorm1d(outside), nn.ReLU()]
    net = nn.Sequential(*layers, nn.Linear(hidden[-1], 10)).to(device)
    x, y = torch.rand(batch, inputs, device=device) * 2 - 1, torch.randint(10, (batch,), device=device)

    def loss() -> Tensor:
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            logits = net(x)
        return F.cross_entropy(logits.float(), y)

    return trained(net, loss, device == "cuda")


def together(steps: Sequence[Work], cuda: bool) -> Work:
    """Several steps as branches of one program on a GPU, one after the other on a CPU."""
    streams = [torch.cuda.Stream() for _ in steps] if cuda else []

    def all_of_them() -> None:
        if not cuda:
            for step in steps:
                step()
            return
        main = torch.cuda.current_stream()
        for step, stream in zip(steps, streams, strict=True):
            stream.wait_stream(main)
            with torch.cuda.stream(stream):
                step()
        for stream in streams:
            main.wait_stream(stream)

    return recorded(all_of_them) if cuda else all_of_them


def point(axis: str, value: int, device: str) -> dict[str, Any]:
    cuda = device == "cuda"
    inputs, hidden = (value, (256,)) if axis == "fan-in" else (784, HIDDEN)
    batch = value if axis == "batch" else BATCH
    count = value if axis == "levels" else 2
    networks = value if axis == "replicas" else 1
    ours = together([our_step(inputs, hidden, batch, count, device) for _ in range(networks)], cuda)
    ours_ms = median_ms(ours, cuda, 0.1, 3) / networks
    plain_ms = median_ms(together([plain_step(inputs, hidden, batch, device)], cuda), cuda, 0.1, 3)
    products = 2 if count == 2 else 3
    return {"axis": axis, "value": value, "ours": ours_ms, "plain": plain_ms, "floor": products * plain_ms}


def draw(rows: list[dict[str, Any]], folder: Path, machine: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for axis, (label, _) in AXES.items():
        mine = [row for row in rows if row["axis"] == axis]
        if len(mine) < 2:
            continue
        kinds = {"ours": "ours", "floor": "floor"}
        unit = "ms a step and network" if axis == "replicas" else "ms a step"
        chart = Chart(
            Axis.around(label, [row["value"] for row in mine], log=True),
            Axis.around(unit, [row[kind] for row in mine for kind in kinds], log=True),
            f"Time of a training step by {label}, ours and the floor, on {machine}",
        )
        for kind, text in kinds.items():
            points = [(float(row["value"]), row[kind]) for row in mine]
            titles = [f"{row['value']}: {row[kind]:.3f} ms" for row in mine]
            chart.line(points, kind)
            chart.markers(points, kind, titles=titles)
            below = kind == "ours" and mine[-1]["ours"] < mine[-1]["floor"]  # else the two names would meet
            chart.note(*points[-1], text, anchor="end", style=kind, fall=18 if below else -8)
        picture = chart.svg().replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" width="540" ', 1)
        picture = picture.replace(">", f"><style>{STYLE}</style>", 1)
        write_atomic(folder / f"cost-{axis}.svg", f"{picture}\n".encode())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--quick", action="store_true", help="only the ends of each axis, to try the program out")
    parser.add_argument("--from", dest="source", type=Path, help="draw this record instead of measuring")
    parser.add_argument("--figures", type=Path, help="folder for the plots")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    args = parser.parse_args()
    if args.source is not None:
        record = json.loads(args.source.read_text())
        draw(record["rows"], args.figures or Path("docs/figures"), record["hardware"])
        return
    if args.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("cost: there is no CUDA device")
    torch.set_float32_matmul_precision("high")
    torch.manual_seed(0)
    print(hardware())
    rows: list[dict[str, Any]] = []
    for axis, (label, values) in AXES.items():
        print(label)
        for value in (values[0], values[-1]) if args.quick else values:
            row = point(axis, value, args.device)
            rows.append(row)
            print(f"{value:8d}  ours {row['ours']:8.3f} ms  floor {row['floor']:8.3f} ms", flush=True)
            write(args.out, rows, unit="ms", device=args.device)
    if args.figures is not None:
        draw(rows, args.figures, hardware())


if __name__ == "__main__":
    main()
