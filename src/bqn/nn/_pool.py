"""Pooling layers over one or two dimensions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bqn.beliefs import Belief, Categorical, Gaussian, mean_of, var_of
from bqn.levels import level_tensor
from bqn.nn._layer import HiddenVariableLayer, Layer
from bqn.nn._shapes import numbers, require_input
from bqn.propagate import averaged, neighbours, pooling, sums
from bqn.propagate.neighbours import Neighbours
from bqn.propagate.windows import output_size, windows

_MAXIMUM: dict[int, Any] = {1: F.max_pool1d, 2: F.max_pool2d}


class _Pool(Layer):
    """Windows of `kernel_size`, one after the other unless a stride is given: `(N, C, *in)` to `(N, C, *out)`."""

    spatial: int

    def __init__(
        self,
        kernel_size: int | tuple[int, ...],
        stride: int | tuple[int, ...] | None = None,
        padding: int | tuple[int, ...] = 0,
    ) -> None:
        super().__init__()
        self.kernel_size = numbers(kernel_size, self.spatial, "kernel_size", 1)
        self.stride = self.kernel_size if stride is None else numbers(stride, self.spatial, "stride", 1)
        self.padding = numbers(padding, self.spatial, "padding", 0)
        if any(2 * pad > size for pad, size in zip(self.padding, self.kernel_size, strict=True)):
            raise ValueError(f"padding must be at most half of kernel_size {self.kernel_size}, got {self.padding}")

    def _require_input(self, x: Belief) -> None:
        name = type(self).__name__
        shape = tuple(x.shape)
        require_input(x, shape[1] if len(shape) > 1 else 0, axis=1, dims=(2 + self.spatial,), layer=name)
        for size, kernel, step, pad in zip(shape[2:], self.kernel_size, self.stride, self.padding, strict=True):
            if output_size(size, kernel, step, pad) < 1:
                raise ValueError(f"x must be at least as large as the window {self.kernel_size}, got shape {shape}")

    def _windows(self, tensor: Tensor, trailing: int = 0) -> Tensor:
        return windows(tensor, self.kernel_size, self.stride, self.padding, trailing=trailing)

    def _absent(self, x: Tensor) -> Tensor | None:
        """Which entries of the windows are padding."""
        if not any(self.padding):
            return None
        inside = torch.ones(x.shape[-self.spatial :], device=x.device)
        return self._windows(inside) == 0

    def _behind(self, known: Neighbours | None) -> Neighbours | None:
        """What neighbouring windows have in common."""
        if known is None:
            return None
        return Neighbours(neighbours.behind_pooling(known.correlation, self.kernel_size, self.stride))

    def extra_repr(self) -> str:
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class _AvgPool(_Pool):
    """Average pooling. Padded zeros count, as in torch.

    Parameters
    ----------
    kernel_size, stride, padding : int or one per dimension
    method : "auto", "contract", "fft" or "clt"
        How a Categorical is averaged; the exact methods give a Categorical over all possible averages. They take the
        inputs for independent; where these are known to err together (`bqn.propagate.neighbours`), "auto" is "clt".
    """

    def __init__(
        self,
        kernel_size: int | tuple[int, ...],
        stride: int | tuple[int, ...] | None = None,
        padding: int | tuple[int, ...] = 0,
        method: str = "auto",
    ) -> None:
        super().__init__(kernel_size, stride, padding)
        self.method = sums.require_method(method)

    def _average(self, tensor: Tensor) -> Tensor:
        if tensor.shape[0] == 0:
            return self._windows(tensor).mean(-1)
        return pooling.average_windows(tensor, self.kernel_size, self.stride, self.padding)

    def forward(self, x: Belief) -> Belief:
        self._require_input(x)
        if isinstance(x, Tensor):
            return self._average(x)
        within = partial(self._within, x)
        if isinstance(x, Categorical) and (x.neighbours is None or self.method in sums.EXACT):
            count, belief = math.prod(self.kernel_size), x
            return sums.average(
                x, self.kernel_size, self.stride, self.padding, self.method, self._average(x.mean),
                lambda: self._average(belief.var) / count, within,
            )  # fmt: skip
        sums.choose(self.method, None)
        sizes = zip(x.shape[2:], self.kernel_size, self.stride, self.padding, strict=True)
        shape = torch.Size((*x.shape[:2], *(output_size(*size) for size in sizes)))
        if isinstance(x, Gaussian) and averaged.averages(x.origin, self.kernel_size, self.padding):
            return averaged.average(x.origin, shape, self.kernel_size, self.stride)
        like = torch.empty(0, dtype=x.dtype, device=x.device)
        return Gaussian.deferred(shape, like, partial(self._moments, x), within, neighbours=self._behind(x.neighbours))

    def _within(self, x: Gaussian | Categorical, momentum: float | None) -> Gaussian:
        inner = x.within_batch(momentum)
        return Gaussian.of(*self._moments(inner), self._behind(inner.neighbours))

    def _moments(self, x: Gaussian | Categorical) -> tuple[Tensor, Tensor]:
        mean, var = self._average(x.mean), self._average(x.var)
        if x.neighbours is None:
            return mean, var / math.prod(self.kernel_size)
        return mean, var * neighbours.of_average(x.neighbours.correlation, self.kernel_size).to(var.dtype)


class _MaxPool(_Pool):
    """Max pooling. Padding never wins.

    A Categorical keeps its levels, exactly for independent inputs. On a Gaussian the maximum is replaced by a normal
    variable with matched mean and variance. Behind a convolution and batch norm the inputs of a window are not
    independent (`bqn.propagate.neighbours`).
    """

    def forward(self, x: Belief) -> Belief:
        self._require_input(x)
        if isinstance(x, Tensor):
            if x.shape[0] == 0:
                return self._windows(x).amax(-1)
            result: Tensor = _MAXIMUM[self.spatial](x, self.kernel_size, self.stride, self.padding)
            return result
        absent = self._absent(x.mean)
        known = x.neighbours
        together = None if known is None else neighbours.of_pair(known.correlation, self.kernel_size)
        if isinstance(x, Gaussian):
            read = Gaussian.of(self._windows(x.mean), self._windows(x.var))
            largest: Gaussian | Categorical = pooling.maximum_gaussian(read, absent, together)
        elif len(x.level_values) == 2 and pooling.tiles(x.shape[2:], self.kernel_size, self.stride, self.padding):
            largest = pooling.maximum_of_tiles(x, self.kernel_size, together)
        elif len(x.level_values) == 2:
            pairs = Categorical.of(x.level_values, mean=self._windows(x.mean))
            largest = pooling.maximum_categorical(pairs, absent, together)
        else:
            laws = Categorical.of(x.level_values, probs=self._windows(x.probs, 1))
            largest = pooling.maximum_categorical(laws, absent, together)
        largest.neighbours = self._behind(known)
        return largest


class _ProbPool(_Pool, HiddenVariableLayer):
    """Probabilistic pooling: one of the inputs, chosen at random.

    Parameters
    ----------
    kernel_size, stride : int or one per dimension
    weights : sequence of float, one per window entry in row-major order, or None
        Probabilities of the choice; uniform by default.

    The choice is a hidden variable: summed out in the analytic pass, drawn at every forward of a sampled network.
    """

    def __init__(
        self,
        kernel_size: int | tuple[int, ...],
        stride: int | tuple[int, ...] | None = None,
        weights: Sequence[float] | Tensor | None = None,
    ) -> None:
        super().__init__(kernel_size, stride, 0)
        count = math.prod(self.kernel_size)
        given = [1 / count] * count if weights is None else [float(weight) for weight in weights]
        if len(given) != count or min(given) < 0 or not math.isclose(sum(given), 1, abs_tol=1e-6):
            raise ValueError(f"weights must be {count} probabilities that sum to one, got {weights}")
        self.weights = tuple(weight / sum(given) for weight in given)

    def forward(self, x: Belief) -> Belief:
        self._require_input(x)
        if self.draws:
            if not isinstance(x, Tensor):
                raise ValueError("x must be known in a sampled network")
            read = self._windows(x)
            chosen = self.draw(level_tensor(self.weights, x), read.shape[:-1])
            return read.gather(-1, chosen.unsqueeze(-1)).squeeze(-1)
        if isinstance(x, Categorical):
            if len(x.level_values) == 2:
                read_belief = Categorical.of(x.level_values, mean=self._windows(x.mean))
            else:
                read_belief = Categorical.of(x.level_values, probs=self._windows(x.probs, 1))
            return pooling.choice_categorical(read_belief, level_tensor(self.weights, x.mean))
        mean, var = mean_of(x), var_of(x)
        read_var = None if var is None else self._windows(var)
        return pooling.choice_gaussian(self._windows(mean), read_var, level_tensor(self.weights, mean))


class AvgPool1d(_AvgPool):
    __doc__ = _AvgPool.__doc__
    spatial = 1


class AvgPool2d(_AvgPool):
    __doc__ = _AvgPool.__doc__
    spatial = 2


class MaxPool1d(_MaxPool):
    __doc__ = _MaxPool.__doc__
    spatial = 1


class MaxPool2d(_MaxPool):
    __doc__ = _MaxPool.__doc__
    spatial = 2


class ProbPool1d(_ProbPool):
    __doc__ = _ProbPool.__doc__
    spatial = 1


class ProbPool2d(_ProbPool):
    __doc__ = _ProbPool.__doc__
    spatial = 2
