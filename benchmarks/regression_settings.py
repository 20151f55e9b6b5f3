"""Which settings suit a BQN for regression? Trained on four fifths of each training part of Boston, judged on the rest.

    python benchmarks/regression_settings.py [--splits N] [--data NAME] [--data-dir FOLDER]

The test examples are never looked at. Prints a table and writes results/benchmarks/regression_settings.json.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import time
from pathlib import Path
from typing import Any

import torch

from bqn.atomic import write_atomic
from bqn.comparison.statistics import mean, standard_error
from bqn.data import Dataset, load, split_validation
from bqn.evaluation import evaluate
from bqn.training import TrainConfig, train

HELD_OUT = 0.2
FIVE, TERNARY = (-2, -1, 0, 1, 2), (-1, 0, 1)
RAMP, SYMMETRIC = (0, 0.5, 1, 1.5), (-1.5, -0.5, 0.5, 1.5)
BIAS = tuple(0.25 * step for step in range(-12, 13))
PAPER: dict[str, Any] = {
    "hidden": (50,), "activations": "binary", "batch_norm": False, "batch_size": 20, "learning_rate": 0.02, "lam": 0.1,
    "epochs": 100,
}  # fmt: skip

CANDIDATES: dict[str, dict[str, Any]] = {
    "the preset": {},
    "50 units, binary": {**PAPER, "levels": "binary"},
    "50 units, ternary, 25-level bias": {**PAPER, "levels": TERNARY, "bias_levels": BIAS},
    "one layer": {"hidden": (64,)},
    "three layers": {"hidden": (50, 50, 50)},
    "three layers, ternary": {"hidden": (50, 50, 50), "levels": TERNARY},
    "ternary": {"levels": TERNARY},
    "binary": {"levels": "binary"},
    "sign units": {"activations": "binary"},
    "four levels about zero": {"activations": SYMMETRIC},
    "λ = 0.1": {"lam": 0.1},
    "λ = 1": {"lam": 1.0},
    "λ from 0.6 to 0": {"lam": 0.6, "lam_schedule": "decay"},
    "batches of 100": {"batch_size": 100},
}


def judge(settings: dict[str, Any], dataset: Dataset, split: int) -> dict[str, dict[str, float]]:
    """Scores by mode on the held-out part of a training split."""
    kept, held = split_validation(dataset.train, HELD_OUT, seed=0, stratify=False)
    part = Dataset(dataset.name, dataset.task, kept, held, ())
    config = TrainConfig.preset({**settings, "data": dataset.name, "split": split, "seed": split}, task="regression")
    run = train(config, dataset=part)
    scale = run.preprocessing.target_scale
    scores = evaluate(run.net, held, prepare=run.preprocessing.input, target_scale=scale)
    return {mode: scores[mode] for mode in run.net.modes}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--data", default="bostonHousing")
    parser.add_argument("--data-dir", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    datasets = [load(options.data, options.data_dir, split=split) for split in range(options.splits)]
    rows = []
    print(f"{'':34}{'RMSE':>12}{'log-lik.':>14}{'MC-5':>8}{'MAP':>8}{'s':>7}")
    for name, settings in CANDIDATES.items():
        started = time.process_time()
        scores = [judge(settings, dataset, split) for split, dataset in enumerate(datasets)]
        seconds = (time.process_time() - started) / len(scores)
        rmse, likelihood = ([each["analytic"][key] for each in scores] for key in ("rmse", "log_likelihood"))
        sampled, likeliest = (mean([each[mode]["rmse"] for each in scores]) for mode in ("mc", "map"))
        rows.append({
            "what": name, "settings": settings, "rmse": rmse, "log_likelihood": likelihood, "mc_rmse": sampled,
            "map_rmse": likeliest, "cpu_seconds": seconds,
        })  # fmt: skip
        errors = [standard_error(values) or 0.0 for values in (rmse, likelihood)]
        print(
            f"{name:34}{mean(rmse):7.2f}±{errors[0]:.2f}{mean(likelihood):9.2f}±{errors[1]:.2f}"
            f"{sampled:8.2f}{likeliest:8.2f}{seconds:7.1f}",
            flush=True,
        )
    document = {
        "hardware": f"{platform.machine()}, one core",
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "data": options.data,
        "splits": options.splits,
        "held_out": HELD_OUT,
        "rows": rows,
    }
    path = Path(__file__).parents[1] / "results" / "benchmarks" / "regression_settings.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, f"{json.dumps(document, indent=1)}\n".encode())


if __name__ == "__main__":
    main()
