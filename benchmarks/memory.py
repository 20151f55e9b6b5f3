"""How much memory does a training step need beside that of the plain network?

    python benchmarks/memory.py [--batch 512] [--compile] [--out results/benchmarks/memory.json]
    python benchmarks/memory.py --profile --models vgg [--out results/benchmarks/memory_profile.json]

One step (forward and backward, no optimizer) of the MLP, CNN and VGG, ours against the plain real-valued network with
batch norm and ReLU, both in bfloat16 and both in float32, launched one by one:

- kept: bytes that autograd holds from forward to backward, each storage once, parameters not counted;
- peak: the most that was allocated at once during the step less what was allocated before it. Needs a CUDA device. It
  holds the gradients of the parameters too, of which ours have two a weight.

Where the plain network is 1, the floor is 1 and the aim 1.5. With `--compile` ours is measured compiled too, as the
recipes train it, and frugal, as with `checkpoint_activations`. `--profile` lists instead what is allocated at the
moment of the peak, by the line of the package that asked for it; what torch's own backward asks for has no line.
Without a CUDA device nothing is computed: shapes and dtypes alone say what is kept (`--device meta`), with `--compile`
what the compiler would keep, had the network a GPU.
"""

from __future__ import annotations

import argparse
import gc
import re
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import bqn
from bqn.data import to_input
from bqn.propagate import cpu, devices, half
from bqn.training.compiler import compiled
from gpu_step import SHAPES, rival
from timing import hardware, write

Loss = Callable[[], Tensor]
LONGEST = 12
MAKERS = {"mlp": lambda: bqn.models.mlp(784, 10), "cnn": lambda: bqn.models.cnn((1, 28, 28), 10),
          "vgg": lambda: bqn.models.vgg((3, 32, 32), 10)}  # fmt: skip


def ours(
    model: str, pixels: Tensor, y: Tensor, low: bool, compiles: bool = False, frugal: bool = False
) -> tuple[nn.Module, Loss]:
    net = MAKERS[model]().to(pixels.device)
    net.validate = False
    lam = torch.tensor(1e-4, device=pixels.device)
    objective = compiled(net.elbo_terms, frugal) if compiles else net.elbo_terms

    def loss() -> Tensor:
        with half.lowered() if low else nullcontext():
            return -objective(to_input(pixels), y, 60_000, lam).value

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


class _EnoughError(Exception):
    """All that was asked of the compiler."""


def kept_by_compiler(model: str, batch: int, low: bool, frugal: bool) -> int:
    """What the compiler would keep on a GPU, by shapes: it decides before it makes a kernel, and is stopped there."""
    from torch._functorch.aot_autograd import aot_module_simplified
    from torch._functorch.partitioners import min_cut_rematerialization_partition
    from torch._inductor.decomposition import select_decomp_table

    kept: list[int] = []

    def forward(traced: torch.fx.GraphModule, _: Any) -> Any:
        (output,) = (node for node in traced.graph.nodes if node.op == "output")
        nodes = [node for node in output.args[0] if node is not None and node.op != "placeholder"]
        values = [node.meta["val"] for node in nodes if isinstance(node.meta.get("val"), Tensor)]
        storages = {value.untyped_storage()._cdata: value.untyped_storage().nbytes() for value in values}
        kept.append(sum(storages.values()))
        raise _EnoughError

    def stopped(traced: torch.fx.GraphModule, examples: list[Any]) -> Any:
        return aot_module_simplified(
            traced, examples, fw_compiler=forward, bw_compiler=forward, decompositions=select_decomp_table(),
            partition_fn=min_cut_rematerialization_partition,
        )  # fmt: skip

    torch.compiler.reset()
    pixels, y = examples(model, batch, "cpu")
    plain_compile = torch.compile
    with (
        patch("torch.compile", lambda work, **options: plain_compile(work, backend=stopped, **options)),
        patch.object(cpu, "_library", None),  # what a CPU does in its own way
        patch.object(devices, "kind", lambda tensor: "cuda"),
    ):
        _, loss = ours(model, pixels, y, low, True, frugal)
        try:
            loss()
        except Exception:  # the compiler's own, around ours
            if not kept:
                raise
    return kept[0]


def settle(net: nn.Module, loss: Loss) -> None:
    """One step, in which libraries set themselves up, and nothing left of it."""
    loss().backward()
    net.zero_grad(set_to_none=True)
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()


