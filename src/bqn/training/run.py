"""Whole runs: start one from a config, continue it after a stop of any kind, read it back."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from bqn.data import DataError, Dataset, Split, available, load, split_validation
from bqn.heads import Prediction
from bqn.network import Network
from bqn.training.config import TrainConfig
from bqn.training.distributed import here as processes_here
from bqn.training.distributed import join
from bqn.training.errors import CheckpointError, ConfigError
from bqn.training.files import read_text
from bqn.training.folder import RunFolder
from bqn.training.loop import Report, Tick, Trainer
from bqn.training.models import ARCHITECTURES, build_model
from bqn.training.prepare import fingerprint
from bqn.training.preprocessing import Preprocessing
from bqn.training.records import History, best_epoch, parse_lines, parse_records
from bqn.training.state import best_weights, require_weights
from bqn.training.surroundings import as_here, surroundings


@dataclass(frozen=True, eq=False)
class Run:
    """A trained network with all that is needed to use it.

    Attributes
    ----------
    net : Network
        With the weights of the best epoch, in evaluation mode.
    config : TrainConfig
    history : History
    preprocessing : Preprocessing
    """

    net: Network
    config: TrainConfig
    history: History
    preprocessing: Preprocessing

    def predict(
        self, x: Tensor, mode: str | None = None, samples: int = 5, generator: torch.Generator | None = None
    ) -> Prediction:
        """Predictions for examples as stored, `(N, *input_shape)`: probabilities, or moments in the units of the data.

        Other arguments as for `Network.predict`.
        """
        device = next(self.net.parameters()).device
        prediction = self.net.predict(self.preprocessing.input(x.to(device)), mode, samples, generator)
        return self.preprocessing.output(prediction)


def train(
    config: TrainConfig,
    *,
    out: str | Path | None = None,
    dataset: Dataset | None = None,
    root: str | Path | None = None,
    download: bool = True,
    report: Report | None = None,
    tick: Tick | None = None,
) -> Run:
    """Carry out the run that `config` describes.

    Parameters
    ----------
    config : TrainConfig
    out : folder for the run, or None
    dataset : Dataset or None
        Loaded by the name in the config if None, from `root` and with `download` as for `bqn.data.load`.
    report, tick : as for `fit`
    """
    if out is not None and processes_here().first:
        RunFolder(out).require_new()
    dataset = dataset or load_data(config, root, download)
    training, validation, preprocessing = data_parts(config, dataset)
    net = build_model(config, preprocessing.input_shape, preprocessing.outputs)
    with surroundings(config) as device:
        trainer = Trainer(net, training, validation, config, device, preprocessing, join(device))
        trainer.require_same()
        with _held(out):
            if out is not None:
                trainer.keep_in(RunFolder(out))
            return Run(net, config, trainer.run(report, tick), preprocessing)


def resume(
    out: str | Path,
    *,
    net: Network | None = None,
    train: Split | None = None,
    validation: Split | None = None,
    root: str | Path | None = None,
    download: bool = True,
    device: str | None = None,
    report: Report | None = None,
    tick: Tick | None = None,
) -> Run:
    """Continue a run from its last checkpoint; on a CPU, to bitwise the weights of a run that was never stopped.

    A finished run is read and returned.

    Parameters
    ----------
    out : folder of the run
    net : Network or None
        Only for a network that is not one of the named architectures: one like it, the weights do not matter.
    train, validation : Split or None
        The data, if they were handed to `fit`; by default they are loaded and split as the config says, from `root`
        and with `download` as for `bqn.data.load`.
    device : str or None
        Another device than the config's.
    """
    folder = RunFolder(out)
    config = folder.read_config()
    preprocessing = folder.read_preprocessing()
    if train is None:
        train, validation, _ = data_parts(config, load_again(config, root, download))
    here = as_here(config, device)
    net = net or build_model(config, preprocessing.input_shape, preprocessing.outputs)
    with surroundings(here) as chosen:
        trainer = Trainer(net, train, validation, here, chosen, preprocessing, join(chosen))
        with _held(out):
            trainer.continue_from(folder)
            trainer.require_same()
            return Run(net, config, trainer.run(report, tick), preprocessing)


def _held(out: str | Path | None) -> AbstractContextManager[None]:
    """The folder of the run for this process alone; of several that train together the first holds it."""
    return nullcontext() if out is None or not processes_here().first else RunFolder(out).held()


def load_run(path: str | Path, *, net: Network | None = None, device: str = "cpu") -> Run:
    """Read a run back, finished or not, from safetensors and checked JSON alone.

    The checkpoint is asked first, since all that it holds belongs together; a folder that was handed on without it
    still has its best weights and its history.

    Parameters
    ----------
    path : folder of the run
    net : Network or None
        Only for a network that is not one of the named architectures: one like it, to load the weights into.
    """
    folder = RunFolder(path)
    config, preprocessing = folder.read_config(), folder.read_preprocessing()
    net = net or build_model(config, preprocessing.input_shape, preprocessing.outputs)
    if folder.checkpoint.exists():
        moment, source = folder.read_checkpoint(), str(folder.checkpoint)
        weights = best_weights(moment)
        require_weights(net, weights, source)
        net.load_state_dict(weights)
        records = parse_records(moment.facts.get("records"), f"{source}: records")
    else:
        try:
            net.load(folder.best)
        except (FileNotFoundError, ValueError) as error:
            raise CheckpointError(f"{folder.path} has no checkpoint and no usable weights: {error}") from None
        records = parse_lines(read_text(folder.history), str(folder.history))
    best, patience = best_epoch(records, config.best_by, config.best_after), config.patience
    early = (
        patience is not None and best is not None and len(records) < config.epochs and len(records) - best >= patience
    )
    return Run(net.to(device).eval(), config, History(records, best, early), preprocessing)


def load_data(config: TrainConfig, root: str | Path | None = None, download: bool = True) -> Dataset:
    """The data set that `config` names; `root` and `download` as for `bqn.data.load`."""
    return load(config.data, root, download, config.split, target=config.target, task=config.task)


def load_again(config: TrainConfig, root: str | Path | None = None, download: bool = True) -> Dataset:
    """As `load_data`, for a run that has begun, maybe in another working directory."""
    try:
        return load_data(config, root, download)
    except DataError:
        path = Path(config.data).expanduser()
        if path.exists() or config.data in {info.name for info in available()}:
            raise
        place = "" if path.is_absolute() else f", relative to the folder of then, and this is {Path.cwd()}"
        raise DataError(f"{path}: no such file or folder; that is the path recorded at training{place}") from None


def own_parts(path: str | Path, config: TrainConfig, dataset: Dataset) -> tuple[Split, Split | None]:
    """Training and validation examples as the run in the folder `path` had them.

    Raises
    ------
    DataError
        They are not those of the training. Then what are test examples now may have been trained on.
    """
    training, validation = _split(config, dataset)
    folder = RunFolder(path)
    if folder.checkpoint.exists():
        known = folder.read_checkpoint().facts.get("data")
        if known is not None and known != fingerprint(training, validation):
            raise DataError(
                f"{path} was trained on other data than {dataset.name} holds now, which may hold examples that it has "
                "seen in training; if you know that they do not, evaluate a copy of it with --data"
            )
    return training, validation


def data_parts(config: TrainConfig, dataset: Dataset) -> tuple[Split, Split | None, Preprocessing]:
    """Training and validation examples, and what is learned of their form."""
    task = ARCHITECTURES[config.model].task
    if task != dataset.task:
        fitting = ", ".join(name for name, entry in ARCHITECTURES.items() if entry.task == dataset.task)
        raise ConfigError(f"model {config.model} is for {task}, but {dataset.name} asks for {dataset.task}: {fitting}")
    if dataset.task == "classification" and len(dataset.classes) < 2:
        column = "" if dataset.target_name is None else f"; is another column than {dataset.target_name!r} the target?"
        only = dataset.classes[0]
        raise DataError(
            f"{dataset.name}: all examples are of the class {only!r}, expected at least two classes{column}"
        )
    training, validation = _split(config, dataset)
    preprocessing = Preprocessing.of(
        training,
        classes=dataset.classes,
        feature_names=dataset.feature_names,
        target_name=dataset.target_name,
    )
    return training, validation, preprocessing


def _split(config: TrainConfig, dataset: Dataset) -> tuple[Split, Split | None]:
    if not config.validation_fraction:
        return dataset.train, None
    stratify = dataset.task == "classification"
    return split_validation(dataset.train, config.validation_fraction, config.seed, stratify)
