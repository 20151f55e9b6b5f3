"""Pooling (C.2): averages by exact sums, maxima by products of distribution functions, choices by mixtures.

Every function takes windows: a belief whose last dimension K runs over the inputs that one output reads.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bqn.beliefs import Categorical, Gaussian
from bqn.propagate import cpu_cnn, devices
from bqn.propagate.fourier import tree_product

_FEW = 9  # places of a tile
_ROOT_HALF = math.sqrt(0.5)
_ROOT_TWO_PI = math.sqrt(2 * math.pi)


def average_windows(x: Tensor, kernel: tuple[int, ...], stride: tuple[int, ...], padding: tuple[int, ...]) -> Tensor:
    """The mean over windows of one or two dimensions, `(N, C, *in)` to `(N, C, *out)`; padded zeros count."""
    if tiles(x.shape[2:], kernel, stride, padding) or (not any(padding) and set(stride) == {1}):
        result: Tensor = _Average.apply(x, kernel, stride)  # type: ignore[no-untyped-call]
        return result
    return _average(x, kernel, stride, padding)


def running_average(x: Tensor, kernel: tuple[int, ...]) -> Tensor:
    """The mean over the window that begins at each position, `(N, C, *in)` to `(N, C, *out)`."""
    return strided_average(x, kernel, tuple(1 for _ in kernel))


def strided_average(x: Tensor, kernel: tuple[int, ...], stride: tuple[int, ...]) -> Tensor:
    """The mean over the window that begins at each position that a stride comes to, `(N, C, *in)` to `(N, C, *out)`.

    On a CPU the shifted images are added up, many times as fast as the pooling of torch; in bfloat16 they are added up
    in float32 and rounded once.
    """
    if any(window > size for window, size in zip(kernel, x.shape[2:], strict=True)):
        raise ValueError(f"a window of {kernel} does not fit into an image of {tuple(x.shape[2:])}")
    if cpu_cnn.averages(x, kernel):
        return cpu_cnn.window_means(x, kernel, stride)
    if devices.kind(x) != "cpu" or x.dtype not in (torch.float32, torch.float64):
        return _average(x, kernel, stride)
    result = x
    for axis, (size, step) in enumerate(zip(kernel, stride, strict=True), -len(kernel)):
        last = result.shape[axis] - size  # where the last window may begin
        shifted = [result.narrow(axis, offset, last + 1) for offset in range(size)]
        if step > 1:
            shifted = [image.movedim(axis, -1)[..., ::step].movedim(-1, axis) for image in shifted]
        result = sum(shifted[1:], shifted[0])
    return result / math.prod(kernel)


def _average(x: Tensor, kernel: tuple[int, ...], stride: tuple[int, ...], padding: tuple[int, ...] | int = 0) -> Tensor:
    average: Any = F.avg_pool1d if len(kernel) == 1 else F.avg_pool2d
    result: Tensor = average(x, kernel, stride, padding)
    return result


class _Average(torch.autograd.Function):
    """The mean over windows that tile the image, or begin at each of its positions.

    Torch keeps the image for the backward pass, which needs nothing of it: that spreads each gradient over its tile, or
    is again such a mean.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, kernel: tuple[int, ...], stride: tuple[int, ...]) -> Tensor:
        # Torch is slow for each output, adding up for each place: it wins where windows are large.
        few = cpu_cnn.averages(x, kernel) or (math.prod(kernel) <= _FEW and x.is_contiguous())
        return strided_average(x, kernel, stride) if few else _average(x, kernel, stride)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        _, ctx.kernel, ctx.stride = inputs

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor, None, None]:
        kernel, stride = ctx.kernel, ctx.stride
        if kernel == stride:
            return _spread(grads[0] / math.prod(kernel), kernel), None, None
        borders = [side for size in reversed(kernel) for side in (size - 1, size - 1)]
        return strided_average(F.pad(grads[0], borders), kernel, stride), None, None


