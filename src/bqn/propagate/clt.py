"""Large fan-in (C.3): a sum of many independent terms is close to a normal variable; its moments are exact.

For weights θ with mean M and second moment S = E[θ²], and inputs h with mean μ and variance ν,

    mean = M μ,        var = S ν + V μ²,   V = S - M²

which is the paper's M²ν + V(μ² + ν), regrouped. Batch norm asks for the noise within the batch alone; with μ̄ the mean
of μ over the batch that is S ν + V (μ - μ̄)², and no bias variance.

Where either the weights or the inputs are ±a, one of S and ν + μ² is constant, and what remains is one product of
squares: two products in all, where a naive layer needs three. `_Remainder` forms the squares on the fly, so that
backward keeps μ and M only, which the product of the means keeps anyway.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from bqn.beliefs import Belief, Categorical, Gaussian, mean_of, var_of
from bqn.propagate.windows import windows


class Geometry(NamedTuple):
    """How a convolution walks over its input; one entry per spatial dimension."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int


def product(x: Tensor, weight: Tensor, geometry: Geometry | None, bias: Tensor | None = None) -> Tensor:
    """The linear map of a layer: a matrix product, or a convolution where a geometry is given."""
    if geometry is None:
        if weight.dim() == 2 and (bias is None or bias.dim() == 1):
            return F.linear(x, weight, bias)
        result = x @ weight.mT  # leading dimensions of the weight are replicas
        return result if bias is None else result + bias.unsqueeze(-2)
    stride, padding, dilation, groups = geometry
    return torch.convolution(x, weight, bias, stride, padding, dilation, False, [0] * len(stride), groups)


