"""What does training a Bayesian quantized MLP cost against a plain one and against Gaussian Bayesian ones?

    python benchmarks/mlp_epoch.py --data-dir DIR [--threads 2] [--out results/benchmarks/mlp_epoch.json]

Trains the 784-512-256-10 network on MNIST with batch 100 and the same fused Adam, in turns of fifty steps, and prints
the time of an epoch: the plain network (1.0), the floor (two products where it has one, 2.0), ours with its whole
objective, and the same network of bayesian-torch and torchbnn layers with one sample a step and their KL. Without
`--data-dir` random pixels are used, which cost the same. Rivals that are not installed are left out
(`pip install --no-deps bayesian-torch torchbnn`).
"""

from __future__ import annotations

import argparse
import datetime
import importlib.util
import json
import platform
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import bqn
from bqn.atomic import write_atomic

SIZES = (784, 512, 256, 10)
BATCH = 100
DATA_SIZE = 60_000
Step = Callable[[Tensor, Tensor], None]


def stack(linear: Callable[[int, int], nn.Module]) -> nn.ModuleList:
    """Linear layers with batch norm and ReLU between them."""
    layers: list[nn.Module] = []
    for inside, outside in pairwise(SIZES):
        layers += [linear(inside, outside), nn.BatchNorm1d(outside), nn.ReLU()]
    return nn.ModuleList(layers[:-2])


def trainer(parameters: list[nn.Parameter], loss: Callable[[Tensor, Tensor], Tensor]) -> Step:
    optimizer = torch.optim.Adam(parameters, lr=1e-3, fused=True)

    def step(x: Tensor, y: Tensor) -> None:
        optimizer.zero_grad()
        loss(x, y).backward()
        optimizer.step()

    return step


def plain() -> Step:
    layers = stack(nn.Linear)

    def loss(x: Tensor, y: Tensor) -> Tensor:
        for layer in layers:
            x = layer(x)
        return F.cross_entropy(x, y)

    return trainer(list(layers.parameters()), loss)


def ours() -> Step:
    net = bqn.models.mlp(784, 10)
    net.validate = False  # as in the training loop, which checks its data once
    return trainer(list(net.parameters()), lambda x, y: -net.elbo(x, y, DATA_SIZE, 1e-4))


def bayesian_torch() -> Step:
    from bayesian_torch.layers import LinearReparameterization

    layers = stack(LinearReparameterization)

    def loss(x: Tensor, y: Tensor) -> Tensor:
        divergence = x.new_zeros(())
        for layer in layers:
            x = layer(x)
            if isinstance(x, tuple):
                x, kl = x
                divergence = divergence + kl
        return F.cross_entropy(x, y) + divergence / DATA_SIZE

    return trainer(list(layers.parameters()), loss)


def torchbnn() -> Step:
    import torchbnn as rival

    layers = stack(lambda i, o: rival.BayesLinear(in_features=i, out_features=o, prior_mu=0, prior_sigma=0.1))
    divergence = rival.BKLLoss(reduction="sum", last_layer_only=False)

    def loss(x: Tensor, y: Tensor) -> Tensor:
        for layer in layers:
            x = layer(x)
        return F.cross_entropy(x, y) + divergence(layers).squeeze() / DATA_SIZE

    return trainer(list(layers.parameters()), loss)


def pixels(folder: Path | None) -> tuple[Tensor, Tensor]:
    if folder is None:
        return torch.randint(256, (DATA_SIZE, 1, 28, 28), dtype=torch.uint8), torch.randint(10, (DATA_SIZE,))
    train = bqn.data.load("mnist", folder, download=False).train
    return train.x, train.y


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--turns", type=int, default=6, help="turns of fifty steps a network")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    makers = {"plain": plain, "bqn": ours, "torchbnn": torchbnn, "bayesian-torch": bayesian_torch}
    for name, module in (("bayesian-torch", "bayesian_torch"), ("torchbnn", "torchbnn")):
        if importlib.util.find_spec(module) is None:
            print(f"{name} is not installed and left out")
            del makers[name]
    x, y = pixels(args.data_dir)
    steps = {name: make() for name, make in makers.items()}
    times: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(args.turns + 1):
        for name, step in steps.items():
            rows = torch.randint(len(x), (50, BATCH))
            began = time.perf_counter()
            for row in rows:
                step(bqn.data.to_input(x[row]).flatten(1), y[row])
            if turn:  # the first turn warms up
                times[name].append((time.perf_counter() - began) / 50)
    seconds = {name: sorted(values)[len(values) // 2] for name, values in times.items()}
    epoch = DATA_SIZE // BATCH
    hardware = f"{platform.processor() or platform.machine()}, {args.threads} threads, torch {torch.__version__}"
    print(f"one epoch of the MLP on MNIST, batch {BATCH}, {hardware}")
    print(f"{'network':16s}{'s/epoch':>9s}{'ratio':>7s}   (floor 2.0)")
    rows = []
    for name, value in seconds.items():
        print(f"{name:16s}{value * epoch:9.2f}{value / seconds['plain']:7.2f}")
        if name != "bqn":
            rows.append({
                "what": "mlp epoch", "ours": seconds["bqn"] * epoch, "rival": name, "rival_seconds": value * epoch,
                "ratio": seconds["bqn"] / value, "floor": 2.0 * seconds["plain"] * epoch,
            })  # fmt: skip
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        record = {"hardware": hardware, "date": str(datetime.date.today()), "rows": rows}
        write_atomic(args.out, f"{json.dumps(record, indent=1)}\n".encode())


if __name__ == "__main__":
    main()
