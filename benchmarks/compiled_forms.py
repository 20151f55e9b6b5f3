"""Does another setting of the compiler make a faster step? The compiled steps of the recipes in several forms.

    python benchmarks/compiled_forms.py [--forms default windows …] [--models vgg cnn:8] [--out compiled_forms.json]

Needs a CUDA device. MODEL:N is a step of N replicas side by side, at batch 100 and in bfloat16 as in `gpu_step.py`.
The plain VGG, recorded, is timed beside them. A form, which is compiled in a process of its own, changes one thing:

- default: nothing;
- windows: max pooling gathers its windows side by side, as it does where they overlap;
- far: what is needed in backward may be formed again also where that is far from where it was formed first
  (`ban_recompute_used_far_apart` of `torch._functorch.config` off);
- aggressive: all that is done element by element is formed again (`aggressive_recomputation`);
- pointwise: the compiler tries more shapes of the kernels that work element by element (`max_autotune_pointwise`).

Steps are profiled too, as by `step_profile.py`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from timing import hardware, median_ms, write

FORMS = ("default", "windows", "far", "aggressive", "pointwise")


def change(form: str) -> None:
    """Make this process compile so."""
    from torch._functorch import config as of_gradients
    from torch._inductor import config as of_kernels

    from bqn.propagate import pooling

    if form == "windows":
        patch.object(pooling, "tiles", lambda *_: False).start()
    elif form == "far":
        of_gradients.ban_recompute_used_far_apart = False
    elif form == "aggressive":
        of_gradients.aggressive_recomputation = True
    elif form == "pointwise":
        of_kernels.max_autotune_pointwise = True


def measure(form: str, models: list[str]) -> list[dict[str, Any]]:
    import step_profile

    change(form)
    torch.set_float32_matmul_precision("high")
    rows = []
    for name in models:
        model, _, replicas = name.partition(":")
        work = step_profile.our_steps(model, 100, int(replicas or 1))
        rows.append({"form": form, "model": model, "replicas": int(replicas or 1), "batch": 100,
                     **step_profile.profiled(work)})  # fmt: skip
    if form == "default" and "vgg" in models:
        work = step_profile.rival_steps("vgg", 100, "plain")
        ms = median_ms(work, cuda=True) / step_profile.STEPS
        rows.append({"form": "plain", "model": "vgg", "replicas": 1, "batch": 100, "ms": ms})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=FORMS)
    parser.add_argument("--models", nargs="+", default=["vgg", "cnn:8"], metavar="MODEL[:N]")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    parser.add_argument("--here", action="store_true", help="measure the first form in this process, print its rows")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("compiled_forms: this benchmark needs a CUDA device")
    if args.here:
        print(json.dumps(measure(args.forms[0], args.models)))
        return
    print(hardware())
    rows: list[dict[str, Any]] = []
    for form in args.forms:
        line = [sys.executable, __file__, "--here", "--forms", form, "--models", *args.models]
        done = subprocess.run(line, check=True, stdout=subprocess.PIPE, text=True)
        found = json.loads(done.stdout.splitlines()[-1])
        for row in found:
            print(f"{row['form']:12s}{row['model']} × {row['replicas']}: {row['ms']:.3f} ms a step", flush=True)
        rows += found
        write(args.out, rows)


if __name__ == "__main__":
    main()
