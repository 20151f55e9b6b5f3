"""Which start trains best? Validation NLL against ρ, the share of a weight's second moment that its mean carries.

    python benchmarks/start.py --mnist DIR --cifar DIR --out results/benchmarks/start.json

Trains each network for a few epochs from starts of different ρ and from the paper's Xavier start, on the training sets
alone: the last tenth of each is held out and is what the table shows. The test sets are not touched. Meant for a GPU,
where every step is replayed as a CUDA graph; the floor is what the two products of each layer cost there.
"""

from __future__ import annotations

import argparse
import datetime
import gzip
import json
import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import bqn
from bqn.atomic import write_atomic

EPOCHS = {"mlp": 6, "cnn": 4, "vgg": 8}
# Further learning rates for the deep network, where start and rate could interact.
RUNS = [
    *(("mlp", rho, 0.03) for rho in ("xavier", 0.1, 0.3, 0.54, 0.75, 0.9)),
    *(("vgg", rho, 0.03) for rho in ("xavier", 0.1, 0.3, 0.54, 0.75, 0.9)),
    *(("cnn", rho, 0.03) for rho in ("xavier", 0.3, 0.54, 0.75, 0.9)),
    *(("vgg", rho, 0.1) for rho in (0.54, 0.75)),
]


def mnist(folder: Path) -> tuple[Tensor, Tensor]:
    with gzip.open(folder / "train-images-idx3-ubyte.gz") as file:
        x = np.frombuffer(file.read(), np.uint8, offset=16).reshape(-1, 1, 28, 28)
    with gzip.open(folder / "train-labels-idx1-ubyte.gz") as file:
        y = np.frombuffer(file.read(), np.uint8, offset=8)
    return torch.tensor(x), torch.tensor(y).long()


def cifar(folder: Path) -> tuple[Tensor, Tensor]:
    """All official training batches that are there."""
    raw = np.concatenate([np.fromfile(path, np.uint8) for path in sorted(folder.glob("data_batch_*.bin"))])
    rows = raw.reshape(-1, 3073)
    return torch.tensor(rows[:, 1:].reshape(-1, 3, 32, 32)), torch.tensor(rows[:, 0]).long()


def build(model: str, start: float | str) -> bqn.Network:
    init = "xavier" if start == "xavier" else "signal"
    if model == "mlp":
        net = bqn.models.mlp(784, 10, init=init)
    elif model == "cnn":
        net = bqn.models.cnn((1, 28, 28), 10, init=init)
    else:
        net = bqn.models.vgg((3, 32, 32), 10, init=init)
    if start != "xavier":
        for module in net.modules():
            if isinstance(module, (bqn.nn.Linear, bqn.nn.Conv2d)):
                module.reset_parameters(rho=float(start))
    return net


