"""What does training a Bayesian quantized MLP cost against a plain one and against Gaussian Bayesian ones?

    python benchmarks/mlp_epoch.py --data-dir DIR [--threads 2] [--out results/benchmarks/mlp_epoch.json]
    python benchmarks/mlp_epoch.py --data-dir DIR --profile [--out results/benchmarks/mlp_epoch_profile.json]

Trains the 784-512-256-10 network on MNIST with batch 100 and the same fused Adam, in turns of fifty steps, and prints
the time of an epoch: the plain network (1.0), the floor (two products where it has one, 2.0), ours with its whole
objective, and the same network of bayesian-torch and torchbnn layers with one sample a step and their KL. Without
`--data-dir` random pixels are used, which cost the same. Rivals that are not installed are left out
(`pip install --no-deps bayesian-torch torchbnn`).

With `--profile` it prints instead where a step of the plain network and one of ours spend their time, by the kind of
operation, in microseconds a step and without what an operation calls:

- products: matrix products;
- passes: our own functions (`propagate/compiled.py`), the C in them and the Python around it;
- optimizer: Adam over all parameters, and its zeroing of gradients;
- small: all other operations of torch, and autograd's account of them;
- between: the rest of the time, which is Python between operations.

A profiler makes small operations look longer than they are. The milliseconds of a step are measured without it.
"""

from __future__ import annotations

import argparse
import importlib.util
import re
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

import bqn
from timing import hardware, write

SIZES = (784, 512, 256, 10)
BATCH = 100
DATA_SIZE = 60_000
TURN = 50  # steps of one network before it is the next one's turn
Step = Callable[[Tensor, Tensor], None]
Steps = dict[str, Step]
KINDS = {
    "products": re.compile(r"^aten::(mm|addmm|addmm_|bmm|dot|mv)$"),
    "passes": re.compile(r"^_[A-Z]\w*$"),
    "optimizer": re.compile(r"^Optimizer\.|adam"),
}


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


def batches(x: Tensor, y: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """As many as a network has in its turn."""
    for row in torch.randint(len(x), (TURN, BATCH)):
        yield bqn.data.to_input(x[row]).flatten(1), y[row]


def seconds_a_step(steps: Steps, x: Tensor, y: Tensor, turns: int) -> dict[str, float]:
    """The median over the turns of each network; the first one warms up."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(turns + 1):
        for name, step in steps.items():
            began = time.perf_counter()
            for given in batches(x, y):
                step(*given)
            if turn:
                times[name].append((time.perf_counter() - began) / TURN)
    return {name: sorted(values)[len(values) // 2] for name, values in times.items()}


def profiled(step: Step, x: Tensor, y: Tensor) -> dict[str, dict[str, float]]:
    """Operations of a step by kind: how many there are, and the microseconds that they take."""
    given = list(batches(x, y))
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        began = time.perf_counter()
        for each in given:
            step(*each)
        whole = 1e6 * (time.perf_counter() - began)
    kinds = {kind: {"calls": 0.0, "us": 0.0} for kind in (*KINDS, "small", "between")}
    for entry in seen.key_averages():
        kind = next((kind for kind, names in KINDS.items() if names.search(entry.key)), "small")
        kinds[kind]["calls"] += entry.count / TURN
        kinds[kind]["us"] += entry.self_cpu_time_total / TURN
    kinds["between"]["us"] = max(0.0, whole / TURN - sum(each["us"] for each in kinds.values()))
    return kinds


def show_profile(steps: Steps, seconds: dict[str, float], x: Tensor, y: Tensor) -> list[dict[str, object]]:
    """Print where the time of a step goes, and return it as rows of a record."""
    rows: list[dict[str, object]] = []
    for name, step in steps.items():
        kinds = profiled(step, x, y)
        print(f"{name}: {1e3 * seconds[name]:.2f} ms a step")
        for kind, each in kinds.items():
            print(f"    {kind:12s}{each['us']:8.0f} us{each['calls']:8.0f} calls")
        rows.append({"network": name, "ms": 1e3 * seconds[name], "kinds": kinds})
    return rows


def show_epochs(seconds: dict[str, float]) -> list[dict[str, object]]:
    """Print the time of an epoch of each network, and return ours beside each other one as rows of a record."""
    epoch = DATA_SIZE // BATCH
    print(f"one epoch of the MLP on MNIST, batch {BATCH}, {hardware()}")
    print(f"{'network':16s}{'s/epoch':>9s}{'ratio':>7s}   (floor 2.0)")
    rows: list[dict[str, object]] = []
    for name, value in seconds.items():
        print(f"{name:16s}{value * epoch:9.2f}{value / seconds['plain']:7.2f}")
        if name != "bqn":
            rows.append({
                "what": "mlp epoch", "ours": seconds["bqn"] * epoch, "rival": name, "rival_seconds": value * epoch,
                "ratio": seconds["bqn"] / value, "floor": 2.0 * seconds["plain"] * epoch,
            })  # fmt: skip
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--turns", type=int, default=6, help="turns of fifty steps a network")
    parser.add_argument(
        "--profile", action="store_true", help="where a step spends its time, ours beside the plain one"
    )
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
    steps = {name: make() for name, make in makers.items() if not args.profile or name in ("plain", "bqn")}
    seconds = seconds_a_step(steps, x, y, args.turns)
    rows = show_profile(steps, seconds, x, y) if args.profile else show_epochs(seconds)
    write(args.out, rows)


if __name__ == "__main__":
    main()
