"""Standardization of features and regression targets: zero mean, unit variance, and the way back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from bqn.data._dataset import DataError

# A column that varies less than this, relative to its size, is constant up to the rounding of its mean.
_RELATIVE_NOISE = 1e-12


@dataclass(frozen=True, eq=False)
class Standardizer:
    """Column-wise `(x - mean) / std`, made by `Standardizer.fit` on training data only.

    Attributes
    ----------
    mean, std : float32 Tensor `(F,)`
        `std` is 1 for columns without variation.
    """

    mean: Tensor
    std: Tensor

    def __post_init__(self) -> None:
        for name, value in (("mean", self.mean), ("std", self.std)):
            if not isinstance(value, Tensor) or value.dtype != torch.float32 or value.dim() != 1:
                got = f"{value.dtype} {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
                raise DataError(f"{name} must be a float32 tensor (F,), got {got}")
            if not bool(torch.isfinite(value).all()):
                raise DataError(f"{name} must be finite")
        if self.mean.shape != self.std.shape:
            raise DataError(
                f"mean and std must have the same shape, got {tuple(self.mean.shape)} and {tuple(self.std.shape)}"
            )
        if not bool((self.std > 0).all()):
            raise DataError("std must be positive")

    @classmethod
    def fit(cls, x: Tensor) -> Standardizer:
        """Mean and standard deviation of the columns of `x`, a floating-point Tensor `(N, F)`."""
        if not x.is_floating_point() or x.dim() != 2 or not len(x):
            raise DataError(f"x must be floating-point features (N, F) with N > 0, got {x.dtype} {tuple(x.shape)}")
        values = x.double()
        mean, std = values.mean(0), values.std(0, correction=0)
        varies = std > _RELATIVE_NOISE * values.abs().amax(0)
        return cls(mean.float(), torch.where(varies, std, 1.0).float())

    def transform(self, x: Tensor) -> Tensor:
        """Standardized `x`; `(N, F)` in and out."""
        return (x - self.mean.to(x)) / self.std.to(x)

    def inverse(self, x: Tensor) -> Tensor:
        """Standardized values, such as a predicted mean, in original units; `(N, F)` in and out."""
        return x * self.std.to(x) + self.mean.to(x)

    def inverse_var(self, var: Tensor) -> Tensor:
        """Variances of standardized values in original units; `(N, F)` in and out."""
        return var * self.std.to(var).square()

    def state(self) -> dict[str, Tensor]:
        """Plain tensors to save, which `from_state` takes back."""
        return {"mean": self.mean, "std": self.std}

    @classmethod
    def from_state(cls, state: Mapping[str, Tensor]) -> Standardizer:
        if set(state) != {"mean", "std"}:
            raise DataError(f"state must hold mean and std, got {sorted(state)}")
        return cls(state["mean"], state["std"])
