"""How fast is a packed network? Against PyTorch float32, onnxruntime float32, onnxruntime int8, and the floor.

    python benchmarks/packed.py [--out results/benchmarks/packed.json] [--only cnn,vgg] [--seconds 4]

The rivals run the plain network of the same architecture: convolutions and linear layers of the same sizes, ReLU for
sign, batch norm folded into the layer before it (onnxruntime) or in evaluation mode (PyTorch), the same pooling. The
int8 rival is onnxruntime's static QDQ quantization with weights per channel. Ours is the whole call `model(x)` from
uint8 pixels to probabilities, theirs the whole call from float32 pixels to logits. Contestants take turns; a time is
that of the fastest call, in time of its thread on one core and in wall time on all. The floor is what the same products
would take if every instruction of their kind (population count of 512 bits, product of two tiles) came at the rate at
which the core runs it on registers alone, which is measured too. Needs `pip install "bqn[onnx]"` and gcc.
"""

from __future__ import annotations

import argparse
import ctypes
import datetime
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import bqn
from bqn.atomic import write_atomic
from bqn.deploy import PackedModel, _layout, _native, _plan
from bqn.deploy.packing import pack_in_memory
from bqn.deploy.program import Lattice

SHAPES = {"mlp": (784,), "cnn": (1, 28, 28), "vgg": (3, 32, 32)}
SIGNS = Lattice(-1, 2, 2)
Call = Callable[[], object]
Row = dict[str, Any]


@dataclass(frozen=True)
class Peaks:
    """Nanoseconds of a cycle, and products of one bit or one byte in a nanosecond."""

    cycle: float
    products: dict[str, float]

    @classmethod
    def measured(cls) -> Peaks:
        with tempfile.TemporaryDirectory() as folder:
            library = Path(folder) / "peak.so"
            source = Path(__file__).with_name("peak.c")
            subprocess.run(["gcc", "-O3", "-fPIC", "-shared", source, "-o", library], check=True)
            functions = ctypes.CDLL(os.fspath(library))
        here = _native.supported()
        found: dict[str, float] = {}
        for name, bits, instructions in (("scalar", 64, "portable"), ("avx512", 512, "avx512"), ("amx", 16384, "amx")):
            if instructions in here:
                function = getattr(functions, f"peak_{name}")
                function.restype = ctypes.c_double
                found[name] = bits / function()
        functions.cycle.restype = ctypes.c_double
        return cls(functions.cycle(), found)

    def floor(self, plan: _native.Plan) -> float:
        """Microseconds of one image if nothing but the products took time, at the peak rate of their kind."""
        best = self.products.get("avx512", self.products["scalar"])
        total = 0.0
        for op in plan.ops:
            if _native.KINDS[op.kind] != "product":
                continue
            products = op.rows * op.columns * op.out_channels * op.kernel_h * op.kernel_w * op.channels / op.groups
            mode = _native.MODES[op.mode]
            pairs = op.planes * op.weight_planes if mode in ("xor", "and") else 1
            rate = {"tiles": self.products.get("amx", best), "bytes": best / 4}.get(mode, best)
            total += products * pairs / rate
        return total / 1e3


# --- contestants ------------------------------------------------------------------------------------------------------


def network(name: str, **options: Any) -> bqn.Network:
    if name == "mlp":
        return bqn.models.mlp(784, 10, **options)
    make = bqn.models.cnn if name == "cnn" else bqn.models.vgg
    return make(SHAPES[name], 10, **options)


def packed_model(name: str, members: int = 1, kernels: str | None = None, **options: Any) -> PackedModel:
    net, generator = network(name, **options), torch.Generator().manual_seed(0)
    return PackedModel(pack_in_memory([net.sample(generator) for _ in range(members)]), kernels)


def layers(name: str) -> list[tuple[str, tuple[int, ...]]]:
    """The architecture as a list: convolutions (inside, outside, kernel), linear layers (inside, outside), pooling."""
    if name == "mlp":
        return [("linear", (784, 512)), ("relu", ()), ("linear", (512, 256)), ("relu", ()), ("linear", (256, 10))]
    if name == "cnn":
        convolutions = [("conv", (1, 64, 5)), ("average", ()), ("relu", ()), ("conv", (64, 64, 5)), ("average", ())]
        return [*convolutions, ("relu", ()), *head(64 * 7 * 7)]
    stack: list[tuple[str, tuple[int, ...]]] = []
    for inside, outside in ((3, 128), (128, 256), (256, 512)):
        stack += [("conv", (inside, outside, 3)), ("relu", ()), ("conv", (outside, outside, 3)), ("relu", ())]
        stack.append(("maximum", ()))
    return [*stack, *head(512 * 4 * 4)]


