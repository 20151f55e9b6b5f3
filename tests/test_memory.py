"""What a training step keeps for its backward pass, beside the plain network, by shapes and dtypes alone."""

import json
import subprocess
import sys
from pathlib import Path

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
        assert 0.3 < row["ratio"]["kept"] < 1.5, row
