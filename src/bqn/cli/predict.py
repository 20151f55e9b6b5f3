"""`bqn predict`: files in, predictions with their uncertainty out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bqn.cli._console import working
from bqn.cli._errors import UsageError
from bqn.cli._inputs import read_inputs
from bqn.cli._options import BatchSize, Device, Samples, Seed, choose_device
from bqn.cli._packed import is_run, open_packed, predict_packed
from bqn.cli._rows import FilesArgument, Format, Out, choose_format, prediction_rows, require_choice, write_rows
from bqn.cli._runs import open_run
from bqn.network import MODES
from bqn.predictions import Predictor
from bqn.zoo import PRETRAINED

EXAMPLES = """
bqn predict runs/one scan-1.png scan-2.png
bqn predict digits-mlp-mc5 scan-1.png
bqn predict runs/prices houses.csv --format json --out predictions.json
"""

_SAMPLES = 5


def predict(
    run: Annotated[
        Path,
        typer.Argument(
            metavar="RUN|FILE|NAME",
            help="Folder of a run, made by bqn train; or a packed network, as bqn run takes it.",
            show_default=False,
        ),
    ],
    files: FilesArgument,
    mode: Annotated[
        str | None,
        typer.Option(
            "--mode",
            metavar="|".join(MODES),
            help="Analytic, by sampled networks, by the most probable one; other methods have other modes.",
            show_default="the run's first",
        ),
    ] = None,
    samples: Samples = _SAMPLES,
    seed: Seed = 0,
    form: Format = None,
    out: Out = None,
    batch_size: BatchSize = 500,
    device: Device = "auto",
) -> None:
    """Predict for examples in files, with uncertainty.

    Classes: probabilities, their entropy in nats, and its parts: aleatoric, which stays however much data there is,
    and epistemic, which more data could remove. Regression: mean and standard deviation in units of the target, and
    the standard deviations that noise (aleatoric) and doubt (epistemic) would give alone.
    """
    form = choose_format(form, out)
    if run.is_file() or (str(run) in PRETRAINED.names() and not is_run(run)):
        if mode is not None or samples != _SAMPLES or seed:
            raise UsageError(f"--mode, --samples and --seed are for runs; {run} holds the networks that it holds")
        predict_packed(run, open_packed(run), files, form, out, batch_size)
        return
    opened = open_run(run, choose_device(device))
    mode = mode or opened.net.modes[0]
    require_choice(mode, opened.net.modes, "--mode")
    inputs = read_inputs(files, opened.preprocessing, opened.config.target)
    with working(f"predicting {len(inputs.x):,} examples"):
        predictor = Predictor(
            opened.net, prepare=opened.preprocessing.input, samples=samples, seed=seed, batch_size=batch_size
        )
        rows = prediction_rows(predictor, opened.preprocessing, inputs, mode)
    about = {"run": str(run), "mode": mode, "samples": samples if mode == "mc" else None, "seed": seed}
    write_rows(rows, form, out, about)