def head(features: int) -> list[tuple[str, tuple[int, ...]]]:
    return [("flatten", ()), ("linear", (features, 1024)), ("relu", ()), ("linear", (1024, 10))]


def torch_network(name: str) -> nn.Module:
    made: list[nn.Module] = []
    for kind, sizes in layers(name):
        if kind == "conv":
            inside, outside, kernel = sizes
            made.append(nn.Conv2d(inside, outside, kernel, padding=kernel // 2, bias=False))
            norm: nn.Module = nn.BatchNorm2d(outside)
        elif kind == "linear":
            made.append(nn.Linear(*sizes, bias=False))
            norm = nn.BatchNorm1d(sizes[1])
        else:
            simple = {"relu": nn.ReLU, "flatten": nn.Flatten}
            pools = {"average": nn.AvgPool2d, "maximum": nn.MaxPool2d}
            if kind == "relu":
                made.append(norm)
            made.append(simple[kind]() if kind in simple else pools[kind](2))
    return nn.Sequential(*made).eval()


def onnx_network(name: str, path: Path) -> None:
    """Batch norm is folded into weights and biases, which is what its own optimizer would make of it."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    rng = np.random.default_rng(0)
    nodes, constants, value = [], [], "x"

    def constant(shape: tuple[int, ...], scale: float) -> str:
        array = rng.normal(0, scale, shape).astype(np.float32)
        constants.append(numpy_helper.from_array(array, f"c{len(constants)}"))
        return constants[-1].name

    for number, (kind, sizes) in enumerate(layers(name)):
        result = f"v{number}"
        if kind == "conv":
            inside, outside, kernel = sizes
            fan_in = inside * kernel * kernel
            inputs = [value, constant((outside, inside, kernel, kernel), fan_in**-0.5), constant((outside,), 0.1)]
            nodes.append(helper.make_node("Conv", inputs, [result], pads=[kernel // 2] * 4, kernel_shape=[kernel] * 2))
        elif kind == "linear":
            inputs = [value, constant((sizes[1], sizes[0]), sizes[0] ** -0.5), constant((sizes[1],), 0.1)]
            nodes.append(helper.make_node("Gemm", inputs, [result], transB=1))
        elif kind in ("average", "maximum"):
            operator = "AveragePool" if kind == "average" else "MaxPool"
            nodes.append(helper.make_node(operator, [value], [result], kernel_shape=[2, 2], strides=[2, 2]))
        else:
            nodes.append(helper.make_node("Relu" if kind == "relu" else "Flatten", [value], [result]))
        value = result
    graph = helper.make_graph(
        nodes,
        name,
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", *SHAPES[name]])],
        [helper.make_tensor_value_info(value, TensorProto.FLOAT, ["N", 10])],
        constants,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 9
    onnx.checker.check_model(model)
    onnx.save(model, path)


def quantize(name: str, path: Path, target: Path) -> None:
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

    class Pixels(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            rng = np.random.default_rng(1)
            self.batches = iter([pixels(rng, name, 10) for _ in range(4)])

        def get_next(self) -> dict[str, Any] | None:
            batch = next(self.batches, None)
            return None if batch is None else {"x": seen(batch)}

    kinds = {"activation_type": QuantType.QUInt8, "weight_type": QuantType.QInt8}
    quantize_static(path, target, Pixels(), quant_format=QuantFormat.QDQ, per_channel=True, **kinds)


def pixels(rng: np.random.Generator, name: str, batch: int) -> np.ndarray:
    return rng.integers(0, 256, (batch, *SHAPES[name]), np.uint8)


def seen(x: np.ndarray) -> np.ndarray:
    return ((2 * x.astype(np.float32) - 255) / 256).astype(np.float32)


def session(path: Path, threads: int) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads, options.log_severity_level = threads, 1, 3
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


# --- measuring --------------------------------------------------------------------------------------------------------


def in_turns(calls: dict[str, Call], clock: Callable[[], float], seconds: float) -> dict[str, float]:
    """Microseconds of each call: the fastest turn. Every contestant gets `seconds` in all, at least five turns."""
    best = dict.fromkeys(calls, float("inf"))
    spent = dict.fromkeys(calls, 0.0)
    turns = 0
    for call in calls.values():
        call()
    while turns < 5 or min(spent.values()) < seconds:
        turns += 1
        for name, call in calls.items():
            repeats = 0
            turn_start = time.perf_counter()
            while time.perf_counter() - turn_start < seconds / 40 or repeats == 0:
                start = clock()
                call()
                best[name] = min(best[name], clock() - start)
                repeats += 1
            spent[name] += time.perf_counter() - turn_start
    return {name: 1e6 * value for name, value in best.items()}


def compare(name: str, folder: Path, batch: int, threads: int, seconds: float, peaks: Peaks) -> list[Row]:
    torch.set_num_threads(threads)
    _native.set_threads(None if threads > 1 else 1)
    x = pixels(np.random.default_rng(2), name, batch)
    floats = seen(x)
    tensor, eager = torch.from_numpy(floats), torch_network(name)
    plain, int8 = (session(folder / f"{name}{kind}.onnx", threads) for kind in ("", "-int8"))
    model = packed_model(name)

    def by_torch() -> object:
        with torch.inference_mode():
            return eager(tensor)

    calls: dict[str, Call] = {
        "ours": lambda: model(x),
        "PyTorch float32": by_torch,
        "onnxruntime float32": lambda: plain.run(None, {"x": floats}),
        "onnxruntime int8": lambda: int8.run(None, {"x": floats}),
    }
    times = in_turns(calls, time.thread_time if threads == 1 else time.perf_counter, seconds)
    plan = model._plans[SHAPES[name]][0]
    assert isinstance(plan, _native.Plan)
    where = "one core" if threads == 1 else f"{threads} cores"
    return [
        row(
            f"{name}, batch {batch}, {where}, against {rival}",
            times["ours"],
            times[rival],
            peaks.floor(plan) * batch / threads,
        )
        for rival in calls
        if rival != "ours"
    ]


def row(what: str, ours: float, rival: float | None, floor: float | None, unit: str = "µs") -> Row:
    ratio = None if rival is None else rival / ours
    rounded = [None if value is None else float(f"{value:.4g}") for value in (ours, rival, ratio, floor)]
    return {"what": what, **dict(zip(("ours", "rival", "ratio", "floor"), rounded, strict=True)), "unit": unit}


def kernel_rows(peaks: Peaks, seconds: float) -> list[Row]:
    """The products alone: words of 64 bits a nanosecond, or bytes, against the instruction on registers."""
    rows = []
    rng = np.random.default_rng(0)
    for instructions, peak in (("avx512", "avx512"), ("amx", "amx")):
        if instructions not in _native.supported():
            continue
        for height, channels in ((32, 128), (16, 256), (8, 512)):
            builder = _plan.Builder(instructions)
            x = builder.input_codes(height, height, channels, SIGNS)
            codes = rng.integers(0, 2, (channels, 3, 3, channels), np.uint8)
            rules = (SIGNS, np.zeros((1, 1, channels), int), np.zeros(channels, bool))
            geometry = _layout.Geometry(padding=(1, 1))
            plan = builder.finish(builder.product(x, codes, SIGNS, np.zeros(channels, int), geometry, rules))
            images = rng.integers(0, 2**63, (1, height, height, 1, channels // 64), np.uint64)
            _native.set_threads(1)
            time_us = in_turns({"": lambda plan=plan, images=images: plan(images)}, time.thread_time, seconds)[""]
            rate = height**2 * channels * channels * 9 / (1e3 * time_us)
            top = peaks.products[peak]
            unit = 64 if instructions == "avx512" else 1
            kind = "words of 64 bits per ns" if unit == 64 else "products of bytes per ns"
            size = f"3 x 3 x {channels} x {channels}, {height} x {height}"
            per_cycle = f"{rate * peaks.cycle / unit:.2f} per cycle"
            what = f"{_native.MODES[plan.ops[-1].mode]} kernel, {size}: {kind}, {per_cycle}; rival: peak"
            rows.append(row(what, rate / unit, top / unit, None, kind) | {"ratio": float(f"{rate / top:.3g}")})
    return rows


def growth_rows(seconds: float) -> list[Row]:
    """How the time of the CNN at batch 100 grows with levels and members."""
    _native.set_threads(1)
    x = pixels(np.random.default_rng(3), "cnn", 100)
    rows: list[Row] = []
    for kernels in [each for each in ("avx512", "amx") if each in _native.supported()]:
        models = {"D = 2": packed_model("cnn", kernels=kernels)}
        for count in (3, 4, 8, 16):
            levels = tuple(range(1 - count, count, 2))
            models[f"D = {count}"] = packed_model("cnn", kernels=kernels, levels=levels, activations=levels)
        for members in (2, 5, 10):
            models[f"S = {members}"] = packed_model("cnn", members, kernels)
        calls: dict[str, Call] = {name: lambda model=model: model(x) for name, model in models.items()}
        times = in_turns(calls, time.thread_time, seconds)
        for name, each in times.items():
            what = f"cnn ({kernels}), batch 100, one core, {name}; rival: D = 2, S = 1"
            rows.append(row(what, each, times["D = 2"], None) | {"ratio": float(f"{each / times['D = 2']:.3g}")})
    return rows


def instruction_rows(seconds: float) -> list[Row]:
    _native.set_threads(1)
    x = pixels(np.random.default_rng(4), "cnn", 16)
    calls: dict[str, Call] = {}
    for kernels in ("numpy", *_native.supported()):
        model = packed_model("cnn", kernels=kernels)
        calls[kernels] = lambda model=model: model(x)
    times = in_turns(calls, time.thread_time, seconds)
    return [
        row(f"cnn, batch 16, one core, {name}; rival: numpy", each, times["numpy"], None)
        for name, each in times.items()
    ]


def hardware() -> str:
    """The processor by name and its instruction sets, which decide about the speed of kernels like these."""
    info = Path("/proc/cpuinfo").read_text().splitlines()
    model = next(line.split(":")[1].strip() for line in info if line.startswith("model name"))
    return f"{model}, {len(os.sched_getaffinity(0))} cores, kernels {', '.join(_native.supported())}"


def show(rows: Sequence[Row]) -> None:
    for each in rows:
        numbers = "".join(
            f"{'' if each[key] is None else each[key]:>12}" for key in ("floor", "ours", "rival", "ratio")
        )
        print(f"{each['what']:<100}{numbers}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", default="mlp,cnn,vgg,kernels,growth,instructions")
    parser.add_argument("--seconds", type=float, default=4.0, help="for each contestant in each comparison")
    arguments = parser.parse_args()
    parts = arguments.only.split(",")
    peaks = Peaks.measured()
    rows: list[Row] = []
    print(f"{'':<100}{'floor':>12}{'ours':>12}{'rival':>12}{'ratio':>12}")

    def add(part: str, new: list[Row]) -> None:
        rows.extend(each | {"part": part} for each in new)
        show(new)

    cores = len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for architecture in [each for each in SHAPES if each in parts]:
            onnx_network(architecture, folder / f"{architecture}.onnx")
            quantize(architecture, folder / f"{architecture}.onnx", folder / f"{architecture}-int8.onnx")
            for threads in sorted({1, cores}):
                for batch in (1, 100):
                    add(architecture, compare(architecture, folder, batch, threads, arguments.seconds, peaks))
    if "kernels" in parts:
        add("kernels", kernel_rows(peaks, arguments.seconds))
    if "growth" in parts:
        add("growth", growth_rows(arguments.seconds))
    if "instructions" in parts:
        add("instructions", instruction_rows(arguments.seconds))
    if arguments.out:
        save(arguments.out, parts, rows)


def save(path: Path, parts: Sequence[str], rows: list[Row]) -> None:
    """Write the record; parts that did not run this time stay as they were."""
    kept = json.loads(path.read_text())["rows"] if path.exists() else []
    rows = [each for each in kept if each["part"] not in parts] + rows
    record = {"hardware": hardware(), "date": datetime.date.today().isoformat(), "rows": rows}
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, f"{json.dumps(record, indent=1, ensure_ascii=False)}\n".encode())


if __name__ == "__main__":
    main()
