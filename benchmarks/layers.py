"""How much dearer than a plain layer is one that carries a posterior? Forward and backward, time and memory.

    python benchmarks/layers.py [--threads 2] [--out results/benchmarks/layers.json]

Each row is one layer at batch 100: plain torch.nn (1.0), the floor (two products where the plain layer has one, that
is 2.0), ours, and the Gaussian reparameterization layers of bayesian-torch and torchbnn, interleaved in one run. Time
is the median of interleaved repetitions; memory is what autograd keeps for backward, in units of the plain layer's
input and weight. Rivals that are not installed are left out (`pip install --no-deps bayesian-torch torchbnn`).
"""

from __future__ import annotations

import argparse
import datetime
import importlib.util
import json
import platform
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

import bqn
from bqn.atomic import write_atomic

Run = Callable[[], None]
LAYERS: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    # name: (arguments of the layer, shape of one input); the first of a network sees real pixels
    "linear 784 x 512, pixels in": ((784, 512), (784,)),
    "linear 512 x 256": ((512, 256), (512,)),
    "linear 256 x 10": ((256, 10), (256,)),
    "conv 64 x 64 x 5 x 5, 14 x 14": ((64, 64, 5), (64, 14, 14)),
}


def plain(arguments: tuple[int, ...]) -> nn.Module:
    return nn.Linear(*arguments) if len(arguments) == 2 else nn.Conv2d(*arguments, padding=2)


def ours(arguments: tuple[int, ...]) -> nn.Module:
    if len(arguments) == 2:
        return bqn.nn.Linear(*arguments, method="clt")
    return bqn.nn.Conv2d(*arguments, padding=2, method="clt")


def torchbnn(arguments: tuple[int, ...]) -> nn.Module:
    import torchbnn as rival

    prior = {"prior_mu": 0, "prior_sigma": 0.1}
    if len(arguments) == 2:
        return rival.BayesLinear(in_features=arguments[0], out_features=arguments[1], **prior)
    channels, out, kernel = arguments
    return rival.BayesConv2d(in_channels=channels, out_channels=out, kernel_size=kernel, padding=2, **prior)


def bayesian_torch(arguments: tuple[int, ...]) -> nn.Module:
    from bayesian_torch.layers import Conv2dReparameterization, LinearReparameterization

    if len(arguments) == 2:
        return LinearReparameterization(*arguments)
    return Conv2dReparameterization(*arguments, padding=2)


def step(layer: nn.Module, x: Tensor, pixels: bool) -> Run:
    """One forward and backward; what a following layer would send back is all ones."""
    leaf = x.clone().requires_grad_(not pixels)

    def run() -> None:
        layer.zero_grad(set_to_none=True)
        leaf.grad = None
        if isinstance(layer, (bqn.nn.Linear, bqn.nn.Conv2d)):
            belief = leaf if pixels else bqn.Categorical.of(bqn.BINARY, mean=leaf)
            out = layer(belief)
            results = [out.mean, out.var]
        else:
            out = layer(leaf)
            results = [out[0] if isinstance(out, tuple) else out]
        torch.autograd.backward(results, [torch.ones_like(result) for result in results])

    return run


def kept_for_backward(layer: nn.Module, x: Tensor, pixels: bool) -> int:
    """Bytes that autograd holds between forward and backward, parameters not counted."""
    parameters = {p.untyped_storage().data_ptr() for p in layer.parameters()}
    kept: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        leaf = x.clone().requires_grad_(not pixels)
        if isinstance(layer, (bqn.nn.Linear, bqn.nn.Conv2d)):
            out = layer(leaf if pixels else bqn.Categorical.of(bqn.BINARY, mean=leaf))
            holder = (out.mean, out.var)
        else:
            holder = layer(leaf)
    del holder
    return sum(kept.values())


def interleaved(runs: dict[str, Run], repeats: int) -> dict[str, float]:
    """Median seconds of each run, taken in turns so that a busy machine disturbs all alike."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for repeat in range(repeats + 5):
        for name, run in runs.items():
            began = time.perf_counter()
            run()
            if repeat >= 5:
                times[name].append(time.perf_counter() - began)
    return {name: sorted(values)[len(values) // 2] for name, values in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=200)
    parser.add_argument("--out", type=Path, help="JSON file to write")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    makers = {"plain": plain, "bqn": ours, "bayesian-torch": bayesian_torch, "torchbnn": torchbnn}
    for name, module in (("bayesian-torch", "bayesian_torch"), ("torchbnn", "torchbnn")):
        if importlib.util.find_spec(module) is None:
            print(f"{name} is not installed and left out")
            del makers[name]
    hardware = f"{platform.processor() or platform.machine()}, {args.threads} threads, torch {torch.__version__}"
    rows = []
    print(f"forward + backward, batch 100, {hardware}")
    print(f"{'layer':32s}{'plain ms':>9s}{'floor':>7s}" + "".join(f"{name:>16s}" for name in makers if name != "plain"))
    for what, (arguments, shape) in LAYERS.items():
        pixels = "pixels" in what
        x = torch.rand(100, *shape) * 2 - 1
        layers = {name: make(arguments) for name, make in makers.items()}
        repeats = args.repeats if len(shape) == 1 else max(args.repeats // 10, 3)
        seconds = interleaved({name: step(layer, x, pixels) for name, layer in layers.items()}, repeats)
        kept = {name: kept_for_backward(layer, x, pixels) for name, layer in layers.items()}
        base = seconds["plain"]
        cells = "".join(f"{seconds[n] / base:7.2f}x {kept[n] / 1e6:5.1f}MB" for n in makers if n != "plain")
        print(f"{what:32s}{base * 1e3:9.3f}{2.0:7.1f}{cells}  (plain keeps {kept['plain'] / 1e6:.1f} MB)")
        rows += [
            {"what": what, "ours": seconds["bqn"], "rival": name, "rival_seconds": seconds[name],
             "ratio": seconds["bqn"] / seconds[name], "floor": 2.0 * base, "kept_bytes": kept["bqn"],
             "rival_kept_bytes": kept[name]}
            for name in makers if name != "bqn"
        ]  # fmt: skip
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        record = {"hardware": hardware, "date": str(datetime.date.today()), "rows": rows}
        write_atomic(args.out, f"{json.dumps(record, indent=1)}\n".encode())


if __name__ == "__main__":
    main()