class Step:
    """One training step on static buffers, captured as a CUDA graph where there is a GPU."""

    def __init__(self, net: bqn.Network, batch: tuple[int, ...], device: torch.device, size: int, rate: float) -> None:
        net.validate = False
        self.net, self.size = net, size
        self.x = torch.zeros(batch, device=device)
        self.y = torch.zeros(batch[0], dtype=torch.int64, device=device)
        self.rate = torch.tensor(rate, device=device)
        cuda = device.type == "cuda"
        self.optimizer = torch.optim.Adam(net.parameters(), lr=self.rate if cuda else rate, capturable=cuda)
        self.graph = None
        if cuda:
            state = {name: tensor.clone() for name, tensor in net.state_dict().items()}
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for _ in range(3):
                    self._eager()
            torch.cuda.current_stream().wait_stream(stream)
            self.graph = torch.cuda.CUDAGraph()
            self.optimizer.zero_grad(set_to_none=True)
            with torch.cuda.graph(self.graph):
                self._eager()
            net.load_state_dict(state)
            for buffers in self.optimizer.state.values():
                for buffer in buffers.values():
                    buffer.zero_()

    def _eager(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        (-self.net.elbo(self.x, self.y, self.size, 1e-4)).backward()
        self.optimizer.step()

    def __call__(self, x: Tensor, y: Tensor) -> None:
        self.x.copy_(x)
        self.y.copy_(y)
        if self.graph is None:
            self._eager()
        else:
            self.graph.replay()


def scores(net: bqn.Network, x: Tensor, y: Tensor, train: Tensor) -> dict[str, float]:
    generator = torch.Generator(device=x.device).manual_seed(0)
    members = [net.sample(generator) for _ in range(5)]
    with torch.no_grad():
        analytic = torch.cat([net.predict(part) for part in x.split(500)])
        mc = torch.stack([torch.cat([m.predict(part) for part in x.split(500)]) for m in members]).mean(0)
        for member in members:
            bqn.recalibrate(member, train[:2000], batch_size=500)
        recalibrated = torch.stack([torch.cat([m.predict(part) for part in x.split(500)]) for m in members]).mean(0)
        mode = bqn.recalibrate(net.mode(), train[:2000], batch_size=500)
        map_ = torch.cat([mode.predict(part) for part in x.split(500)])
    result = {}
    for name, probs in {"analytic": analytic, "mc": mc, "mc_recalibrated": recalibrated, "map": map_}.items():
        result[f"{name}_nll"] = bqn.metrics.nll(probs, y)
        result[f"{name}_error"] = bqn.metrics.error(probs, y)
    return result


def run(model: str, start: float | str, rate: float, x: Tensor, y: Tensor, device: torch.device) -> dict[str, object]:
    torch.manual_seed(0)
    held = len(x) // 10
    x_valid, y_valid = (2 * x[-held:].float() - 255) / 256, y[-held:]
    x, y = x[:-held], y[:-held]
    net = build(model, start).to(device)
    batch = 100
    step = Step(net, (batch, *x.shape[1:]), device, len(x), rate)
    steps = EPOCHS[model] * (len(x) // batch)
    net.train()
    began, done = time.perf_counter(), 0
    for _ in range(EPOCHS[model]):
        order = torch.randperm(len(x), device=device)
        for rows in order.split(batch)[: len(x) // batch]:
            step.rate.fill_(rate * 0.5 * (1 + np.cos(np.pi * done / steps)))
            pixels = x[rows]
            if model == "vgg":
                mirror = torch.rand(batch, 1, 1, 1, device=device) < 0.5
                pixels = torch.where(mirror, pixels.flip(-1), pixels)
            step((2 * pixels.float() - 255) / 256, y[rows])
            done += 1
    if device.type == "cuda":
        torch.cuda.synchronize()
    seconds = time.perf_counter() - began
    train = (2 * x[:2000].float() - 255) / 256
    entropy = [p.entropy().mean().item() / np.log(2) for _, p in net.posteriors()]
    return {
        "what": model, "rho": start, "rate": rate, "epochs": EPOCHS[model], "step_ms": 1e3 * seconds / steps,
        "entropy_bits": float(np.mean(entropy)), **scores(net, x_valid, y_valid, train),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mnist", type=Path, required=True, help="folder of the MNIST idx.gz files")
    parser.add_argument("--cifar", type=Path, required=True, help="folder of the CIFAR-10 binary batches")
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")
    parser.add_argument("--seconds", type=float, default=1e9, help="start no run after this long")
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
    images = {"mnist": mnist(args.mnist), "cifar10": cifar(args.cifar)}
    images = {name: (x.to(device), y.to(device)) for name, (x, y) in images.items()}
    hardware = torch.cuda.get_device_name() if device.type == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    record = {"hardware": hardware, "date": str(datetime.date.today()), "rows": []}
    began = time.perf_counter()
    print(
        f"{'net':4s} {'rho':>6s} {'rate':>5s} {'analytic':>16s} {'MC-5':>16s} {'recalibrated':>16s} {'MAP':>16s}"
        "  ms/step"
    )
    for model, start, rate in RUNS:
        if time.perf_counter() - began > args.seconds:
            print(f"{model} {start} not run: out of time")
            continue
        row = run(model, start, rate, *images["cifar10" if model == "vgg" else "mnist"], device)
        record["rows"].append(row)
        cells = " ".join(
            f"{row[f'{k}_nll']:7.4f} /{row[f'{k}_error']:7.2%}" for k in ("analytic", "mc", "mc_recalibrated", "map")
        )
        print(f"{model:4s} {start!s:>6s} {rate:5.2f} {cells}  {row['step_ms']:.2f}", flush=True)
        args.out.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(args.out, f"{json.dumps(record, indent=1)}\n".encode())


if __name__ == "__main__":
    main()
