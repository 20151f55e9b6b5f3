"""Does half precision cost accuracy? The same runs in bfloat16 and in float32.

    python benchmarks/precision.py [--runs mlp:mnist:60:2 cnn:mnist:40:2 vgg:cifar10:10:1] [--out precision.json]

A run is MODEL:DATA:EPOCHS:SEEDS of the recipe `best`; its schedules are stretched over the epochs. Both precisions
start from the same seeds and see the same batches and shifts. Judged on validation examples by the best epoch: NLL in
1e-3 nats / error in percent of the analytic prediction, of five sampled networks and of the most probable one, both
recalibrated. "Full" is float32 with products in TF32 on a card that has it, as every run without `--mixed-precision`.
"""

from __future__ import annotations

import argparse
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from bqn.reproduction import measuring, recipes
from bqn.training.replicas import seeds_of, train_together
from bqn.training.run import load_data
from timing import write

RUNS = ("mlp:mnist:60:2", "cnn:mnist:40:2", "vgg:cifar10:10:1")
MODES = ("analytic", "mc_recalibrated", "map_recalibrated")


def measure(model: str, data: str, epochs: int, seeds: int, device: str, data_dir: Path | None) -> list[dict[str, Any]]:
    """A row a precision and seed: the scores of every mode and the learning curve."""
    rows = []
    for precision in ("half", "full"):
        recipe = recipes.config("best", model, data)
        low, on_gpu = precision == "half", device.startswith("cuda")
        config = replace(recipe, epochs=epochs, device=device, mixed_precision=low, compile=recipe.compile and on_gpu)
        dataset = load_data(config, data_dir)
        for run in train_together(seeds_of(config, seeds), dataset):
            if isinstance(run, Exception):
                raise run
            scores = measuring.judge(run, dataset, test=False)["validation"]
            curve = measuring.thin([record.to_dict() for record in run.history.records])
            rows.append({"model": model, "data": data, "epochs": epochs, "precision": precision,
                         "seed": run.config.seed, "drawn_epochs": run.config.drawn_epochs, "lam": run.config.lam,
                         "validation": scores, "curve": curve})  # fmt: skip
        show(rows[-seeds:])
    return rows


def show(rows: list[dict[str, Any]]) -> None:
    first = rows[0]
    cells = []
    for mode in MODES:
        nll, error = ([row["validation"][mode][name] for row in rows] for name in ("nll", "error"))
        spread = f" ± {1e3 * statistics.stdev(nll):.1f}" if len(rows) > 1 else ""
        cells.append(f"{mode} {1e3 * statistics.mean(nll):.1f}{spread} / {100 * statistics.mean(error):.2f}")
    about = f"{first['model']} {first['data']}, {first['epochs']} epochs, {len(rows)} seeds, {first['precision']:4s}"
    print(f"{about}  {'  '.join(cells)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", nargs="+", default=RUNS, metavar="MODEL:DATA:EPOCHS:SEEDS")
    where = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", default=where, help="cuda, cuda:N, or cpu where that has products in bfloat16")
    parser.add_argument("--data-dir", type=Path, help="where the data sets lie")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    args = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for text in args.runs:
        model, data, epochs, seeds = text.split(":")
        rows += measure(model, data, int(epochs), int(seeds), args.device, args.data_dir)
        write(args.out, rows)


if __name__ == "__main__":
    main()
