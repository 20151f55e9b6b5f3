"""Predictions as rows, one an example, and how they are written."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from bqn.choices import expected_one_of
from bqn.cli._console import out as screen
from bqn.cli._console import show, write
from bqn.cli._errors import UsageError
from bqn.cli._tables import new_table

if TYPE_CHECKING:  # they import torch, which exporting a packed file does not need
    from bqn.cli._inputs import Inputs
    from bqn.predictions import Predictor
    from bqn.training.preprocessing import Preprocessing

FORMATS = ("table", "csv", "json")
Row = dict[str, Any]
_NEARLY_SURE = 0.9999

FilesArgument = Annotated[
    list[Path],
    typer.Argument(
        metavar="FILE",
        help="Examples: .npz with an array x; .csv with one column a feature, by the names in its header or else in "
        "the order of training, with or without the target; pictures of the size of training.",
        show_default=False,
    ),
]
Format = Annotated[
    str | None,
    typer.Option(
        "--format",
        metavar="|".join(FORMATS),
        help="How to write predictions.",
        show_default="table on a terminal, else csv",
    ),
]
Out = Annotated[
    Path | None,
    typer.Option("--out", "-o", metavar="FILE", help="Where to write them.", show_default="standard output"),
]


def choose_format(form: str | None, out: Path | None) -> str:
    """The format that was asked for, or the usual one."""
    if form is not None:
        require_choice(form, FORMATS, "--format")
        return form
    if out is None:
        return "table" if screen.is_terminal else "csv"
    return "json" if out.suffix.lower() == ".json" else "csv"


def require_choice(value: str, allowed: tuple[str, ...], name: str) -> None:
    if value not in allowed:
        raise UsageError(expected_one_of(name, allowed, value))


def prediction_rows(predictor: Predictor, form_of: Preprocessing, inputs: Inputs, mode: str) -> list[Row]:
    """One row an example; probabilities and multiple outputs are lists by name."""
    rows: list[Row] = [{"file": file, "row": row} for file, row in inputs.origins]
    if form_of.targets is None:
        _add_classes(rows, form_of, predictor, inputs, mode)
    else:
        _add_moments(rows, form_of, predictor, inputs, mode)
    return rows


def write_rows(rows: list[Row], form: str, out: Path | None, about: Row) -> None:
    """Write rows in one of the formats to a file or to standard output; `about` is for JSON alone."""
    if form == "table" and out is None:
        _show_table(rows)
        return
    from bqn.training.files import write_atomic

    text = _as_json(about, rows) if form == "json" else _as_csv(rows)
    if out is None:
        write(text)
    else:
        write_atomic(out, text.encode())


def _add_classes(rows: list[Row], form_of: Preprocessing, predictor: Predictor, inputs: Inputs, mode: str) -> None:
    classes = form_of.classes or tuple(map(str, range(form_of.outputs)))
    given = predictor.classify(mode, inputs.x)
    confidence, label = given.probs.max(-1)
    epistemic = [None] * len(rows) if given.epistemic is None else given.epistemic.tolist()
    columns = (label.tolist(), confidence.tolist(), given.entropy.tolist(), given.aleatoric.tolist(), epistemic)
    for row, probs, (best, top, entropy, aleatoric, doubt) in zip(
        rows, given.probs.tolist(), zip(*columns, strict=True), strict=True
    ):
        row |= {"prediction": classes[best], "confidence": top, "entropy": entropy}
        row |= {"aleatoric": aleatoric, "epistemic": doubt, "probabilities": dict(zip(classes, probs, strict=True))}


def _add_moments(rows: list[Row], form_of: Preprocessing, predictor: Predictor, inputs: Inputs, mode: str) -> None:
    shift, unit = form_of.target_scale or (0.0, 1.0)
    given = predictor.regress(mode, inputs.x, shift=shift, unit=unit)
    figures = {
        "mean": given.mean,
        "std": given.variance.sqrt(),
        "aleatoric": given.aleatoric.sqrt(),
        "epistemic": None if given.epistemic is None else given.epistemic.sqrt(),
    }
    outputs = form_of.outputs
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
        table.add_row(*(Text(_cell(key, row[key])) for key in heads))
    show(table)


def _cell(key: str, value: object) -> str:
    if key == "confidence" and isinstance(value, float) and value > _NEARLY_SURE:
        return f">{_NEARLY_SURE:g}"  # no network is sure
    return "–" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
