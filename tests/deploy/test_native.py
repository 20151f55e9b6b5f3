"""The compiled kernels against numpy, for every instruction set of this machine: equal integers, always.

These tests need the C compiler gcc, as does everyone who changes kernels.c.
"""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import bqn
from bqn.deploy import _native, _plan, ops
from bqn.deploy.packing import pack_in_memory
from bqn.deploy.program import Conv2d, Encode, Input, Lattice, Linear, MaxPool, Packed, Program, SumPool
from bqn.deploy.runtime import NumpyPlan
from tests.deploy.native_cases import QUATERNARY, SIGNS, TERNARY, Array, check_product, random_product

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src/bqn/deploy/kernels.c"
STRICT = ["-std=c99", "-Wall", "-Wextra", "-Werror"]
every_set = pytest.mark.parametrize("instructions", _native.supported())
seeds = st.integers(0, 2**32 - 1)


def test_kernels_are_built_and_portable_ones_always_work() -> None:
    assert _native.available(), "install the package again (pip install -e .): its kernels were not compiled"
    assert _native.supported()[0] == "portable"


@every_set
@given(seeds)
def test_products(instructions: str, seed: int) -> None:
    check_product(random_product(np.random.default_rng(seed)), instructions)


@every_set
def test_every_mode_is_used(instructions: str) -> None:
    rng = np.random.default_rng(1)
    seen = {check_product(random_product(rng), instructions) for _ in range(60)}
    assert seen >= {"xor", "and", *{"avx2": ["bytes"], "avx512": ["bytes"], "amx": ["tiles"]}.get(instructions, [])}


# --- operations without weights ---------------------------------------------------------------------------------------


def random_integers(rng: np.random.Generator) -> Array:
    return rng.integers(-(2**20), 2**20, (*rng.integers(1, 7, 3), int(rng.integers(1, 90)))).astype(np.int32)


