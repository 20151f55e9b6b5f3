"""`bqn predict`: files in, predictions with their uncertainty out."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from bqn.cli._console import out as screen
from bqn.cli._console import show, working, write
from bqn.cli._errors import UsageError
from bqn.cli._inputs import Inputs, read_inputs
from bqn.cli._options import BatchSize, Device, RunFolderArgument, Samples, Seed, choose_device
from bqn.cli._runs import open_run
from bqn.cli._tables import new_table
from bqn.network import MODES
from bqn.predictions import Predictor
from bqn.training import Run
from bqn.training.files import write_atomic

EXAMPLES = """Examples:
  bqn predict runs/one scan-1.png scan-2.png
  bqn predict runs/prices houses.csv --format json --out predictions.json"""

FORMATS = ("table", "csv", "json")
Row = dict[str, Any]


def predict(
    run: RunFolderArgument,
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE",
            help="Examples: .npz with an array x; .csv with one column a feature, in the order of training, with or "
            "without the target; pictures of the size of training.",
            show_default=False,
        ),
    ],
    mode: Annotated[
        str,
        typer.Option(
            "--mode", metavar="|".join(MODES), help="Analytic, by sampled networks, by the most probable one."
        ),
    ] = "analytic",
    samples: Samples = 5,
    seed: Seed = 0,
    form: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="|".join(FORMATS),
            help="How to write predictions.",
            show_default="table on a terminal, else csv",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FILE", help="Where to write them.", show_default="standard output"),
    ] = None,
    batch_size: BatchSize = 500,
    device: Device = "auto",
) -> None:
    """Predict for examples in files, with uncertainty.

    Classes: probabilities, their entropy in nats, and its parts: aleatoric, which stays however much data there is,
    and epistemic, which more data could remove. Regression: mean and standard deviation in units of the target, and
    the standard deviations that noise (aleatoric) and doubt (epistemic) would give alone.
    """
    _require(mode, MODES, "--mode")
    form = form or _usual_format(out)
    _require(form, FORMATS, "--format")
    opened = open_run(run, choose_device(device))
    inputs = read_inputs(files, opened.preprocessing.input_shape, opened.config.target)
    with working(f"predicting {len(inputs.x):,} examples"):
        rows = _rows(opened, inputs, mode, samples=samples, seed=seed, batch_size=batch_size)
    if form == "table" and out is None:
        _show_table(rows)
        return
    about = {"run": str(run), "mode": mode, "samples": samples if mode == "mc" else None, "seed": seed}
    text = _as_json(about, rows) if form == "json" else _as_csv(rows)
    if out is None:
        write(text)
    else:
        write_atomic(out, text.encode())


def _usual_format(out: Path | None) -> str:
    if out is None:
        return "table" if screen.is_terminal else "csv"
    return "json" if out.suffix.lower() == ".json" else "csv"


def _require(value: str, allowed: tuple[str, ...], name: str) -> None:
    if value not in allowed:
        raise UsageError(f"{name} must be one of {', '.join(allowed)}, got {value!r}")


def _rows(run: Run, inputs: Inputs, mode: str, **options: Any) -> list[Row]:
    """One row an example; probabilities and multiple outputs are lists by name."""
    predictor = Predictor(run.net, prepare=run.preprocessing.input, **options)
    rows: list[Row] = [{"file": file, "row": row} for file, row in inputs.origins]
    if run.preprocessing.targets is None:
        _add_classes(rows, run, predictor, inputs, mode)
    else:
        _add_moments(rows, run, predictor, inputs, mode)
    return rows


def _add_classes(rows: list[Row], run: Run, predictor: Predictor, inputs: Inputs, mode: str) -> None:
    classes = run.preprocessing.classes or tuple(map(str, range(run.preprocessing.outputs)))
    given = predictor.classify(mode, inputs.x)
    confidence, label = given.probs.max(-1)
    epistemic = [None] * len(rows) if given.epistemic is None else given.epistemic.tolist()
    columns = (label.tolist(), confidence.tolist(), given.entropy.tolist(), given.aleatoric.tolist(), epistemic)
    for row, probs, (best, top, entropy, aleatoric, doubt) in zip(
        rows, given.probs.tolist(), zip(*columns, strict=True), strict=True
    ):
        row |= {"prediction": classes[best], "confidence": top, "entropy": entropy}
        row |= {"aleatoric": aleatoric, "epistemic": doubt, "probabilities": dict(zip(classes, probs, strict=True))}


def _add_moments(rows: list[Row], run: Run, predictor: Predictor, inputs: Inputs, mode: str) -> None:
    shift, unit = run.preprocessing.target_scale or (0.0, 1.0)
    given = predictor.regress(mode, inputs.x, shift=shift, unit=unit)
    figures = {
        "mean": given.mean,
        "std": given.variance.sqrt(),
        "aleatoric": given.aleatoric.sqrt(),
        "epistemic": None if given.epistemic is None else given.epistemic.sqrt(),
    }
    outputs = run.preprocessing.outputs
    for name, values in figures.items():
        for position in range(outputs):
            key = name if outputs == 1 else f"{name}_{position + 1}"
            column = [None] * len(rows) if values is None else values[:, position].tolist()
            for row, value in zip(rows, column, strict=True):
                row[key] = value


def _flat(row: Row) -> Row:
    """A row with one cell a probability."""
    plain = {key: value for key, value in row.items() if key != "probabilities"}
    return plain | {f"p_{name}": value for name, value in row.get("probabilities", {}).items()}


def _as_csv(rows: list[Row]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(_flat(rows[0])), lineterminator="\n")
    writer.writeheader()
    writer.writerows(map(_flat, rows))
    return text.getvalue()


def _as_json(about: Row, rows: list[Row]) -> str:
    return f"{json.dumps({**about, 'predictions': rows}, allow_nan=False, ensure_ascii=False)}\n"


def _show_table(rows: list[Row]) -> None:
    """What fits a terminal: everything but the probabilities."""
    heads = [key for key in rows[0] if key != "probabilities"]
    table = new_table(*heads)
    for row in rows:
        table.add_row(*(Text(_cell(row[key])) for key in heads))
    show(table)


def _cell(value: object) -> str:
    return "–" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