def peak_bytes(net: nn.Module, loss: Loss) -> int:
    settle(net, loss)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    loss().backward()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def at_peak(trace: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What was allocated when most was: bytes and number of pieces by the line that asked for them, most bytes first.

    `trace` is what torch notes of its allocator, one entry an event.
    """
    held: dict[int, dict[str, Any]] = {}
    at_most: list[dict[str, Any]] = []
    now = most = 0
    for event in trace:
        if event["action"] == "alloc":
            held[event["addr"]] = event
            now += event["size"]
        elif event["action"] == "free_requested" and event["addr"] in held:  # what was there before does not count
            now -= held.pop(event["addr"])["size"]
        if now > most:
            most, at_most = now, list(held.values())
    places: dict[str, dict[str, Any]] = {}
    for event in at_most:
        place = place_of(event.get("frames", []))
        row = places.setdefault(place, {"place": place, "bytes": 0, "pieces": 0})
        row["bytes"] += event["size"]
        row["pieces"] += 1
    return sorted(places.values(), key=lambda row: -row["bytes"])


def place_of(frames: list[dict[str, Any]]) -> str:
    """The innermost line of the package, or of a benchmark, that stands behind an allocation."""
    for frame in frames:
        if match := re.search(r"(?:src/bqn|benchmarks)/(.+)", frame["filename"]):
            return f"{match[1]}:{frame['line']} {frame['name']}"
    return "torch's own backward"


def profiled(model: str, batch: int, low: bool, network: str) -> dict[str, Any]:
    pixels, y = examples(model, batch, "cuda")
    net, loss = (plain if network == "plain" else ours)(model, pixels, y, low)
    settle(net, loss)
    torch.cuda.memory._record_memory_history(stacks="python", max_entries=1_000_000)
    loss().backward()
    torch.cuda.synchronize()
    trace = torch.cuda.memory._snapshot()["device_traces"][torch.cuda.current_device()]
    torch.cuda.memory._record_memory_history(enabled=None)
    found = at_peak(trace)
    row = {"what": model, "batch": batch, "precision": "bf16" if low else "float32", "network": network}
    return {**row, "peak": sum(each["bytes"] for each in found), "places": found}


def examples(model: str, batch: int, device: str) -> tuple[Tensor, Tensor]:
    pixels = torch.randint(256, (batch, *SHAPES[model]), dtype=torch.uint8, device=device)
    return pixels, torch.randint(10, (batch,), device=device)


def measure(model: str, batch: int, low: bool, device: str, compiles: bool) -> dict[str, Any]:
    pixels, y = examples(model, batch, device)
    row: dict[str, Any] = {"what": model, "batch": batch, "precision": "bf16" if low else "float32"}
    makers: dict[str, Callable[..., tuple[nn.Module, Loss]]] = {"plain": plain, "ours": ours}
    for name, make in makers.items():
        row[name] = measured(*make(model, pixels, y, low), device)
    row["ratio"] = {key: row["ours"][key] / row["plain"][key] for key in row["plain"] if key != "parameters"}
    for name, frugal in {"compiled": False, "frugal": True}.items() if compiles else ():
        if device == "cuda":
            torch.compiler.reset()
            row[name] = {"peak": peak_bytes(*ours(model, pixels, y, low, True, frugal))}  # no hook sees what is kept
        else:
            row[name] = {"kept": kept_by_compiler(model, batch, low, frugal)}
        row["ratio"] |= {f"{name} {key}": value / row["plain"][key] for key, value in row[name].items()}
    return row


def measured(net: nn.Module, loss: Loss, device: str) -> dict[str, int]:
    found = {"kept": kept_bytes(net, loss)}
    if device == "cuda":
        found["peak"] = peak_bytes(net, loss)
    return found | {"parameters": sum(4 * parameter.numel() for parameter in net.parameters())}


def show(row: dict[str, Any]) -> None:
    cells = "".join(
        f"  {key}: plain {row['plain'][key] / 1e6:8.1f}, ours {row['ours'][key] / 1e6:8.1f} ({row['ratio'][key]:.2f}×)"
        for key in ("kept", "peak")
        if key in row["ratio"]
    )
    for name in ("compiled", "frugal"):
        for key, value in row.get(name, {}).items():
            cells += f"  {name}, {key}: {value / 1e6:8.1f} ({row['ratio'][f'{name} {key}']:.2f}×)"
    print(f"{row['what']} {row['precision']:8s}{cells}", flush=True)


def show_profile(row: dict[str, Any]) -> None:
    print(f"{row['what']} {row['precision']} {row['network']}: {row['peak'] / 1e6:.1f} at the peak", flush=True)
    for each in row["places"][:LONGEST]:
        print(f"    {each['bytes'] / 1e6:8.1f} in {each['pieces']:3d} by {each['place']}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "meta"), default="cuda" if torch.cuda.is_available() else "meta")
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--models", nargs="*", choices=tuple(SHAPES), default=list(SHAPES))
    other = parser.add_mutually_exclusive_group()
    other.add_argument("--compile", action="store_true", help="ours compiled too, beside ours launched one by one")
    other.add_argument("--profile", action="store_true", help="list what is allocated at the peak instead")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    args = parser.parse_args()
    if args.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("memory: there is no CUDA device")
    if args.device == "meta" and args.profile:
        raise SystemExit("memory: --profile needs a CUDA device")
    torch.manual_seed(0)
    print(f"{hardware()}, batch {args.batch}, megabytes (times the plain network; floor 1, aim 1.5)")
    rows = []
    for model in args.models:
        for low in (True, False):
            if args.profile:
                found = [profiled(model, args.batch, low, network) for network in ("plain", "ours")]
                for row in found:
                    show_profile(row)
            else:
                found = [measure(model, args.batch, low, args.device, args.compile)]
                show(found[0])
            rows += found
            write(args.out, rows, unit="bytes")


if __name__ == "__main__":
    main()
