"""All tests that concern the GPU, natively on it, with a summary: `make test-gpu`, or `python tests/gpu.py`.

These are the tests marked `gpu` (Triton kernels, half precision, replicas; elsewhere they run in Triton's interpreter
or on the CPU) and those that take the fixture `device`, in their CUDA part. More arguments go to pytest.
"""

from __future__ import annotations

import sys
import time
from collections import Counter, defaultdict
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent


class Tally:
    """Counts what became of the tests of each file."""

    def __init__(self) -> None:
        self.files: dict[str, Counter[str]] = defaultdict(Counter)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.outcome != "passed":
            self.files[report.nodeid.split("::")[0]][report.outcome] += 1

    def table(self) -> str:
        lines = [f"{'tests on the GPU':44s}{'passed':>8s}{'failed':>8s}{'skipped':>8s}"]
        total: Counter[str] = Counter()
        for name, counts in sorted(self.files.items()):
            total += counts
            lines.append(f"{name:44s}" + "".join(f"{counts[key]:8d}" for key in ("passed", "failed", "skipped")))
        lines.append(f"{'all':44s}" + "".join(f"{total[key]:8d}" for key in ("passed", "failed", "skipped")))
        return "\n".join(lines)


def files() -> list[str]:
    """The files with such tests. The others are not even read: they need packages that a GPU machine may lack."""
    texts = {path: path.read_text() for path in sorted((ROOT / "tests").rglob("test_*.py"))}
    return [str(path) for path, text in texts.items() if "pytest.mark.gpu" in text or "device: str" in text]


def main(arguments: list[str]) -> int:
    if not torch.cuda.is_available():
        print("test-gpu: torch sees no CUDA device here, so nothing was tested", file=sys.stderr)
        return 2
    sys.path[:0] = [str(ROOT), str(ROOT / "src")]
    tally, began = Tally(), time.perf_counter()
    # Warnings are errors with the versions that are pinned; a machine with a GPU may have others.
    code = pytest.main(
        ["-m", "gpu", "-W", "default", "--rootdir", str(ROOT), "--tb=short", *files(), *arguments], [tally]
    )
    print(tally.table())
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {time.perf_counter() - began:.0f} s")
    return int(code)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
