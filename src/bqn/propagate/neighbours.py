"""What the positions of a channel have in common: one drawn filter serves them all, and so does its noise.

Mean field takes the elements of a belief for independent. Behind a convolution they are not: where a drawn filter errs,
it errs in the same way at the next position, which reads nearly the same. Such units do not average out, and the
maximum of four of them is not that of four independent ones. So a belief behind a convolution and batch norm carries
one number more: the correlation r of the noise at two positions side by side, taken to be r^d at distance d. With M, V
and S the means, variances and second moments of weights, ν the variances of inputs, it follows the layers,

    weighted sum    (V̄ A₁ + S̄ r ν̄) / (V̄ A₀ + S̄ ν̄)     A_d: mean product of centred inputs at distance d; bars: means
    sign            (2/π) arcsin r                      exact for two normal variables of mean zero
    pooling         mean r^d from window to window / mean r^d within a window

and enters

    weighted sum    + Σ_c G_c ν̄_c    G_c = Σ M_k M_k' r^d over pairs of places, ν̄_c: mean variance read from channel c
    average         mean r^d within a window, times the variance, instead of 1/n
    maximum         P(max ≤ q) = r̄ min P(x ≤ q) + (1 - r̄) Π P(x ≤ q)    r̄: mean r^d of two inputs of a window

The first is the covariance of M · x, but for taking the variances within a window to be alike, which counts a little
too much where they are not; for n inputs of equal marginals on two levels the last has their pairwise correlations. One
number a layer is a coarse summary: means over channels, places and examples stand for each of them (`bqn faithfulness`
shows what is left of the error). Dropout, products, random thresholds, probabilistic pooling and sums of two
Categoricals drop it, and so do exact sums and averages that were asked for by name.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from bqn.propagate import batch, cpu_cnn, devices
from bqn.propagate.pooling import strided_average
from bqn.propagate.windows import padded, windows

if TYPE_CHECKING:
    from bqn.propagate.products import Geometry

_MOST = 0.999  # beyond it the arc sine is too steep for numbers that are estimated
_FEW_PLACES = 9  # those of a 3 × 3 filter
_BLOCK = 256  # rows of a matrix that are worth a product


class Neighbours(NamedTuple):
    """How much the noise at neighbouring positions of a belief has in common.

    Attributes
    ----------
    correlation : Tensor `()`
        Of two positions side by side, from 0 to 1; without a gradient.
    places : tuple of int or None
        The sizes of the spatial dimensions that were flattened into the last one; None while they are dimensions.
    """

    correlation: Tensor
    places: tuple[int, ...] | None = None


# --- how far the correlation reaches ----------------------------------------------------------------------------------


def matrix(correlation: Tensor, sizes: tuple[int, ...], steps: tuple[int, ...] | None = None) -> Tensor:
    """Correlations `(K, K)` of all pairs of places of a window, row-major; `steps` is its dilation."""
    # Arithmetic instead of a table: nothing is copied from the host, which CUDA graphs and compilers dislike.
    rest = torch.arange(math.prod(sizes), device=correlation.device)
    square = torch.zeros((), dtype=rest.dtype, device=rest.device)
    for size, step in zip(reversed(sizes), reversed(steps or tuple(1 for _ in sizes)), strict=True):
        place, rest = rest % size, rest // size
        square = square + ((place - place.unsqueeze(-1)) * step).square()
    return torch.pow(correlation, square.to(correlation.dtype).sqrt())


def matrix_of_pairs(correlation: Tensor, sizes: tuple[int, ...], steps: tuple[int, ...] | None = None) -> Tensor:
    """The same with zeros on the diagonal: what different places have in common."""
    apart = matrix(correlation, sizes, steps)
    return apart - torch.eye(apart.shape[0], dtype=apart.dtype, device=apart.device)


def of_average(correlation: Tensor, kernel: tuple[int, ...]) -> Tensor:
    """The variance of the mean over a window, for inputs of variance one."""
    return _between(correlation, kernel, tuple(0 for _ in kernel))


def of_pair(correlation: Tensor, kernel: tuple[int, ...]) -> Tensor:
    """The correlation of two inputs of a window, on average over its pairs."""
    count = math.prod(kernel)
    return correlation if count == 1 else (of_average(correlation, kernel) * count - 1) / (count - 1)


def behind_pooling(correlation: Tensor, kernel: tuple[int, ...], stride: tuple[int, ...]) -> Tensor:
    """The correlation of the averages over two windows side by side, on average over the dimensions."""
    axes = range(len(kernel))
    beside = [_between(correlation, kernel, tuple(stride[k] if k == axis else 0 for k in axes)) for axis in axes]
    return sum(beside[1:], beside[0]) / (len(kernel) * of_average(correlation, kernel))


def behind_sign(correlation: Tensor) -> Tensor:
    """The correlation of the signs of two normal variables of mean zero."""
    return (2 / math.pi) * torch.asin(correlation)


def _between(correlation: Tensor, kernel: tuple[int, ...], shift: tuple[int, ...]) -> Tensor:
    """The mean of r^d from a place of a window to one of the window that is shifted."""
    pairs = {0: 1}  # how many have which squared distance
    for size, by in zip(kernel, shift, strict=True):
        wider: dict[int, int] = {}
        for square, count in pairs.items():
            for gap in range(1 - size, size):
                longer = square + (gap + by) ** 2
                wider[longer] = wider.get(longer, 0) + count * (size - abs(gap))
        pairs = wider
    terms = [correlation ** math.sqrt(square) * count for square, count in pairs.items()]
    return sum(terms[1:], terms[0]) / math.prod(kernel) ** 2


# --- where it comes from ----------------------------------------------------------------------------------------------


@torch.no_grad()
def of_sums(
    mean: Tensor, var: Tensor | None, centre: Tensor, weight: tuple[Tensor, Tensor], known: Neighbours | None
) -> Tensor:
    """The correlation of a filter's sums at two positions side by side, from this batch.

    Parameters
    ----------
    mean, var : Tensor `(N, C, *spatial)`, moments of the inputs; no `var` for inputs that are known
    centre : Tensor `(C, ...)`, the mean of what the weights read
    weight : mean of the weights' variances and of their second moments
    known : what the inputs have in common
    """
    wide = mean.dtype if mean.dtype == torch.float64 else torch.float32
    middle = centre.flatten(1).mean(1).to(wide).reshape(-1, *(1 for _ in mean.shape[2:]))
    deviation = mean.to(wide) - middle
    axes = [axis for axis, size in enumerate(mean.shape[2:], 2) if size > 1]
    here = _cropped(deviation, axes)  # the positions that have neighbours along all axes: one domain for all sums
    beside = [_cropped(deviation, axes, moved=axis) for axis in axes] or [here]
    lag = (here * sum(beside[1:], beside[0])).mean() / len(beside)
    doubt = torch.zeros_like(lag) if var is None else _cropped(var, axes).mean(dtype=wide)
    square, lag, doubt = batch.mean_of_all(torch.stack((here.square().mean(), lag, doubt))).unbind()
    noise, second = (number.to(wide) for number in weight)
    joint = torch.zeros_like(doubt) if known is None else known.correlation.to(wide) * doubt
    whole = noise * square + second * doubt
    found = (noise * lag + second * joint) / torch.where(whole > 0, whole, 1.0)
    return found.clamp(0.0, _MOST)


def _cropped(tensor: Tensor, axes: list[int], moved: int | None = None) -> Tensor:
    """All but the last places along these axes, or all but the first along the one that is moved."""
    for axis in axes:
        tensor = tensor.narrow(axis, int(axis == moved), tensor.shape[axis] - 1)
    return tensor


# --- what it does to a sum --------------------------------------------------------------------------------------------


def common_weight(
    mean: Tensor, correlation: Tensor, sizes: tuple[int, ...], steps: tuple[int, ...] | None = None
) -> Tensor:
    """G: what the noise of a channel is multiplied with beyond the squares, `(..., K)` to `(...)`."""
    return over_learned_pairs(mean, matrix_of_pairs(correlation.to(mean.dtype), sizes, steps))


def over_learned_pairs(weight: Tensor, near: Tensor) -> Tensor:
    """`over_pairs` of weights that are learned, with a gradient that keeps them alone."""
    common: Tensor = _OverPairs.apply(weight, near)  # type: ignore[no-untyped-call]
    return common


def over_pairs(weight: Tensor, near: Tensor) -> Tensor:
    """Σ w_p w_q r_pq over pairs of places, `(..., K)` to `(...)`; `near` as `matrix_of_pairs` gives it."""
    return (beside(weight, near) * weight).sum(-1)


def beside(weight: Tensor, near: Tensor) -> Tensor:
    """What stands beside each place, by how near it is: `weight @ near`, `(..., K)`.

    So small a matrix wastes a library's tiles on a GPU. There many places are multiplied for several channels at once.
    Few become a sum while they are compiled, which fuses with the rest. Of many a sum would not pay: the powers in
    `near` would be computed anew for each element of `weight`.
    """
    return _way_beside(near.shape[0], devices.kind(weight), torch.compiler.is_compiling())(weight, near)


def _way_beside(places: int, device: str, compiling: bool) -> Callable[[Tensor, Tensor], Tensor]:
    if places <= _FEW_PLACES:
        return _beside_as_sum if compiling else torch.matmul
    return _beside_by_blocks if device == "cuda" else torch.matmul


def _beside_as_sum(weight: Tensor, near: Tensor) -> Tensor:
    return (weight.unsqueeze(-1) * near).sum(-2)


def _beside_by_blocks(weight: Tensor, near: Tensor) -> Tensor:
    """A product with a larger matrix, whose diagonal has `near` once for each of several channels."""
    places, channels = near.shape[0], weight.shape[-2] if weight.dim() > 1 else 1
    count = max(c for c in range(1, max(1, _BLOCK // places) + 1) if channels % c == 0)
    each = torch.eye(count, dtype=near.dtype, device=near.device)
    block = (each[:, None, :, None] * near[:, None, :]).reshape(count * places, count * places)
    return (weight.reshape(weight.numel() // len(block), len(block)) @ block).reshape(weight.shape)


class _OverPairs(torch.autograd.Function):
    """`over_pairs`. Keeps the weight alone, which others keep too, and not its product with the correlations.

    These are measured, not learned: they get no gradient.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(weight: Tensor, near: Tensor) -> Tensor:
        return cpu_cnn.over_pairs(weight, near) if _compiled(weight, near) else over_pairs(weight, near)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor, None]:
        weight, near = ctx.saved_tensors
        if _compiled(weight, near):
            return cpu_cnn.beside(weight, near, 2 * grads[0].contiguous()), None
        return 2 * grads[0].unsqueeze(-1) * beside(weight, near), None


