"""The examples run, and what they print makes sense."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def run(name: str, *arguments: str) -> str:
    """Standard output of an example; one thread, since the tests use all cores already."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(ROOT / "examples" / name), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stdout


def numbers(line: str) -> list[float]:
    return [float(number) for number in re.findall(r"-?\d+\.\d+", line)]


def line_with(text: str, words: str) -> str:
    (line,) = [line for line in text.splitlines() if words in line]
    return line


def test_demo_beats_the_logistic_regression() -> None:
    text = run("digits.py")
    ours, theirs = numbers(line_with(text, "analytic:")), numbers(line_with(text, "logistic regression"))
    assert ours[0] < theirs[0]
    assert ours[1] < theirs[1]
    for mode in ("MC:", "MAP:"):
        assert numbers(line_with(text, mode))[1] < 5


def test_classification() -> None:
    text = run("classification.py")
    wrong = [numbers(line)[0] for line in text.splitlines() if "answered" in line]
    assert wrong
    assert wrong[-1] < wrong[0] or wrong[0] == 0  # refusing the doubtful ones helps
    assert wrong[-1] < 2


def test_regression(tmp_path: Path) -> None:
    picture = tmp_path / "regression.png"
    text = run("regression.py", str(picture))
    assert numbers(line_with(text, "R²"))[0] > 0.6
    assert 85 < numbers(line_with(text, "90% intervals"))[0] <= 100
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_out_of_distribution() -> None:
    text = run("out_of_distribution.py")
    entropy, epistemic, _ = numbers(line_with(text, "the digits 8 and 9"))
    assert entropy > 0.85
    assert epistemic > 0.85


def test_active_learning() -> None:
    text = run("active_learning.py")
    curves = [numbers(line) for line in text.splitlines() if re.match(r"\s*\d+\s+\d+\.\d%\s+\d+\.\d%", line)]
    assert len(curves) > 3
    assert all(last > first for first, last in zip(curves[0], curves[-1], strict=True))  # both learn
    assert "the better curve on average" in text
