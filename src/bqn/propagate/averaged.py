"""Averages over neighbouring outputs of a convolution: its weights are the same at all of them, and so is their noise.

Taken for independent, four outputs would average to a quarter of their variance; in a sampled network they hardly do,
since one drawn filter serves them all. But convolution and average pooling together are again a sum over the weights.
With B the mean over a pooling window of n positions, weights of mean M and variance V, inputs of mean μ and variance ν,

    mean = M · Bμ,        var = V · ((Bμ)² + Bν / n) + K² · ν

where K is what the filter and the window make of one input together: the filter averaged over the window. This is exact
for independent weights and inputs; where neighbouring inputs err together (`neighbours`), 1 / n becomes the variance
of a window's mean, and K² gains what they have in common. The products run over the pooled positions only, so it is
also less work; and backward keeps no more than the inputs, whose averages are cheap to form again.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, TypeGuard

import torch
from torch import Tensor

from bqn.beliefs import Belief, Categorical, Gaussian, mean_of, var_of
from bqn.propagate import clt, half, neighbours, products, together
from bqn.propagate.neighbours import Neighbours
from bqn.propagate.pooling import running_average
from bqn.propagate.windows import over_places, padded


class Convolution(NamedTuple):
    """What a convolution's belief was made from, as in `clt.linear`."""

    x: Belief
    weight: Categorical
    bias: Belief | None
    geometry: products.Geometry
    statistics: clt.BatchStatistics | None


def averages(source: object, kernel: tuple[int, ...], padding: tuple[int, ...]) -> TypeGuard[Convolution]:
    """Whether `average` can be used on what a belief was made from, for pooling windows of this size."""
    if not isinstance(source, Convolution) or any(padding) or len(kernel) not in (1, 2):
        return False
    stride, _, dilation, groups = source.geometry
    return groups == 1 and set(stride) == set(dilation) == {1} and source.x.shape[0] > 0


def average(source: Convolution, shape: torch.Size, kernel: tuple[int, ...], stride: tuple[int, ...]) -> Gaussian:
    """The belief about the average over windows of a convolution's outputs.

    Parameters
    ----------
    source : Convolution that `averages` accepts
    shape : of the result
    kernel, stride : of the pooling, one entry per spatial dimension
    """
    x, weight, bias, geometry, statistics = source
    strided = products.Geometry(stride, tuple(0 for _ in stride), tuple(1 for _ in stride), 1)
    low = half.applies(strided, mean_of(x))
    dtype = half.working_dtype(mean_of(x)) if low else weight.dtype
    pair = x.level_values if isinstance(x, Categorical) and len(x.level_values) == 2 else None
    inputs = x if low else half.raised(x, dtype)
    if low and isinstance(x, Categorical) and pair is not None:
        inputs = half.prepared(x, strided)
    rule = _Rule(kernel, geometry.padding, strided, pair)

    known = None if isinstance(x, Tensor) else x.neighbours

    def moments(centre: Tensor | None) -> tuple[Tensor, Tensor]:
        share = None if known is None else neighbours.of_average(known.correlation, kernel)
        bias_mean = None if bias is None else mean_of(bias)
        mean, var = _moments(inputs, weight, bias_mean, dtype, rule, centre, share)
        if known is None:
            return mean, var
        assert not isinstance(inputs, Tensor)
        joint = _joint_filter(weight.mean, rule)
        sizes = tuple(joint.shape[2:])
        common = neighbours.common_weight(joint.flatten(2), known.correlation, sizes)
        extra = together.common_noise(inputs, common, sizes, geometry.padding, stride)
        return mean, together.with_common_noise(var, (extra,))

    def total() -> tuple[Tensor, Tensor]:
        mean, var = moments(None)
        bias_var = None if bias is None else var_of(bias)
        return mean, var if bias_var is None else var + products.per_unit(bias_var, geometry).to(dtype)

    def within(momentum: float | None) -> Gaussian:
        if statistics is None:
            return Gaussian.of(*total())
        centre = statistics.centre(mean_of(x), momentum)
        correlation = together.correlation_of_sums(x, weight, centre, statistics, momentum)
        return Gaussian.of(*moments(centre), Neighbours(neighbours.behind_pooling(correlation, kernel, stride)))

    return Gaussian.deferred(shape, weight.mean.new_empty(0, dtype=dtype), total, within)