class _Remainder(torch.autograd.Function):
    """`total - product(x², w²)`, never below zero. Saves x and w, not their squares."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, weight: Tensor, total: Tensor | float, geometry: Geometry | None) -> Tensor:
        return (total - product(x.square(), weight.square(), geometry)).clamp_min_(0)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        x, weight, total, geometry = inputs
        ctx.save_for_backward(x, weight)
        ctx.geometry = geometry
        ctx.total_shape = total.shape if isinstance(total, Tensor) else None

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        # A clamped entry is a zero variance met with rounding error: its gradient passes.
        (grad,) = grads
        x, weight = ctx.saved_tensors
        need_x, need_weight, need_total = ctx.needs_input_grad[:3]
        grad_x = grad_weight = grad_total = None
        if ctx.geometry is None:
            if need_x:
                grad_x = (grad @ weight.square()).mul_(x).mul_(-2)
            if need_weight:
                grad_weight = (grad.mT @ x.square()).sum_to_size(weight.shape).mul(weight).mul_(-2)
        else:
            stride, padding, dilation, groups = ctx.geometry
            grad_x, grad_weight, _ = torch.ops.aten.convolution_backward(
                grad, x.square(), weight.square(), None, stride, padding, dilation, False, [0] * len(stride), groups,
                [need_x, need_weight, False],
            )  # fmt: skip
            grad_x = grad_x * x * -2 if need_x else None
            grad_weight = grad_weight * weight * -2 if need_weight else None
        if need_total and ctx.total_shape is not None:
            grad_total = grad.sum_to_size(ctx.total_shape)
        return grad_x, grad_weight, grad_total, None


def padded(geometry: Geometry | None) -> bool:
    return geometry is not None and any(geometry.padding)


def per_unit(values: Tensor, geometry: Geometry | None) -> Tensor:
    """One number per output unit, shaped to broadcast over the output."""
    return values.unsqueeze(-2) if geometry is None else values.reshape(-1, *(1 for _ in geometry.stride))


def _window_sum(per_input: Tensor, weight: Tensor, geometry: Geometry | None) -> Tensor:
    """Sum of a number per input over all inputs that each output reads, shaped to broadcast over the output."""
    if geometry is None:
        return per_input.sum(-1, keepdim=True)
    per_group = per_input.unflatten(1, (geometry.groups, -1)).sum(2)
    box = per_input.new_ones(geometry.groups, 1, *weight.shape[2:])
    counted = product(per_group, box, geometry)
    return counted.repeat_interleave(weight.shape[0] // geometry.groups, 1) if geometry.groups > 1 else counted


def _variance(x: Belief, weight: Categorical, geometry: Geometry | None, centre: Tensor | None = None) -> Tensor:
    """`S ν + V (μ - centre)²` with as few products as the levels allow."""
    mean = mean_of(x)
    distance = mean if centre is None else mean - centre
    input_square = x.constant_square if isinstance(x, Categorical) and centre is None else None
    weight_square = weight.constant_square
    if weight_square is not None and input_square is not None and geometry is None:
        return _remainder(distance, weight.mean, weight_square * input_square * mean.shape[-1], geometry)
    if weight_square is not None:  # S is a constant: S Σ(ν + d²) - M² d²
        if input_square is not None:  # and so is ν + d², but for the padding: one example counts for all
            square = torch.full_like(mean[:1], input_square)
        else:
            var = var_of(x)
            square = distance.square() if var is None else var + distance.square()
        return _remainder(distance, weight.mean, weight_square * _window_sum(square, weight.mean, geometry), geometry)
    second_moment = weight.mean.square() + weight.var
    if input_square is not None:  # ν + μ² is a constant: Σ S (ν + μ²) - M² μ²
        total = product(torch.full_like(mean[..., :1, :] if geometry is None else mean[:1], input_square),
                        second_moment, geometry)  # fmt: skip
        return _remainder(distance, weight.mean, total, geometry)
    var = var_of(x)
    result = product(distance.square(), weight.var, geometry)
    return result if var is None else result + product(var, second_moment, geometry)


def _remainder(x: Tensor, weight: Tensor, total: Tensor | float, geometry: Geometry | None) -> Tensor:
    result: Tensor = _Remainder.apply(x, weight, total, geometry)  # type: ignore[no-untyped-call]
    return result


def batch_centre(mean: Tensor, kernel: tuple[int, ...], geometry: Geometry | None, replicas: bool = False) -> Tensor:
    """The mean over the batch of what each weight reads.

    For a matrix product `(in_features,)`. For a convolution `(in_channels, *kernel)`: the offsets of a kernel see
    different parts of the image, and the zeros of the padding count as what they are.
    """
    if geometry is None:
        return mean.mean(-2, keepdim=True) if replicas else mean.flatten(0, -2).mean(0)
    read = windows(mean.mean(0), kernel, geometry.stride, geometry.padding, geometry.dilation)
    return read.flatten(1, len(kernel)).mean(1).reshape(-1, *kernel)


def _within_batch_variance(x: Belief, weight: Categorical, geometry: Geometry | None, centre: Tensor) -> Tensor:
    """`S ν + V (μ - centre)²` where a convolution's centre depends on the kernel offset."""
    if geometry is None:
        return _variance(x, weight, None, centre)
    mean = mean_of(x)
    centre = centre.unflatten(0, (geometry.groups, -1)).repeat_interleave(weight.shape[0] // geometry.groups, 0)
    noise = weight.var * centre
    constant = per_unit((noise * centre).flatten(1).sum(-1), geometry)
    return (_variance(x, weight, geometry) - product(mean, 2 * noise, geometry) + constant).clamp_min(0)


def linear(
    x: Belief,
    weight: Categorical,
    bias: Belief | None,
    geometry: Geometry | None = None,
    centre: Callable[[Tensor, float | None], Tensor] | None = None,
) -> Gaussian:
    """Moments of `weight · x + bias`, a matrix product or a convolution.

    Parameters
    ----------
    x : belief `(..., N, in_features)`, or `(N, C, *spatial)` with a geometry
    weight : Categorical `(..., out_features, in_features)`, or `(O, C / groups, *kernel)` with a geometry
    bias : belief `(..., out_features)` or None
    geometry : Geometry or None
    centre : function or None
        Gives the centre of the inputs for `Gaussian.within_batch_var`, from their mean and the momentum.
    """
    mean = mean_of(x)
    bias_mean = None if bias is None else mean_of(bias)

    def var() -> Tensor:
        result = _variance(x, weight, geometry)
        bias_var = None if bias is None else var_of(bias)
        return result if bias_var is None else result + per_unit(bias_var, geometry)

    def within(momentum: float | None) -> Tensor:
        return var() if centre is None else _within_batch_variance(x, weight, geometry, centre(mean, momentum))

    return Gaussian.of(product(mean, weight.mean, geometry, bias_mean), var, within)
