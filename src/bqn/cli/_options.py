"""Arguments and options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bqn.cli._errors import settings_are_usage

if TYPE_CHECKING:
    import torch

RunFolderArgument = Annotated[
    Path, typer.Argument(metavar="RUN", help="Folder of a run, made by bqn train.", show_default=False)
]
DataDir = Annotated[
    Path | None,
    typer.Option(
        "--data-dir",
        metavar="FOLDER",
        help="Where named data sets lie and are downloaded to.",
        show_default="$BQN_DATA, or a cache folder",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", metavar="", help="Print one JSON object and nothing else to stdout.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", metavar="", help="No progress on stderr.")]
Device = Annotated[
    str, typer.Option("--device", metavar="DEVICE", help="auto, cpu, cuda or cuda:N; auto takes CUDA if there is one.")
]
Samples = Annotated[int, typer.Option("--samples", metavar="N", min=1, help="Networks drawn for the MC predictions.")]
Seed = Annotated[int, typer.Option("--seed", metavar="N", min=0, max=2**63 - 1, help="Seed of all draws.")]
BatchSize = Annotated[int, typer.Option("--batch-size", metavar="N", min=1, help="Examples at a time.")]
OtherData = Annotated[
    str | None,
    typer.Option("--data", metavar="NAME|PATH", help="Other data than the run's own.", show_default=False),
]
Outside = Annotated[
    str | None,
    typer.Option(
        "--ood", metavar="NAME|PATH", help="Also: tell these data from the run's by uncertainty.", show_default=False
    ),
]
Corruptions = Annotated[
    bool,
    typer.Option("--corruptions", metavar="", help="Also: noisy, blurred and rotated images, five strengths each."),
]
TensorBoard = Annotated[
    bool, typer.Option("--tensorboard", metavar="", help="Write event files for TensorBoard to RUN/tensorboard.")
]


def choose_device(name: str) -> torch.device:
    """The device that `--device` names, if it is there."""
    from bqn.training import TrainConfig
    from bqn.training.surroundings import find_device

    with settings_are_usage():
        return find_device(TrainConfig(device=name))
