"""Compiled passes over tensors on a CPU: the formulas of `compiled`, of posteriors and of the softmax, in float32.

`cpu_kernels.c` is built when the package is installed, if there is a C compiler. Without it, or for other dtypes, other
layouts, or inside a transform or a compiler, plain torch does the same: `usable` says which. A library that was built
from other sources is left alone, with a warning. The environment variable
`BQN_CPU_KERNELS=torch` switches the compiled passes off.
"""

from __future__ import annotations

import ctypes
import math
import os
import threading
import warnings
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import TypeAlias

import torch
from torch import Tensor
from torch.autograd import forward_ad

from bqn.checks import in_plain_torch

_VERSION = 1  # as in `cpu_kernels.c`; to be counted up there and here when the arguments of a pass change
_POINTER, _COUNT, _FLOAT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float
_ARGUMENTS = {
    "bqn_tilt_and_kl": [_POINTER] * 4 + [_COUNT],
    "bqn_tilt_and_kl_backward": [_POINTER] * 4 + [_FLOAT, _POINTER, _COUNT],
    "bqn_moments_and_kl": [_POINTER] * 3 + [_COUNT] + [_POINTER] * 3 + [_COUNT],
    "bqn_moments_and_kl_backward": [_POINTER] * 3 + [_COUNT] + [_POINTER] * 2 + [_FLOAT, _POINTER, _COUNT],
    "bqn_best_tilt": [_POINTER] * 4 + [_COUNT] * 2,
    "bqn_tilted_likelihood": [_POINTER] * 9 + [_COUNT] * 2,
    "bqn_statistics": [_POINTER] * 2 + [_COUNT] * 3 + [_POINTER] * 3,
    "bqn_normalized_sign": [_POINTER] * 9 + [_COUNT] * 3,
    "bqn_normalized_sign_backward": [_POINTER] * 9 + [ctypes.c_double] + [_POINTER] * 5 + [_COUNT] * 3,
    "bqn_centred_squares": [_POINTER] * 2 + [_FLOAT] * 2 + [_POINTER] * 2 + [_COUNT] * 2,
    "bqn_centred_squares_backward": [_POINTER] * 4 + [_FLOAT] + [_POINTER] * 2 + [_COUNT] * 2,
    "bqn_doubt": [_POINTER, _FLOAT, _FLOAT, _POINTER, _COUNT],
    "bqn_doubt_backward": [_POINTER, _FLOAT, _FLOAT, _POINTER, _COUNT],
    "bqn_with_noise": [_POINTER] * 2 + [_FLOAT, _POINTER, _COUNT],
    "bqn_with_noise_backward": [_POINTER] * 2 + [_FLOAT] + [_POINTER] * 3 + [_COUNT],
    "bqn_mean_slopes": [_POINTER] * 7 + [_COUNT] * 3,
    "bqn_mean_slopes_backward": [_POINTER] * 10 + [_COUNT] * 3,
    # those of `cpu_cnn`
    "bqn_window_means": [_POINTER] * 3 + [_COUNT] * 8,
    "bqn_window_means_backward": [_POINTER] * 3 + [_COUNT] * 10,
    "bqn_noise_reaching": [_POINTER, _COUNT] + [_POINTER] * 5 + [_COUNT] * 4,
    "bqn_noise_reaching_backward": [_POINTER] * 2 + [_COUNT] + [_POINTER] * 7 + [_COUNT] * 4,
    "bqn_beside": [_POINTER, _COUNT] + [_POINTER] * 3 + [_COUNT] * 2,
    "bqn_over_pairs": [_POINTER] * 3 + [_COUNT] * 2,
    "bqn_low_weights": [_POINTER, _FLOAT] + [_POINTER] * 2 + [_COUNT],
    "bqn_through_square": [_POINTER] * 2 + [_COUNT, _FLOAT] + [_POINTER] * 2 + [_COUNT],
    "bqn_low_statistics": [_POINTER] * 2 + [_COUNT] * 3 + [_POINTER] * 3,
    "bqn_low_sign": [_POINTER] * 2 + [_COUNT] + [_POINTER] * 3 + [_COUNT] * 3,
    "bqn_low_sign_flow": [_POINTER] * 7 + [_COUNT] * 3,
    "bqn_low_sign_gradients": [_POINTER] * 9 + [_COUNT] * 4,
    "bqn_version": [],
}
_RESULTS = {"bqn_tilted_likelihood": _COUNT, "bqn_version": _COUNT}