def _compiled(weight: Tensor, near: Tensor) -> bool:
    """Whether `cpu_cnn` does it: on a CPU, for so many places that it pays."""
    return near.shape[0] > _FEW_PLACES and weight.dtype == near.dtype and cpu_cnn.pairs(weight, near)


def inside(correlation: Tensor, sizes: tuple[int, ...], kernel: tuple[int, ...], geometry: Geometry) -> Tensor:
    """How much of G counts at each output: pairs of places of which one lies in the padding have nothing in common.

    `(1, 1, *out)`, relative to the share of the places that lie inside, which ν̄ knows of already.
    """
    image = correlation.new_ones((1, 1, *sizes))
    marks = windows(image, kernel, geometry.stride, geometry.padding, geometry.dilation)
    apart = matrix_of_pairs(correlation, kernel, geometry.dilation)
    pairs = (marks @ apart * marks).sum(-1)
    whole = apart.sum() * marks.mean(-1)
    return torch.where(whole > 0, pairs / torch.where(whole > 0, whole, 1.0), 1.0)


class Reading(NamedTuple):
    """Which inputs a unit reads: sizes of the window and padding, how it walks, and the levels of inputs on two."""

    kernel: tuple[int, ...]
    padding: tuple[int, ...]
    stride: tuple[int, ...]
    pair: tuple[float, ...] | None


