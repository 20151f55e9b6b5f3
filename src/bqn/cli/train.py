"""`bqn train`: from a config to a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from bqn import training
from bqn.cli._console import err, note, working
from bqn.cli._errors import UsageError, settings_are_usage
from bqn.cli._options import AsJson, DataDir, Quiet, TensorBoard
from bqn.cli._replace import replacing, require_free
from bqn.cli._runs import describe_shape
from bqn.cli._settings import with_settings
from bqn.cli._together import Plan, train_all
from bqn.cli._training import assisting, tell, watched
from bqn.data import DataError, Dataset, available
from bqn.training import TrainConfig
from bqn.training.distributed import here, leave
from bqn.training.replicas import seeds_of
from bqn.training.surroundings import find_device

EXAMPLES = """
bqn train --data digits --model mlp --epochs 5 --lam 1e-4 --out runs/one
bqn train --data prices.csv --target price --out runs/prices
bqn train --config mnist.toml --seed 3
bqn train --data mnist --model cnn --replicas 10 --out runs/ten
torchrun --nproc-per-node 2 -m bqn train --data cifar10 --model vgg
"""


@with_settings
def train(
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            metavar="FOLDER",
            help="Folder for the run.",
            show_default="runs/DATA-MODEL, numbered if taken",
        ),
    ] = None,
    config_file: Annotated[
        Path | None,
        typer.Option(
            "--config",
            "-c",
            metavar="FILE",
            help="TOML file with any of the settings below, as in epochs = 5, or the config.json of a run; "
            "options win over it.",
            show_default=False,
        ),
    ] = None,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            metavar="",
            help="Replace a run that is in FOLDER, once the new one has made its first step.",
        ),
    ] = False,
    replicas: Annotated[
        int | None,
        typer.Option(
            "--replicas",
            metavar="N",
            min=1,
            help="Train N networks side by side, with the seeds from --seed on, in FOLDER/seed-0 and so on.",
            show_default=False,
        ),
    ] = None,
    data_dir: DataDir = None,
    tensorboard: TensorBoard = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
    **settings: Any,
) -> None:
    """Train a network and keep it in a folder.

    The folder holds the weights, the resolved config and everything that bqn resume needs. Ctrl-C stops a run between
    two steps, and nothing is lost. Several GPUs: torchrun --nproc-per-node N -m bqn train …, and each batch is shared.
    """
    if replicas is not None and (force or tensorboard):
        raise UsageError("--replicas goes with neither --force nor --tensorboard")
    if replicas is not None and here().several:
        raise UsageError("--replicas trains its networks in one process and does not go with torchrun")
    if out is not None and replicas is None and here().first:
        require_free(out, force)
    config, dataset = resolve(config_file, settings, data_dir)
    if not here().first:
        with settings_are_usage(), assisting():
            training.train(config, dataset=dataset)
        leave()
        return
    folder = out or free_folder(config)
    if replicas is not None:
        plans = [Plan(each) for each in seeds_of(config, replicas)]
        train_all(plans, dataset, folder, quiet, as_json)
        return
    if not quiet and err.is_terminal:
        note(_introduce(config, dataset, folder))
    with settings_are_usage(), replacing(folder) as started, watched(config, folder, quiet, tensorboard) as shown:

        def tick(done: int, total: int) -> None:
            started()
            shown.tick(done, total)

        done = training.train(config, out=folder, dataset=dataset, report=shown.report, tick=tick)
    leave()
    tell(done, folder, as_json)


def resolve(file: Path | None, settings: dict[str, Any], data_dir: Path | None) -> tuple[TrainConfig, Dataset]:
    """Flags over file over presets; the data choose the model where nobody did."""
    with settings_are_usage():
        given = {**(training.read_toml(file) if file is not None else {}), **settings}
        data = given.get("data", TrainConfig.data)
        task = next((info.task for info in available() if info.name == data), None)
        if task or "model" in given or "task" in given:  # nothing is loaded, let alone downloaded, for a bad config
            config = TrainConfig.preset(given, task=task)
            find_device(config)
            return config, _load(config, data_dir)
        of_data: dict[str, Any] = {name: given[name] for name in ("data", "split", "target") if name in given}
        dataset = _load(TrainConfig.preset(of_data), data_dir)
        return TrainConfig.preset(given, task=dataset.task), dataset


def _load(config: TrainConfig, data_dir: Path | None) -> Dataset:
    try:
        with working(f"loading {config.data}"):
            return training.load_data(config, data_dir)
    except DataError:
        raise
    except ValueError as error:  # a setting that this kind of data does not have
        raise UsageError(str(error)) from error


def free_folder(config: TrainConfig) -> Path:
    name = f"{Path(config.data).resolve().stem}-{config.model}"
    number = 1
    while (folder := Path("runs") / f"{name}{f'-{number}' * (number > 1)}").exists():
        number += 1
    return folder


def _introduce(config: TrainConfig, dataset: Dataset, folder: Path) -> str:
    held = round(len(dataset.train) * config.validation_fraction)
    kind = f"{len(dataset.classes)} classes of " if dataset.classes else "regression on "
    return (
        f"{dataset.name}: {kind}{describe_shape(dataset.input_shape)}\n"
        f"{len(dataset.train) - held:,} training, {held:,} validation, {len(dataset.test):,} test examples\n"
        f"{config.model}: {config.epochs} epochs on {find_device(config)}, into {folder}"
    )
