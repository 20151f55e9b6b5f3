"""How little precision does the variance need? Its products with operands rounded further and further.

    python benchmarks/variance_precision.py [--runs mlp:mnist:2] [--seeds 2] [--out FILE]

Half precision as a run with `--mixed-precision` has it, on any device, by plain torch: products of bfloat16 numbers,
sums in float32. In the product that forms the variance both operands, squares of inputs and variances of weights, are
rounded to fewer digits still: to 3, 2, 1 and 0 bits behind the leading one, where bfloat16 has 7 and the two float8
formats have 3 and 2. (Their range is not the question: operands lie between 0 and 1.) Two questions:

- layers: of a network trained in float32, the error of the variances of each layer relative to float64, root mean
  square over examples and units; and the validation scores of the analytic prediction;
- training: the same recipe trained with the rounding in every step, forward and backward, and judged in float32.

What a card would gain by it is another matter: here the rounding is simulated and takes time.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from bqn.data import Dataset, Split
from bqn.network import Network
from bqn.nn import Conv2d, Linear
from bqn.propagate import half
from bqn.reproduction import recipes
from bqn.training import Run, load_data, train
from bqn.training.run import data_parts
from bqn.training.validation import validate
from timing import hardware, write

BITS = (7, 3, 2, 1, 0)  # behind the leading one
EXAMPLES = 500


def rounded(x: Tensor, bits: int) -> Tensor:
    """To the nearest number with so many bits behind its leading one, ties to even."""
    if bits >= 7:
        return x  # bfloat16 has no more
    mantissa, exponent = torch.frexp(x.float())
    return torch.ldexp((mantissa * 2 ** (bits + 1)).round() / 2 ** (bits + 1), exponent).to(x.dtype)


@contextmanager
def precision(bits: int | None) -> Iterator[None]:
    """Half precision with so many bits in the operands of variances; None for float32."""
    if bits is None:
        yield
        return
    plain_input, plain_weight = half._noise_input, half.low_weight

    def noise_input(*arguments: Any) -> Tensor:
        return rounded(plain_input(*arguments), bits)

    def low_weight(weight: Tensor, *arguments: Any) -> Tensor:
        low = plain_weight(weight, *arguments)
        # Means of weights have both signs, their variances only one.
        return rounded(low, bits) if bool((weight >= 0).all()) else low

    with ExitStack() as stack:
        stack.enter_context(half.lowered())
        stack.enter_context(patch.multiple(half, KERNELS=False, PAIR_KERNELS=False, _noise_input=noise_input,
                                           low_weight=low_weight))  # fmt: skip
        yield


def name_of(bits: int | None) -> str:
    return "float32" if bits is None else "bfloat16" if bits == 7 else f"{bits} bit{'' if bits == 1 else 's'}"


@torch.no_grad()
def variances(net: Network, x: Tensor) -> dict[str, Tensor]:
    """What each layer with weights says about the variances of its sums, float64; those that half precision takes."""
    found: dict[str, Tensor] = {}

    def keep(name: str) -> Any:
        def hook(module: Any, inputs: Any, output: Any) -> None:
            found[name] = output.var.double()

        return hook

    handles = [
        layer.register_forward_hook(keep(name))
        for name, layer in net.body.named_modules()
        if isinstance(layer, Linear | Conv2d)
    ]
    try:
        net(x)
    finally:
        for handle in handles:
            handle.remove()
    return found


def layers(run: Run, validation: Split) -> list[dict[str, Any]]:
    """Errors by layer and scores, a row a precision."""
    net, form = run.net.eval(), run.preprocessing
    x = form.input(validation.x[:EXAMPLES].to(next(net.parameters()).device))
    truth = variances(net.double(), x.double())
    net.float()
    rows = []
    for bits in (None, *BITS):
        with precision(bits):
            got = variances(net, x)
            scores = validate(net, validation.x.to(x.device), validation.y.to(x.device), form)
        errors = {
            name: float((got[name] / value.clamp_min(1e-12) - 1).square().mean().sqrt())
            for name, value in truth.items()
        }
        rows.append({"precision": name_of(bits), "errors": errors, "nll": scores.nll, "error": scores.error})
    return rows


def measure(model: str, data: str, epochs: int, seeds: int, device: str, data_dir: Path | None) -> list[dict[str, Any]]:
    config = replace(
        recipes.config("best", model, data), epochs=epochs, device=device, compile=False, mixed_precision=False,
        drawn_epochs=0, mode_share=0.0,
    )  # fmt: skip
    dataset = load_data(config, data_dir)
    about = {"model": model, "data": data, "epochs": epochs}
    rows = []
    for bits in (None, *BITS):
        runs = [trained(replace(config, seed=seed), dataset, bits) for seed in range(seeds)]
        scores = [judged(run, dataset) for run in runs]
        rows.append({**about, "what": "training", "precision": name_of(bits), "seeds": seeds,
                     "nll": [nll for nll, _ in scores], "error": [error for _, error in scores]})  # fmt: skip
        show(rows[-1])
        if bits is None:
            _, validation, _ = data_parts(config, dataset)
            assert validation is not None
            rows += [{**about, "what": "layers", **row} for row in layers(runs[0], validation)]
            for row in rows[1:]:
                show(row)
    return rows


def trained(config: Any, dataset: Dataset, bits: int | None) -> Run:
    with precision(bits):
        return train(config, dataset=dataset)


def judged(run: Run, dataset: Dataset) -> tuple[float, float]:
    """NLL and error of the analytic prediction on validation examples, in float32."""
    _, validation, form = data_parts(run.config, dataset)
    assert validation is not None
    device = next(run.net.parameters()).device
    scores = validate(run.net, validation.x.to(device), validation.y.to(device), form)
    assert scores.error is not None
    return scores.nll, scores.error


def show(row: dict[str, Any]) -> None:
    about = f"{row['model']} {row['data']} {row['what']:9s}{row['precision']:9s}"
    if row["what"] == "layers":
        errors = "  ".join(f"{name} {value:.2%}" for name, value in row["errors"].items())
        print(f"{about} NLL {1e3 * row['nll']:.2f} / {100 * row['error']:.2f}  variances off by {errors}", flush=True)
    else:
        nll, error = statistics.mean(row["nll"]), statistics.mean(row["error"])
        print(f"{about} NLL {1e3 * nll:.2f} / {100 * error:.2f} over {row['seeds']} seeds", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", nargs="+", default=["mlp:mnist:2"], metavar="MODEL:DATA:EPOCHS")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--out", type=Path, help="JSON file to write")
    args = parser.parse_args()
    print(hardware())
    rows: list[dict[str, Any]] = []
    for spec in args.runs:
        model, data, epochs = spec.split(":")
        rows += measure(model, data, int(epochs), args.seeds, args.device, args.data_dir)
        write(args.out, rows)


if __name__ == "__main__":
    main()
