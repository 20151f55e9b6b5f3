"""Keeping examples apart: deterministic hold-out splits, stratified by class where asked."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from bqn.data._dataset import DataError, Split


def split_validation(split: Split, fraction: float, seed: int, stratify: bool) -> tuple[Split, Split]:
    """Set a share of the examples aside.

    Parameters
    ----------
    split : Split
    fraction : float
        Share that goes into validation, between 0 and 1.
    seed : int
        Same seed, same parts, on every machine and with every release of numpy and torch.
    stratify : bool
        Whether each class gives the same share; labels are needed for it.

    Returns
    -------
    (train, validation) : two Splits without a common example, each in the order of `split`.
    """
    kept, held = hold_out(split.y, fraction, seed, stratify)
    return split.subset(kept), split.subset(held)


def hold_out(y: Tensor, fraction: float, seed: int, stratify: bool) -> tuple[Tensor, Tensor]:
    """Ascending positions `(kept, held)` of a hold-out split of the targets `y`, each int64 `(·,)`."""
    if not 0.0 < fraction < 1.0:
        raise ValueError(f"fraction must be between 0 and 1, got {fraction}")
    if stratify and (y.is_floating_point() or y.dim() != 1):
        raise ValueError(f"stratify needs integer labels (N,), got {y.dtype} {tuple(y.shape)}")
    size = len(y)
    order = permutation(size, seed)
    wanted = round(size * fraction)
    held = _stratified(order, y.cpu().numpy(), fraction, wanted) if stratify else order[:wanted]
    if not 0 < len(held) < size:
        raise DataError(f"{size} examples cannot be split with fraction {fraction}: one part would be empty")
    is_held = np.zeros(size, dtype=bool)
    is_held[held] = True
    kept_index, held_index = (torch.from_numpy(np.flatnonzero(mask)).to(y.device) for mask in (~is_held, is_held))
    return kept_index, held_index


def permutation(size: int, seed: int) -> npt.NDArray[np.int64]:
    """A random order of `range(size)`.

    It sorts raw draws of the bit generator: numpy promises that those never change, but not what
    `Generator.permutation` makes of them.
    """
    draws = np.random.PCG64(seed).random_raw(size)
    return np.argsort(draws, kind="stable").astype(np.int64)


def _stratified(
    order: npt.NDArray[np.int64], labels: npt.NDArray[np.int64], fraction: float, wanted: int
) -> npt.NDArray[np.int64]:
    """From each class its share, rounded so that `wanted` examples come together; no class is taken whole."""
    _, label, counts = np.unique(labels, return_inverse=True, return_counts=True)
    shares = counts * fraction
    take = np.floor(shares).astype(np.int64)
    by_remainder = np.argsort(take - shares, kind="stable")
    take[by_remainder[: wanted - take.sum()]] += 1
    take = np.minimum(take, counts - 1)
    in_order = label.reshape(-1)[order]
    return np.concatenate([order[in_order == position][:number] for position, number in enumerate(take)])
