"""Compiled passes of convolutional networks on a CPU, most of them in bfloat16, which torch does slowly or one by one.

`cpu_cnn.c` is built with `cpu_kernels.c`; what is said there of doing without holds here (`cpu`).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from bqn.propagate import cpu
from bqn.propagate.cpu import pointer, work
from bqn.propagate.windows import output_size

_LOW = torch.bfloat16
_BLOCK = 16  # as in the C source
_WIDEST = 32  # places of a window along one axis: more are summed up position by position for too long
_MOST_PLACES = 4 * _BLOCK


def averages(x: Tensor, kernel: tuple[int, ...]) -> bool:
    """Whether `window_means` takes these images, and `window_means_backward` these gradients."""
    few = len(kernel) in (1, 2) and max(kernel) <= _WIDEST
    return few and x.dim() == len(kernel) + 2 and x.numel() > 0 and _takes(x) and x.dtype == _LOW


def _takes(*tensors: Tensor) -> bool:
    """Whether there are passes for these tensors, and nobody asks for a gradient of what they do."""
    return not torch.is_grad_enabled() and cpu.available(*tensors) and all(map(_dense, tensors))


def _dense(x: Tensor) -> bool:
    return x.is_contiguous() or _channels_last(x)


def _channels_last(x: Tensor) -> bool:
    return x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last)


def window_means(x: Tensor, kernel: tuple[int, ...], stride: tuple[int, ...]) -> Tensor:
    """The mean over the window that begins at each position that a stride comes to, `(N, C, *in)` to `(N, C, *out)`."""
    innermost = x.shape[1] if not x.is_contiguous() else 1
    sizes = [output_size(*each, 0) for each in zip(x.shape[2:], kernel, stride, strict=True)]
    layout = torch.channels_last if innermost > 1 else torch.contiguous_format
    out = torch.empty((*x.shape[:2], *sizes), dtype=x.dtype, device=x.device, memory_format=layout)
    (height, width), window, step = ((1, *numbers)[-2:] for numbers in (x.shape[2:], kernel, stride))
    outer = math.prod(x.shape[:2]) // innermost
    cpu.library().bqn_window_means(
        x.data_ptr(), out.data_ptr(), work(width * innermost), outer, height, width, innermost, *window, *step
    )
    return out


def window_means_backward(
    grad: Tensor, sizes: tuple[int, ...], kernel: tuple[int, ...], stride: tuple[int, ...], padding: tuple[int, ...]
) -> Tensor:
    """The gradient of the means over windows of a padded image, by the image without its padding, `(N, C, *sizes)`."""
    made = tuple(output_size(*each) for each in zip(sizes, kernel, stride, padding, strict=True))
    assert tuple(grad.shape[2:]) == made, (grad.shape, made)
    innermost = grad.shape[1] if not grad.is_contiguous() else 1
    layout = torch.channels_last if innermost > 1 else torch.contiguous_format
    out = torch.empty((*grad.shape[:2], *sizes), dtype=grad.dtype, device=grad.device, memory_format=layout)
    (height, width), window, step = ((1, *numbers)[-2:] for numbers in (sizes, kernel, stride))
    cpu.library().bqn_window_means_backward(
        grad.data_ptr(), out.data_ptr(), work((height + 1) * width * innermost),
        math.prod(grad.shape[:2]) // innermost, height, width, innermost, *window, *step, *(0, *padding)[-2:],
    )  # fmt: skip
    return out


def noise_reaching(reaching: Tensor, var: Tensor, beside: Tensor | None, level: Tensor | None) -> Tensor:
    """Σ r (ν r + ν̄ b) over inputs, `(N, outputs)`.

    Parameters
    ----------
    reaching : Tensor `(N, outputs, inputs)` in bfloat16 or float32, r
    var : Tensor `(N, inputs)`, ν
    beside : Tensor `(N, outputs, inputs)` or None, b
    level : Tensor `(N, channels)` or None, ν̄ of the channels that the inputs are the places of
    """
    out = var.new_empty(reaching.shape[:2])
    cpu.library().bqn_noise_reaching(
        reaching.data_ptr(), reaching.dtype == _LOW, *map(pointer, (var, beside, level)), work(reaching.shape[2]),
        out.data_ptr(), *_sizes(reaching, level),
    )  # fmt: skip
    return out


def noise_reaching_backward(
    grad: Tensor, reaching: Tensor, var: Tensor, beside: Tensor | None, level: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Its gradients by r, with b as a function of it, by ν and by ν̄; the first has the dtype of r."""
    by_reaching, by_var = torch.empty_like(reaching), torch.empty_like(var)
    by_level = None if level is None else torch.empty_like(level)
    cpu.library().bqn_noise_reaching_backward(
        grad.data_ptr(), reaching.data_ptr(), reaching.dtype == _LOW, *map(pointer, (var, beside, level)),
        work(reaching.shape[2]), *map(pointer, (by_reaching, by_var, by_level)), *_sizes(reaching, level),
    )  # fmt: skip
    return by_reaching, by_var, by_level


def _sizes(reaching: Tensor, level: Tensor | None) -> tuple[int, int, int, int]:
    rows, outputs, inputs = reaching.shape
    channels = inputs if level is None else level.shape[1]
    return rows, outputs, channels, inputs // max(channels, 1)


def pairs(x: Tensor, near: Tensor) -> bool:
    """Whether `beside` takes these places `(..., K)`, in bfloat16 or float32, and `over_pairs` those in float32."""
    few = 0 < near.shape[0] <= _MOST_PLACES and x.numel() > 0
    return few and _takes(x) and x.is_contiguous() and x.dtype in (_LOW, torch.float32) and cpu.usable(near)


