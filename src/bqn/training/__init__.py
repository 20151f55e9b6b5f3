"""Training: a config, a loop that can be stopped at any moment and continued exactly, and run folders."""

from bqn.training.config import TrainConfig, read_toml
from bqn.training.distillation import Distillation, distill
from bqn.training.errors import CheckpointError, ConfigError, DivergedError, LostProcessError
from bqn.training.loop import fit
from bqn.training.models import ARCHITECTURES, build_model
from bqn.training.preprocessing import Preprocessing
from bqn.training.records import EpochRecord, History
from bqn.training.replicas import train_together
from bqn.training.run import Run, load_data, load_run, own_parts, resume, train

__all__ = [
    "ARCHITECTURES",
    "CheckpointError",
    "ConfigError",
    "Distillation",
    "DivergedError",
    "EpochRecord",
    "History",
    "LostProcessError",
    "Preprocessing",
    "Run",
    "TrainConfig",
    "build_model",
    "distill",
    "fit",
    "load_data",
    "load_run",
    "own_parts",
    "read_toml",
    "resume",
    "train",
    "train_together",
]
