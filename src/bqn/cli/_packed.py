"""A packed network, from a file of the user or from those that come with the package."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bqn.cli._console import working
from bqn.cli._errors import UsageError
from bqn.cli._inputs import read_inputs
from bqn.cli._rows import prediction_rows, write_rows
from bqn.data import to_input
from bqn.deploy import Packed, container
from bqn.deploy.model import PackedModel
from bqn.deploy.network import MODE, PackedNetwork, standardizer
from bqn.predictions import Predictor
from bqn.training.preprocessing import Preprocessing
from bqn.zoo import PRETRAINED
from bqn.zoo.card import NAME
from bqn.zoo.folder import UnknownNameError

PackedArgument = Annotated[
    Path,
    typer.Argument(
        metavar="FILE|NAME",
        help="A packed network, made by bqn pack, or the name of one that comes with bqn (see bqn zoo).",
        show_default=False,
    ),
]


def open_packed(file: Path) -> Packed:
    """The packed network in a file, or the pretrained one of that name; the file wins."""
    if file.is_file() or NAME.fullmatch(str(file)) is None:
        return container.load(file)
    try:
        return PRETRAINED.read(str(file))
    except UnknownNameError as error:
        raise UnknownNameError(f"there is no file {file}, and {error}") from None


def form_of(model: PackedModel, shape: tuple[int, ...]) -> Preprocessing:
    """The form of the data, as far as the packed network knows it; `shape` serves where it does not."""
    shape = model.input_shape or shape
    inputs, targets = standardizer(model, "input"), standardizer(model, "target")
    return Preprocessing(shape, model.outputs(shape), model.classes, inputs, targets)


def predict_packed(file: Path, packed: Packed, files: list[Path], form: str, out: Path | None, batch_size: int) -> None:
    """Write predictions for the examples in `files`."""
    model = PackedModel(packed)
    if model.input_shape is None:
        raise UsageError(f"{file} does not say what shape its examples have; it can only be evaluated: bqn run --data")
    known = form_of(model, model.input_shape)
    inputs = read_inputs(files, known.input_shape, packed.about.get("target"))
    with working(f"predicting {len(inputs.x):,} examples"):
        predictor = Predictor(PackedNetwork(model), prepare=to_input, batch_size=batch_size)
        rows = prediction_rows(predictor, known, inputs, MODE)
    write_rows(rows, form, out, {"file": str(file), "members": model.members, "kernels": model.kernels})