def common_noise(mean: Tensor, var: Tensor | None, weight: Tensor, reading: Reading, groups: int = 1) -> Tensor:
    """Σ_c G_c ν̄_c with ν̄ the mean variance that each window reads from each channel; the padding has none.

    Parameters
    ----------
    mean, var : Tensor `(N, C, *in)`
        Moments of the inputs. On two levels the variance follows from the mean, and `var` is None.
    weight : Tensor `(O, C / groups)`, G
    reading : Reading

    Returns
    -------
    Tensor `(N, O, *out)`, of the dtype of the inputs.
    """
    result: Tensor = _CommonNoise.apply(mean, var, weight, reading, groups)  # type: ignore[no-untyped-call]
    return result


class _CommonNoise(torch.autograd.Function):
    """Keeps inputs and weights alone; backward forms the averages anew."""

    generate_vmap_rule = True

    @staticmethod
    def forward(mean: Tensor, var: Tensor | None, weight: Tensor, reading: Reading, groups: int) -> Tensor:
        read, places = _operands(mean, var, weight, reading)
        still = [0] * len(reading.kernel)
        ones = [1] * len(still)
        result = torch.convolution(read, places, None, ones, still, ones, False, still, groups)
        return result if result.dtype == mean.dtype else result.to(mean.dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        mean, var, weight, ctx.reading, ctx.groups = inputs
        ctx.save_for_backward(mean, var, weight)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        mean, var, weight = ctx.saved_tensors
        read, places = _operands(mean, var, weight, ctx.reading)
        still = [0] * len(ctx.reading.kernel)
        ones = [1] * len(still)
        by_read, by_weight, _ = torch.ops.aten.convolution_backward(
            grads[0].to(read.dtype), read, places, None, ones, still, ones, False, still, ctx.groups,
            [True, True, False],
        )  # fmt: skip
        spread = _spread(by_read, mean, ctx.reading).to(mean.dtype)
        by_weight = by_weight.reshape(weight.shape).to(weight.dtype)
        if ctx.reading.pair is None:
            return None, spread, by_weight, None, None
        return (sum(ctx.reading.pair) - 2 * mean) * spread, None, by_weight, None, None


def _operands(mean: Tensor, var: Tensor | None, weight: Tensor, reading: Reading) -> tuple[Tensor, Tensor]:
    """ν̄ and G as operands of a convolution of one place; in half precision where inputs and products are."""
    kernel, padding, stride, pair = reading
    if pair is not None:
        var = ((pair[1] - mean) * (mean - pair[0])).clamp_min(0)
    assert var is not None
    if _reads_all(var, reading):
        read = var.mean(tuple(range(2, var.dim())), keepdim=True)
    else:
        read = padded(var, padding)
        for one, walk in _one_axis_each(kernel, stride):
            read = strided_average(read, one, walk)
    read = read if devices.multiplies(read) else read.to(weight.dtype)
    return read, weight.to(read.dtype).reshape(*weight.shape, *(1 for _ in kernel))


def _reads_all(image: Tensor, reading: Reading) -> bool:
    """Whether there is one window, which is the whole image, as of a layer behind `Flatten`."""
    return reading.kernel == tuple(image.shape[2:]) and not any(reading.padding)


def _spread(grad: Tensor, like: Tensor, reading: Reading) -> Tensor:
    """The gradient by the variances from that by what the windows read of them."""
    kernel, padding, stride, _ = reading
    sizes = tuple(like.shape[2:])
    if _reads_all(like, reading):
        return (grad / math.prod(kernel)).expand(like.shape)
    if cpu_cnn.averages(grad, kernel):
        return cpu_cnn.window_means_backward(grad, sizes, kernel, stride, padding)
    for axis, step in enumerate(stride, 2):
        grad = _spaced(grad, axis, step)
    known = zip(sizes, grad.shape[2:], padding, kernel, strict=True)
    borders = [(width - 1 - pad, size + pad - places) for size, places, pad, width in known]
    spread = F.pad(grad, [side for both in reversed(borders) for side in both])
    for one, walk in _one_axis_each(kernel, tuple(1 for _ in kernel)):
        spread = strided_average(spread, one, walk)
    return spread


def _one_axis_each(kernel: tuple[int, ...], stride: tuple[int, ...]) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """The windows of averages that make one together: large ones are cheaper axis by axis."""
    if math.prod(kernel) <= 9:
        return [(kernel, stride)]
    axes = range(len(kernel))
    return [(_only(kernel, axis, axes), _only(stride, axis, axes)) for axis in axes]


def _only(numbers: tuple[int, ...], axis: int, axes: range) -> tuple[int, ...]:
    return tuple(numbers[k] if k == axis else 1 for k in axes)


def _spaced(tensor: Tensor, axis: int, step: int) -> Tensor:
    """With `step - 1` zeros behind each element along an axis."""
    if step == 1:
        return tensor
    apart = tensor.unsqueeze(axis + 1)
    return F.pad(apart, [0, 0] * (apart.dim() - axis - 2) + [0, step - 1]).flatten(axis, axis + 1)
