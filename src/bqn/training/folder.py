"""The folder of a run: which file holds what, and in which order they appear.

config.json             the resolved TrainConfig; written last, so that a folder with it is a run that has begun
preprocessing.json      form of the data, standardization, names of the classes
checkpoint.safetensors  everything that continues the run, history and best weights included: the one truth
best.safetensors        the best weights alone, for `Network.load`; drawn from the checkpoint
history.jsonl           one line an epoch; drawn from the checkpoint
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from safetensors import SafetensorError
from torch import Tensor

from bqn.network import Network
from bqn.training.checkpoint import Moment, read_checkpoint, write_checkpoint
from bqn.training.config import TrainConfig
from bqn.training.errors import CheckpointError
from bqn.training.files import cannot_write, read_text, remove_leftovers, write_atomic
from bqn.training.preprocessing import Preprocessing
from bqn.training.records import History

try:
    import fcntl
except ModuleNotFoundError:  # not on Windows, where nothing is locked then
    fcntl = None  # type: ignore[assignment]


class RunFolder:
    """A run on disk."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.config = self.path / "config.json"
        self.preprocessing = self.path / "preprocessing.json"
        self.checkpoint = self.path / "checkpoint.safetensors"
        self.best = self.path / "best.safetensors"
        self.history = self.path / "history.jsonl"

    def require_new(self) -> None:
        """Raise if a run has begun here: nothing that was good is overwritten."""
        if self.config.exists():
            raise CheckpointError(f"{self.path} already holds a run; resume it, or choose another folder")

    def require_run(self) -> None:
        """Raise unless a run has begun here."""
        if not self.path.is_dir():
            raise CheckpointError(f"{self.path} is not a folder, so it holds no run")
        if self.config.is_file():
            return
        inside = sorted(path.parent for path in self.path.glob("*/config.json"))
        if inside:
            raise CheckpointError(
                f"{self.path} holds {len(inside)} runs, such as {inside[0]}: name one of them, or give the command "
                f"that began them again, with --out {self.path}, to continue all"
            )
        raise CheckpointError(f"{self.path} holds no run: config.json is missing, training never got under way")

    @contextmanager
    def held(self) -> Iterator[None]:
        """Raise if another process trains here, and keep others from it; the folder is made if it is not there.

        The system gives the lock back when a process ends, however that comes about. It is on the folder itself, so
        that nothing is left in it; where the file system has no locks, nothing is kept from anyone.
        """
        self._make()
        descriptor = None
        try:
            with suppress(OSError):
                descriptor = os.open(self.path, os.O_RDONLY) if fcntl else None
            if descriptor is not None and not _lock(descriptor):
                raise CheckpointError(f"{self.path}: another process is training here; wait for it, or end it")
            yield
        finally:
            if descriptor is not None:
                os.close(descriptor)

    def _make(self) -> None:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise cannot_write(self.path, error) from None

    def begin(self, config: TrainConfig, preprocessing: Preprocessing, start: Moment) -> None:
        """Lay the folder out. The config comes last: without it there is no run, and `train` may begin again."""
        self.require_new()
        self._make()
        self.clean()
        write_atomic(self.preprocessing, preprocessing.to_json().encode())
        write_checkpoint(self.checkpoint, start)
        write_atomic(self.config, self.config_text(config))

    @staticmethod
    def config_text(config: TrainConfig) -> bytes:
        return f"{config.to_json()}\n".encode()

    def clean(self) -> None:
        """Remove what killed processes left half written."""
        for file in (self.config, self.preprocessing, self.checkpoint, self.best, self.history):
            remove_leftovers(file)

    def read_config(self) -> TrainConfig:
        self.require_run()
        return TrainConfig.from_json(read_text(self.config), str(self.config))

    def read_preprocessing(self) -> Preprocessing:
        return Preprocessing.from_json(read_text(self.preprocessing), str(self.preprocessing))

    def read_checkpoint(self) -> Moment:
        return read_checkpoint(self.checkpoint)

    def write_checkpoint(self, moment: Moment) -> None:
        write_checkpoint(self.checkpoint, moment)

    def write_history(self, history: History) -> None:
        write_atomic(self.history, history.to_lines().encode())

    def write_best(self, net: Network, weights: dict[str, Tensor] | None = None) -> None:
        """Write the weights of `net`, or others of the same network, in the format of `Network.save`."""
        current = {name: tensor.clone() for name, tensor in net.state_dict().items()} if weights else None
        try:
            if weights:
                net.load_state_dict(weights)
            net.save(self.best)
        except (OSError, SafetensorError) as error:
            raise cannot_write(self.best, error) from None
        finally:
            if current:
                net.load_state_dict(current)


def _lock(descriptor: int) -> bool:
    """Lock what is open for this process alone; false if another one has it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass  # no locks here
    return True
