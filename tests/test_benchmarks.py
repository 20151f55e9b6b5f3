"""What benchmarks write is there whole or not at all."""

import importlib
import json
import os
import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

import bqn

FOLDER = Path(__file__).resolve().parent.parent / "benchmarks"
ROWS = [{"axis": "batch", "value": value, "ours": 1.0, "floor": 0.5} for value in (10, 100)]


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Any:
    def module(name: str) -> ModuleType:
        monkeypatch.syspath_prepend(str(FOLDER))
        for each in (name, "timing"):
            monkeypatch.delitem(sys.modules, each, raising=False)
        return importlib.import_module(name)

    return module


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> Any:
    """From now on no file can be finished."""

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    return lambda: monkeypatch.setattr(os, "replace", fail)


def test_a_record(load: Any, full_disk: Any, tmp_path: Path) -> None:
    timing, path = load("timing"), tmp_path / "a/record.json"
    timing.write(path, [{"ms": 1}], unit="ms")
    before = path.read_text()
    assert json.loads(before)["rows"] == [{"ms": 1}]
    full_disk()
    with pytest.raises(OSError, match="No space"):
        timing.write(path, [{"ms": 2}], unit="ms")
    assert path.read_text() == before
    assert [entry.name for entry in path.parent.iterdir()] == ["record.json"]


def test_plots(load: Any, full_disk: Any, tmp_path: Path) -> None:
    cost, path = load("cost"), tmp_path / "cost-batch.svg"
    cost.draw(ROWS, tmp_path, "a box")
    before = path.read_text()
    assert before.startswith("<svg ")
    full_disk()
    with pytest.raises(OSError, match="No space"):
        cost.draw([{**row, "ours": 7.0} for row in ROWS], tmp_path, "a box")
    assert path.read_text() == before