class _Rule(NamedTuple):
    """The pooling window, the padding of the convolution, how both together walk, and the levels of inputs on two."""

    kernel: tuple[int, ...]
    padding: tuple[int, ...]
    strided: products.Geometry
    pair: tuple[float, ...] | None


def _moments(
    x: Belief, weight: Categorical, bias: Tensor | None, dtype: torch.dtype, rule: _Rule, centre: Tensor | None,
    share: Tensor | None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Mean and variance in `dtype`; with a centre, V · (Bμ)² becomes V · (Bμ - centre)², see `clt`.

    `share` is the variance of a window's mean, for inputs of variance one; 1 / n by default, for independent ones.
    """
    in_full = dtype == weight.dtype
    layout = torch.preserve_format if in_full else torch.channels_last
    mean = mean_of(x).to(dtype=dtype, memory_format=layout)
    if isinstance(x, Tensor) and centre is not None and in_full and clt.gathers(mean, weight, rule.strided):
        box = running_average(padded(mean, rule.padding), rule.kernel)
        return clt.moments_of_windows(box, weight, bias, rule.strided, centre)
    var = var_of(x) if rule.pair is None else None
    var = None if var is None else var.to(dtype=dtype, memory_format=layout)
    result, noise = _Averaged.apply(mean, var, weight.mean, weight.var, centre, share, rule)  # type: ignore[no-untyped-call]
    return result if bias is None else result + products.per_unit(bias, rule.strided).to(dtype), noise


class _Averaged(torch.autograd.Function):
    """Both moments from μ, ν, M, V and the centre. Keeps these alone; backward forms anew what else it needs.

    Where the inputs are on two levels, ν follows from μ and is not given.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(
        mean: Tensor, var: Tensor | None, weight: Tensor, noise: Tensor, centre: Tensor | None, share: Tensor | None,
        rule: _Rule,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        common = _common(centre, mean)
        base, doubt = _inputs(mean, var, common, rule)
        result = _product(base, weight, rule)
        total = _product(_noise_input(base, doubt, share, rule), noise, rule)
        if common is not None:
            result = result + _per_unit(weight * common, result)
        if doubt is not None:
            total = total + _product(doubt, _joint_filter(weight, rule).square(), rule)
        return result, total.clamp_min(0)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        *tensors, ctx.rule = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        # A variance below zero was rounding error: its gradient passes.
        grad_mean, grad_var = grads
        mean, var, weight, noise, centre, share = ctx.saved_tensors
        rule, need = ctx.rule, any(ctx.needs_input_grad[place] for place in (0, 1, 4))
        common = _common(centre, mean)
        base, doubt = _inputs(mean, var, common, rule)
        by_base, by_weight = _transposed(grad_mean, base, weight, rule, need)
        by_square, by_noise = _transposed(grad_var, _noise_input(base, doubt, share, rule), noise, rule, need)
        by_input = by_var = by_centre = None
        if common is not None:
            by_weight = by_weight + _summed(grad_mean, weight) * common
        if doubt is not None:
            joint = _joint_filter(weight, rule)
            by_doubt, by_joint = _transposed(grad_var, doubt, joint.square(), rule, need)
            by_weight = by_weight + running_average(2 * joint * by_joint, rule.kernel)
        if need:
            if centre is not None:
                whole = -2 * (base * by_square).sum((0, *range(2, base.dim())), dtype=weight.dtype)
                shape = (-1, *(1 for _ in centre.shape[1:]))
                by_centre = (whole / centre[0].numel()).reshape(shape).expand_as(centre)
            by_input = _spread(by_base + 2 * base * by_square, rule)
            if doubt is not None:
                by_var = _of_share(_spread(by_square, rule), share, rule) + _cropped(by_doubt, rule.padding)
                if rule.pair is not None:
                    by_input, by_var = by_input + (sum(rule.pair) - 2 * mean) * by_var, None
        return by_input, by_var, by_weight, by_noise, by_centre, None, None


def _common(centre: Tensor | None, mean: Tensor) -> Tensor | None:
    """The centre of each channel in the dtype of the inputs; taken out before squaring, it leaves little to cancel."""
    return None if centre is None else over_places(centre).to(mean.dtype)


def _inputs(mean: Tensor, var: Tensor | None, common: Tensor | None, rule: _Rule) -> tuple[Tensor, Tensor | None]:
    """The averages Bμ of the padded inputs over each window, the centre taken out, and the padded ν."""
    image = padded(mean, rule.padding)
    if rule.pair is not None:
        var = ((rule.pair[1] - mean) * (mean - rule.pair[0])).clamp_min(0)
    doubt = None if var is None else padded(var, rule.padding)
    return running_average(image if common is None else image - common, rule.kernel), doubt


def _noise_input(base: Tensor, doubt: Tensor | None, share: Tensor | None, rule: _Rule) -> Tensor:
    """What meets the noise of the weights: (Bμ - c)² and the variance of Bh."""
    squares = base.square()
    return squares if doubt is None else squares + _of_share(running_average(doubt, rule.kernel), share, rule)


def _of_share(averaged: Tensor, share: Tensor | None, rule: _Rule) -> Tensor:
    """The variance of a window's mean from the mean of its variances, or a gradient by that."""
    return averaged / math.prod(rule.kernel) if share is None else averaged * share.to(averaged.dtype)


def _product(inputs: Tensor, weights: Tensor, rule: _Rule) -> Tensor:
    if inputs.dtype == weights.dtype:
        return products.product(inputs, weights, rule.strided)
    inputs = inputs.contiguous(memory_format=torch.channels_last)
    return half.product(inputs, half.low_weight(weights, inputs, rule.strided), rule.strided)


def _transposed(grad: Tensor, inputs: Tensor, weights: Tensor, rule: _Rule, need_inputs: bool) -> tuple[Any, Any]:
    """Gradients of the product by its inputs and by its weights."""
    if inputs.dtype == weights.dtype:
        return products.transposed_convolution(grad, inputs, weights, rule.strided, need_inputs, True)
    low = half.low_weight(weights, inputs, rule.strided)
    by_inputs, by_weights = half.transposed(grad, inputs, low, rule.strided, need_inputs)
    return by_inputs, by_weights.to(weights.dtype)


def _per_unit(per_weight: Tensor, like: Tensor) -> Tensor:
    """The sum over the weights of each unit, to be added to the output."""
    return per_weight.flatten(1).sum(-1).to(like.dtype).reshape(-1, *(1 for _ in like.shape[2:]))


def _summed(grad: Tensor, weight: Tensor) -> Tensor:
    """The transpose of that: one number per unit, to be multiplied with its weights."""
    return grad.sum((0, *range(2, grad.dim())), dtype=weight.dtype).reshape(-1, *(1 for _ in weight.shape[1:]))


def _joint_filter(weight: Tensor, rule: _Rule) -> Tensor:
    """K: the filter averaged over the window."""
    return running_average(padded(weight, tuple(size - 1 for size in rule.kernel)), rule.kernel)


def _spread(grad: Tensor, rule: _Rule) -> Tensor:
    """The gradient of `running_average` by the image before its padding."""
    borders = tuple(size - 1 - pad for size, pad in zip(rule.kernel, rule.padding, strict=True))
    return running_average(padded(grad, borders), rule.kernel)


def _cropped(tensor: Tensor, padding: tuple[int, ...]) -> Tensor:
    return padded(tensor, tuple(-size for size in padding))
