"""The examples run without a warning, and what they print makes sense."""

import os
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def run(name: str, *arguments: str) -> str:
    """Standard output of an example; one thread, since the tests use all cores already."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUTF8": "1"}
    command = [sys.executable, "-W", "error", str(ROOT / "examples" / name), *arguments]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", env=environment, timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stdout


def numbers(line: str) -> list[float]:
    """All numbers with a decimal point."""
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
    ours, theirs = numbers(line_with(text, "Bayesian quantized")), numbers(line_with(text, "logistic regression"))
    assert ours[0] < theirs[0]
    assert ours[1] < 5
    wrong = [numbers(line)[0] for line in text.splitlines() if line.endswith("wrong")]
    assert len(wrong) == 4
    assert wrong[0] == ours[1]
    assert all(fewer <= more for more, fewer in pairwise(wrong))  # the doubtful ones hold the mistakes
    assert wrong[-1] < wrong[0] / 3
    assert re.search(r"it says \d or \d; it is a \d", text)


def test_regression(tmp_path: Path) -> None:
    picture = tmp_path / "regression.png"
    text = run("regression.py", str(picture))
    rows = [numbers(line) for line in text.splitlines() if re.match(r"\s*\d+\s+\d\.\d{3}\s", line)]
    assert len(rows) == 3
    scores, coverages, noises, doubts = zip(*rows, strict=True)
    assert list(scores) == sorted(scores)
    assert scores[-1] > 0.85
    assert all(85 < coverage < 99.5 for coverage in coverages)
    assert 0.15 < noises[-1] < 0.3
    assert doubts[-1] < 0.75 * doubts[0]
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert str(picture) in text


def test_out_of_distribution() -> None:
    text = run("out_of_distribution.py")
    assert numbers(line_with(text, "error on"))[0] < 5
    for strangers in ("the digits 8 and 9", "shuffled pixels", "turned by a quarter", "half of the image lost"):
        entropy, epistemic, rival = numbers(line_with(text, strangers))
        assert 0.88 < entropy <= 1
        assert 0.88 < epistemic <= 1
        assert 0 <= rival <= 1


def test_active_learning() -> None:
    text = run("active_learning.py")
    curves = [numbers(line) for line in text.splitlines() if re.match(r"\s*\d+\s+\d+\.\d%\s+\d+\.\d%", line)]
    assert len(curves) == 8
    bald, random = zip(*curves, strict=True)
    assert bald[0] == random[0]  # the same labels to start with
    assert bald[-1] > bald[0] + 5
    assert random[-1] > random[0] + 5
    winner = line_with(text, "the better curve on average")
    gain = sum(bald) / 8 - sum(random) / 8
    assert ("BALD" in winner) == (gain > 0)
    assert abs(numbers(winner)[0] - abs(gain)) < 0.2