class _LargestOfTwoLevels(torch.autograd.Function):
    """The mean of the largest of K variables on two levels, `(..., K)` to `(...)`; keeps the input alone.

    With q the probabilities of the lower level it is high - (high - low) ((1 - r) Π q + r min q), where r is what they
    have in common, zero by default. The derivative of the product by each input is that of all other q, formed without
    division, so that it is right where one of them is zero; that of the minimum belongs to the first smallest.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(mean: Tensor, absent: Tensor | None, together: Tensor | None, low: float, high: float) -> Tensor:
        lose = _losing(mean, absent, low, high)
        lost = tree_product(lose, -1)
        if together is not None:
            share = together.to(lost.dtype)
            lost = (1 - share) * lost + share * lose.amin(-1)
        return high - (high - low) * lost

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        mean, absent, together, ctx.low, ctx.high = inputs
        ctx.save_for_backward(mean, absent, together)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor, None, None, None, None]:
        mean, absent, together = ctx.saved_tensors
        lose = _losing(mean, absent, ctx.low, ctx.high)
        # Padding comes second to all that is there, also where nothing else is left to lose.
        present = lose if absent is None or together is None else torch.where(absent, 2.0, lose)
        gradients = _by_each(grads[0], lose.unbind(-1), present.unbind(-1), together)
        del lose, present  # before the gradients stand there twice
        by_mean = torch.stack(gradients, -1)
        return by_mean if absent is None else torch.where(absent, 0.0, by_mean), None, None, None, None


class _LargestOfTiles(torch.autograd.Function):
    """`_LargestOfTwoLevels` of the tiles of an image, `(N, C, *in)` to `(N, C, *out)`.

    Tiles are read where they lie: side by side in a dimension of their own they are a copy of the image in another
    order, which is slow to make and to undo, above all where channels lie innermost.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(mean: Tensor, together: Tensor | None, kernel: tuple[int, ...], low: float, high: float) -> Tensor:
        lose = _places(_losing(mean, None, low, high), kernel)
        lost = math.prod(lose[1:], start=lose[0])
        if together is not None:
            share = together.to(lost.dtype)
            lost = (1 - share) * lost + share * reduce(torch.minimum, lose)
        return high - (high - low) * lost

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        mean, together, ctx.kernel, ctx.low, ctx.high = inputs
        ctx.save_for_backward(mean, together)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor, None, None, None, None]:
        mean, together = ctx.saved_tensors
        lose = _places(_losing(mean, None, ctx.low, ctx.high), ctx.kernel)
        gradients = _by_each(grads[0], lose, lose, together)
        del lose
        return _tiled(gradients, ctx.kernel), None, None, None, None


def _by_each(grad: Tensor, lose: Sequence[Tensor], present: Sequence[Tensor], together: Tensor | None) -> list[Tensor]:
    """The gradients by the means of variables, given their probabilities of the lower level."""
    share = None if together is None else together.to(grad.dtype)
    behind = [grad if share is None else (1 - share) * grad]  # of each factor, the last first
    for factor in reversed(lose[1:]):
        behind.append(behind[-1] * factor)
    if share is not None:
        whole, smallest = share * grad, _first_smallest(present)
    gradients: list[Tensor] = []
    before: Tensor | None = None
    for place, factor in enumerate(lose):  # one at a time: together they would be a network's largest tensors
        gradient = behind.pop() if before is None else before * behind.pop()
        before = factor if before is None else before * factor
        if share is not None:
            gradient = gradient + torch.where(smallest == place, whole, 0.0)
        gradients.append(gradient)
    return gradients


def _first_smallest(values: Sequence[Tensor]) -> Tensor:
    """Which is the smallest, the first of equal ones.

    An index, found by comparing inputs with each other and not with their minimum: of two equal numbers a compiler may
    round one only.
    """
    least, index = values[0], torch.zeros_like(values[0], dtype=torch.int32)
    for place, value in enumerate(values[1:], 1):
        smaller = value < least
        least, index = torch.where(smaller, value, least), torch.where(smaller, place, index)
    return index


