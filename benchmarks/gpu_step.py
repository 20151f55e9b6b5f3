"""How near is a training step on a GPU to what the card can do?

    python benchmarks/gpu_step.py [--out results/benchmarks/gpu_step.json]

Needs a CUDA device. Every row stands beside its floor and its rivals, measured in the same run:

- the pair of products of a layer in bfloat16, forward, against two library products (the floor);
- a training step (forward, backward, Adam) of the MLP, CNN and VGG at batch 100 and 512, recorded as a CUDA graph: ours
  in TF32 and in bfloat16; the plain real-valued network of the same sizes with batch norm and
  ReLU in bfloat16, recorded too; and the same network of bayesian-torch and torchbnn layers with one sample a step in
  bfloat16, where they are installed. These are launched one by one: they copy from the host inside a step and cannot be
  recorded. The floor is twice the plain network;
- eight replicas of the CNN side by side;
- peak memory of a step against the plain network's.
"""

from __future__ import annotations

import argparse
import datetime
import gc
import importlib.util
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bqn.data import Split, to_input
from bqn.propagate import clt, half
from bqn.training import TrainConfig, build_model
from bqn.training.graph import Recording
from bqn.training.loop import Trainer

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


def recorded(step: Callable[[], None]) -> Callable[[], None]:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


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


def trainer(model: str, batch: int, low: bool, seed: int = 0) -> Trainer:
    config = TrainConfig.preset({
        "model": model, "data": "cifar10" if model == "vgg" else "mnist", "device": "cuda", "batch_size": batch,
        "mixed_precision": low, "validation_fraction": 0.0, "seed": seed,
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


def products(rows: list[dict[str, Any]]) -> None:
    """The moments of one layer, forward, against two bare products of the same shapes."""
    cases: list[tuple[str, tuple[int, ...], tuple[int, ...], clt.Geometry | None]] = [
        ("linear 4096³", (4096, 4096), (4096, 4096), None),
        ("linear 100 × 8192 × 1024", (100, 8192), (1024, 8192), None),
    ]
    same = clt.Geometry((1, 1), (1, 1), (1, 1), 1)
    for channels, size in ((128, 32), (256, 16), (512, 8)):
        shape = (100, channels, size, size)
        cases.append((f"conv 3×3 {channels} at {size}², batch 100", shape, (channels, channels, 3, 3), same))
    cases.append(("conv 5×5 64 at 14², batch 100", (100, 64, 14, 14), (64, 64, 5, 5), same._replace(padding=(2, 2))))
    for what, x_shape, w_shape, geometry in cases:
        layout = torch.contiguous_format if geometry is None else torch.channels_last
        x = (torch.rand(x_shape, device="cuda") * 2 - 1).to(torch.bfloat16).to(memory_format=layout)
        weight = torch.rand(w_shape, device="cuda") * 2 - 1
        low = weight.to(torch.bfloat16).to(memory_format=layout)

        def two(x: Tensor = x, low: Tensor = low, geometry: clt.Geometry | None = geometry) -> None:
            for _ in range(2):
                half._product(x, low, geometry)

        def ours(x: Tensor = x, weight: Tensor = weight, geometry: clt.Geometry | None = geometry) -> None:
            with torch.no_grad(), half.lowered():
                half.moments(x, weight, None, 1.0, 1.0, geometry)

        floor, time_ours = (best_time(recorded(work)) * 1e3 for work in (two, ours))
        rows.append(
            {"what": f"pair of products, {what}", "ours": time_ours, "floor": floor, "share": floor / time_ours}
        )
        print(f"{what:40s} floor {floor:7.3f} ms   ours {time_ours:7.3f} ms   {floor / time_ours:5.0%} of the floor")


def steps(rows: list[dict[str, Any]]) -> None:
    kinds = ["plain"]
    kinds += [kind for kind in ("torchbnn", "bayesian_torch") if importlib.util.find_spec(kind) is not None]
    for model in SHAPES:
        for batch in (100, 512):
            times: dict[str, float] = {}
            memory: dict[str, float] = {}
            for kind in kinds:
                with _fresh(memory, kind):
                    times[kind] = best_time(rival_step(model, kind, batch)) * 1e3
            for name, low in (("tf32", False), ("bf16", True)):
                with _fresh(memory, name):
                    work, count = our_step([trainer(model, batch, low)])
                    times[name] = best_time(work, 3) * 1e3 / count
            for name, value in times.items():
                ratio, room = value / times["plain"], memory[name] / memory["plain"]
                print(
                    f"{model} {batch:4d} {name:15s}{value:8.3f} ms {ratio:5.2f} × plain (floor 2)  memory {room:.2f} ×"
                )
                rows.append({
                    "what": f"training step, {model}, batch {batch}, {name}", "ours": value, "rival": "plain bf16",
                    "ratio": ratio, "floor": 2 * times["plain"], "memory_ratio": room,
                })  # fmt: skip


def _fresh(memory: dict[str, float], name: str) -> Any:
    class Measured:
        def __enter__(self) -> None:
            gc.collect()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            self.before = torch.cuda.memory_allocated()

        def __exit__(self, *error: object) -> None:
            memory[name] = float(torch.cuda.max_memory_allocated() - self.before)

    return Measured()


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
    parser.add_argument("--out", type=Path, help="JSON file to write")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("gpu_step: this benchmark needs a CUDA device")
    torch.set_float32_matmul_precision("high")
    torch.manual_seed(0)
    hardware = f"{torch.cuda.get_device_name()}, torch {torch.__version__}"
    print(hardware)
    rows: list[dict[str, Any]] = []
    products(rows)
    replicas(rows)
    steps(rows)
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        record = {"hardware": hardware, "date": str(datetime.date.today()), "unit": "ms", "rows": rows}
        args.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
