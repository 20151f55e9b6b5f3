"""What a training step keeps for its backward pass, beside the plain network, by shapes and dtypes alone."""

import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent


def test_networks_with_images_keep_little_more_than_plain_ones(tmp_path: Path) -> None:
    out = tmp_path / "memory.json"
    command = [sys.executable, str(ROOT / "benchmarks/memory.py"), "--device", "meta", "--models", "cnn", "vgg"]
    subprocess.run([*command, "--out", str(out)], check=True, capture_output=True)
    rows = json.loads(out.read_text())["rows"]
    assert [(row["what"], row["precision"]) for row in rows] == [
        ("cnn", "bf16"), ("cnn", "float32"), ("vgg", "bf16"), ("vgg", "float32"),
    ]  # fmt: skip
    for row in rows:
        assert row["plain"]["kept"] > 50e6
        most = {"cnn": 1.1, "vgg": 1.35}[row["what"]] if row["precision"] == "bf16" else 1.5
        assert 0.3 < row["ratio"]["kept"] < most, row


def test_what_is_allocated_at_the_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    memory = importlib.import_module("memory")

    def event(action: str, addr: int, size: int, *frames: tuple[str, int, str]) -> dict[str, Any]:
        named = [{"filename": file, "line": line, "name": name} for file, line, name in frames]
        return {"action": action, "addr": addr, "size": size, "frames": named}

    half, clt = ("/a/src/bqn/propagate/half.py", 7, "backward"), ("/a/src/bqn/propagate/clt.py", 9, "moments")
    outside = ("/a/torch/functional.py", 1, "pad")
    trace = [
        event("free_requested", 99, 5),  # from before
        event("alloc", 1, 100, outside, clt),
        event("alloc", 2, 30, half, clt),
        event("free_requested", 1, 100),
        event("free_completed", 1, 100),
        event("alloc", 1, 80, clt),
        event("alloc", 3, 40, clt),
        event("alloc", 4, 1),
        event("free_requested", 3, 40),
        event("alloc", 5, 39, half),
    ]
    assert memory.at_peak(trace) == [
        {"place": "propagate/clt.py:9 moments", "bytes": 120, "pieces": 2},
        {"place": "propagate/half.py:7 backward", "bytes": 30, "pieces": 1},
        {"place": "torch's own backward", "bytes": 1, "pieces": 1},
    ]


@pytest.mark.filterwarnings("ignore:.*autograd.*should not be instantiated:DeprecationWarning")  # torch's own
def test_a_frugal_compiler_keeps_less(monkeypatch: pytest.MonkeyPatch) -> None:
    """Left to itself it keeps what our functions would form again."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    memory = importlib.import_module("memory")
    frugal, left_alone = (memory.kept_by_compiler("mlp", 512, True, frugal) for frugal in (True, False))
    assert frugal < 0.7 * left_alone
    assert frugal < memory.measure("mlp", 512, True, "meta", False)["ours"]["kept"]
