"""Where does the time of a training step on a GPU go? The kernels of one step by kind, ours beside the plain network.

    python benchmarks/step_profile.py [--models vgg cnn mlp] [--batches 100] [--out step_profile.json]
    python benchmarks/step_profile.py --networks plain torchbnn bayesian_torch --batches 100 512
    python benchmarks/step_profile.py --models cnn --networks ours --replicas 8

Needs a CUDA device. The step of ours is in bfloat16 and compiled, as the recipes have it, the plain network's in
bfloat16; both are recorded as CUDA graphs (`gpu_step.py`). The rivals' steps, in bfloat16 too, are launched one by one:
what their kernels do not fill of a step, the card waits for the host. Kernels are sorted by their names:

- products: convolutions and matrix products of the libraries, forward and backward;
- fused: what the compiler has written, which is everything element by element and the sums over it;
- optimizer: Adam over all parameters;
- other: the rest, among it copies, pooling, and batch norm of the plain network.

The longest kernels of each step are listed too. The time beside is that of whole steps, without a profiler. Of several
replicas side by side a step is that of all of them, and their kernels overlap: they add up to more than it takes.
"""

from __future__ import annotations

import argparse
import itertools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from bqn.training.graph import Recording
from gpu_step import OURS, SHAPES, rival_step, trainer
from timing import hardware, kernels, median_ms, write

STEPS = 20
LONGEST = 12
KINDS = {
    "products": re.compile(
        r"^(?!.*(bn_|batchnorm|nchwToNhwc)).*(gemm|gemv|conv(?!ert)|cutlass|cudnn|nvjet|xmma|wgrad|dgrad|splitk)",
        re.IGNORECASE,
    ),
    "optimizer": re.compile(r"adam", re.IGNORECASE),
    "fused": re.compile(r"^triton_"),
}


def kind_of(kernel: str) -> str:
    """What a kernel is for, by its name; the compiler's own say "triton_" first, whatever they were made of."""
    if KINDS["fused"].search(kernel):
        return "fused"
    return next((kind for kind, names in KINDS.items() if names.search(kernel)), "other")


def our_steps(model: str, batch: int, replicas: int) -> Callable[[], None]:
    runs = [trainer(model, batch, OURS["bf16 compiled"], seed) for seed in range(replicas)]
    recording = Recording(runs)
    recording.begin_epoch([run.state.draw_order(len(run.x)) for run in runs])

    def work() -> None:
        recording.advance(0, STEPS)

    work()
    if not all(run.compiles for run in runs):
        raise SystemExit(f"step_profile: the compiler was refused for {model}")
    return work


def rival_steps(model: str, batch: int, network: str) -> Callable[[], None]:
    step = rival_step(model, network, batch)

    def work() -> None:
        for _ in range(STEPS):
            step()

    work()
    return work


def profiled(work: Callable[[], None]) -> dict[str, Any]:
    """Microseconds a step by kind of kernel, how many kernels a step has, and the longest."""
    whole = median_ms(work, cuda=True) / STEPS
    found = kernels(work, STEPS, cuda=True)
    by_kind = dict.fromkeys((*KINDS, "other"), 0.0)
    for each in found:
        by_kind[kind_of(each["kernel"])] += each["us"]
    return {
        "ms": whole,
        "us": by_kind,
        "kernels": sum(each["times"] for each in found),
        "longest": [{**each, "kernel": each["kernel"][:120]} for each in found[:LONGEST]],
    }


def show(row: dict[str, Any]) -> None:
    shares = "  ".join(f"{kind} {value / 1e3:.2f}" for kind, value in row["us"].items())
    what = f"{row['model']} {row['batch']} {row['network']:15s}"
    print(f"{what}{row['ms']:7.2f} ms a step, {row['kernels']:.0f} kernels: {shares} ms", flush=True)
    for each in row["longest"]:
        print(f"    {each['us']:8.1f} us {each['times']:6.1f} × {each['kernel']}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=tuple(SHAPES), default=["vgg", "cnn"])
    parser.add_argument("--batches", nargs="+", type=int, default=[100])
    parser.add_argument(
        "--networks", nargs="+", choices=("plain", "ours", "torchbnn", "bayesian_torch"), default=["plain", "ours"]
    )
    parser.add_argument("--replicas", type=int, default=1, help="how many of ours side by side (default: 1)")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("step_profile: this benchmark needs a CUDA device")
    torch.set_float32_matmul_precision("high")
    print(hardware())
    rows: list[dict[str, Any]] = []
    for model, batch, network in itertools.product(args.models, args.batches, args.networks):
        ours = network == "ours"
        steps = our_steps(model, batch, args.replicas) if ours else rival_steps(model, batch, network)
        several = {"replicas": args.replicas} if ours and args.replicas > 1 else {}
        rows.append({"model": model, "batch": batch, "network": network, **several, **profiled(steps)})
        show(rows[-1])
        write(args.out, rows)


if __name__ == "__main__":
    main()