def _places(image: Tensor, kernel: tuple[int, ...]) -> list[Tensor]:
    """The image at the first place of every tile, at the second, and so on: views `(N, C, *out)`, row-major."""
    views = [image]
    for axis, size in enumerate(kernel, -len(kernel)):
        views = [view.unflatten(axis, (-1, size)).select(axis, start) for view in views for start in range(size)]
    return views


def _tiled(places: Sequence[Tensor], kernel: tuple[int, ...]) -> Tensor:
    """The image that has these tensors at the places of its tiles: the inverse of `_places`."""
    if torch.compiler.is_compiling() and len(places) <= _FEW:
        # A compiler makes one pass of a choice; of a stack it makes one a place, and another that puts them in order.
        # But at each place it forms the gradients of all.
        marks = torch.arange(len(places), device=places[0].device).view(kernel).repeat(places[0].shape[-len(kernel) :])
        spread = [_spread(place, kernel) for place in places]
        image: Tensor = spread[0]
        for index, other in enumerate(spread[1:], 1):
            image = torch.where(marks == index, other, image)
        return image
    first, inside = places[0].dim() - len(kernel), range(len(kernel))
    image = torch.stack(tuple(places), -1).unflatten(-1, kernel)
    image = image.movedim([axis - len(kernel) for axis in inside], [first + 1 + 2 * axis for axis in inside])
    for axis in inside:
        image = image.flatten(first + axis, first + axis + 1)
    return image


def _spread(image: Tensor, kernel: tuple[int, ...]) -> Tensor:
    """Each element at all places of its tile. Torch's "nearest" rounds, and is off by one in tiles of 41."""
    return F.interpolate(image, scale_factor=tuple(map(float, kernel)), mode="nearest-exact")


def _losing(mean: Tensor, absent: Tensor | None, low: float, high: float) -> Tensor:
    """The probability of the lower level; one for padding, which never wins."""
    lose = (high - mean) / (high - low)
    return lose if absent is None else torch.where(absent, 1.0, lose)


def maximum_categorical(x: Categorical, absent: Tensor | None = None, together: Tensor | None = None) -> Categorical:
    """The law of the largest of K variables, for independent ones P(max ≤ q) = Π P(x ≤ q).

    Parameters
    ----------
    x : Categorical `(..., K)`
    absent : bool Tensor broadcastable to `(..., K)`, or None
        True for padding, which never wins.
    together : Tensor `()` or None
        What the variables have in common, see `neighbours`: with this probability all go up and down together.
    """
    levels = x.level_values
    if len(levels) == 2:
        largest: Tensor = _LargestOfTwoLevels.apply(x.mean, absent, together, *levels)  # type: ignore[no-untyped-call]
        return Categorical.of(levels, mean=largest)
    cumulative = x.probs.cumsum(-1)[..., :-1]
    cumulative = cumulative if absent is None else torch.where(absent.unsqueeze(-1), 1.0, cumulative)
    below = tree_product(cumulative, -2)
    if together is not None:
        share = together.to(below.dtype)
        below = (1 - share) * below + share * cumulative.amin(-2)
    one = torch.ones_like(x.probs[..., 0, :1])  # not of `below`, which has no entry where there is one level
    zero = torch.zeros_like(one)
    return Categorical.of(levels, probs=torch.diff(torch.cat((zero, below, one), -1), dim=-1).clamp_min(0))


def tiles(size: Sequence[int], kernel: tuple[int, ...], stride: tuple[int, ...], padding: tuple[int, ...]) -> bool:
    """Whether windows tile an image: each element of it is in one of them."""
    whole = all(extent % step == 0 for extent, step in zip(size, stride, strict=True))
    return kernel == stride and not any(padding) and whole


