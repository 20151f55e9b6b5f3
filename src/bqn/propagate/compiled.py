"""What a training step of a fully connected network is made of, each part with its gradient as few compiled passes.

At a batch of a hundred most tensors are small, and a step of many small operations spends its time on calling them and
on keeping account of them for backward. These functions are the same formulas as those of plain torch, which say what
they mean and which every other device, dtype and transform uses:

    tilt_and_kl        a posterior on two levels (`nn.Posterior`)
    moments            sums over inputs with weights of a constant square (`clt`)
    normalized_sign    batch norm and sign (`normalized_sign`)
    common_noise       what sums over units gain that have their inputs in common (`units`), by mean slopes
    noise_of_each      the same with slopes of each example
    with_noise         a variance with that (`together`)
    tilted_likelihood  the bound on the log-likelihood of a softmax (`heads`)

Matrix products stay with torch, which has all cores for them. Callers ask `cpu.usable` first.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function

from bqn.propagate import batch, cpu, cpu_cnn
from bqn.propagate.normalization import Normalization, coefficients, through_shared_statistics

Gradients = tuple[Tensor | None, ...]
Backward = Callable[..., Gradients]


def _require_once() -> None:
    """Raise if a backward pass is to be differentiated itself: what is compiled has no second derivative."""
    if torch.is_grad_enabled():
        raise RuntimeError(
            "create_graph=True needs plain torch: set the environment variable BQN_CPU_KERNELS=torch, or use float64"
        )


def _in_full_precision(backward: Backward) -> Backward:
    """Backward passes outside of autocast, which a caller may have begun since: C reads what its products make."""

    @functools.wraps(backward)
    def call(ctx: Any, *grads: Tensor | None) -> Gradients:
        if not torch.is_autocast_enabled("cpu"):
            return backward(ctx, *grads)
        with torch.autocast("cpu", enabled=False):
            return backward(ctx, *grads)

    return call


def _contiguous(grad: Tensor | None) -> Tensor | None:
    return None if grad is None else grad.contiguous()


def tilt_and_kl(logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """m = P(upper) - P(lower) for pairs of logits `(..., 2)`, 1 - m², and the KL from even odds summed over all."""
    result: tuple[Tensor, Tensor, Tensor] = _TiltAndKL.apply(logits)  # type: ignore[no-untyped-call]
    return result


class _TiltAndKL(Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        tilt, noise, kl = cpu.tilt_and_kl(logits)
        ctx.save_for_backward(logits, tilt)
        ctx.set_materialize_grads(False)
        return tilt, noise, kl

    @staticmethod
    def backward(ctx: Any, by_tilt: Tensor | None, by_noise: Tensor | None, by_kl: Tensor | None) -> Tensor:
        _require_once()
        logits, tilt = ctx.saved_tensors
        rate = 0.0 if by_kl is None else float(by_kl)
        return cpu.tilt_and_kl_backward(logits, tilt, _contiguous(by_tilt), _contiguous(by_noise), rate)


def moments(
    x: Tensor, centre: Tensor | None, weight: Tensor, noise: Tensor, bias: Tensor | None, weight_square: float,
    input_square: float | None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Mean and variance of `weight · x + bias`, the latter Σ S ν + V (x - centre)² as in `clt`, `(N, O)` each.

    Parameters
    ----------
    x : Tensor `(N, I)`, means of the inputs
    centre : Tensor `(I,)` or None for zero
    weight, noise : Tensor `(O, I)`, means M and variances V of the weights
    bias : Tensor `(O,)` or None
    weight_square : float, the square S of the weights
    input_square : float or None, that of the inputs; None for inputs that are known
    """
    result: tuple[Tensor, Tensor] = _Moments.apply(x, centre, weight, noise, bias, weight_square, input_square)  # type: ignore[no-untyped-call]
    return result


