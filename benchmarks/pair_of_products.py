"""How near is the pair of products of one layer to two products of the library, which are its floor?

    python benchmarks/pair_of_products.py [--levels] [--tune] [--out results/benchmarks/pair_of_products.json]

In bfloat16 on a CUDA device, as CUDA graphs and over buffers in turn, so that neither launches nor cache are measured:

- 4096³ and the linear layers of the MLP, CNN and VGG at batch 100, 512 and 4096;
- the convolutions of the CNN and VGG, channels last, at batch 100 and 512, with the centre that batch norm asks for. It
  costs no product of its own; "uncentred" is without.

The floor is two products of the library, six for forward and backward. Beside it `half.moments` in four forms: plain
torch passes around products of the library; the same with Triton for all that is done element by element
(`half_kernels`); products in Triton too (`pair_kernels`, matrix products only); with `--compiled`, on few shapes only,
by torch.compile. Shares are floor over time; the aim is 70 %. Errors are relative to float64. `--tune` times all tiles
of `pair_kernels` on two shapes instead; `--profile` lists the kernels of the form that a network uses beside those of
the floor, with what each takes. `--device cpu` tries the program out on small shapes.

`--levels` is for weights of four levels and inputs ±1, which take three products, nine with backward, on fewer shapes;
the forms are those of `levels_half.moments_of_levels`, in `levels_kernels` and `triple_kernels`.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor

from bqn.propagate import half, levels_half
from bqn.propagate.products import Geometry
from timing import Work, each_ms, hardware, kernels, run_all, write

LINEAR = {"MLP": ((784, 512), (512, 256), (256, 10)), "CNN": ((3136, 1024), (1024, 10)), "VGG": ((8192, 1024),)}
SAME3, SAME5 = Geometry((1, 1), (1, 1), (1, 1), 1), Geometry((1, 1), (2, 2), (1, 1), 1)
CONVOLUTIONS = {  # inputs, outputs, kernel, image side
    "VGG": ((128, 128, 3, 32), (128, 256, 3, 16), (256, 256, 3, 16), (256, 512, 3, 8), (512, 512, 3, 8)),
    "CNN": ((64, 64, 5, 14),),
}
FEW = ("4096³", "8192 → 1024, batch 100", "128 → 128 at 32², batch 100", "512 → 512 at 8², batch 100")
CACHE = 120e6  # bytes: more than twice what a Hopper GPU keeps


class Operands(NamedTuple):
    """Inputs in half precision, weights in float32, their centre; for more than two levels the weights' variance."""

    x: Tensor
    weight: Tensor
    centre: Tensor | None
    noise: Tensor | None

    def moments(self, geometry: Geometry | None) -> tuple[Tensor, Tensor]:
        x, weight, centre, noise = self
        if noise is None:
            return half.moments(x, weight, centre, 1.0, 1.0, geometry)
        return levels_half.moments_of_levels(x, None, 1.0, weight, noise, centre, geometry)


def operands(x_shape: tuple[int, ...], w_shape: tuple[int, ...], device: str, levels: bool) -> Operands:
    layout = torch.contiguous_format if len(x_shape) == 2 else torch.channels_last
    x = (torch.rand(x_shape, device=device) * 2 - 1).to(torch.bfloat16).to(memory_format=layout)
    weight, noise = torch.tanh(torch.randn(w_shape, device=device)), None
    if levels:
        noise = (1 - weight.square()) * torch.rand(w_shape, device=device)
    return Operands(x, weight, 0.2 * torch.randn(w_shape[1:], device=device), noise)


def copies(x_shape: tuple[int, ...], w_shape: tuple[int, ...], device: str) -> int:
    if device == "cpu":
        return 1
    return min(32, max(1, math.ceil(CACHE / (2 * math.prod(x_shape) + 4 * math.prod(w_shape)))))


def library(tensors: Operands, geometry: Geometry | None, backward: bool) -> Work:
    """Two products or three, or six or nine, by the library."""
    x, weight, count = tensors.x, tensors.weight, 2 if tensors.noise is None else 3
    layout = torch.contiguous_format if geometry is None else torch.channels_last
    low = weight.to(torch.bfloat16).to(memory_format=layout)
    x, low = half._operand(x), half._operand(low)  # not every CPU multiplies in half precision
    grad = torch.randn_like(half.product(x, low, geometry))

    def work() -> None:
        for _ in range(count):
            half.product(x, low, geometry)
            if not backward:
                continue
            if geometry is None:
                grad @ low
                grad.mT @ x
            else:
                torch.ops.aten.convolution_backward(
                    grad, x, low, None, geometry.stride, geometry.padding, (1, 1), False, (0, 0), 1,
                    (True, True, False),
                )  # fmt: skip

    return work


