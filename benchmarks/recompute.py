"""What does activation checkpointing save, and what does it cost?

    python benchmarks/recompute.py [--batch 100] [--threads 2] [--out results/benchmarks/recompute.json]

One step (forward and backward, no optimizer) of the MLP, CNN and VGG in float32, ordinary and with
`bqn.nn.Sequential.recompute`:

- kept: bytes that are allocated from forward to backward, as the allocator counts them, parameters not included;
- time of the step; on a GPU it is recorded as a CUDA graph.

Expect about 4/3 of the time: a backward pass is about twice a forward pass, of which there is one more.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

import bqn
from bqn.data import to_input
from timing import median_ms, recorded, write

MODELS = {
    "mlp": (lambda: bqn.models.mlp(784, 10), (1, 28, 28)),
    "cnn": (lambda: bqn.models.cnn((1, 28, 28), 10), (1, 28, 28)),
    "vgg": (lambda: bqn.models.vgg((3, 32, 32), 10), (3, 32, 32)),
}


def objective(net: bqn.Network, x: Tensor, y: Tensor) -> Tensor:
    return -net.elbo(x, y, 60_000, 1e-4)


def kept_bytes(net: bqn.Network, x: Tensor, y: Tensor) -> int:
    if x.is_cuda:
        before = torch.cuda.memory_allocated()
        value = objective(net, x, y)
        torch.cuda.synchronize()
        kept = torch.cuda.memory_allocated() - before
    else:
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
            value = objective(net, x, y)
        kept = sum(event.self_cpu_memory_usage for event in seen.events())
    value.backward()
    return kept


def step_ms(net: bqn.Network, x: Tensor, y: Tensor) -> float:
    def step() -> None:
        net.zero_grad()
        objective(net, x, y).backward()

    return median_ms(recorded(step) if x.is_cuda else step, x.is_cuda, repeats=3)


def measure(model: str, batch: int, device: str) -> dict[str, Any]:
    make, shape = MODELS[model]
    net = make().to(device)
    net.validate = False
    x = to_input(torch.randint(256, (batch, *shape), dtype=torch.uint8, device=device))
    y = torch.randint(10, (batch,), device=device)
    row: dict[str, Any] = {"what": model, "batch": batch}
    for name, again in (("ordinary", False), ("recomputed", True)):
        net.body.recompute = again
        objective(net, x, y).backward()  # libraries set themselves up
        row[name] = {"kept": kept_bytes(net, x, y), "ms": step_ms(net, x, y)}
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--models", nargs="*", choices=tuple(MODELS), default=list(MODELS))
    parser.add_argument("--out", type=Path, help="JSON file to write")
    args = parser.parse_args()
    if args.device.startswith("cuda") and not torch.cuda.is_available():
        raise SystemExit("recompute: torch sees no CUDA device here")
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    print(f"{'network':10s}{'kept MB':>10s}{'again MB':>10s}{'ratio':>7s}{'ms':>10s}{'again ms':>10s}{'ratio':>7s}")
    rows = []
    for model in args.models:
        row = measure(model, args.batch, args.device)
        rows.append(row)
        a, b = row["ordinary"], row["recomputed"]
        print(
            f"{model:10s}{a['kept'] / 1e6:10.1f}{b['kept'] / 1e6:10.1f}{b['kept'] / a['kept']:7.2f}"
            f"{a['ms']:10.1f}{b['ms']:10.1f}{b['ms'] / a['ms']:7.2f}"
        )
    write(args.out, rows, device=args.device)


if __name__ == "__main__":
    main()
