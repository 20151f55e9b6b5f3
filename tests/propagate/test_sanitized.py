"""The compiled passes on a CPU with all warnings as errors, and under sanitizers of addresses and undefined behaviour.

These tests need the C compiler gcc, as does everyone who changes the passes.
"""

import os
import subprocess
import sys
from pathlib import Path

SOURCES = [Path(__file__).parents[2] / "src/bqn/propagate" / name for name in ("cpu_kernels.c", "cpu_cnn.c")]
STRICT = ["-std=c99", "-Wall", "-Wextra", "-Werror", "-fopenmp-simd", "-fno-math-errno", "-fno-trapping-math"]
TESTS = ("test_cpu.py", "test_compiled.py", "test_cpu_cnn.py")  # between them they call all passes
RUN = """
import sys
from pathlib import Path

import pytest
import torch

from bqn.propagate import cpu, cpu_cnn

cpu._library = cpu.opened(Path(sys.argv[1]))
lent = []


def work(numbers):
    # Memory that ends where what was asked for ends, so that a step beside it is seen.
    lent[:-4] = []
    lent.append(torch.empty(max(numbers, 1), dtype=torch.float64, device="cpu"))
    return lent[-1].data_ptr()


cpu.work = cpu_cnn.work = work
sys.exit(pytest.main(["-q", "-x", "-s", "-p", "no:cacheprovider", "-p", "no:xdist", *sys.argv[2:]]))
"""


def compiled(out: Path, *flags: str) -> None:
    subprocess.run(["gcc", *STRICT, *flags, "-shared", "-fPIC", *SOURCES, "-lm", "-o", out], check=True)


def test_no_warnings(tmp_path: Path) -> None:
    for flags in (["-O3"], ["-O2", "-DNO_CLONES"]):
        compiled(tmp_path / "passes.so", *flags)


def test_nothing_is_read_or_written_beside_the_tensors(tmp_path: Path) -> None:
    library = tmp_path / "passes.so"
    watched = "-fsanitize=address,undefined,float-cast-overflow"
    compiled(library, "-O1", "-g", "-DNO_CLONES", watched, "-fno-sanitize-recover=all")
    # The library of C++ beside it: torch throws, and the sanitizer must find what it watches when it begins.
    asked = [["gcc", f"-print-file-name={name}"] for name in ("libasan.so", "libstdc++.so")]
    runtime = [subprocess.run(each, capture_output=True, text=True, check=True).stdout.strip() for each in asked]
    done = subprocess.run(
        [sys.executable, "-c", RUN, library, *(Path(__file__).with_name(name) for name in TESTS)],
        env={**os.environ, "LD_PRELOAD": " ".join(runtime), "ASAN_OPTIONS": "detect_leaks=0"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[:4000]
