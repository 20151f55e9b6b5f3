"""Compiled passes over float32 tensors on a CPU: the formulas of `normalized_sign`, of posteriors and of the softmax.

`cpu_kernels.c` is built when the package is installed, if there is a C compiler. Without it, or for other dtypes, other
layouts, or inside a transform or a compiler, plain torch does the same: `usable` says which. The environment variable
`BQN_CPU_KERNELS=torch` switches the compiled passes off.
"""

from __future__ import annotations

import ctypes
import os
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import torch
from torch import Tensor

from bqn.checks import may_look

_POINTER, _COUNT = ctypes.c_void_p, ctypes.c_int64
_ARGUMENTS = {
    "bqn_tilt_and_kl": [_POINTER] * 3 + [_COUNT],
    "bqn_tilt_and_kl_backward": [_POINTER] * 3 + [ctypes.c_float, _POINTER, _COUNT],
    "bqn_moments_and_kl": [_POINTER] * 3 + [_COUNT] + [_POINTER] * 3 + [_COUNT],
    "bqn_moments_and_kl_backward": [_POINTER] * 3 + [_COUNT] + [_POINTER] * 2 + [ctypes.c_float, _POINTER, _COUNT],
    "bqn_best_tilt": [_POINTER] * 4 + [_COUNT] * 2,
    "bqn_statistics": [_POINTER] * 2 + [_COUNT] * 3 + [_POINTER] * 3,
    "bqn_normalized_sign": [_POINTER] * 5 + [_COUNT] * 3,
    "bqn_normalized_sign_flow": [_POINTER] * 7 + [_COUNT] * 3,
    "bqn_normalized_sign_backward": [_POINTER] * 8 + [_COUNT] * 3,
}


def _load() -> ctypes.CDLL | None:
    if os.environ.get("BQN_CPU_KERNELS") == "torch":
        return None
    for suffix in EXTENSION_SUFFIXES:
        path = Path(__file__).with_name(f"_cpu_kernels{suffix}")
        if path.exists():
            library = ctypes.CDLL(os.fspath(path))
            for name, arguments in _ARGUMENTS.items():
                function = getattr(library, name)
                function.argtypes, function.restype = arguments, None
            return library
    return None


_library = _load()
MOST_LEVELS = 16  # of `moments_and_kl`


def usable(*tensors: Tensor) -> bool:
    """Whether the compiled passes take these tensors: float32, contiguous, of a CPU, and free to be looked at."""
    return _library is not None and all(
        tensor.dtype == torch.float32 and tensor.is_contiguous() and may_look(tensor) for tensor in tensors
    )


def tilt_and_kl(logits: Tensor) -> tuple[Tensor, Tensor]:
    """P(upper) - P(lower) for pairs of logits `(..., 2)`, and the KL from a uniform prior summed over all."""
    assert _library is not None
    tilt, kl = logits.new_empty(logits.shape[:-1]), torch.empty((), dtype=torch.float64)
    _library.bqn_tilt_and_kl(logits.data_ptr(), tilt.data_ptr(), kl.data_ptr(), tilt.numel())
    return tilt, kl.to(torch.float32)


def tilt_and_kl_backward(logits: Tensor, tilt: Tensor, grad_tilt: Tensor | None, grad_kl: float) -> Tensor:
    """The gradient by the logits."""
    assert _library is not None
    grad = torch.empty_like(logits)
    pointer = None if grad_tilt is None else grad_tilt.data_ptr()
    _library.bqn_tilt_and_kl_backward(
        logits.data_ptr(), tilt.data_ptr(), pointer, grad_kl, grad.data_ptr(), tilt.numel()
    )
    return grad


def moments_and_kl(logits: Tensor, levels: Tensor, log_prior: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Mean and variance of weights with logits `(..., D)` on D levels, and the KL from a prior summed over all."""
    assert _library is not None
    mean, var = (logits.new_empty(logits.shape[:-1]) for _ in range(2))
    kl = torch.empty((), dtype=torch.float64)
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
    known = (None if tensor is None else tensor.data_ptr() for tensor in (grad_mean, grad_var))
    _library.bqn_moments_and_kl_backward(
        *(tensor.data_ptr() for tensor in (logits, levels, log_prior)), len(levels), *known, grad_kl, grad.data_ptr(),
        logits.numel() // len(levels),
    )  # fmt: skip
    return grad


def best_tilt(mean: Tensor, var: Tensor) -> Tensor:
    """The tilts of `heads.tilted_log_sum_exp` for rows `(N, K)` of means and variances."""
    assert _library is not None
    rows, classes = mean.shape
    out, work = torch.empty_like(mean), torch.empty(5, classes, dtype=torch.float64)
    _library.bqn_best_tilt(mean.data_ptr(), var.data_ptr(), out.data_ptr(), work.data_ptr(), rows, classes)
    return out


def _sizes(tensor: Tensor) -> tuple[int, int, int]:
    """Outer, channels and inner sizes of `(N, C, ...)`."""
    return tensor.shape[0], tensor.shape[1], tensor[0, 0].numel()


def statistics(mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
    """As `normalized_sign.statistics`."""
    assert _library is not None
    channels = mean.shape[1]
    work = torch.empty(3, channels, dtype=torch.float64)
    centre, total = mean.new_empty(channels), mean.new_empty(channels)
    _library.bqn_statistics(
        mean.data_ptr(), var.data_ptr(), *_sizes(mean), work.data_ptr(), centre.data_ptr(), total.data_ptr()
    )
    return centre, total


def forward(mean: Tensor, var: Tensor, sign: Tensor, shift: Tensor) -> Tensor:
    """erf(z / √2) with z = (sign · mean + shift) / √var; `sign` and `shift` are `(C,)`."""
    assert _library is not None
    out = torch.empty_like(mean)
    _library.bqn_normalized_sign(
        mean.data_ptr(), var.data_ptr(), sign.data_ptr(), shift.data_ptr(), out.data_ptr(), *_sizes(mean)
    )
    return out


def backward(
    grad: Tensor, mean: Tensor, var: Tensor, sign: Tensor, offset: Tensor, shift: Tensor, centre: Tensor,
    total: Tensor, count: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients by mean and var, and the sum A per channel."""
    assert _library is not None
    flow, grad_var = torch.empty_like(mean), torch.empty_like(var)
    pull = torch.empty(mean.shape[1], dtype=torch.float64)
    _library.bqn_normalized_sign_flow(
        *(tensor.data_ptr() for tensor in (grad, mean, var, sign, shift, flow, pull)), *_sizes(mean)
    )
    pull = pull.to(mean.dtype)
    slope = torch.where(sign != 0, pull * offset, 0) / (total * count)
    constant = -sign * pull / count - slope * centre
    _library.bqn_normalized_sign_backward(
        *(tensor.data_ptr() for tensor in (flow, mean, var, sign, shift, constant, slope, grad_var)), *_sizes(mean)
    )
    return flow, grad_var, pull
