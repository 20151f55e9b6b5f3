"""How near is a training step on a GPU to what the card can do?

    python benchmarks/gpu_step.py [--compile] [--models cnn vgg] [--batches 100] [--out gpu_step.json]

Needs a CUDA device. Every row stands beside its floor and its rivals, measured in the same run:

- a training step (forward, backward, Adam) of the MLP, CNN and VGG at batch 100 and 512, recorded as a CUDA graph:
  ours in TF32, in bfloat16 with plain passes, and in bfloat16 with Triton kernels where they pay, as a run has it,
  without drawn networks; the plain real-valued network of the same sizes with batch norm and ReLU in bfloat16,
  recorded too; and the same network of bayesian-torch and torchbnn layers with one sample a step in bfloat16, where
  they are installed. These are launched one by one: they copy from the host inside a step and cannot be recorded. The
  floor is twice the plain network;
- eight replicas of the MLP and of the CNN side by side at batch 100, and how long 100 epochs of MNIST are by that for
  each: 600 steps an epoch, nothing else counted;
- how long 300 epochs of CIFAR-10 are by the steps of the VGG at batch 100, 450 an epoch, and beside it what validation
  on 5,000 images after each epoch takes.

What a step needs in memory is the question of `memory.py`, the products of one layer that of `pair_of_products.py`.
With `--compile` ours in bfloat16 is measured compiled too, at batch 100 also with a drawn network in each step, and
frugal, with `checkpoint_activations`, which takes a minute each; where the compiler was refused, the row says so.
"""

from __future__ import annotations

import argparse
import importlib.util
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bqn.data import Split, to_input
from bqn.propagate import half
from bqn.training import TrainConfig, build_model
from bqn.training.graph import Recording
from bqn.training.loop import Trainer
from bqn.training.validation import validate
from timing import hardware, recorded, write

SHAPES = {"mlp": (1, 28, 28), "cnn": (1, 28, 28), "vgg": (3, 32, 32)}
EXAMPLES = 10_240
Rows = list[dict[str, Any]]


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


@cache
def images(shape: tuple[int, ...], count: int = EXAMPLES) -> Split:
    """Smooth pictures of ten classes: what a class has in common, what a picture has for itself, and noise.

    On noise with labels at random the gradients of a batch nearly cancel. The compiler, whose gradients are compared
    with plain ones, would be refused.
    """
    generator = torch.Generator().manual_seed(0)
    y = torch.randint(10, (count,), generator=generator)
    of_class = torch.randn(10, shape[0], 4, 4, generator=generator)
    coarse = of_class[y] + 0.7 * torch.randn(count, shape[0], 4, 4, generator=generator)
    smooth = F.interpolate(coarse, shape[1:], mode="bicubic")
    pixels = 128 + 50 * smooth + 10 * torch.randn(smooth.shape, generator=generator)
    return Split(pixels.clamp(0, 255).to(torch.uint8), y)


class Ours(NamedTuple):
    """How our step is made: in bfloat16 or TF32, with Triton in half precision or plain passes, compiled or not, with
    or without a drawn network, keeping less for backward or not."""

    low: bool
    kernels: bool
    compiled: bool
    drawn: bool = False
    frugal: bool = False


OURS = {
    "tf32": Ours(False, True, False), "bf16 passes": Ours(True, False, False), "bf16 kernels": Ours(True, True, False),
    "bf16 compiled": Ours(True, True, True), "bf16 compiled, drawn": Ours(True, True, True, True),
    "bf16 compiled, frugal": Ours(True, True, True, frugal=True),
}  # fmt: skip


def trainer(model: str, batch: int, ours: Ours, seed: int = 0) -> Trainer:
    config = TrainConfig.preset({
        "model": model, "data": "cifar10" if model == "vgg" else "mnist", "device": "cuda", "batch_size": batch,
        "mixed_precision": ours.low, "validation_fraction": 0.0, "seed": seed, "compile": ours.compiled,
        "drawn_epochs": 10**6 if ours.drawn else 0, "checkpoint_activations": ours.frugal,
    })  # fmt: skip
    net = build_model(config, SHAPES[model], 10)
    net.validate = False
    net.train()
    return Trainer(net, images(SHAPES[model]), None, config, torch.device("cuda", 0))


