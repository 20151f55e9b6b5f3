"""Sums of products: which of the three algorithms of section 4.3 adds up the inputs of a unit, and calling it.

This is the one place that decides. A sum of E terms is formed by

- `contract`, term by term, if E is very small, or not large and all terms lie on one lattice;
- `clt`, as a Gaussian with the exact mean and variance, otherwise;
- `fft`, only if it is asked for by name; all terms must lie on one lattice.

`contract` and `fft` are exact and return a `Categorical` over the whole support of the sum. They need discrete terms;
where a real number enters, only the CLT is left.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from bqn.beliefs import Belief, Categorical, Gaussian, WithinFunction
from bqn.levels import Levels, combine_levels, lattice_index, lattice_step, level_tensor, without_rounding
from bqn.propagate import averaged, clt, contraction, fourier, half, products
from bqn.propagate.windows import windows

EXACT = ("contract", "fft")
METHODS = ("auto", *EXACT, "clt")

# Up to three terms the CLT is far off, and the exact law costs little whatever the levels are. On a lattice the support
# grows no faster than the number of terms, and the exact law remains cheap; beyond 32 terms the CLT is close enough.
CONTRACT_UP_TO = 3
EXACT_UP_TO = 32
# Numbers (terms × outputs × values of a sum) that "auto" may form for an example: at batch 100 a training step of such
# a layer takes ten to sixty milliseconds more than with the CLT. Transforms take three to ten times as long.
AUTO_WORK = 2**16
# Numbers that an exact sum may form at once for a part of the batch.
EXACT_WORK = 2**24
_EXACT: dict[str, Callable[[Sequence[Categorical]], Categorical]] = {
    "contract": contraction.sum_terms,
    "fft": fourier.sum_terms,
}


def require_method(method: str) -> str:
    if method not in METHODS:
        raise ValueError(f"method must be one of {', '.join(METHODS)}, got {method!r}")
    return method


def choose(method: str, terms: Sequence[tuple[int, Levels]] | None, outputs: int = 1) -> str:
    """Name the algorithm for a sum.

    Parameters
    ----------
    method : what the user asked for
    terms : pairs of a number of terms and their levels; None if a term is real-valued
    outputs : how many such sums one example asks for; the size of the batch must not matter
    """
    if terms is None:
        if method in _EXACT:
            raise ValueError(
                f"method {method!r} is exact and needs discrete input, a Categorical belief; the input is real-valued. "
                "Use 'clt' or 'auto', or say what its levels are with Categorical.certain(x, levels)"
            )
        return "clt"
    if method != "auto":
        return method
    count = sum(number for number, _ in terms)
    if count <= CONTRACT_UP_TO:
        return "contract"
    step = lattice_step(tuple(levels for _, levels in terms))
    if count > EXACT_UP_TO or step is None:
        return "clt"
    span = sum(number * lattice_index(levels, step)[-1] for number, levels in terms)
    return "contract" if outputs * count * span <= AUTO_WORK else "clt"


def linear(
    x: Belief,
    weight: Belief,
    bias: Belief | None,
    method: str,
    geometry: products.Geometry | None = None,
    statistics: clt.BatchStatistics | None = None,
    mean_field: bool = False,
    on_levels: bool = False,
) -> Belief:
    """The law of `weight · x + bias`; parameters as in `clt.linear`.

    Plain tensors throughout give a plain tensor: that is a sampled or MAP network. Inside `half.lowered` they are
    multiplied in half precision if the weights are `on_levels`, which it holds exactly.
    """
    if isinstance(weight, Tensor) and isinstance(x, Tensor):
        if bias is not None and not isinstance(bias, Tensor):
            raise ValueError("bias must be known where the weight is: draw both or neither")
        if on_levels and half.applies(geometry, x) and (geometry is not None or weight.dim() == 2):
            return half.of_known(x, weight, bias, geometry)
        known = x.to(weight.dtype) if half.is_low(x) else x
        return products.product(known, weight, geometry, bias)
    if not isinstance(weight, Categorical) or isinstance(bias, Gaussian):
        raise ValueError("weight must be a Categorical posterior while the input is uncertain: draw the whole network")
    gaussian = clt.linear(x, weight, bias, geometry, statistics, mean_field)
    if geometry is not None and not mean_field:
        gaussian.origin = averaged.Convolution(x, weight, bias, geometry, statistics)
    if not isinstance(x, Categorical) or isinstance(bias, Tensor):
        choose(method, None)
        return gaussian
    fan_in = weight.shape[1:].numel() if geometry is not None else weight.shape[-1]
    inputs = contraction.with_zero_levels(x.level_values) if products.padded(geometry) else x.level_values
    values, _ = combine_levels(inputs, weight.level_values, operator.mul)
    terms = [(fan_in, values)]
    if isinstance(bias, Categorical):
        terms.append((1, bias.level_values))
    outputs = gaussian.shape[1:].numel() if geometry is not None else gaussian.shape[-1]
    chosen = choose(method, terms, outputs)
    if chosen == "clt":
        return gaussian
    work = outputs * sum(count * len(levels) for count, levels in terms) * (fan_in + 1)
    law = _in_parts(x, max(1, EXACT_WORK // work), lambda part: _exact(part, weight, bias, chosen, geometry))
    return Categorical.of(law.level_values, probs=law.probs, within=gaussian.within_batch)


def _in_parts(x: Categorical, rows: int, function: Callable[[Categorical], Categorical]) -> Categorical:
    """Apply `function` to a few examples at a time, which bounds what it holds at once."""
    if x.shape[0] <= rows:
        return function(x)
    laws = [function(Categorical.of(x.level_values, probs=part)) for part in x.probs.split(rows)]
    return Categorical.of(laws[0].level_values, probs=torch.cat([law.probs for law in laws]))


def _exact(
    x: Categorical, weight: Categorical, bias: Categorical | None, method: str, geometry: products.Geometry | None
) -> Categorical:
    if geometry is None:  # (..., N, 1, I) against (..., 1, J, I)
        read = Categorical.of(x.level_values, probs=x.probs.unsqueeze(-3))
        kernel = Categorical.of(weight.level_values, probs=weight.probs.unsqueeze(-4))
        parts = [contraction.combine(read, kernel, operator.mul)]
        if bias is not None:
            parts.append(Categorical.of(bias.level_values, probs=bias.probs.unsqueeze(-2).unsqueeze(-4)))
        return _EXACT[method](parts)
    # every output position is a row of its own: (N, G, 1, *out, E) against (G, O/G, 1.., E)
    spatial, groups = len(geometry.stride), geometry.groups
    read = window_belief(x, tuple(weight.shape[2:]), geometry.stride, geometry.padding, geometry.dilation)
    grouped = read.probs.unflatten(1, (groups, 1, -1)).movedim(3, -3).flatten(-3, -2)
    filters = weight.probs.flatten(1, -2).unflatten(0, (groups, -1))
    filters = filters[(slice(None), slice(None), *(None for _ in range(spatial)))]
    parts = [
        contraction.combine(
            Categorical.of(read.level_values, probs=grouped), Categorical.of(weight.level_values, probs=filters),
            operator.mul,
        )
    ]  # fmt: skip
    if bias is not None:
        shaped = bias.probs.unflatten(0, (groups, -1))
        shaped = shaped[(slice(None), slice(None), *(None for _ in range(spatial + 1)))]
        parts.append(Categorical.of(bias.level_values, probs=shaped))
    law = _EXACT[method](parts)
    return Categorical.of(law.level_values, probs=law.probs.flatten(1, 2))


def window_belief(
    x: Categorical,
    kernel: tuple[int, ...],
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...] | None = None,
) -> Categorical:
    """Windows `(..., *out, K)` of a discrete belief; padding is a certain 0."""
    if not any(padding):
        read = windows(x.probs, kernel, stride, padding, dilation, trailing=1)
        return Categorical.of(x.level_values, probs=read)
    padded = contraction.with_zero(x)
    read = windows(padded.probs, kernel, stride, padding, dilation, trailing=1)
    inside = windows(read.new_ones(x.shape[-len(kernel) :]), kernel, stride, padding, dilation)
    certain_zero = level_tensor(tuple(float(value == 0) for value in padded.level_values), read)
    return Categorical.of(padded.level_values, probs=read + (1 - inside).unsqueeze(-1) * certain_zero)


def average(x: Categorical, kernel: tuple[int, ...], stride: tuple[int, ...], padding: tuple[int, ...], method: str,
            mean: Tensor, var: Callable[[], Tensor], within: WithinFunction) -> Belief:  # fmt: skip
    """The law of the mean over windows, padding included as zeros.

    `mean` and `var` are its moments, which are cheap; the probabilities are worked out only if someone asks.
    """
    count = math.prod(kernel)
    levels = contraction.with_zero_levels(x.level_values) if any(padding) else x.level_values
    chosen = choose(method, [(count, levels)])
    if chosen == "clt":
        return Gaussian.deferred(mean.shape, mean, lambda: (mean, var()), within)
    module = contraction if chosen == "contract" else fourier
    support = without_rounding(tuple(value / count for value in module.sum_levels([(count, levels)])))
    return Categorical.of(
        support,
        probs=lambda: _EXACT[chosen]([window_belief(x, kernel, stride, padding)]).probs,
        mean=mean,
        var=var,
        within=within,
    )