def test_the_page_of_speed(load: Any, full_disk: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tables, path = load("speed_tables"), tmp_path / "speed.md"
    text = "".join(f"<!-- {name} -->\nold\n<!-- end -->\n" for name in tables.TABLES)
    path.write_text(text)
    monkeypatch.setattr(tables, "PAGE", path)
    monkeypatch.setattr(tables, "ROOT", tmp_path)  # no records
    monkeypatch.setattr(sys, "argv", ["speed_tables.py"])
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        with pytest.raises(OSError, match="No space"):
            tables.main()
    assert path.read_text() == text
    tables.main()
    assert path.read_text().count("No record yet.") == len(tables.TABLES)


def test_kernels_of_fused_products_are_not_taken_for_the_passes_of_the_same_name(load: Any) -> None:
    tables = load("speed_tables")
    passes = {"nvjet_TNT": 6.0, "_weights_kernel": 1.0, "_by_weight_kernel": 2.0, "_by_input_kernel": 3.0}
    fused = {"_forward_kernel": 4.0, "_finish_kernel": 0.5, "_round_kernel": 1.0, "_by_input_kernel": 3.0}
    form, times = tables._by_kind([{"kernel": name, "us": us} for name, us in passes.items()])
    assert (form, *times.values()) == ("fused passes", 6.0, 3.0, 3.0, 0.0, 0.0)
    form, times = tables._by_kind([{"kernel": name, "us": us} for name, us in fused.items()])
    assert (form, *times.values()) == ("fused products", 7.5, 1.0, 0.0, 0.0, 0.0)
    with pytest.raises(SystemExit, match="what is the kernel new for"):
        tables._by_kind([{"kernel": "new", "us": 1.0}])


def test_operands_are_rounded_as_a_card_would(load: Any) -> None:
    benchmark = load("variance_precision")
    x = torch.cat([torch.rand(500) * 0.9 + 0.1, torch.tensor([0.0, 1.0, 0.5])]).bfloat16()
    for bits, dtype in ((3, torch.float8_e4m3fn), (2, torch.float8_e5m2)):
        assert torch.equal(benchmark.rounded(x, bits), x.to(dtype).to(x.dtype))
    assert torch.equal(benchmark.rounded(x, 7), x)
    assert set(benchmark.rounded(x, 0).tolist()) == {0.0, 0.125, 0.25, 0.5, 1.0}


def test_only_the_variance_is_rounded_further(load: Any) -> None:
    benchmark = load("variance_precision")
    layer = bqn.nn.Linear(64, 8, method="clt")
    x = bqn.Categorical.of((-1.0, 1.0), mean=torch.rand(30, 64) * 2 - 1)
    found = {}
    for bits in (7, 1):
        with benchmark.precision(bits), torch.no_grad():
            belief = layer(x)
            found[bits] = belief.mean, belief.var.double()  # worked out when they are asked for
    assert torch.equal(found[7][0], found[1][0])
    change = found[1][1] / found[7][1] - 1
    assert 1e-3 < float(change.abs().mean()) < 0.1


def test_a_step_that_was_not_compiled_is_not_called_compiled(load: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    step = load("gpu_step")
    accepted = True

    class Recording:
        def __init__(self, trainers: list[Any]) -> None:
            for each in trainers:
                each.compiles = each.compiles and accepted

        def begin_epoch(self, orders: list[Any]) -> None:
            pass

    def trainer(model: str, batch: int, ours: Any, seed: int = 0) -> SimpleNamespace:
        state = SimpleNamespace(draw_order=lambda count: None)
        return SimpleNamespace(compiles=ours.compiled, state=state, x=[0], steps=5)

    monkeypatch.setattr(step, "Recording", Recording)
    monkeypatch.setattr(step, "trainer", trainer)
    monkeypatch.setattr(step, "best_time", lambda work, repeats: 0.01)
    assert step.our_step("cnn", 100, "bf16 compiled") == ("bf16 compiled", 2.0)
    accepted = False
    assert step.our_step("cnn", 100, "bf16 compiled", 2) == ("bf16 kernels, compiler refused", 1.0)
    assert step.our_step("cnn", 100, "bf16 passes") == ("bf16 passes", 2.0)


def test_made_up_images_are_smooth_and_tell_their_class(load: Any) -> None:
    data = load("gpu_step").images((3, 32, 32), 200)
    x = data.x.double() / 255
    assert (x[..., 1:] - x[..., :-1]).std() < 0.5 * x.std()
    centres = torch.stack([x[data.y == label].mean(0) for label in range(10)])
    nearest = torch.cdist(x.flatten(1), centres.flatten(1)).argmin(1)
    assert (nearest == data.y).double().mean() > 0.9


def test_no_benchmark_writes_its_record_in_place() -> None:
    """Only scratch files, which a compiler reads at once, are."""
    for path in sorted(FOLDER.glob("*.py")):
        for line in re.findall(r".*\.write_text\(.*|.*open\([^)]*[\"']w.*", path.read_text()):
            assert path.name == "microcontroller.py", f"{path.name}: {line}"
            assert re.search(r'folder / "(net\.h|main\.c|check\.c)"', line), line


@pytest.mark.parametrize(
    ("kernel", "kind"),
    [
        ("triton_poi_fused_convolution_backward_3", "fused"),
        ("sm90_xmma_fprop_implicit_gemm_bf16f32_nhwc", "products"),
        ("nvjet_hsh_128x64_64x9_1x2_h_bz_coopA_NTT", "products"),
        (
            "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<FusedAdamMathFunctor<float, 4>>",
            "optimizer",
        ),
        ("Memcpy DtoD (Device -> Device)", "other"),
        ("void cudnn::ops::nchwToNhwcKernel<__nv_bfloat16, float>", "other"),
        ("void cudnn::bn_fw_tr_1C11_kernel_NCHW<float>", "other"),
    ],
)
def test_kernels_by_kind(load: Any, kernel: str, kind: str) -> None:
    load("gpu_step")
    assert load("step_profile").kind_of(kernel) == kind


def test_a_tuning_record(load: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tuning = load("tuning")
    common = {"epochs": 1, "hidden": (8,), "lam": 0.1, "compile": True}  # which is for a GPU, and left out elsewhere
    monkeypatch.setitem(tuning.recipes.RECIPES, "best", {"mlp": common, ("mlp", "digits"): {"lam": 0.2}})

    def run(*runs: str, seed: int = 0) -> dict[str, Any]:
        command = ["tuning.py", "--model", "mlp", "--data", "digits", "--round", "9", "--device", "cpu"]
        command += ["--seed", str(seed), "--out", str(tmp_path / "new"), "--runs", *runs]
        monkeypatch.setattr(sys, "argv", command)
        tuning.main()
        return dict(tuning.tuning.read(tmp_path / "new/mlp-9.json"))

    first = run("plain", "other: lam=0.3, shift=1")
    assert first["settings"] == {"epochs": 1, "hidden": [8], "lam": 0.1, "compile": True}
    assert [(each["name"], each["settings"]) for each in first["runs"]] == [
        ("plain", {"lam": 0.2}),
        ("other", {"lam": 0.3, "shift": 1}),
    ]
    nll, error = first["runs"][0]["scores"]["analytic"]
    assert 0 < nll < 5000
    assert 0 < error < 100
    second = run("plain", "third: lam=0.4")
    assert [each["name"] for each in second["runs"]] == ["other", "plain", "third"], (
        "what has the same name is replaced"
    )
    assert second["runs"][:2] == first["runs"][::-1], "the same seed finds the same"
    with pytest.raises(SystemExit, match="seed 0, asked for is 1; begin a new round"):
        run("plain", seed=1)
    for bad in (("a: lam",), ("a: seed=3",), ("a", "a: lam=1")):
        with pytest.raises(SystemExit, match=r"NAME: SETTING=VALUE|different names"):
            run(*bad)


def test_operations_of_a_cpu_step_by_kind(load: Any) -> None:
    """Both steps have products and an optimizer, and ours alone has passes of its own."""
    epoch = load("mlp_epoch")
    x, y = torch.randint(256, (200, 1, 28, 28), dtype=torch.uint8), torch.randint(10, (200,))
    kinds = {name: epoch.profiled(make(), x, y) for name, make in (("plain", epoch.plain), ("bqn", epoch.ours))}
    for name, found in kinds.items():
        assert {kind for kind, each in found.items() if each["calls"]} - {"passes"} == {
            "products",
            "optimizer",
            "small",
        }
        assert bool(found["passes"]["calls"]) == (name == "bqn")
        assert all(each["us"] >= 0 for each in found.values())


def test_operations_of_a_step_in_half_precision_by_kind(load: Any) -> None:
    """Of the MLP: what is counted as which kind, and that nothing of it is lost."""
    steps = load("cpu_step")
    for (what, _), step in steps.steps_of("mlp").items():
        found = steps.by_kind(step, 2)
        assert min(found["products"], found["optimizer"], found["small operations"]) > 0
        assert found["convolutions"] == 0
        assert (found["passes"] > 0) == what.startswith("ours")


def test_runs_of_rivals_are_those_of_the_records(load: Any) -> None:
    """Each record can be made again from its line, and the command that skips what is there skips them all."""
    rivals = load("rivals")
    folder = FOLDER.parent / "results/rivals"
    tasks = [rivals.Task.parse(text, folder) for text in rivals.RUNS]
    assert sorted(task.path for task in tasks) == sorted(folder.glob("*.json"))
    for task in tasks:
        known = json.loads(task.path.read_text())
        assert rivals.difference(known, task.config(0, "cpu")) is None, task.path.name
        assert rivals._begin(task, "cpu") == known
    other = rivals.Task.parse("qnn:mlp:mnist:epochs=3", folder)
    assert "epochs 20, not 3" in rivals.difference(json.loads(other.path.read_text()), other.config(0, "cpu"))


def test_a_profile_of_a_pair_of_products(load: Any) -> None:
    pair = load("pair_of_products")
    rows = pair.profiled(pair.cases("cpu")[0], "cpu")
    passes = [(row["pass"], row["form"]) for row in rows]
    assert passes == [(step, form) for step in ("forward", "forward and backward") for form in ("floor", "ours")]
    products = [sum(each["times"] for each in row["kernels"] if each["kernel"] == "aten::mm") for row in rows]
    assert products[0] == 2
    assert products[2] == 6, "two products forward and four backward"


def test_the_page_says_what_the_record_of_dark_pixels_says() -> None:
    record = json.loads((FOLDER.parent / "results/benchmarks/dark_pixels.json").read_text())
    page = (FOLDER.parent / "docs/method.md").read_text()
    names = {"mnist": "MNIST", "fashion-mnist": "Fashion-MNIST", "kmnist": "KMNIST"}
    assert [run["data"] for run in record["runs"]] == list(names)
    for run in record["runs"]:
        errors = ("analytic", "drawn", "map", "map, dark drawn", "map, others drawn")
        sums = ("sum of dark weights", "the same in the mode")
        cells = [names[run["data"]], str(run["dark"]), *(f"{run[name]:.2f}" for name in errors)]
        assert f"| {' | '.join([*cells, *(f'{run[name]:.1f}' for name in sums)])} |" in page


def test_weights_of_dark_pixels(load: Any) -> None:
    """Twenty dark pixels whose weights lean a little to +1, the others certain: what is drawn is what was asked for."""
    net = bqn.models.mlp(24, 2, hidden=(6,), batch_norm=False)
    posterior = dict(net.posteriors())["body.1.weight"]
    dark = torch.arange(24) < 20
    with torch.no_grad():
        posterior.logits.zero_()
        posterior.logits[..., 1] = torch.where(dark, 0.4, 40.0)
    x, y = torch.where(dark, -1.0, torch.randn(50, 24)), torch.zeros(50, dtype=torch.int64)
    found = load("dark_pixels").measure(SimpleNamespace(net=net), x, y, dark)
    assert found["dark"] == 20
    assert found["the same in the mode"] == 20
    assert found["sum of dark weights"] == pytest.approx(20 * torch.tensor(0.2).tanh().item(), rel=1e-5)
    assert found["map, others drawn"] == found["map"]  # of which nothing is in doubt