def our_step(model: str, batch: int, name: str, replicas: int = 1) -> tuple[str, float]:
    """What was measured, which is not what was asked for where the compiler was refused; and ms a step and replica."""
    ours = OURS[name]
    with patch.multiple(half, KERNELS=ours.kernels, PAIR_KERNELS=ours.kernels):
        trainers = [trainer(model, batch, ours, seed) for seed in range(replicas)]
        recording = Recording(trainers)
        recording.begin_epoch([each.state.draw_order(len(each.x)) for each in trainers])
        steps = min(20, trainers[0].steps)
        seconds = best_time(lambda: recording.advance(0, steps), 3)
    if ours.compiled and not all(each.compiles for each in trainers):
        name = "bf16 kernels, compiler refused"
    return name, seconds * 1e3 / steps / replicas


# --- questions --------------------------------------------------------------------------------------------------


def training_step(model: str, batch: int, forms: list[str]) -> Rows:
    kinds = ["plain"]
    kinds += [kind for kind in ("torchbnn", "bayesian_torch") if importlib.util.find_spec(kind) is not None]
    times = {kind: best_time(rival_step(model, kind, batch)) * 1e3 for kind in kinds}
    times |= dict(our_step(model, batch, name) for name in forms)
    rows = []
    for name, value in times.items():
        ratio = value / times["plain"]
        print(f"{model} {batch:4d} {name:31s}{value:8.3f} ms {ratio:5.2f} × plain (floor 2)", flush=True)
        rows.append({
            "what": f"training step, {model}, batch {batch}, {name}", "ours": value, "rival": "plain bf16",
            "ratio": ratio, "floor": 2 * times["plain"],
        })  # fmt: skip
    return rows


def replicas(model: str, forms: list[str]) -> Rows:
    """A step at batch 100, eight side by side, and how long 100 epochs of MNIST are by it."""
    rows = []
    for asked in forms:
        name, each = our_step(model, 100, asked, 8)
        whole = each * 600 * 100 / 1e3
        print(f"{model} × 8 {name:31s}{each:8.3f} ms each, 100 epochs of MNIST {whole:.0f} s each", flush=True)
        rows.append({"what": f"replicas, {model}, 8, {name}", "ours": each, "seconds_for_100_epochs": whole})
    return rows


def cifar10(steps: Rows) -> Rows:
    """How long 300 epochs of CIFAR-10 are by the steps of the VGG at batch 100, and what validation adds."""
    run = trainer("vgg", 100, OURS["bf16 kernels"])
    x, y = run.x[:5000], run.y[:5000]
    validation = best_time(lambda: validate(run.net, x, y, run.preprocessing), 3) * 1e3
    rows: Rows = [
        {"what": row["what"].replace("training step", "450 steps an epoch"), "ours": row["ours"] * 450}
        for row in steps
        if any(form in row["what"] for form in OURS)
    ]
    rows.append({"what": "validation on 5,000 images, vgg, after each epoch", "ours": validation})
    for row in rows:
        row["minutes_for_300_epochs"] = row["ours"] * 300 / 60e3
        print(f"{row['what']:64s}{row['minutes_for_300_epochs']:6.1f} minutes for 300 epochs of CIFAR-10", flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compile", action="store_true", help="compiled steps beside the others")
    parser.add_argument("--models", nargs="+", choices=tuple(SHAPES), default=list(SHAPES))
    parser.add_argument("--batches", nargs="+", type=int, default=[100, 512])
    parser.add_argument("--out", type=Path, help="JSON file to write")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("gpu_step: this benchmark needs a CUDA device")
    torch.set_float32_matmul_precision("high")
    torch.manual_seed(0)
    print(hardware())
    forms = [name for name, ours in OURS.items() if args.compile or not ours.compiled]
    best = [name for name in ("bf16 kernels", "bf16 compiled") if name in forms]
    rows: Rows = []
    for model in args.models:
        for batch in args.batches:
            asked = [name for name in forms if batch == 100 or not (OURS[name].drawn or OURS[name].frugal)]
            found = training_step(model, batch, asked)
            if batch == 100:
                found += cifar10(found) if model == "vgg" else replicas(model, best)
            rows += found
            write(args.out, rows, unit="ms")


if __name__ == "__main__":
    main()
