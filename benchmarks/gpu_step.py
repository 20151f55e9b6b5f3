"""How near is a training step on a GPU to what the card can do?

    python benchmarks/gpu_step.py [--compile] [--out results/benchmarks/gpu_step.json]

Needs a CUDA device. Every row stands beside its floor and its rivals, measured in the same run:

- a training step (forward, backward, Adam) of the MLP, CNN and VGG at batch 100 and 512, recorded as a CUDA graph: ours
  in TF32, in bfloat16, and in bfloat16 with the kernels of `half_kernels`; the plain real-valued network of the same
  sizes with batch norm and ReLU in bfloat16, recorded too; and the same network of bayesian-torch and torchbnn layers
  with one sample a step in bfloat16, where they are installed. These are launched one by one: they copy from the host
  inside a step and cannot be recorded. The floor is twice the plain network;
- eight replicas of the MLP and of the CNN side by side.

What a step needs in memory is the question of `memory.py`, the products of one layer that of `pair_of_products.py`.
With `--compile` the steps of ours in bfloat16 are compiled too, which takes a minute each.
"""

from __future__ import annotations

import argparse
import importlib.util
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bqn.data import Split, to_input
from bqn.propagate import half
from bqn.training import TrainConfig, build_model
from bqn.training.graph import Recording
from bqn.training.loop import Trainer
from timing import hardware, recorded, write

SHAPES = {"mlp": (1, 28, 28), "cnn": (1, 28, 28), "vgg": (3, 32, 32)}
EXAMPLES = 10_240


def best_time(work: Callable[[], Any], repeats: int = 5) -> float:
    times = []
    for _ in range(repeats + 1):
        torch.cuda.synchronize()
        began = time.perf_counter()
        work()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    return min(times[1:])


# --- networks ---------------------------------------------------------------------------------------------------


def body(
    model: str, linear: Callable[[int, int], nn.Module], conv: Callable[[int, int, int], nn.Module]
) -> nn.ModuleList:
    """The sizes of `bqn.models`, with batch norm and ReLU."""
    if model == "mlp":
        layers: list[nn.Module] = [nn.Flatten()]
        for inside, outside in ((784, 512), (512, 256)):
            layers += [linear(inside, outside), nn.BatchNorm1d(outside), nn.ReLU()]
        return nn.ModuleList([*layers, linear(256, 10)])
    if model == "cnn":
        layers = []
        for inside, outside in ((1, 64), (64, 64)):
            layers += [conv(inside, outside, 5), nn.AvgPool2d(2), nn.BatchNorm2d(outside), nn.ReLU()]
        return nn.ModuleList(
            [*layers, nn.Flatten(), linear(3136, 1024), nn.BatchNorm1d(1024), nn.ReLU(), linear(1024, 10)]
        )
    layers, depth = [], 3
    for units in (128, 256, 512):
        for position in range(2):
            layers += [conv(depth, units, 3), nn.BatchNorm2d(units), nn.ReLU()]
            layers += [nn.MaxPool2d(2)] if position else []
            depth = units
    return nn.ModuleList([*layers, nn.Flatten(), linear(8192, 1024), nn.BatchNorm1d(1024), nn.ReLU(), linear(1024, 10)])