def beside(x: Tensor, near: Tensor, scale: Tensor | None = None) -> Tensor:
    """`x @ near` in float32, `(..., K)`, times `scale` `(...)` if there is one."""
    out = torch.empty_like(x, dtype=torch.float32)
    rows, places = x.numel() // x.shape[-1], x.shape[-1]
    whole = _in_blocks(near)
    cpu.library().bqn_beside(x.data_ptr(), x.dtype == _LOW, *map(pointer, (whole, scale, out)), rows, places)
    return out


def over_pairs(x: Tensor, near: Tensor) -> Tensor:
    """`Σ x_p near_pq x_q`, `(..., K)` to `(...)`."""
    out, whole = x.new_empty(x.shape[:-1]), _in_blocks(near)
    cpu.library().bqn_over_pairs(x.data_ptr(), whole.data_ptr(), out.data_ptr(), out.numel(), x.shape[-1])
    return out


def _in_blocks(near: Tensor) -> Tensor:
    """Rows of whole vectors."""
    return torch.nn.functional.pad(near, (0, -near.shape[0] % _BLOCK))


def rounds(weight: Tensor) -> bool:
    """Whether `low_weights` and `through_square` take these weights."""
    return _takes(weight) and cpu.usable(weight)


def low_weights(weight: Tensor, square: float) -> tuple[Tensor, Tensor]:
    """Means of weights ±a and their variances, `square` less the squares of the former, in bfloat16."""
    low, noise = (torch.empty_like(weight, dtype=_LOW) for _ in range(2))
    cpu.library().bqn_low_weights(weight.data_ptr(), square, low.data_ptr(), noise.data_ptr(), weight.numel())
    return low, noise


def through_square(linear: Tensor, square: Tensor, at: Tensor, factor: float = 2.0) -> Tensor:
    """The gradient by `at`, in float32, from that by itself and that by its square: `linear + factor at square`."""
    out = torch.empty_like(at)
    cpu.library().bqn_through_square(
        linear.data_ptr(), square.data_ptr(), linear.dtype == _LOW, factor, at.data_ptr(), out.data_ptr(), at.numel()
    )
    return out


def signs(mean: Tensor, var: Tensor, *channels: Tensor) -> bool:
    """Whether `sign` takes these moments, `(N, C, ...)`, in one layout, and numbers per channel; and if they are in
    bfloat16, the gradients too."""
    return _in_one_layout(mean, var) and _takes(mean, var) and cpu.usable(*channels)


def counts(mean: Tensor, var: Tensor) -> bool:
    """Whether `statistics` takes these moments."""
    return mean.dtype == _LOW and _in_one_layout(mean, var) and cpu.available(mean, var) and _dense(mean)


def _in_one_layout(mean: Tensor, var: Tensor) -> bool:
    alike = mean.dtype == var.dtype and mean.stride() == var.stride()
    return alike and mean.dim() > 1 and mean.numel() > 0 and mean.dtype in (_LOW, torch.float32)


def _walk(x: Tensor) -> tuple[int, int, int]:
    """Outer, channels and inner sizes of `(N, C, ...)` in memory."""
    channels = x.shape[1]
    inner = math.prod(x.shape[2:]) if x.is_contiguous() else 1
    return x.numel() // (channels * inner), channels, inner


def statistics(mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
    """As `normalized_sign.statistics`, of moments in bfloat16."""
    centre, total = (torch.empty(mean.shape[1], dtype=torch.float32, device=mean.device) for _ in range(2))
    cpu.library().bqn_low_statistics(
        mean.data_ptr(), var.data_ptr(), *_walk(mean), work(3 * mean.shape[1]), centre.data_ptr(), total.data_ptr()
    )
    return centre, total


def sign(mean: Tensor, var: Tensor, direction: Tensor, shift: Tensor) -> Tensor:
    """erf(z / √2) in bfloat16, with z = (direction · mean + shift) / √var."""
    out = torch.empty_like(mean, dtype=_LOW)
    cpu.library().bqn_low_sign(
        mean.data_ptr(), var.data_ptr(), mean.dtype == _LOW, *map(pointer, (direction, shift, out)), *_walk(mean)
    )
    return out


def sign_backward(
    grad: Tensor, mean: Tensor, var: Tensor, sign: Tensor, offset: Tensor, shift: Tensor, centre: Tensor,
    total: Tensor, count: float, dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """As `normalized_sign._backward`, of moments in bfloat16 to gradients in that or in float32."""
    layout = torch.contiguous_format if mean.is_contiguous() else torch.channels_last
    # `to` alone keeps a tensor that is expanded or cropped as it is; the pass reads one that is dense.
    grad, sizes = grad.to(_LOW).contiguous(memory_format=layout), _walk(mean)
    flow = torch.empty_like(mean, dtype=torch.float32)
    pulls = torch.empty(mean.shape[1], dtype=torch.float64, device=mean.device)
    cpu.library().bqn_low_sign_flow(*map(pointer, (grad, mean, var, sign, shift, flow, pulls)), *sizes)
    pull = pulls.to(torch.float32)
    rate = torch.where(sign != 0, pull * offset, 0) / (total * count)
    fixed = -sign * pull / count - rate * centre
    by_mean, by_var = (torch.empty_like(mean, dtype=dtype) for _ in range(2))
    cpu.library().bqn_low_sign_gradients(
        *map(pointer, (flow, mean, var, sign, shift, rate, fixed, by_mean, by_var)), dtype == _LOW, *sizes
    )
    return by_mean, by_var, pull