def _load() -> ctypes.CDLL | None:
    if os.environ.get("BQN_CPU_KERNELS") == "torch":
        return None
    paths = (Path(__file__).with_name(f"_cpu_kernels{suffix}") for suffix in EXTENSION_SUFFIXES)
    path = next((path for path in paths if path.exists()), None)
    try:
        return None if path is None else opened(path)
    except (OSError, AttributeError, ValueError) as error:
        again = "python setup.py build_ext --inplace, or install the package anew"
        warnings.warn(
            f"the compiled passes on a CPU are left unused: {error}; build them again with {again}", stacklevel=2
        )
        return None


def opened(path: Path) -> ctypes.CDLL:
    """The passes that are compiled there; raises OSError, AttributeError or ValueError if they are not those of now."""
    library = ctypes.CDLL(os.fspath(path))
    for name, arguments in _ARGUMENTS.items():
        function = getattr(library, name)
        function.argtypes, function.restype = arguments, _RESULTS.get(name)
    if library.bqn_version() != _VERSION:
        raise ValueError(f"{path.name} has version {library.bqn_version()}, expected {_VERSION}")
    return library


_library = _load()
MOST_LEVELS = 16  # of `moments_and_kl`


def usable(*tensors: Tensor | None, dtype: torch.dtype = torch.float32) -> bool:
    """Whether the compiled passes take these tensors: of this dtype, contiguous, of a CPU, and free to be looked at."""
    known = [tensor for tensor in tensors if tensor is not None]
    return available(*known) and all(tensor.dtype == dtype and tensor.is_contiguous() for tensor in known)


def available(*tensors: Tensor) -> bool:
    """Whether there are compiled passes and they can read the memory of these tensors.

    Not under autocast, which would hand them products in half precision, nor in forward mode, whose tangents they would
    lose.
    """
    if _library is None or not in_plain_torch() or torch.is_autocast_enabled("cpu") or forward_ad._current_level >= 0:
        return False
    return all(tensor.is_cpu and not tensor.is_neg() for tensor in tensors)


def library() -> ctypes.CDLL:
    """The passes themselves, for who has asked whether they can be used."""
    assert _library is not None
    return _library


class _Scratch(threading.local):
    """Memory for what a pass holds while it runs: small tensors take longer to make than to use."""

    memory = torch.empty(0, dtype=torch.float64, device="cpu")


_scratch = _Scratch()


def work(numbers: int) -> int:
    """Where there is room for so many numbers in float64."""
    if _scratch.memory.numel() <= numbers:  # for none too: C must not be told of memory that is nowhere
        _scratch.memory = torch.empty(2 * numbers + 1, dtype=torch.float64, device="cpu")  # whatever the default is
    return _scratch.memory.data_ptr()


def pointer(tensor: Tensor | None) -> int | None:
    """Where the numbers of a tensor lie."""
    return None if tensor is None else tensor.data_ptr()