def maximum_of_tiles(x: Categorical, kernel: tuple[int, ...], together: Tensor | None = None) -> Categorical:
    """`maximum_categorical` of the tiles of an image on two levels, `(N, C, *in)` to `(N, C, *out)`."""
    levels = x.level_values
    largest: Tensor = _LargestOfTiles.apply(x.mean, together, kernel, *levels)  # type: ignore[no-untyped-call]
    return Categorical.of(levels, mean=largest)


def maximum_gaussian(x: Gaussian, absent: Tensor | None = None, together: Tensor | None = None) -> Gaussian:
    """A normal law for the largest of K normal variables, matched in mean and variance pair by pair (Clark 1961).

    `together` is the correlation of each pair, also of the largest so far with the next; zero by default.

    Exact moments for K = 2. Beyond that each intermediate maximum is taken as normal: for four inputs of random
    variances the mean is off by up to 3 % of a deviation and the variance by 5 % on average, 16 % at worst.
    """
    means, variances = list(x.mean.unbind(-1)), list(x.var.unbind(-1))
    missing = [None] * len(means) if absent is None else list(absent.unbind(-1))
    mean, var, gone = means[0], variances[0], missing[0]
    for other_mean, other_var, other_gone in zip(means[1:], variances[1:], missing[1:], strict=True):
        larger_mean, larger_var = _larger_of_two(mean, var, other_mean, other_var, together)
        if gone is not None and other_gone is not None:
            larger_mean = torch.where(gone, other_mean, torch.where(other_gone, mean, larger_mean))
            larger_var = torch.where(gone, other_var, torch.where(other_gone, var, larger_var))
            gone = gone & other_gone
        mean, var = larger_mean, larger_var
    return Gaussian.of(mean, var)


def _larger_of_two(
    a: Tensor, a_var: Tensor, b: Tensor, b_var: Tensor, correlation: Tensor | None
) -> tuple[Tensor, Tensor]:
    spread = a_var + b_var
    if correlation is not None:
        tiny = torch.finfo(spread.dtype).tiny  # the root of zero has no gradient
        spread = (spread - 2 * correlation.to(spread.dtype) * (a_var * b_var).clamp_min(tiny).sqrt()).clamp_min(0)
    noisy = ~(spread <= torch.finfo(spread.dtype).tiny ** 0.5)
    root = torch.where(noisy, spread, 1.0).sqrt()
    score = torch.where(noisy, (a - b) / root, torch.where(a >= b, 40.0, -40.0).to(a.dtype))
    root = torch.where(noisy, root, 0.0)
    a_wins = 0.5 * torch.erfc(-score * _ROOT_HALF)
    b_wins = 0.5 * torch.erfc(score * _ROOT_HALF)
    density = torch.exp(-0.5 * score.square()) / _ROOT_TWO_PI
    gap = a - b
    # Written in the gap, not in raw second moments, so that nothing cancels for means far from zero.
    mean = b + gap * a_wins + root * density
    var = a_var * a_wins + b_var * b_wins + gap.square() * a_wins * b_wins + gap * root * density * (b_wins - a_wins)
    return mean, (var - (root * density).square()).clamp_min(0)


def choice_categorical(x: Categorical, weights: Tensor) -> Categorical:
    """The law of one of K variables, the k-th chosen with probability `weights[k]`."""
    if len(x.level_values) == 2:
        return Categorical.of(x.level_values, mean=x.mean @ weights)
    return Categorical.of(x.level_values, probs=(x.probs * weights.unsqueeze(-1)).sum(-2))


def choice_gaussian(mean: Tensor, var: Tensor | None, weights: Tensor) -> Gaussian:
    """Mean and variance of such a choice among normal (or, without `var`, known) variables."""
    chosen = mean @ weights
    scatter = (mean - chosen.unsqueeze(-1)).square() @ weights
    return Gaussian.of(chosen, scatter if var is None else scatter + var @ weights)