FORMS = {"passes": (False, False), "kernels": (True, False), "pair": (True, True), "compiled": (False, False)}


@contextmanager
def form(name: str) -> Iterator[None]:
    """`half.moments` in one form; in `pair_kernels` on all shapes, where a network has them only where they pay."""
    kernels, pair = FORMS[name]
    with ExitStack() as stack:
        stack.enter_context(half.lowered())
        stack.enter_context(patch.multiple(half, KERNELS=kernels, PAIR_KERNELS=pair))
        if pair:
            stack.enter_context(patch("bqn.propagate.pair_kernels.pays", lambda *_: True))
        yield


def layer(tensors: Operands, geometry: Geometry | None, backward: bool, name: str) -> Work:
    leaves = Operands(*(None if each is None else each.detach().requires_grad_(backward) for each in tensors))
    inputs = [leaf for leaf in leaves if leaf is not None]

    def plain(leaves: Operands) -> tuple[Tensor, Tensor]:
        return leaves.moments(geometry)

    moments = torch.compile(plain, dynamic=False) if name == "compiled" else plain
    with form(name):
        grads = [torch.randn_like(tensor) for tensor in moments(leaves)]

    def work() -> None:
        with form(name), torch.set_grad_enabled(backward):
            both = moments(leaves)
            if backward:
                torch.autograd.grad(both, inputs, grads)

    return work


def errors(tensors: Operands, name: str) -> tuple[float, float]:
    """Of mean and variance, relative to float64."""
    with form(name), torch.no_grad():
        got = tensors.moments(None)
    x, weight, centre, noise = (None if each is None else each.double() for each in tensors)
    assert x is not None
    assert weight is not None
    noise = 1 - weight.square() if noise is None else noise
    var = F.linear((x if centre is None else x - centre).square(), noise)
    truth = (F.linear(x, weight), var + F.linear(1 - x.square(), noise + weight.square()))
    first, second = (
        float((ours.double() - wanted).norm() / wanted.norm()) for ours, wanted in zip(got, truth, strict=True)
    )
    return first, second


Case = tuple[str, tuple[int, ...], tuple[int, ...], Geometry | None]


def measure(case: Case, device: str, compiled: bool, levels: bool) -> list[dict[str, Any]]:
    name, x_shape, w_shape, geometry = case
    cuda, count = device != "cpu", 1 if compiled else copies(x_shape, w_shape, device)
    sets = [operands(x_shape, w_shape, device, levels) for _ in range(count)]
    forms = ["passes", "kernels"] if geometry is not None else ["passes", "kernels", "pair"]
    forms += ["compiled"] if compiled else []
    rows = []
    for backward in (False, True):
        works = {"floor": [library(each, geometry, backward) for each in sets]}
        if geometry is not None:
            works["uncentred"] = [layer(each._replace(centre=None), geometry, backward, "kernels") for each in sets]
        for kind in forms:
            works[kind] = [layer(each, geometry, backward, kind) for each in sets]
        times = {kind: each_ms(work, cuda, 0.01) for kind, work in works.items()}
        row: dict[str, Any] = {"what": name, "pass": "forward and backward" if backward else "forward", "ms": times}
        row["share"] = {kind: times["floor"] / value for kind, value in times.items() if kind != "floor"}
        if geometry is None and not backward and cuda:
            row["error"] = {kind: errors(sets[0], kind) for kind in ("passes", "kernels", "pair")}
        rows.append(row)
        cells = "".join(f" {kind} {value:.4f} ({times['floor'] / value:3.0%})" for kind, value in times.items())
        print(f"{name:45s}{'f+b' if backward else 'f':4s}{cells}", flush=True)
    return rows


def profiled(case: Case, device: str, levels: bool = False) -> list[dict[str, Any]]:
    """The kernels of the floor and of the form that a network has at this shape, microseconds of each a pass."""
    name, x_shape, w_shape, geometry = case
    cuda = device != "cpu"
    sets = [operands(x_shape, w_shape, device, levels) for _ in range(copies(x_shape, w_shape, device))]
    pair = geometry is None and cuda and pair_kernels().pays(*sets[0][:2])
    rows = []
    for backward in (False, True):
        works = {
            "floor": [library(each, geometry, backward) for each in sets],
            "ours": [layer(each, geometry, backward, "pair" if pair else "kernels") for each in sets],
        }
        for kind, each in works.items():
            all_of_them = partial(run_all, each)
            all_of_them()
            found = [{**row, "kernel": row["kernel"][:120]} for row in kernels(all_of_them, len(each), cuda)]
            step = "forward and backward" if backward else "forward"
            rows.append({"what": name, "pass": step, "form": kind, "kernels": found})
            whole = sum(row["us"] for row in found)
            print(f"{name:35s}{'f+b' if backward else 'f':4s}{kind:6s}{whole:9.1f} us, {len(found)} kinds of kernels")
            for row in found:
                print(f"    {row['us']:8.1f} us {row['times']:5.1f} × {row['kernel']}", flush=True)
    return rows