class _Moments(Function):
    """Gradients by M and V stay apart until they meet in the posterior, which spares a pass over the weights."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, centre: Tensor | None, weight: Tensor, noise: Tensor, bias: Tensor | None,
        weight_square: float, input_square: float | None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        squares, total = cpu.centred_squares(x, centre, input_square, weight_square)
        ctx.save_for_backward(x, centre, weight, noise, squares)
        ctx.scale = None if total is None else weight_square
        ctx.set_materialize_grads(False)
        mean = torch.nn.functional.linear(x, weight, bias)
        return mean, squares @ noise.mT if total is None else torch.addmm(total, squares, noise.mT)

    @staticmethod
    @_in_full_precision
    def backward(ctx: Any, by_mean: Tensor | None, by_var: Tensor | None) -> Gradients:
        _require_once()
        x, centre, weight, noise, squares = ctx.saved_tensors
        need, by_x, by_centre, by_noise = ctx.needs_input_grad, None, None, None
        if need[0] or need[1]:
            by_x = torch.zeros_like(x) if by_mean is None else by_mean @ weight
        if by_var is not None:
            by_noise = by_var.mT @ squares if need[3] else None
            if by_x is not None:
                by_total = None if ctx.scale is None else by_var.sum(1)
                by_centre = cpu.centred_squares_backward(x, centre, by_var @ noise, by_total, ctx.scale or 0.0, by_x)
        by_weight = by_mean.mT @ x if by_mean is not None and need[2] else None
        by_bias = by_mean.sum(0) if by_mean is not None and need[4] else None
        return by_x, by_centre, by_weight, by_noise, by_bias, None, None


def normalized_sign(source: Normalization) -> Tensor:
    """The mean of the sign behind batch norm."""
    result: Tensor = _NormalizedSign.apply(*source, False)[0]  # type: ignore[no-untyped-call]
    return result


def normalized_sign_and_slope(source: Normalization) -> tuple[Tensor, Tensor]:
    """The same, and its slope by the mean in front of batch norm."""
    result: tuple[Tensor, Tensor] = _NormalizedSign.apply(*source, True)  # type: ignore[no-untyped-call]
    return result


class _NormalizedSign(Function):
    """As `normalized_sign._NormalizedSign`. The slope is g = sgn(γ) e / √v; ∂g/∂z = -z g and ∂g/∂v = -g / 2v."""

    @staticmethod
    def forward(
        ctx: Any, mean: Tensor, var: Tensor, centre: Tensor, total: Tensor, weight: Tensor | None, bias: Tensor | None,
        from_batch: bool, with_slope: bool,
    ) -> tuple[Tensor, Tensor | None]:  # fmt: skip
        ctx.save_for_backward(mean, var, centre, total, weight, bias)
        ctx.share = batch.current_share() if from_batch else None
        ctx.count = mean.numel() // mean.shape[1] if from_batch and ctx.share is None else math.inf
        ctx.set_materialize_grads(False)
        return cpu.normalized_sign(mean, var, (centre, total, weight, bias), with_slope)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, by_slope: Tensor | None) -> Gradients:
        _require_once()
        mean, var, centre, total, weight, bias = ctx.saved_tensors
        grad = torch.zeros_like(mean) if grad is None else grad.contiguous()
        by_mean, by_var, pull, by_weight, by_bias = cpu.normalized_sign_backward(
            grad, _contiguous(by_slope), mean, var, (centre, total, weight, bias), ctx.count
        )
        if ctx.share is not None:
            sign, offset = coefficients(total, weight, bias)
            through = through_shared_statistics(pull, mean, sign, offset, centre, total, ctx.share)
            by_mean, by_var = by_mean + through[0], by_var + through[1]
        return by_mean, by_var, None, None, by_weight, by_bias, None, None


def common_noise(outer: Tensor, slope: Tensor, inner: Tensor, inputs: Tensor, levels: tuple[float, float]) -> Tensor:
    """What sums with weights `outer` over units gain by mean slopes, see `units`: `(N, outputs)`.

    Parameters
    ----------
    outer : Tensor `(outputs, units)`
    slope : Tensor `(N, units)`
    inner : Tensor `(units, inputs)`, the means of the weights with which the units read
    inputs : Tensor `(N, inputs)`, the means of what they read
    levels : the two levels that these inputs have
    """
    result: Tensor = _CommonNoise.apply(outer, slope, inner, inputs, *levels)  # type: ignore[no-untyped-call]
    return result


class _CommonNoise(Function):
    @staticmethod
    def forward(
        ctx: Any, outer: Tensor, slope: Tensor, inner: Tensor, inputs: Tensor, low: float, high: float
    ) -> Tensor:
        means, sizes, share, scaled, squares = cpu.mean_slopes(slope, outer)
        doubt = cpu.doubt(inputs, low, high)
        reaching = scaled @ inner
        gain = reaching.square().sub_(squares @ inner.square())
        noise = doubt @ gain.mT
        ctx.save_for_backward(
            outer, slope, inner, inputs, means, sizes, scaled, squares, doubt, reaching, gain, noise, share
        )  # fmt: skip
        ctx.levels = low, high
        return noise * share

    @staticmethod
    @_in_full_precision
    def backward(ctx: Any, grad: Tensor) -> Gradients:
        _require_once()
        outer, slope, inner, inputs, means, sizes, scaled, squares, doubt, reaching, gain, noise, share = (
            ctx.saved_tensors
        )
        shared = grad * share
        low, high = ctx.levels
        by_inputs = cpu.doubt_backward_(inputs, low, high, shared @ gain)
        by_gain = shared.mT @ doubt
        by_reaching = (by_gain * reaching).mul_(2)
        by_inner = (squares.mT @ by_gain).mul_(inner).addmm_(scaled.mT, by_reaching, beta=-2)
        by_squares = (by_gain @ inner.square().mT).neg_()
        by_share = (grad * noise).sum(1)
        by_outer, by_slope = cpu.mean_slopes_backward(
            slope, outer, means, sizes, scaled, by_reaching @ inner.mT, by_squares, by_share
        )
        return by_outer, by_slope, by_inner, by_inputs, None, None


class Noise(NamedTuple):
    """The noise of the inputs that units have in common, see `units`.

    Attributes
    ----------
    var : Tensor `(N, inputs)`, the variances
    level : Tensor `(N, channels)` or None, their means by channel, where neighbours err together
    near : Tensor `(places, places)` or None, how near the places of a channel are to each other then
    pairs : Tensor `(units, channels)` or None, what the weights of the units make of pairs of places then
    """

    var: Tensor
    level: Tensor | None
    near: Tensor | None
    pairs: Tensor | None


def noise_of_each(outer: Tensor, slope: Tensor, inner: Tensor, noise: Noise) -> Tensor:
    """What sums with weights `outer` over units gain, each example by its own slopes, see `units`: `(N, outputs)`.

    As `units._Gain`, but what reaches the sums is kept for backward, and that is one product of four less. Products are
    in the dtype of the variances.
    """
    result: Tensor = _NoiseOfEach.apply(outer, slope, inner, *noise)  # type: ignore[no-untyped-call]
    return result


class _NoiseOfEach(Function):
    @staticmethod
    def forward(
        ctx: Any, outer: Tensor, slope: Tensor, inner: Tensor, var: Tensor, level: Tensor | None, near: Tensor | None,
        pairs: Tensor | None,
    ) -> Tensor:  # fmt: skip
        low = inner.to(var.dtype)
        square = inner.square().to(var.dtype)
        scaled = (outer * slope.unsqueeze(-2)).to(var.dtype)
        reaching = (scaled.flatten(0, 1) @ low).unflatten(0, scaled.shape[:2])
        beside = None
        if near is not None:
            channels = reaching.unflatten(-1, (-1, near.shape[0]))
            by_places = cpu_cnn.beside(channels, near) if cpu_cnn.pairs(channels, near) else channels.float() @ near
            beside = by_places.flatten(-2)
        wide, of_channels = var.float(), None if level is None else level.float()
        own = (var @ square.mT).float()
        if of_channels is not None and pairs is not None:
            own = own.addmm_(of_channels, pairs.mT)
        ctx.save_for_backward(
            outer, slope, inner, low, square, var, wide, of_channels, pairs, scaled, reaching, beside, own
        )  # fmt: skip
        whole = cpu_cnn.noise_reaching(reaching, wide, beside, of_channels)
        return whole.addmm_(slope.square() * own, outer.square().mT, alpha=-1)

    @staticmethod
    @_in_full_precision
    def backward(ctx: Any, grad: Tensor) -> Gradients:
        _require_once()
        outer, slope, inner, low, square, var, wide, level, pairs, scaled, reaching, beside, own = ctx.saved_tensors
        grad = grad.contiguous()
        # what reaches a sum as a whole
        by_reaching, by_var, by_level = cpu_cnn.noise_reaching_backward(grad, reaching, wide, beside, level)
        rows = by_reaching.flatten(0, 1)
        by_scaled = (rows @ low.mT).float().unflatten(0, reaching.shape[:2])
        by_outer, by_slope = (by_scaled * slope.unsqueeze(-2)).sum(0), (by_scaled * outer).sum(-2)
        by_inner = scaled.flatten(0, 1).mT @ rows
        # less what each unit passes on by itself
        by_unit = grad @ outer.square()
        by_outer -= 2 * outer * (grad.mT @ (slope.square() * own))
        by_slope -= 2 * slope * own * by_unit
        by_own = -slope.square() * by_unit
        lower = by_own.to(var.dtype)
        by_inner = cpu_cnn.through_square(by_inner, lower.mT @ var, inner)
        by_var += lower @ square
        by_pairs = None
        if by_level is not None:
            by_level.addmm_(by_own, pairs)
            by_level, by_pairs = by_level.to(var.dtype), by_own.mT @ level
        return by_outer, by_slope, by_inner, by_var.to(var.dtype), by_level, None, by_pairs


def with_noise(var: Tensor, noise: Tensor, share: float) -> Tensor:
    """`var + noise` for rows `(N, units)`, but no less than `share` of `var` (`together.with_common_noise`)."""
    result: Tensor = _WithNoise.apply(var, noise, share)  # type: ignore[no-untyped-call]
    return result


class _WithNoise(Function):
    @staticmethod
    def forward(ctx: Any, var: Tensor, noise: Tensor, share: float) -> Tensor:
        ctx.save_for_backward(var, noise)
        ctx.share = share
        return cpu.with_noise(var, noise, share)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Gradients:
        _require_once()
        var, noise = ctx.saved_tensors
        return *cpu.with_noise_backward(var, noise, ctx.share, grad.contiguous()), None


def tilted_likelihood(mean: Tensor, var: Tensor, log_scale: Tensor, labels: Tensor) -> Tensor:
    """The tilted bound on the log-likelihood of `labels` `(N,)` for logits of these moments `(N, K)`, divided by s."""
    result: Tensor = _TiltedLikelihood.apply(mean, var, log_scale, labels)  # type: ignore[no-untyped-call]
    return result


class _TiltedLikelihood(Function):
    """The tilt counts as a constant, as in `heads.tilted_log_sum_exp`."""

    @staticmethod
    def forward(ctx: Any, mean: Tensor, var: Tensor, log_scale: Tensor, labels: Tensor) -> Tensor:
        value, *derivatives = cpu.tilted_likelihood(mean, var, log_scale, labels)
        ctx.save_for_backward(*derivatives)
        return value

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Gradients:
        _require_once()
        by_mean, by_var, by_scale = ctx.saved_tensors
        column = grad.unsqueeze(-1)
        return column * by_mean, column * by_var, grad @ by_scale, None
