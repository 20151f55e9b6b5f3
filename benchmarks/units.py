"""What does it change that units are known to err together? The same runs with and without `bqn.propagate.units`.

    python benchmarks/units.py [--runs mlp:mnist mlp:kmnist] [--epochs 20] [--seeds 0 1] [--out units.json]

A run is MODEL:DATA of the recipe `best`, its schedules stretched over the epochs. Judged on validation examples, a
tenth of the training set: NLL in 1e-3 nats / error in percent of the analytic prediction, of five sampled networks and
of the most probable one, the latter two recalibrated. Last, how the variance of the logits of 64 of them compares with
that of 200 sampled networks: 1 is right. Runs that a record of the same settings has already are not made again.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from bqn.data import Dataset, to_input
from bqn.propagate import units
from bqn.reproduction import measuring, recipes
from bqn.training import Run
from bqn.training.replicas import train_together
from bqn.training.run import data_parts, load_data
from timing import write

RUNS = ("mlp:mnist", "mlp:fashion-mnist", "mlp:kmnist")
MODES = ("analytic", "mc_recalibrated", "map_recalibrated")
DRAWN, EXAMPLES = 200, 64


@contextmanager
def known(together: bool) -> Iterator[None]:
    """Units err together inside the block, or are taken for independent."""
    if together:
        yield
    else:
        with patch.object(units, "common_noise", lambda *_: None):
            yield


@torch.no_grad()
def variance_ratio(run: Run, dataset: Dataset) -> float:
    """The variance of the logits over that of sampled networks."""
    _, validation, _ = data_parts(run.config, dataset)
    assert validation is not None
    x = to_input(validation.x[:EXAMPLES]).to(next(run.net.parameters()).device)
    generator = torch.Generator(x.device).manual_seed(0)
    drawn = torch.stack([run.net.sample(generator)(x) for _ in range(DRAWN)])
    belief: Any = run.net(x)
    return float(belief.var.sum() / drawn.var(0).sum())


def measure(model: str, data: str, epochs: int, seed: int, together: bool, device: str, root: Path | None) -> Any:
    config = replace(recipes.config("best", model, data, seed=seed), epochs=epochs, device=device)
    if device == "cpu":
        config = replace(config, mixed_precision=False, compile=False)
    dataset = load_data(config, root)
    with known(together):
        (run,) = train_together([config], dataset)
        if isinstance(run, Exception):
            raise run
        scores = measuring.judge(run, dataset, test=False)["validation"]
        return {"model": model, "data": data, "epochs": epochs, "seed": seed, "together": together,
                "validation": scores, "variance_ratio": variance_ratio(run, dataset),
                "entropy": measuring.entropy_share(run.net)}  # fmt: skip


def show(row: dict[str, Any]) -> None:
    scores = "  ".join(
        f"{mode} {1e3 * row['validation'][mode]['nll']:.1f} / {100 * row['validation'][mode]['error']:.2f}"
        for mode in MODES
    )
    how = "together" if row["together"] else "apart"
    print(f"{row['model']} {row['data']}, seed {row['seed']}, {how:8s}  {scores}  "
          f"variance of logits {row['variance_ratio']:.2f}", flush=True)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", nargs="+", default=RUNS, metavar="MODEL:DATA")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--data-dir", type=Path, help="where the data sets lie")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    args = parser.parse_args()
    rows = json.loads(args.out.read_text())["rows"] if args.out is not None and args.out.exists() else []
    for text in args.runs:
        model, data = text.split(":")
        for seed in args.seeds:
            for together in (True, False):
                about = {"model": model, "data": data, "epochs": args.epochs, "seed": seed, "together": together}
                if any(about.items() <= row.items() for row in rows):
                    continue
                rows.append(measure(model, data, args.epochs, seed, together, args.device, args.data_dir))
                show(rows[-1])
                write(args.out, rows)


if __name__ == "__main__":
    main()