def pair_kernels(levels: bool = False) -> Any:
    """Triton's part of the package, which not every machine can import."""
    from bqn.propagate import pair_kernels, triple_kernels

    return triple_kernels if levels else pair_kernels


def cases(device: str, levels: bool = False) -> list[Case]:
    if device == "cpu":
        found: list[Case] = [
            ("linear 8 × 40 × 24", (8, 40), (24, 40), None),
            ("conv 3×3 16 → 16 at 6², 2", (2, 16, 6, 6), (16, 16, 3, 3), SAME3),
        ]
        return [(f"{name}, D levels", *rest) for name, *rest in found] if levels else found
    found = [("4096³", (4096, 4096), (4096, 4096), None)]
    for batch in (100, 512) if levels else (100, 512, 4096):
        for model, shapes in LINEAR.items():
            for inputs, units in shapes:
                found.append((f"{model} {inputs} → {units}, batch {batch}", (batch, inputs), (units, inputs), None))
    for batch in (100, 512):
        for model, sizes in CONVOLUTIONS.items():
            for inputs, units, kernel, side in (sizes[0], sizes[-1])[: len(sizes)] if levels else sizes:
                name = f"{model} {kernel}×{kernel} {inputs} → {units} at {side}², batch {batch}"
                shape = (batch, inputs, side, side)
                found.append((name, shape, (units, inputs, kernel, kernel), SAME3 if kernel == 3 else SAME5))
    return [(f"{name}, D levels", *rest) for name, *rest in found] if levels else found


def tune(levels: bool) -> list[dict[str, Any]]:
    """All tiles for the three kernels, on a large and on a small batch."""
    from triton.runtime.errors import OutOfResources

    triton = pair_kernels(levels)
    rows = []
    for batch, units, inputs in ((4096, 4096, 4096), (100, 1024, 8192)):
        x, weight, centre, noise = operands((batch, inputs), (units, inputs), "cuda", levels)
        dtype = torch.float32 if levels else torch.bfloat16
        grads = [torch.randn(batch, units, device="cuda", dtype=dtype) for _ in range(2)]
        for tiles in triton.CHOICES:
            plan = triton.Plan(tiles, tiles, tiles, rounded=batch > 256)
            kind: dict[str, tuple[Any, ...]] = {
                "forward": (x, None, 1.0, weight, noise, centre) if levels else (x, weight, centre, 1.0, 1.0),
                "by_input": (x, None, 1.0, weight, noise, centre) if levels else (x, weight, centre, 1.0, True),
                "by_weight": (x, None, 1.0, weight, centre) if levels else (x, weight, centre),
            }
            works: dict[str, Work] = {
                name: partial(getattr(triton, name), *(() if name == "forward" else grads), *of, plan)
                for name, of in kind.items()
            }
            times: dict[str, float | None] = {}
            for name, work in works.items():
                try:
                    times[name] = each_ms([work], True)
                except OutOfResources:
                    times[name] = None
            rows.append({"what": f"{batch} × {inputs} × {units}", "tiles": tiles._asdict(), "ms": times})
            cells = "".join(f"  {name} {'none' if t is None else f'{t:.4f}'}" for name, t in times.items())
            print(f"{batch:5d} × {inputs} × {units}  {tuple(tiles)!s:24s}{cells}", flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--part", choices=("all", "linear", "conv"), default="all")
    parser.add_argument("--levels", action="store_true", help="weights of four levels in place of two")
    other = parser.add_mutually_exclusive_group()
    other.add_argument("--compiled", action="store_true", help="few shapes, and torch.compile beside the others")
    other.add_argument("--tune", action="store_true", help="time all tiles of the Triton kernels instead")
    other.add_argument("--profile", action="store_true", help="list the kernels of the floor and of ours instead")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    args = parser.parse_args()
    if args.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("pair_of_products: this benchmark needs a CUDA device; --device cpu tries it out")
    torch.manual_seed(0)
    print(hardware())
    if args.tune:
        write(args.out, tune(args.levels), unit="ms")
        return
    rows: list[dict[str, Any]] = []
    for case in cases(args.device, args.levels):
        wanted = args.part == "all" or (args.part == "linear") == (case[3] is None)
        if wanted and args.profile:
            rows += profiled(case, args.device, args.levels)
            write(args.out, rows, unit="us")
        elif wanted and (not args.compiled or any(part in case[0] for part in FEW)):
            rows += measure(case, args.device, args.compiled, args.levels)
            write(args.out, rows, unit="ms", aim=0.7)


if __name__ == "__main__":
    main()
