"""Data on their way into a run: checked once and for all, so that the loop need not look at them again."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

from bqn.beliefs import Belief
from bqn.checks import require_finite, require_labels
from bqn.data import DataError, Split, to_input
from bqn.heads import GaussianHead
from bqn.network import Network, evaluating
from bqn.training.checkpoint import tensor_bytes
from bqn.training.config import TrainConfig
from bqn.training.errors import ConfigError
from bqn.training.preprocessing import Preprocessing


def require_fitting(train: Split, validation: Split | None, config: TrainConfig) -> None:
    if validation is None and config.patience is not None:
        raise ConfigError("patience needs validation data, got none")
    asked = {name: value for name, value in config.augmentation.items() if value}
    if asked and (train.x.dtype != torch.uint8 or train.x.dim() != 4):
        given = f"{train.x.dtype} examples of shape {tuple(train.x.shape[1:])}"
        raise ConfigError(f"{', '.join(asked)}: only for images of uint8 pixels, got {given}")
    for name in ("shift", "cutout"):
        if asked.get(name, 0) >= min(train.x.shape[2:], default=1):
            sizes = tuple(train.x.shape[2:])
            raise ConfigError(f"{name} must be below the size of the images, {sizes}, got {asked[name]}")


def count_outputs(net: Network, train: Split) -> int:
    if isinstance(net.head, GaussianHead):
        return net.head.out_features
    with torch.no_grad(), evaluating(net):
        parameter = next(net.parameters())
        belief: Belief = net(to_input(train.x[:1]).to(parameter.device))
    return belief.shape[-1]


def prepare(
    net: Network, split: Split, preprocessing: Preprocessing, device: torch.device, name: str
) -> tuple[Tensor, Tensor]:
    """Examples and targets on the device, checked once and for all; pixels stay uint8."""
    if not len(split):
        raise DataError(f"{name} has no examples")
    y = split.y.to(device)
    try:
        x = preprocessing.input(split.x.to(device)) if split.x.is_floating_point() else split.x.to(device)
        if x.is_floating_point():
            require_finite(x, "x")
        if isinstance(net.head, GaussianHead):
            net.head.require_targets(y, len(x))
        else:
            require_labels(y, (len(x),), preprocessing.outputs)
    except (ValueError, TypeError) as error:
        raise DataError(f"{name}: {error}") from None
    return x, preprocessing.target(y)


def fingerprint(*splits: Split | None) -> str:
    """A checksum of the data, so that a run is never continued on others."""
    digest = hashlib.sha256()
    for split in splits:
        for tensor in () if split is None else (split.x, split.y):
            digest.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
            digest.update(tensor_bytes(tensor))
    return digest.hexdigest()
