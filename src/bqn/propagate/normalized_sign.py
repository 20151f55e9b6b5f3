"""Batch norm and sign in one step: the sign of a normalized normal variable does not need the normalized variable.

Per channel, with m and v the moments of the inputs, μ their centre, T the variance that batch norm divides by, γ and β
its weight and bias, the score behind both layers is

    z = (γ (m - μ) / √T + β) / (|γ| √(v / T)) = (sgn(γ) (m - μ) + k) / √v,      k = β √T / |γ|

and the mean of the sign is erf(z / √2). Forward keeps m and v alone; backward needs one sum per channel,
A = Σ g e / √v with e = √(2/π) exp(-z²/2):

    ∂/∂m = sgn(γ) (g e / √v - A / n) + A k (m - μ) / (n T)        ∂/∂β = A √T / |γ|
    ∂/∂v = -g e z / (2 v) + A k / (2 n T)                         ∂/∂γ = -A k / γ

where the terms with 1/n come from the statistics and vanish where those are constants. On a GPU with Triton each of
forward and backward is two passes over memory (`normalized_sign_kernels`), on a CPU too (`compiled`); elsewhere plain
torch does the same.
"""

from __future__ import annotations

import importlib.util
import math
from typing import Any

import torch
from torch import Tensor

from bqn.checks import may_read_values
from bqn.propagate import batch, compiled, cpu, cpu_cnn
from bqn.propagate.half import working_dtype
from bqn.propagate.normalization import Normalization, coefficients, column, through_shared_statistics

_ROOT_HALF = math.sqrt(0.5)
_DENSITY = math.sqrt(2 / math.pi)
_TRITON_IS_THERE = importlib.util.find_spec("triton") is not None
SURE = 40.0  # standard deviations beyond which a sign is certain


def fused(tensor: Tensor) -> bool:
    """Whether the Triton kernels take this tensor."""
    return (
        tensor.is_cuda
        and tensor.dtype in (torch.float32, torch.bfloat16, torch.float16)
        and tensor.numel() > 0
        and _TRITON_IS_THERE
        and not torch.compiler.is_compiling()
        and (may_read_values(tensor) or torch.cuda.is_current_stream_capturing())
        and _dense(tensor)
    )


def _dense(tensor: Tensor) -> bool:
    return tensor.is_contiguous() or (tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last))