def rival(model: str, kind: str) -> tuple[nn.ModuleList, Callable[[nn.ModuleList], Tensor]]:
    """A network and its KL."""
    if kind == "plain":
        layers = body(model, nn.Linear, lambda i, o, k: nn.Conv2d(i, o, k, padding=k // 2, bias=False))
        return layers, lambda net: torch.zeros((), device="cuda")
    if kind == "torchbnn":
        import torchbnn

        options = {"prior_mu": 0, "prior_sigma": 0.1}
        layers = body(
            model,
            lambda i, o: torchbnn.BayesLinear(in_features=i, out_features=o, **options),
            lambda i, o, k: torchbnn.BayesConv2d(
                in_channels=i, out_channels=o, kernel_size=k, padding=k // 2, bias=False, **options
            ),
        )
        divergence = torchbnn.BKLLoss(reduction="sum", last_layer_only=False)
        return layers, lambda net: divergence(net).squeeze()
    from bayesian_torch import layers as bayesian

    layers = body(
        model,
        bayesian.LinearReparameterization,
        lambda i, o, k: bayesian.Conv2dReparameterization(i, o, k, padding=k // 2, bias=False),
    )
    return layers, lambda net: torch.zeros((), device="cuda")


def rival_step(model: str, kind: str, batch: int) -> Callable[[], None]:
    net, divergence = rival(model, kind)
    net = net.cuda()
    if kind == "plain":  # the others reshape their weights in ways that need the usual layout
        net = net.to(memory_format=torch.channels_last)
    pixels = torch.randint(256, (batch, *SHAPES[model]), dtype=torch.uint8, device="cuda")
    y = torch.randint(10, (batch,), device="cuda")
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3, fused=True, capturable=True)

    def step() -> None:
        x = to_input(pixels).contiguous(memory_format=torch.channels_last)
        kl = torch.zeros((), device="cuda")
        with torch.autocast("cuda", torch.bfloat16):
            for layer in net:
                x = layer(x)
                if isinstance(x, tuple):
                    x, extra = x
                    kl = kl + extra
        loss = F.cross_entropy(x.float(), y) + (kl + divergence(net)) / 60_000
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return recorded(step) if kind == "plain" else step


def trainer(model: str, batch: int, low: bool, seed: int = 0, compiled: bool = False) -> Trainer:
    config = TrainConfig.preset({
        "model": model, "data": "cifar10" if model == "vgg" else "mnist", "device": "cuda", "batch_size": batch,
        "mixed_precision": low, "validation_fraction": 0.0, "seed": seed, "compile": compiled,
    })  # fmt: skip
    x = torch.randint(256, (EXAMPLES, *SHAPES[model]), dtype=torch.uint8)
    net = build_model(config, SHAPES[model], 10)
    net.validate = False
    net.train()
    return Trainer(net, Split(x, torch.randint(10, (EXAMPLES,))), None, config, torch.device("cuda", 0))


def our_step(trainers: list[Trainer], steps: int = 20) -> tuple[Callable[[], Any], int]:
    recording = Recording(trainers)
    recording.begin_epoch([each.state.draw_order(len(each.x)) for each in trainers])
    steps = min(steps, trainers[0].steps)
    return lambda: recording.advance(0, steps), steps


# --- questions --------------------------------------------------------------------------------------------------


def steps(rows: list[dict[str, Any]], compiled: bool) -> None:
    ours = {"tf32": (False, False, False), "bf16": (True, False, False), "bf16 kernels": (True, True, False)}
    if compiled:
        ours["bf16 compiled"] = (True, False, True)
    kinds = ["plain"]
    kinds += [kind for kind in ("torchbnn", "bayesian_torch") if importlib.util.find_spec(kind) is not None]
    for model in SHAPES:
        for batch in (100, 512):
            times: dict[str, float] = {}
            for kind in kinds:
                times[kind] = best_time(rival_step(model, kind, batch)) * 1e3
            for name, (low, half.KERNELS, fused) in ours.items():
                work, count = our_step([trainer(model, batch, low, compiled=fused)])
                times[name] = best_time(work, 3) * 1e3 / count
            for name, value in times.items():
                ratio = value / times["plain"]
                print(f"{model} {batch:4d} {name:15s}{value:8.3f} ms {ratio:5.2f} × plain (floor 2)")
                rows.append({
                    "what": f"training step, {model}, batch {batch}, {name}", "ours": value, "rival": "plain bf16",
                    "ratio": ratio, "floor": 2 * times["plain"],
                })  # fmt: skip


def replicas(rows: list[dict[str, Any]]) -> None:
    for model, count in (("mlp", 8), ("cnn", 8)):
        for many in (1, count):
            work, number = our_step([trainer(model, 100, True, seed) for seed in range(many)], 20)
            each = best_time(work, 3) * 1e3 / number / many
            whole = each * 600 * 100 / 1e3
            print(
                f"{model} {many} side by side: {each:.3f} ms a step and replica, 100 epochs of MNIST {whole:.0f} s each"
            )
            rows.append({"what": f"replicas, {model}, {many}", "ours": each, "seconds_for_100_epochs": whole})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compile", action="store_true", help="the compiled step beside the others")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("gpu_step: this benchmark needs a CUDA device")
    torch.set_float32_matmul_precision("high")
    torch.manual_seed(0)
    print(hardware())
    rows: list[dict[str, Any]] = []
    replicas(rows)
    steps(rows, args.compile)
    write(args.out, rows, unit="ms")


if __name__ == "__main__":
    main()