def tilt_and_kl(logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """As `compiled.tilt_and_kl`."""
    assert _library is not None
    tilt, kl = logits.new_empty(logits.shape[:-1]), logits.new_empty(())
    noise = torch.empty_like(tilt)
    _library.bqn_tilt_and_kl(*(tensor.data_ptr() for tensor in (logits, tilt, noise, kl)), tilt.numel())
    return tilt, noise, kl


def tilt_and_kl_backward(
    logits: Tensor, tilt: Tensor, grad_tilt: Tensor | None, grad_noise: Tensor | None, grad_kl: float
) -> Tensor:
    """The gradient by the logits."""
    assert _library is not None
    grad = torch.empty_like(logits)
    _library.bqn_tilt_and_kl_backward(
        *map(pointer, (logits, tilt, grad_tilt, grad_noise)), grad_kl, grad.data_ptr(), tilt.numel()
    )
    return grad


def moments_and_kl(logits: Tensor, levels: Tensor, log_prior: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Mean and variance of weights with logits `(..., D)` on D levels, and the KL from a prior summed over all."""
    assert _library is not None
    mean, var = (logits.new_empty(logits.shape[:-1]) for _ in range(2))
    kl = torch.empty((), dtype=torch.float64, device="cpu")
    _library.bqn_moments_and_kl(
        *(tensor.data_ptr() for tensor in (logits, levels, log_prior)), len(levels),
        *(tensor.data_ptr() for tensor in (mean, var, kl)), mean.numel(),
    )  # fmt: skip
    return mean, var, kl.to(torch.float32)


def moments_and_kl_backward(
    logits: Tensor, levels: Tensor, log_prior: Tensor, grad_mean: Tensor | None, grad_var: Tensor | None, grad_kl: float
) -> Tensor:
    """The gradient by the logits."""
    assert _library is not None
    grad = torch.empty_like(logits)
    _library.bqn_moments_and_kl_backward(
        *map(pointer, (logits, levels, log_prior)), len(levels), *map(pointer, (grad_mean, grad_var)), grad_kl,
        grad.data_ptr(), logits.numel() // len(levels),
    )  # fmt: skip
    return grad


def best_tilt(mean: Tensor, var: Tensor) -> Tensor:
    """The tilts of `heads.tilted_log_sum_exp` for rows `(N, K)` of means and variances."""
    assert _library is not None
    rows, classes = mean.shape
    out = torch.empty_like(mean)
    _library.bqn_best_tilt(mean.data_ptr(), var.data_ptr(), out.data_ptr(), work(5 * classes), rows, classes)
    return out


def tilted_likelihood(mean: Tensor, var: Tensor, log_scale: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
    """As `compiled.tilted_likelihood`, with the derivatives of each row by mean, var and log s."""
    assert _library is not None
    rows, classes = mean.shape
    value, by_mean, by_var = mean.new_empty(rows), torch.empty_like(mean), torch.empty_like(var)
    by_scale = torch.empty_like(value)
    done = _library.bqn_tilted_likelihood(
        *map(pointer, (mean, var, log_scale, labels)), work(6 * classes),
        *map(pointer, (value, by_mean, by_var, by_scale)), rows, classes,
    )  # fmt: skip
    if done < rows:
        raise IndexError(f"y must hold labels from 0 to {classes - 1}, got {int(labels[done])}")
    return value, by_mean, by_var, by_scale


def _sizes(tensor: Tensor) -> tuple[int, int, int]:
    """Outer, channels and inner sizes of `(N, C, ...)`."""
    outer, channels, *inner = tensor.shape
    return outer, channels, math.prod(inner)


def statistics(mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
    """As `normalized_sign.statistics`."""
    assert _library is not None
    channels = mean.shape[1]
    centre = mean.new_empty(channels)
    total = torch.empty_like(centre)
    _library.bqn_statistics(
        mean.data_ptr(), var.data_ptr(), *_sizes(mean), work(3 * channels), centre.data_ptr(), total.data_ptr()
    )
    return centre, total


Channels: TypeAlias = tuple[Tensor, Tensor, Tensor | None, Tensor | None]  # centre, total, weight and bias, each `(C,)`


def normalized_sign(mean: Tensor, var: Tensor, channels: Channels, with_slope: bool) -> tuple[Tensor, Tensor | None]:
    """erf(z / √2), with z as in `normalized_sign`, and if asked for its slope by the mean."""
    assert _library is not None
    out, slope = torch.empty_like(mean), torch.empty_like(mean) if with_slope else None
    _library.bqn_normalized_sign(
        *map(pointer, (mean, var, *channels)), work(mean.shape[1]), out.data_ptr(), pointer(slope), *_sizes(mean)
    )
    return out, slope


def normalized_sign_backward(
    grad: Tensor, by_slope: Tensor | None, mean: Tensor, var: Tensor, channels: Channels, count: float
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    """Gradients by mean and var, the sum A per channel, and gradients by weight and bias."""
    assert _library is not None
    grad_mean, grad_var = torch.empty_like(mean), torch.empty_like(var)
    centre, _, weight, bias = channels
    pull = torch.empty_like(centre)
    by_weight, by_bias = (None if tensor is None else torch.empty_like(tensor) for tensor in (weight, bias))
    _library.bqn_normalized_sign_backward(
        *map(pointer, (grad, by_slope, mean, var, *channels)), work(3 * centre.numel()), count,
        *map(pointer, (grad_mean, grad_var, pull, by_weight, by_bias)), *_sizes(mean),
    )  # fmt: skip
    return grad_mean, grad_var, pull, by_weight, by_bias


def centred_squares(
    x: Tensor, centre: Tensor | None, square: float | None, scale: float
) -> tuple[Tensor, Tensor | None]:
    """(x - centre)² for `x` `(N, I)`, and `scale` Σ (square - x²) per row `(N, 1)`, if there is a square."""
    assert _library is not None
    squares, total = torch.empty_like(x), None if square is None else x.new_empty(x.shape[0], 1)
    _library.bqn_centred_squares(
        x.data_ptr(), pointer(centre), square or 0.0, scale, squares.data_ptr(), pointer(total), *x.shape
    )
    return squares, total


def centred_squares_backward(
    x: Tensor, centre: Tensor | None, by_squares: Tensor, by_total: Tensor | None, scale: float, by_x: Tensor
) -> Tensor | None:
    """Adds the gradient by x to `by_x`, in place, and returns that by the centre."""
    assert _library is not None
    by_centre = None if centre is None else torch.empty_like(centre)
    _library.bqn_centred_squares_backward(
        *map(pointer, (x, centre, by_squares, by_total)), scale, by_x.data_ptr(), pointer(by_centre), *x.shape
    )
    return by_centre


def doubt(mean: Tensor, low: float, high: float) -> Tensor:
    """The variance of what lies on two levels, from its mean."""
    assert _library is not None
    out = torch.empty_like(mean)
    _library.bqn_doubt(mean.data_ptr(), low, high, out.data_ptr(), mean.numel())
    return out


def doubt_backward_(mean: Tensor, low: float, high: float, grad: Tensor) -> Tensor:
    """Its gradient, written in place of that by the variance."""
    assert _library is not None
    _library.bqn_doubt_backward(mean.data_ptr(), low, high, grad.data_ptr(), mean.numel())
    return grad


def with_noise(var: Tensor, noise: Tensor, share: float) -> Tensor:
    """`var + noise`, but no less than `share` of `var`."""
    assert _library is not None
    out = torch.empty_like(var)
    _library.bqn_with_noise(var.data_ptr(), noise.data_ptr(), share, out.data_ptr(), var.numel())
    return out


def with_noise_backward(var: Tensor, noise: Tensor, share: float, grad: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients by var and noise."""
    assert _library is not None
    by_var, by_noise = torch.empty_like(var), torch.empty_like(noise)
    _library.bqn_with_noise_backward(
        var.data_ptr(),
        noise.data_ptr(),
        share,
        *(tensor.data_ptr() for tensor in (grad, by_var, by_noise)),
        var.numel(),
    )
    return by_var, by_noise


def mean_slopes(slope: Tensor, outer: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Means of slopes `(N, units)`; sums of |slope|, behind them that of |mean|, `(N + 1,)`; `(N, 1)` squares of the
    former over the latter; weights `(outputs, units)` times the means, and their squares."""
    assert _library is not None
    rows, units = slope.shape
    means, sizes, share = slope.new_empty(units), slope.new_empty(rows + 1), slope.new_empty(rows, 1)
    scaled, squares = torch.empty_like(outer), torch.empty_like(outer)
    tensors = (slope, outer, means, sizes, share, scaled, squares)
    _library.bqn_mean_slopes(*(tensor.data_ptr() for tensor in tensors), rows, units, outer.shape[0])
    return means, sizes, share, scaled, squares


def mean_slopes_backward(
    slope: Tensor, outer: Tensor, means: Tensor, sizes: Tensor, scaled: Tensor, by_scaled: Tensor, by_squares: Tensor,
    by_share: Tensor,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Gradients by weights and slopes; the former takes the place of `by_scaled`."""
    assert _library is not None
    rows, units = slope.shape
    by_slope = torch.empty_like(slope)
    _library.bqn_mean_slopes_backward(
        *map(pointer, (slope, outer, means, sizes, scaled, by_squares, by_share)), work(units), by_scaled.data_ptr(),
        by_slope.data_ptr(), rows, units, outer.shape[0],
    )  # fmt: skip
    return by_scaled, by_slope
