"""How much memory does a training step need beside that of the plain network?

    python benchmarks/memory.py [--batch 512] [--out results/benchmarks/memory.json]

One step (forward and backward, no optimizer) of the MLP, CNN and VGG, ours against the plain real-valued network with
batch norm and ReLU, both in bfloat16 and both in float32, launched one by one:

- kept: bytes that autograd holds from forward to backward, each storage once, parameters not counted;
- peak: the most that was allocated at once during the step less what was allocated before it. Needs a CUDA device. It
  holds the gradients of the parameters too, of which ours have two a weight.

Where the plain network is 1, the floor is 1 and the aim 1.5. Without a CUDA device nothing is computed: shapes and
dtypes alone say what is kept (`--device meta`).
"""

from __future__ import annotations

import argparse
import gc
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import bqn
from bqn.data import to_input
from bqn.propagate import half
from gpu_step import SHAPES, rival
from timing import hardware, write

Loss = Callable[[], Tensor]
MAKERS = {"mlp": lambda: bqn.models.mlp(784, 10), "cnn": lambda: bqn.models.cnn((1, 28, 28), 10),
          "vgg": lambda: bqn.models.vgg((3, 32, 32), 10)}  # fmt: skip


def ours(model: str, pixels: Tensor, y: Tensor, low: bool) -> tuple[nn.Module, Loss]:
    net = MAKERS[model]().to(pixels.device)
    net.validate = False

    def loss() -> Tensor:
        with half.lowered() if low else nullcontext():
            return -net.elbo(to_input(pixels), y, 60_000, 1e-4)

    return net, loss


def plain(model: str, pixels: Tensor, y: Tensor, low: bool) -> tuple[nn.Module, Loss]:
    net = rival(model, "plain")[0].to(pixels.device, memory_format=torch.channels_last)

    meta = pixels.device.type == "meta"  # which autocast does not know: there the whole network is lowered
    net = net.to(torch.bfloat16) if low and meta else net

    def loss() -> Tensor:
        x = to_input(pixels).contiguous(memory_format=torch.channels_last)
        x = x.to(torch.bfloat16) if low and meta else x
        with torch.autocast("cuda", torch.bfloat16, enabled=low and not meta):
            for layer in net:
                x = layer(x)
        return F.cross_entropy(x.float(), y)

    return net, loss


def kept_bytes(net: nn.Module, loss: Loss) -> int:
    own = {tensor.untyped_storage()._cdata for tensor in (*net.parameters(), *net.buffers())}
    kept: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in own:
            kept[storage._cdata] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        value = loss()  # held, so that no storage is given out twice
    total = sum(kept.values())
    del value
    return total


def peak_bytes(net: nn.Module, loss: Loss) -> int:
    loss().backward()  # libraries set themselves up
    net.zero_grad(set_to_none=True)
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    loss().backward()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def measure(model: str, batch: int, low: bool, device: str) -> dict[str, Any]:
    pixels = torch.randint(256, (batch, *SHAPES[model]), dtype=torch.uint8, device=device)
    y = torch.randint(10, (batch,), device=device)
    row: dict[str, Any] = {"what": model, "batch": batch, "precision": "bf16" if low else "float32"}
    for name, make in (("plain", plain), ("ours", ours)):
        net, loss = make(model, pixels, y, low)
        row[name] = {"kept": kept_bytes(net, loss)}
        if device == "cuda":
            row[name]["peak"] = peak_bytes(net, loss)
        row[name]["parameters"] = sum(4 * parameter.numel() for parameter in net.parameters())
        del net, loss
        gc.collect()
    row["ratio"] = {key: row["ours"][key] / row["plain"][key] for key in row["plain"] if key != "parameters"}
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "meta"), default="cuda" if torch.cuda.is_available() else "meta")
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--models", nargs="*", choices=tuple(SHAPES), default=list(SHAPES))
    parser.add_argument("--out", type=Path, help="JSON file to write")
    args = parser.parse_args()
    if args.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("memory: there is no CUDA device")
    torch.manual_seed(0)
    print(f"{hardware()}, batch {args.batch}, megabytes (times the plain network; floor 1, aim 1.5)")
    rows = []
    for model in args.models:
        for low in (True, False):
            row = measure(model, args.batch, low, args.device)
            rows.append(row)
            cells = "".join(
                f"  {key}: plain {row['plain'][key] / 1e6:8.1f}, ours {row['ours'][key] / 1e6:8.1f} ({ratio:.2f}×)"
                for key, ratio in row["ratio"].items()
            )
            print(f"{model} {row['precision']:8s}{cells}", flush=True)
            write(args.out, rows, unit="bytes")


if __name__ == "__main__":
    main()
