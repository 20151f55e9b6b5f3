"""The compiled passes on a CPU with all warnings as errors, and under sanitizers of addresses and undefined behaviour.

These tests need the C compiler gcc, as does everyone who changes the passes.
"""

import os
import subprocess
import sys
from pathlib import Path

SOURCES = [Path(__file__).parents[2] / "src/bqn/propagate" / name for name in ("cpu_kernels.c", "cpu_cnn.c")]
STRICT = ["-std=c99", "-Wall", "-Wextra", "-Werror", "-fopenmp-simd", "-fno-math-errno", "-fno-trapping-math"]
RUN = """
import sys
from pathlib import Path

import pytest

from bqn.propagate import cpu

cpu._library = cpu.opened(Path(sys.argv[1]))
sys.exit(pytest.main(["-q", "-x", "-s", "-p", "no:cacheprovider", "-p", "no:xdist", sys.argv[2]]))
"""


def compiled(out: Path, *flags: str) -> None:
    subprocess.run(["gcc", *STRICT, *flags, "-shared", "-fPIC", *SOURCES, "-lm", "-o", out], check=True)


def test_no_warnings(tmp_path: Path) -> None:
    for flags in (["-O3"], ["-O2", "-DNO_CLONES"]):
        compiled(tmp_path / "passes.so", *flags)


def test_nothing_is_read_or_written_beside_the_tensors(tmp_path: Path) -> None:
    library = tmp_path / "passes.so"
    compiled(library, "-O1", "-g", "-DNO_CLONES", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
    asked = ["gcc", "-print-file-name=libasan.so"]
    runtime = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    done = subprocess.run(
        [sys.executable, "-c", RUN, library, Path(__file__).with_name("test_cpu_cnn.py")],
        env={**os.environ, "LD_PRELOAD": runtime, "ASAN_OPTIONS": "detect_leaks=0"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
