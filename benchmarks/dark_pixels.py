"""Why does the most probable network of an MLP without batch norm fail on MNIST, and not elsewhere?

    bqn reproduce table2 --recipe paper --model mlp --seeds 1
    python benchmarks/dark_pixels.py runs/reproduce/mlp-*/paper/seed-0-* --out results/benchmarks/dark_pixels.json

Pixels that are dark in nearly all images act on a unit as one bias, the sum of their weights. All of these weights
learn the same small tendency, and the mode rounds all of them the same way. The table shows, on the validation examples
of each run, how often the most probable network errs, and how often when a part of its first weights is drawn from the
posterior instead; and the sum of the dark pixels' weights as the posterior has it on average and as the mode has it,
root mean square over units.
"""

from __future__ import annotations

import argparse
import datetime
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bqn import Network
from bqn.atomic import write_atomic
from bqn.network import QuantizedNetwork
from bqn.nn import Linear
from bqn.reproduction.measuring import code, hardware
from bqn.training import Run, load_data, load_run, own_parts

LIT_IN = 0.01  # a pixel counts as dark if it is lit in fewer images than this share
DRAWS = 5


@torch.no_grad()
def measure(run: Run, x: Tensor, y: Tensor, dark: Tensor) -> dict[str, Any]:
    """Errors in percent and sums of weights; `dark` is a mask over the inputs of the first layer."""
    net, generator = run.net, torch.Generator().manual_seed(0)
    first = next(name for name, module in net.named_modules() if isinstance(module, Linear))
    posterior = dict(net.posteriors())[f"{first}.weight"]

    def error(network: Network | QuantizedNetwork) -> float:
        return 100 * float((network.predict(x).argmax(1) != y).double().mean())  # type: ignore[union-attr]

    def partly_drawn(drawn: Tensor) -> QuantizedNetwork:
        network = net.mode()
        weights = dict(network.named_buffers())[f"{first}.weight"]
        weights.copy_(torch.where(drawn, posterior.sample(generator), weights))
        return network

    def mean_error(make: Callable[[], QuantizedNetwork]) -> float:
        return sum(error(make()) for _ in range(DRAWS)) / DRAWS

    return {
        "dark": int(dark.sum()),
        "analytic": error(net),
        "drawn": mean_error(lambda: net.sample(generator)),
        "map": error(net.mode()),
        "map, dark drawn": mean_error(lambda: partly_drawn(dark)),
        "map, others drawn": mean_error(lambda: partly_drawn(~dark)),
        "sum of dark weights": _rms(posterior.mean[:, dark].sum(1)),
        "the same in the mode": _rms(posterior.mode()[:, dark].sum(1)),
    }


def _rms(values: Tensor) -> float:
    return float(values.double().square().mean().sqrt())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, help="folders of trained MLPs")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows = []
    for folder in options.runs:
        run = load_run(folder)
        dataset = load_data(run.config, options.data_dir)
        training, validation = own_parts(folder, run.config, dataset)
        if validation is None:
            parser.error(f"{folder} has no validation examples")
        dark = ((training.x > 0).double().mean(0) < LIT_IN).flatten()
        row = measure(run, run.preprocessing.input(validation.x), validation.y, dark)
        rows.append({"data": dataset.name, "config": json.loads(run.config.to_json()), **row})
        print(", ".join(f"{name} {value:.4g}" for name, value in row.items()), f"({dataset.name})", flush=True)
    if options.out is not None:
        record = {"date": datetime.date.today().isoformat(), "hardware": hardware("cpu"), **code(), "runs": rows}
        write_atomic(options.out, json.dumps(record, indent=1).encode() + b"\n")


if __name__ == "__main__":
    main()