@every_set
@given(seeds)
def test_thresholds_with_a_selector(instructions: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    q, lattice, selector = random_integers(rng), Lattice(0, 1, int(rng.integers(2, 20))), TERNARY
    cases = rng.integers(0, 3, q.shape).astype(np.uint8)
    channels = q.shape[-1]
    thresholds = np.sort(rng.integers(-(2**20), 2**20, (3, lattice.levels - 1, channels)), axis=1)
    thresholds[:, 0] = -(2**31)
    flips = rng.integers(0, 2, channels).astype(bool)
    for chosen in (None, cases):
        builder = _plan.Builder(instructions)
        if chosen is None:
            x = builder.input_integers(*q.shape[1:])
            result = builder.threshold(x, lattice, thresholds[:1], flips)
            computed = builder.finish(result)(q)
        else:  # both enter as channels of one value: codes of the selector, whose integers are compared
            x = builder.input_codes(*q.shape[1:], selector)
            integers = builder.integers(x, Lattice(-(2**19), 2**19, 3))
            q = (chosen.astype(np.int32) - 1) * 2**19
            computed = builder.finish(builder.threshold(integers, lattice, thresholds, flips, x))(ops.pack(chosen, 2))
        expected = ops.threshold(q, thresholds.astype(np.int32), flips, lattice.planes, chosen)
        np.testing.assert_array_equal(computed, expected)


@every_set
@given(seeds)
def test_pooling(instructions: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = random_integers(rng)
    kernel = tuple(int(rng.integers(1, size + 1)) for size in x.shape[1:3])
    stride = tuple(int(step) for step in rng.integers(1, 4, 2))
    padding = tuple(int(rng.integers(0, size // 2 + 1)) for size in kernel)
    windows = (kernel, stride, padding)
    for largest, by_numpy in ((True, ops.max_pool), (False, ops.sum_pool)):
        builder = _plan.Builder(instructions)
        value = builder.input_codes(*x.shape[1:], Lattice(-5, 3, 32))
        codes = (x & 31).astype(np.uint8)
        plan = builder.finish(builder.integers(builder.pool(value, *windows, largest=largest)))
        expected = by_numpy(ops.decode(codes, Lattice(-5, 3, 32)), *windows)
        np.testing.assert_array_equal(plan(ops.pack(codes, 5)), expected)
    builder = _plan.Builder(instructions)
    plan = builder.finish(builder.pool(builder.input_codes(*x.shape[1:], SIGNS), *windows, largest=True))
    bits = ops.pack((x & 1).astype(np.uint8), 1)
    np.testing.assert_array_equal(plan(bits), ops.max_pool_bits(bits, *windows))


@every_set
@given(seeds)
def test_add_and_encode(instructions: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 4, random_integers(rng).shape).astype(np.uint8)
    builder = _plan.Builder(instructions)
    x = builder.input_codes(*codes.shape[1:], QUATERNARY)
    doubled = builder.add(x, builder.integers(x, Lattice(0, 1, 4)), (2, -3))  # 2 (2k - 3) - 3 k = k - 6
    computed = builder.finish(builder.encode(doubled, Lattice(-6, 1, 4)))(ops.pack(codes, 2))
    np.testing.assert_array_equal(computed, ops.pack(codes, 2))


# --- whole networks ---------------------------------------------------------------------------------------------------


def networks() -> dict[str, tuple[bqn.Network, tuple[int, ...]]]:
    three, four = (-1, 0, 1), (-3, -1, 1, 3)
    return {
        "mlp": (bqn.models.mlp(50, 7, hidden=(33, 70)), (50,)),
        "mlp, four levels": (bqn.models.mlp(3 * 9, 5, (40,), levels=three, activations=four), (3, 3, 3)),
        "cnn": (bqn.models.cnn((1, 13, 10), 10, channels=(20, 70), hidden=30), (1, 13, 10)),
        "cnn, pooled codes": (bqn.models.cnn((2, 12, 12), 4, (9, 17), 30, pool_first=False), (2, 12, 12)),
        "vgg, three levels": (bqn.models.vgg((3, 16, 16), 4, (12, 20, 65), 50, levels=three), (3, 16, 16)),
        "resnet": (bqn.models.resnet((3, 12, 12), 4, (16, 24), blocks=1, activations=three), (3, 12, 12)),
    }


def shake_batch_norms(qnn: torch.nn.Module) -> None:
    for module in qnn.modules():
        if hasattr(module, "running_mean"):
            module.running_mean.normal_(0, 3)
            module.running_var.uniform_(1, 40)
            module.weight.data.normal_()
            module.bias.data.normal_()


@pytest.mark.parametrize("name", networks())
def test_whole_networks(name: str) -> None:
    net, shape = networks()[name]
    qnn = net.sample(torch.Generator().manual_seed(0))
    shake_batch_norms(qnn)
    packed = pack_in_memory(qnn)
    x = np.random.default_rng(0).integers(0, 256, (35, *shape), np.uint8)
    expected = NumpyPlan(packed, 0, shape)(x)
    assert len(np.unique(expected)) > 8, "a network that tells images apart"
    for instructions in _native.supported():
        plan = _plan.compile_program(packed, 0, shape, instructions)
        for count in (0, 1, 2, 35):
            np.testing.assert_array_equal(plan(x[:count]), expected[:count], err_msg=f"{instructions}, {count} images")


def hand_made(ops_behind: tuple[object, ...], arrays: dict[str, Array], output: str) -> Packed:
    program = Program((Input("x", "pixels"), *ops_behind), output, 1.0, "softmax")  # type: ignore[arg-type]
    return Packed(program, 1, {name: array[None] for name, array in arrays.items()})


@every_set
def test_sums_of_pixels_can_enter_a_product(instructions: str) -> None:
    rng = np.random.default_rng(0)
    sums = Lattice(-255 * 4, 2, 256 * 4 - 3)
    packed = hand_made(
        (
            SumPool("sums", "x", (2, 2), (2, 2), (0, 0)),
            Encode("codes", "sums", sums),
            MaxPool("largest", "codes", (2, 2), (1, 1), (0, 0)),
            Conv2d("conv", "largest", 3, 5, (2, 2), (1, 1), (1, 1), (1, 1), 1, TERNARY, True),
            SumPool("pooled", "conv", (4, 4), (1, 1), (0, 0)),
        ),
        {
            "conv.weight": rng.integers(0, 256, (2, 8), np.uint8) & np.array([[255], [0]], np.uint8),
            "conv.bias": rng.integers(-9, 9, 5),
        },
        "pooled",
    )
    x = rng.integers(0, 256, (3, 3, 8, 8), np.uint8)
    plan = _plan.compile_program(packed, 0, (3, 8, 8), instructions)
    np.testing.assert_array_equal(plan(x), NumpyPlan(packed, 0, (3, 8, 8))(x))


def test_what_the_kernels_cannot_do_is_said() -> None:
    wide = Linear("wide", "x", 100, 1, Lattice(-(2**20), 2**21, 2), False)
    packed = hand_made((wide,), {"wide.weight": np.zeros((1, 13), np.uint8)}, "wide")
    with pytest.raises(_plan.NotNative, match="32 bits"):
        _plan.compile_program(packed, 0, (100,), "portable")
    features = bqn.models.regressor(4).mode()
    # A channel of its own group takes sixteen lanes.
    many = Conv2d("many", "x", 2**21, 2**21, (2, 1), (1, 1), (1, 0), (1, 1), 2**21, SIGNS, False)
    packed = hand_made((many,), {"many.weight": np.zeros((1, 2**19), np.uint8)}, "many")
    with pytest.raises(_plan.NotNative, match="a product that reads more than"):
        _plan.compile_program(packed, 0, (2**21, 1, 1), "portable")
    with pytest.raises(_plan.NotNative, match="features"):
        _plan.compile_program(pack_in_memory(features), 0, (4,), "portable")


# --- threads, choices, input ------------------------------------------------------------------------------------------


@pytest.fixture
def plan_and_batch() -> tuple[_native.Plan, Array, Array]:
    packed = pack_in_memory(bqn.models.mlp(20, 3, hidden=(40,)).mode())
    x = np.random.default_rng(0).integers(0, 256, (300, 20), np.uint8)
    return _plan.compile_program(packed, 0, (20,), _native.supported()[-1]), x, NumpyPlan(packed, 0, (20,))(x)


def test_any_number_of_threads_gives_the_same(plan_and_batch: tuple[_native.Plan, Array, Array]) -> None:
    plan, x, expected = plan_and_batch
    try:
        for count in (1, 2, 7, 256):
            _native.set_threads(count)
            assert _native.threads() == count
            np.testing.assert_array_equal(plan(x), expected)
    finally:
        _native.set_threads(None)


def test_python_threads_can_share_a_plan(plan_and_batch: tuple[_native.Plan, Array, Array]) -> None:
    plan, x, expected = plan_and_batch
    with ThreadPoolExecutor(4) as pool:
        for result in pool.map(lambda _: plan(x), range(40)):
            np.testing.assert_array_equal(result, expected)


def test_work_decides_about_threads() -> None:
    assert _native.threads_for(1, 10**9) == 1
    assert _native.threads_for(1000, 1) == 1
    assert _native.threads_for(1000, 10**9) == len(os.sched_getaffinity(0))


def test_wrong_input_is_refused(plan_and_batch: tuple[_native.Plan, Array, Array]) -> None:
    plan, x, _ = plan_and_batch
    for wrong in (x[:, :19], x.astype(np.int32), x[:, ::-1]):
        with pytest.raises(ValueError, match="x must be C-contiguous with 20 bytes"):
            plan(wrong)


def test_settings_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    for wrong in (0, 257):
        with pytest.raises(ValueError, match=f"count must lie in 1 … 256 or be None, got {wrong}"):
            _native.set_threads(wrong)
    monkeypatch.setenv("BQN_KERNELS", "quantum")
    with pytest.raises(ValueError, match=r"BQN_KERNELS must be one of numpy, portable.*got 'quantum'"):
        _native.kernels()
    for name in ("numpy", *_native.supported()):
        monkeypatch.setenv("BQN_KERNELS", name)
        assert _native.kernels() == name
    monkeypatch.delenv("BQN_KERNELS")
    assert _native.kernels() == _native.supported()[-1]


def test_without_kernels_numpy_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BQN_KERNELS", raising=False)
    monkeypatch.setattr(_native, "_library", lambda: None)
    monkeypatch.setattr(_native, "_supported", _native.supported)
    assert not _native.available()
    assert _native.kernels() == "numpy"


# --- the compiler -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [["-O3"], ["-O0"], ["-O3", "-march=native"], ["-O3", "-DBQN_PORTABLE"]])
def test_compiles_without_warnings(options: list[str], tmp_path: Path) -> None:
    subprocess.run(["gcc", *STRICT, *options, "-fPIC", "-c", SOURCE, "-o", tmp_path / "kernels.o"], check=True)


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["tests.deploy.native_cases", "LIBRARY", "30"], "30 cases passed"),
        (["tests.deploy.fuzz", "300"], "300 files"),
    ],
)
def test_memory_and_arithmetic_under_sanitizers(command: list[str], said: str, tmp_path: Path) -> None:
    library = tmp_path / "kernels.so"
    sanitize = [
        "-fsanitize=address,undefined",
        "-fno-sanitize-recover=all",
        "-g",
        "-O1",
        "-fPIC",
        "-shared",
        "-pthread",
    ]
    subprocess.run(["gcc", *STRICT, *sanitize, SOURCE, "-o", library], check=True)
    runtimes = [
        subprocess.run(["gcc", f"-print-file-name={name}"], check=True, capture_output=True, text=True).stdout.strip()
        for name in ("libasan.so", "libubsan.so")
    ]
    environment = {
        **os.environ,
        "LD_PRELOAD": ":".join(runtimes),
        "ASAN_OPTIONS": "detect_leaks=0",
        "BQN_KERNELS_LIBRARY": str(library),
    }
    arguments = [str(library) if part == "LIBRARY" else part for part in command]
    done = subprocess.run([sys.executable, "-m", *arguments], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    assert said in done.stdout


def test_package_installs_without_a_compiler(tmp_path: Path) -> None:
    command = [sys.executable, "setup.py", "build_ext", "--build-lib", str(tmp_path), "--build-temp", str(tmp_path)]
    environment = {**os.environ, "CC": "no-such-compiler"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "_kernels" in done.stderr + done.stdout  # setuptools says what it could not build
    assert not list(tmp_path.rglob("*.so"))
