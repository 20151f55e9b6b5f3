"""A packed network, from a file of the user or from those that come with the package."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bqn.cli._console import working
from bqn.cli._errors import UsageError
from bqn.deploy import Packed, PackedError, container
from bqn.deploy.columns import from_about
from bqn.deploy.model import PackedModel
from bqn.zoo import PRETRAINED
from bqn.zoo.card import NAME
from bqn.zoo.folder import UnknownNameError

if TYPE_CHECKING:
    from bqn.training.preprocessing import Preprocessing

PackedArgument = Annotated[
    Path,
    typer.Argument(
        metavar="FILE|NAME",
        help="A packed network, made by bqn pack, or the name of one that comes with bqn (see bqn zoo).",
        show_default=False,
    ),
]


def open_packed(file: Path) -> Packed:
    """The packed network in a file, or the pretrained one of that name; the file wins, and so does a run."""
    if file.is_file() or is_run(file) or NAME.fullmatch(str(file)) is None:
        _require_no_folder(file)
        return container.load(file)
    try:
        return PRETRAINED.read(str(file))
    except UnknownNameError as error:
        _require_no_folder(file)
        raise UnknownNameError(f"there is no file {file}, and {error}") from None


def is_run(path: Path) -> bool:
    """Whether it is the folder of a run; any other folder does not hide a pretrained network of its name."""
    return (path / "config.json").is_file()


def _require_no_folder(file: Path) -> None:
    if file.is_dir():
        hint = f": bqn pack {file} makes one of the run, bqn evaluate takes the run" if is_run(file) else ""
        raise PackedError(f"{file} is a folder, not a packed network{hint}")


def form_of(model: PackedModel, shape: tuple[int, ...]) -> Preprocessing:
    """The form of the data, as far as the packed network knows it; `shape` serves where it does not."""
    from bqn.deploy.network import standardizer
    from bqn.training.preprocessing import Preprocessing

    shape = model.input_shape or shape
    inputs, targets = standardizer(model, "input"), standardizer(model, "target")
    columns = from_about(model.packed.about)
    if columns.features and shape != (len(columns.features),):
        raise PackedError(f"the file names {len(columns.features)} features, but takes examples of shape {shape}")
    return Preprocessing(shape, model.outputs(shape), model.classes, inputs, targets, *columns)


def predict_packed(file: Path, packed: Packed, files: list[Path], form: str, out: Path | None, batch_size: int) -> None:
    """Write predictions for the examples in `files`."""
    from bqn.cli._inputs import read_inputs  # these import torch, which looking at a file does not need
    from bqn.cli._rows import prediction_rows, write_rows
    from bqn.data import to_input
    from bqn.deploy.network import MODE, PackedNetwork
    from bqn.predictions import Predictor

    model = PackedModel(packed)
    if model.input_shape is None:
        raise UsageError(f"{file} does not say what shape its examples have; it can only be evaluated: bqn run --data")
    known = form_of(model, model.input_shape)
    inputs = read_inputs(files, known, packed.about.get("target"))
    with working(f"predicting {len(inputs.x):,} examples"):
        predictor = Predictor(PackedNetwork(model), prepare=to_input, batch_size=batch_size)
        rows = prediction_rows(predictor, known, inputs, MODE)
    write_rows(rows, form, out, {"file": str(file), "members": model.members, "kernels": model.kernels})
