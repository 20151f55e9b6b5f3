"""`bqn run` where torch is missing; what it prints is tested with `bqn pack`."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize("rest", [("scan.png",), ("--data", "digits"), ("--help",)])
def test_without_torch_it_says_so_in_one_line(rest):
    script = "import sys; sys.modules['torch'] = None; from bqn.cli import main; sys.exit(main(sys.argv[1:]))"
    done = subprocess.run([sys.executable, "-c", script, "run", "digits-mlp", *rest], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("bqn: error: bqn run needs torch: pip install torch")
    assert done.stderr.count("\n") == 1
