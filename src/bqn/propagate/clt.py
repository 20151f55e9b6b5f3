"""Large fan-in (C.3): a sum of many independent terms is close to a normal variable; its moments are exact.

For weights θ with mean M and second moment S = E[θ²], and inputs h with mean μ and variance ν,

    mean = M μ,        var = S ν + V μ²,   V = S - M²

which is the paper's M²ν + V(μ² + ν), regrouped. Batch norm asks for the noise within the batch alone; with μ̄ the mean
of μ over the batch that is S ν + V (μ - μ̄)², and no bias variance. What neighbouring inputs have in common comes on top
(`neighbours`).

In a convolution μ̄ depends on the place in the kernel, since the places see different borders and padding. Its mean c
over the places stands for all of them: V (μ - c)² = V μ (μ - 2c) + V c², where the padding is zero in the product, and
one product is saved. That counts V (μ̄ - c)² too much, which is little: a kernel of three sees 31 of 32 columns at its
edge (`tests/nn/test_norm.py` has how little).

Where either the weights or the inputs are ±a, one of S and ν + μ² is constant, and what remains is one product of
squares: two products in all, where a naive layer needs three. `_TwoProducts` forms the squares on the fly, so that
backward keeps μ and M only, which a plain layer keeps too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from bqn.beliefs import Belief, Categorical, Gaussian, mean_of, var_of
from bqn.propagate import compiled, cpu, devices, half, levels_half, neighbours, products, together
from bqn.propagate.neighbours import Neighbours
from bqn.propagate.products import Geometry, per_unit, product
from bqn.propagate.windows import output_size, over_places, windows

# Largest fan-in of a convolution whose windows are gathered.
_GATHER_UP_TO = 128


class _TwoProducts(torch.autograd.Function):
    """`product(x, w) + bias` and `total - product((x - centre)², w²)`, the latter never below zero.

    Saves x and w, not their squares, and forms both gradients of the weight in one tensor. `centre` (None for zero)
    broadcasts over the batch; a convolution leaves out its square, see `_squares`.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(
        x: Tensor, centre: Tensor | None, weight: Tensor, bias: Tensor | None, total: Tensor | float,
        geometry: Geometry | None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        var = (total - product(_squares(x, centre, geometry), weight.square(), geometry)).clamp_min(0)
        return product(x, weight, geometry, bias), var

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        x, centre, weight, bias, total, geometry = inputs
        ctx.save_for_backward(x, centre, weight)
        ctx.geometry = geometry
        ctx.bias_shape = None if bias is None else bias.shape
        ctx.total_shape = total.shape if isinstance(total, Tensor) else None
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        # A clamped entry is a zero variance met with rounding error: its gradient passes.
        grad_mean, grad_var = grads
        x, centre, weight = ctx.saved_tensors
        need = ctx.needs_input_grad
        transpose = products.transposed_linear if ctx.geometry is None else products.transposed_convolution
        grad_x = grad_centre = grad_weight = grad_bias = grad_total = None
        if grad_var is not None:
            base = x if centre is None else x - centre
            squares = _squares(x, centre, ctx.geometry)
            inner, grad_weight = transpose(
                grad_var * -2, squares, weight.square(), ctx.geometry, need[0] or need[1], need[2]
            )
            grad_weight = None if grad_weight is None else grad_weight.mul_(weight)
            if need[1] and inner is not None:
                grad_centre = -(inner * (base if ctx.geometry is None else x)).sum_to_size(centre.shape)
            grad_x = inner.mul_(base) if need[0] and inner is not None else None
            if need[4] and ctx.total_shape is not None:
                grad_total = grad_var.sum_to_size(ctx.total_shape)
        if grad_mean is not None:
            grad_x, grad_weight = transpose(grad_mean, x, weight, ctx.geometry, need[0], need[2], grad_x, grad_weight)
            if need[3]:
                grad_bias = products.sum_per_unit(grad_mean, ctx.geometry, ctx.bias_shape)
        return grad_x, grad_centre, grad_weight, grad_bias, grad_total, None


def _squares(x: Tensor, centre: Tensor | None, geometry: Geometry | None) -> Tensor:
    """(x - c)²; for a convolution without c², so that the zeros of its padding stay zeros."""
    if centre is None:
        return x.square()
    return (x - centre).square() if geometry is None else x * (x - 2 * centre)


class _NotNegative(torch.autograd.Function):
    """`x.clamp_min(0)` for a variance. What is below zero is rounding error: gradients pass, and nothing is kept."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.clamp_min(0)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0]


def not_negative(var: Tensor) -> Tensor:
    """A variance, without what rounding has taken below zero."""
    result: Tensor = _NotNegative.apply(var)  # type: ignore[no-untyped-call]
    return result


def _window_sum(per_input: Tensor, weight: Tensor, geometry: Geometry | None) -> Tensor:
    """Sum of a number per input over all inputs that each output reads, shaped to broadcast over the output."""
    if geometry is None:
        return per_input.sum(-1, keepdim=True)
    per_group = per_input.unflatten(1, (geometry.groups, -1)).sum(2)
    box = per_input.new_ones(geometry.groups, 1, *weight.shape[2:])
    counted = product(per_group, box, geometry)
    return counted.repeat_interleave(weight.shape[0] // geometry.groups, 1) if geometry.groups > 1 else counted


def _moments(
    x: Belief, weight: Categorical, bias: Tensor | None, geometry: Geometry | None, centre: Tensor | None = None,
    constant: Tensor | float = 0.0,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """`M μ + bias` and `S ν + V (μ - centre)² + constant` with as few products as the levels allow; see `_squares`."""
    mean = mean_of(x)
    input_square = x.constant_square if isinstance(x, Categorical) else None
    weight_square = weight.constant_square
    if weight_square is None and (input_square is None or centre is not None):
        noise, var = product(_squares(mean, centre, geometry), weight.var, geometry), var_of(x)
        if var is not None:
            noise = noise + product(var, weight.mean.square() + weight.var, geometry)
        return product(mean, weight.mean, geometry, bias), noise + constant
    if weight_square is not None and _compiled(x, weight, bias, geometry, centre):
        return compiled.moments(mean, centre, weight.mean, weight.var, bias, weight_square, input_square)
    total = _constant_part(x, centre, weight, geometry, input_square, weight_square) + constant
    both: tuple[Tensor, Tensor] = _TwoProducts.apply(mean, centre, weight.mean, bias, total, geometry)  # type: ignore[no-untyped-call]
    return both


def _compiled(
    x: Belief, weight: Categorical, bias: Tensor | None, geometry: Geometry | None, centre: Tensor | None
) -> bool:
    """Whether `compiled.moments` can do it: a matrix product of inputs that are known or ±a."""
    known = isinstance(x, Tensor) or (isinstance(x, Categorical) and x.constant_square is not None)
    if geometry is not None or not known or not weight.var_at_hand or weight.mean.dim() != 2:
        return False
    mean = mean_of(x)
    return mean.dim() == 2 and mean.shape[0] > 0 and cpu.usable(mean, centre, weight.mean, weight.var, bias)


def _constant_part(
    x: Belief,
    centre: Tensor | None,
    weight: Categorical,
    geometry: Geometry | None,
    input_square: float | None,
    weight_square: float | None,
) -> Tensor | float:
    """`Σ S (ν + (μ - centre)²)` where S or ν + μ² is a constant, broadcastable to the output; see `_squares`."""
    mean = mean_of(x)
    one_example = mean[..., :1, :] if geometry is None else mean[:1]  # a constant is the same for all examples
    if weight_square is None:
        assert input_square is not None
        second_moment = weight.mean.square() + weight.var
        return product(torch.full_like(one_example, input_square), second_moment, geometry)
    if input_square is not None and geometry is None:
        count = weight_square * input_square * mean.shape[-1]
        if centre is None:
            return count
        # ν + (μ - c)² = const - 2 μ c + c²: no square of the batch is kept for backward
        along = mean @ centre.unsqueeze(-1) if centre.dim() == 1 else (mean * centre).sum(-1, keepdim=True)
        return count + weight_square * (centre.square().sum(-1, keepdim=True) - 2 * along)
    if input_square is not None:
        if centre is not None:
            return weight_square * _window_sum(input_square - 2 * centre * mean, weight.mean, geometry)
        # constant but for the padding
        return weight_square * _window_sum(torch.full_like(one_example, input_square), weight.mean, geometry)
    square, var = _squares(mean, centre, geometry), var_of(x)
    return weight_square * _window_sum(square if var is None else var + square, weight.mean, geometry)


def batch_centre(mean: Tensor, kernel: tuple[int, ...], geometry: Geometry | None) -> Tensor:
    """The mean over the batch of what each weight reads.

    For a matrix product `(in_features,)`. For a convolution `(in_channels, *kernel)`: the offsets of a kernel see
    different parts of the image, and the zeros of the padding count as what they are.
    """
    wide = mean.dtype if mean.dtype == torch.float64 else torch.float32
    if geometry is None:
        return mean.flatten(0, -2).mean(0, dtype=wide)
    read = windows(mean.mean(0, dtype=wide), kernel, geometry.stride, geometry.padding, geometry.dilation)
    return read.flatten(1, len(kernel)).mean(1).reshape(-1, *kernel)


def _moments_within_batch(
    x: Belief, weight: Categorical, bias: Tensor | None, geometry: Geometry | None, centre: Tensor
) -> tuple[Tensor, Tensor]:
    """The moments with `V (μ - c)²`, c the centre, in a convolution that of each channel."""
    if geometry is None:
        return _moments(x, weight, bias, None, centre)
    if isinstance(x, Tensor) and gathers(x, weight, geometry):
        return moments_of_windows(x, weight, bias, geometry, centre)
    middle = over_places(centre)
    square = (
        middle.square().unflatten(0, (geometry.groups, -1)).repeat_interleave(weight.shape[0] // geometry.groups, 0)
    )
    constant = per_unit((weight.var * square).flatten(1).sum(-1), geometry)
    mean, var = _moments(x, weight, bias, geometry, middle, constant)
    return mean, not_negative(var)


def gathers(x: Tensor, weight: Categorical, geometry: Geometry) -> bool:
    """Whether a convolution is better done as a matrix product: an image of few channels on a GPU.

    Convolution libraries are made for many channels; and where the windows lie side by side, the centre can be taken
    out of each of them before squaring.
    """
    if devices.kind(x) != "cuda" or x.requires_grad:
        return False
    return geometry.groups == 1 and weight.shape[1:].numel() <= _GATHER_UP_TO


def moments_of_windows(
    x: Tensor, weight: Categorical, bias: Tensor | None, geometry: Geometry, centre: Tensor
) -> tuple[Tensor, Tensor]:
    """The same for an input that is known, with one row for each window."""
    middle = over_places(centre).expand_as(centre).flatten()
    kernel = tuple(weight.shape[2:])
    mean, var = _OfWindows.apply(x, middle, weight.mean.flatten(1), weight.var.flatten(1), kernel, geometry)  # type: ignore[no-untyped-call]
    mean = mean if bias is None else mean + bias
    return mean.movedim(-1, 1), var.movedim(-1, 1)  # the channels stay the last in memory


class _OfWindows(torch.autograd.Function):
    """The products of M with all windows and of V with their squares; x and the middle are data and get no gradient.

    Keeps the image, not its windows, which are as many times larger as the kernel has places.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(
        x: Tensor, middle: Tensor, mean: Tensor, var: Tensor, kernel: tuple[int, ...], geometry: Geometry
    ) -> tuple[Tensor, Tensor]:
        rows = _rows(x, kernel, geometry)
        return F.linear(rows, mean), F.linear((rows - middle).square(), var)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        x, middle, _, _, ctx.kernel, ctx.geometry = inputs
        ctx.save_for_backward(x, middle)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        x, middle = ctx.saved_tensors
        rows = _rows(x, ctx.kernel, ctx.geometry)
        by_mean, by_var = (
            None if grad is None else grad.flatten(0, -2).mT @ read.flatten(0, -2)
            for grad, read in zip(grads, (rows, (rows - middle).square()), strict=True)
        )
        return None, None, by_mean, by_var, None, None


def _rows(x: Tensor, kernel: tuple[int, ...], geometry: Geometry) -> Tensor:
    """What each output reads, `(N, *output, C · K)`."""
    read = windows(x, kernel, geometry.stride, geometry.padding, geometry.dilation)  # (N, C, *output, K)
    return read.movedim(1, -2).flatten(-2)


def _moments_in_working_precision(
    x: Belief, weight: Categorical, bias: Tensor | None, geometry: Geometry | None, centre: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The moments, within the batch if a centre is given; in half precision inside `half.lowered` where safe."""
    mean, square = mean_of(x), weight.constant_square
    if square is not None and _works_in_half(x, weight, geometry):
        input_square = x.constant_square if isinstance(x, Categorical) else None
        result, var = half.moments(mean, weight.mean, centre, square, input_square, geometry)
        return result if bias is None else result + per_unit(bias, geometry).to(result.dtype), var
    if half.applies(geometry, mean) and (geometry is not None or weight.mean.dim() == 2):
        return _moments_of_levels_in_half(x, weight, bias, geometry, centre)
    x = half.raised(x, weight.dtype)
    if centre is None:
        return _moments(x, weight, bias, geometry)
    return _moments_within_batch(x, weight, bias, geometry, centre)


def _moments_of_levels_in_half(
    x: Belief, weight: Categorical, bias: Tensor | None, geometry: Geometry | None, centre: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The moments by three products in half precision, whose terms are positive, where two would be a difference."""
    input_square = x.constant_square if isinstance(x, Categorical) else None
    if isinstance(x, Categorical) and input_square is None:
        x = half.raised(x, weight.dtype)  # its moments are sums over its levels
    var = var_of(x) if input_square is None else None
    result, total = levels_half.moments_of_levels(
        mean_of(x), var, input_square, weight.mean, weight.var, centre, geometry
    )
    return result if bias is None else result + per_unit(bias, geometry), total


def _works_in_half(x: Belief, weight: Categorical, geometry: Geometry | None) -> bool:
    """Whether `half.moments` can do it: weights ±a, inputs that are known or ±a, and a product that is safe."""
    if not half.applies(geometry, mean_of(x)):
        return False
    known = isinstance(x, Tensor) or (isinstance(x, Categorical) and x.constant_square is not None)
    return known and weight.constant_square is not None


def _output_shape(x: Belief, weight: Categorical, geometry: Geometry | None) -> torch.Size:
    if geometry is None:
        replicas = torch.broadcast_shapes(x.shape[:-2], weight.shape[:-2]) if len(weight.shape) > 2 else x.shape[:-2]
        return torch.Size((*replicas, x.shape[-2], weight.shape[-2]))
    sizes = zip(x.shape[2:], weight.shape[2:], geometry.stride, geometry.padding, geometry.dilation, strict=True)
    return torch.Size((x.shape[0], weight.shape[0], *(output_size(*size) for size in sizes)))


class BatchStatistics(NamedTuple):
    """What a layer knows of its batches, for `Gaussian.within_batch`. Both are told its momentum: a number to measure
    this batch and move the running value, None for the running value itself.

    Attributes
    ----------
    centre : function of the inputs' mean and the momentum
        The mean of what each weight reads, see `batch_centre`.
    correlation : function of a function that measures it, and the momentum
        Of the sums at two positions side by side, see `neighbours`.
    """

    centre: Callable[[Tensor, float | None], Tensor]
    correlation: Callable[[Callable[[], Tensor], float | None], Tensor]


def linear(
    x: Belief,
    weight: Categorical,
    bias: Belief | None,
    geometry: Geometry | None = None,
    statistics: BatchStatistics | None = None,
    mean_field: bool = False,
) -> Gaussian:
    """Moments of `weight · x + bias`, a matrix product or a convolution.

    Parameters
    ----------
    x : belief `(..., N, in_features)`, or `(N, C, *spatial)` with a geometry
    weight : Categorical `(..., out_features, in_features)`, or `(O, C / groups, *kernel)` with a geometry
    bias : belief `(..., out_features)` or None
    geometry : Geometry or None
    statistics : BatchStatistics or None
        For `Gaussian.within_batch`.
    mean_field : bool
        Whether the sums are taken for independent; otherwise the belief says what they have in common.
    """
    mean = mean_of(x)
    bias_mean = None if bias is None else mean_of(bias)
    low = _works_in_half(x, weight, geometry)
    made_of = None if mean_field else together.units_of(x, weight, geometry)

    def moments(centre: Tensor | None) -> tuple[Tensor, Tensor]:
        inputs = x
        if not isinstance(x, Gaussian) and low:
            inputs = half.prepared(x, geometry)
        result, var = _moments_in_working_precision(inputs, weight, bias_mean, geometry, centre)
        noises = together.noise_of_neighbours(inputs, weight, geometry), together.noise_of_units(x, weight, geometry)
        return result, together.with_common_noise(var, noises)

    def total() -> tuple[Tensor, Tensor]:
        result, var = moments(None)
        bias_var = None if bias is None else var_of(bias)
        return result, var if bias_var is None else var + per_unit(bias_var, geometry).to(var.dtype)

    def within(momentum: float | None) -> Gaussian:
        if statistics is None:
            return Gaussian.of(*total())
        centre = statistics.centre(mean, momentum)
        result, var = moments(centre)
        if geometry is None or mean_field:
            return Gaussian.of(result, var, units=made_of)
        correlation = together.correlation_of_sums(x, weight, centre, statistics, momentum)
        once = tuple(1 for _ in geometry.stride)
        return Gaussian.of(result, var, Neighbours(neighbours.behind_pooling(correlation, once, geometry.stride)))

    like = weight.mean.new_empty(0, dtype=half.working_dtype(mean) if low else weight.dtype)
    return Gaussian.deferred(_output_shape(x, weight, geometry), like, total, within, units=made_of)