def statistics(mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
    """Centre and variance per channel of what a sampled network will see: `(C,)` each, by the law of total variance."""
    if fused(mean) and var.stride() == mean.stride():
        from bqn.propagate import normalized_sign_kernels as kernels

        return kernels.statistics(mean, var)
    if cpu.usable(mean, var) and mean.numel():
        return cpu.statistics(mean, var)
    if cpu_cnn.counts(mean, var):
        return cpu_cnn.statistics(mean, var)
    others = [dim for dim in range(mean.dim()) if dim != 1]
    wide = mean.dtype if mean.dtype == torch.float64 else torch.float32
    scatter, centre = torch.var_mean(mean.to(wide), others, correction=0)
    return centre, scatter + var.to(wide).mean(others)


def normalized_sign(source: Normalization) -> Tensor:
    """The mean of the sign behind batch norm, `(N, C, ...)`."""
    if is_compiled(source):
        return compiled.normalized_sign(source)
    result: Tensor = _NormalizedSign.apply(*source)  # type: ignore[no-untyped-call]
    return result


def is_compiled(source: Normalization) -> bool:
    """Whether `compiled.normalized_sign` does it."""
    *tensors, _ = source
    whole = (source.weight is None) == (source.bias is None)
    fits = source.mean.numel() > 0 and working_dtype(source.mean) == source.mean.dtype
    return whole and fits and cpu.usable(*tensors)


class _NormalizedSign(torch.autograd.Function):
    """Where a network works in bfloat16 and this mean is in float32, as behind a convolution of images, backward keeps
    both moments rounded, the mean as its distance from the centre: nothing else of it is needed, and what all examples
    have in common takes no digits away. They would be the largest tensors of a network.
    """

    # Nothing is written in place on the way to an output, here and in the other functions of the package: torch.compile
    # (seen with torch 2.11) loses the gradient of an output that was written in place or is an alias.
    generate_vmap_rule = True

    @staticmethod
    def forward(
        mean: Tensor, var: Tensor, centre: Tensor, total: Tensor, weight: Tensor | None, bias: Tensor | None,
        from_batch: bool,
    ) -> Tensor:  # fmt: skip
        sign, offset = coefficients(total, weight, bias)
        if fused(mean) and var.stride() == mean.stride():
            from bqn.propagate import normalized_sign_kernels as kernels

            return kernels.forward(mean, var, sign, offset - sign * centre, working_dtype(mean))
        shift = offset - sign * centre
        if working_dtype(mean) == torch.bfloat16 and cpu_cnn.signs(mean, var, sign, shift):
            return cpu_cnn.sign(mean, var, sign, shift)
        result = torch.erf(_score(mean, var, sign, shift) * _ROOT_HALF)
        return result if result.dtype == working_dtype(mean) else result.to(working_dtype(mean))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        mean, var, centre, *others, ctx.from_batch = inputs
        ctx.dtype = mean.dtype  # of the gradients: rounded, they would not add up to zero over the batch any more
        if mean.dtype == torch.float32 and working_dtype(mean) == torch.bfloat16:
            distance = mean - column(centre, mean)
            mean, var, centre = distance.to(torch.bfloat16), var.to(torch.bfloat16), torch.zeros_like(centre)
        ctx.save_for_backward(mean, var, centre, *others)
        ctx.share = batch.current_share() if ctx.from_batch else None

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        mean, var, centre, total, weight, bias = ctx.saved_tensors
        sign, offset = coefficients(total, weight, bias)
        shift = offset - sign * centre
        count = mean.numel() // mean.shape[1] if ctx.from_batch and ctx.share is None else math.inf
        if fused(mean) and var.stride() == mean.stride():
            from bqn.propagate import normalized_sign_kernels as kernels

            backward = kernels.backward
        elif mean.dtype == torch.bfloat16 and cpu_cnn.signs(mean, var, sign, offset, shift, centre, total):
            backward = cpu_cnn.sign_backward
        else:
            backward = _backward
        grad_mean, grad_var, pull = backward(grad, mean, var, sign, offset, shift, centre, total, count, ctx.dtype)
        if ctx.share is not None:
            through = through_shared_statistics(pull, mean, sign, offset, centre, total, ctx.share)
            grad_mean, grad_var = (grad_mean + through[0]).to(ctx.dtype), (grad_var + through[1]).to(ctx.dtype)
        alive = sign != 0
        divisor = torch.ones_like(total) if weight is None else torch.where(alive, weight, 1)
        grad_weight = grad_bias = None
        if weight is not None:
            grad_weight = torch.where(alive, -pull * torch.where(alive, offset, 0) / divisor, 0)
        if bias is not None:
            grad_bias = torch.where(alive, pull * total.sqrt() / divisor.abs(), 0)
        return grad_mean, grad_var, None, None, grad_weight, grad_bias, None


def _score(mean: Tensor, var: Tensor, sign: Tensor, shift: Tensor) -> Tensor:
    """z, between -40 and 40; the floor on the variance keeps `var^-1.5` inside the range of the dtype."""
    wide = mean.dtype if mean.dtype == torch.float64 else torch.float32
    floor = torch.finfo(wide).tiny ** 0.5
    distance = torch.addcmul(column(shift, mean), mean.to(wide), column(sign, mean))
    certain = torch.where(distance >= 0, SURE, -SURE)
    score = distance * var.to(wide).clamp_min(floor).rsqrt()
    return torch.where(var <= floor, certain, score.clamp(-SURE, SURE))  # so that a NaN stays a NaN


def _backward(
    grad: Tensor, mean: Tensor, var: Tensor, sign: Tensor, offset: Tensor, shift: Tensor, centre: Tensor,
    total: Tensor, count: float, dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients by mean and var, in `dtype`, and the sum A per channel."""
    wide = mean.dtype if mean.dtype == torch.float64 else torch.float32
    score = _score(mean, var, sign, shift)
    inverse = var.to(wide).clamp_min(torch.finfo(wide).tiny ** 0.5).rsqrt()
    # g e / √v; nothing where the sign is certain
    flow = (score.square() * -0.5).exp() * (_DENSITY * grad) * inverse
    flow = torch.where(score.abs() >= SURE, 0, flow)
    pull = flow.sum([dim for dim in range(mean.dim()) if dim != 1])
    through_total = torch.where(sign != 0, pull * offset, 0) / (total * count)
    grad_mean = torch.addcmul(column(-sign * pull / count - through_total * centre, mean), flow, column(sign, mean))
    grad_mean = torch.addcmul(grad_mean, mean.to(wide), column(through_total, mean))
    grad_var = flow * score * inverse * -0.5 + column(0.5 * through_total, mean)
    return grad_mean.to(dtype), grad_var.to(dtype), pull
