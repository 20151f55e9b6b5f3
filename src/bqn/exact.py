"""The oracle: tiny networks by enumeration of every weight and every hidden variable.

Nothing here is approximate, and nothing scales: the number of joint states is the product of all numbers of levels.
It is what the tests hold the analytic pass against, and it serves anyone who wants the truth about a small case.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from bqn.beliefs import Categorical, Gaussian, mean_of
from bqn.checks import require_finite, require_floating
from bqn.heads import GaussianHead, SoftmaxHead
from bqn.network import Network, evaluating
from bqn.nn import HiddenVariableLayer, Posterior, fix

MAX_STATES = 2**22
_CHUNK = 2**14


class Law(NamedTuple):
    """The joint law of a module's output, given as a list of equally shaped values.

    `weights` `(W,)` are the probabilities of the weight states; `hidden` `(W, H)` those of the hidden states given
    the weights (inputs that are random count as hidden); `outputs` is `(W, H, ...)`.
    """

    weights: Tensor
    hidden: Tensor
    outputs: Tensor

    @property
    def joint(self) -> Tensor:
        """`(W * H,)`, in the order of `values`."""
        return (self.weights.unsqueeze(-1) * self.hidden).flatten()

    @property
    def values(self) -> Tensor:
        """`(W * H, ...)`."""
        return self.outputs.flatten(0, 1)

    def moments(self) -> Gaussian:
        """Exact mean and variance of every output element."""
        probs = self.joint.reshape(-1, *(1 for _ in self.values.shape[1:]))
        mean = (probs * self.values).sum(0)
        return Gaussian.of(mean, (probs * (self.values - mean).square()).sum(0))

    def marginals(self, levels: Tensor) -> Tensor:
        """Exact probability that each output element takes each of the given values: `(..., D)`."""
        probs = self.joint.reshape(-1, *(1 for _ in self.values.shape[1:]), 1)
        near = (self.values.unsqueeze(-1) - levels).abs() <= 1e-6 * levels.abs().max().clamp_min(1)
        return (probs * near).sum(0)


def law(module: nn.Module, *inputs: Tensor | Categorical) -> Law:
    """Enumerate all that is random in `module(*inputs)`: posteriors, hidden variables, and Categorical inputs.

    The batch is taken as one joint event: inputs of different examples are enumerated together, so keep it small.
    """
    with torch.no_grad(), evaluating(module):
        posteriors = {id(p): p for p in module.modules() if isinstance(p, Posterior)}
        sizes = [(len(p.level_values), p.shape.numel()) for p in posteriors.values()]
        names = _buffer_names(module)
        fixed = fix(module, lambda posterior: posterior.mode())
        hidden = _hidden_variables(fixed, inputs)
        random_inputs = [x for x in inputs if isinstance(x, Categorical)]
        weight_states = math.prod(d**n for d, n in sizes)
        hidden_states = math.prod(len(p) ** n for p, n in hidden) * math.prod(
            len(x.level_values) ** x.shape.numel() for x in random_inputs
        )
        if weight_states * hidden_states > MAX_STATES:
            raise ValueError(
                f"module has {weight_states:.2g} weight states and {hidden_states:.2g} hidden states; enumeration "
                f"stops at {MAX_STATES}"
            )
        # One row a joint state, one column a random variable.
        weight_index = _all_states([d for d, n in sizes for _ in range(n)])
        hidden_index = _all_states(
            [len(p) for p, n in hidden for _ in range(n)]
            + [len(x.level_values) for x in random_inputs for _ in range(x.shape.numel())]
        )
        flat_probs = [row for p in posteriors.values() for row in p.law().probs.flatten(0, -2)]
        flat_hidden = [p for p, n in hidden for _ in range(n)]
        flat_hidden += [row for x in random_inputs for row in x.probs.flatten(0, -2)]
        run = _runner(fixed, posteriors, names, hidden, inputs)
        outputs = run(weight_index, hidden_index)
        return Law(_weigh(weight_index, flat_probs, outputs), _weigh(hidden_index, flat_hidden, outputs).expand(
            weight_states, -1), outputs)  # fmt: skip


def _buffer_names(module: nn.Module) -> dict[str, int]:
    """Where each posterior sits in the fixed network: buffer name to the posterior's identity."""
    return {
        name: id(child) for name, child in module.named_modules(remove_duplicate=False) if isinstance(child, Posterior)
    }


def _hidden_variables(fixed: nn.Module, inputs: tuple[Tensor | Categorical, ...]) -> list[tuple[Tensor, int]]:
    """Distribution and number of the hidden variables, in the order in which one forward asks for them."""
    asked: list[tuple[Tensor, int]] = []

    def note(probs: Tensor, shape: torch.Size) -> Tensor:
        asked.append((probs, shape.numel()))
        return torch.zeros(shape, dtype=torch.int64)

    _set_chooser(fixed, note)
    fixed(*(x.mode() if isinstance(x, Categorical) else x for x in inputs))
    return asked


def _set_chooser(module: nn.Module, chooser: Callable[[Tensor, torch.Size], Tensor]) -> None:
    for child in module.modules():
        if isinstance(child, HiddenVariableLayer):
            child.chooser = chooser


def _all_states(counts: list[int]) -> Tensor:
    """Every joint index: `(prod(counts), len(counts))`."""
    if not counts:
        return torch.zeros((1, 0), dtype=torch.int64)
    return torch.cartesian_prod(*(torch.arange(n) for n in counts)).reshape(-1, len(counts))


def _weigh(index: Tensor, probs: list[Tensor], like: Tensor) -> Tensor:
    weight = torch.ones(index.shape[0], dtype=like.dtype)
    for column, distribution in enumerate(probs):
        weight = weight * distribution.to(like.dtype)[index[:, column]]
    return weight


def _runner(
    fixed: nn.Module,
    posteriors: dict[int, Posterior],
    names: dict[str, int],
    hidden: list[tuple[Tensor, int]],
    inputs: tuple[Tensor | Categorical, ...],
) -> Callable[[Tensor, Tensor], Tensor]:
    def single(weight_index: Tensor, hidden_index: Tensor) -> Tensor:
        values, at = {}, 0
        for key, posterior in posteriors.items():
            count = posterior.shape.numel()
            values[key] = posterior.levels[weight_index[at : at + count]].reshape(posterior.shape)
            at += count
        at = 0

        def next_choice(probs: Tensor, shape: torch.Size) -> Tensor:
            nonlocal at
            at += shape.numel()
            return hidden_index[at - shape.numel() : at].reshape(shape)

        _set_chooser(fixed, next_choice)
        start = sum(count for _, count in hidden)
        known = []
        for x in inputs:
            if isinstance(x, Categorical):
                known.append(x.levels[hidden_index[start : start + x.shape.numel()]].reshape(x.shape))
                start += x.shape.numel()
            else:
                known.append(x)
        result: Tensor = functional_call(fixed, {name: values[key] for name, key in names.items()}, tuple(known))
        return result

    def run(weight_index: Tensor, hidden_index: Tensor) -> Tensor:
        over_hidden = vmap(single, in_dims=(None, 0))
        chunk = max(1, _CHUNK // hidden_index.shape[0])
        return vmap(over_hidden, in_dims=(0, None), chunk_size=chunk)(weight_index, hidden_index)

    return run


def _require(x: Tensor) -> None:
    require_floating(x, "x")
    require_finite(x, "x")


def moments(net: Network, x: Tensor) -> Gaussian:
    """Exact mean and variance of what enters the head: a Gaussian of moments `(N, ...)`."""
    _require(x)
    if x.shape[0] == 0:
        with torch.no_grad(), evaluating(net):
            return Gaussian.of(mean_of(net(x)), mean_of(net(x)))
    parts = [law(net.body, row.unsqueeze(0)).moments() for row in x]
    return Gaussian.of(torch.cat([part.mean for part in parts]), torch.cat([part.var for part in parts]))


def predictive(net: Network, x: Tensor) -> Tensor:
    """Exact predictive probabilities `(N, K)`; for a regression, exact mean and variance as `(N, out_features, 2)`."""
    _require(x)
    rows = []
    with torch.no_grad():
        if x.shape[0] == 0:
            empty = net.predict(x)
            return empty if isinstance(empty, Tensor) else torch.stack((empty.mean, empty.var), -1)
        for row in x:
            joint = law(net.body, row.unsqueeze(0))
            entering = joint.values.flatten(0, 1)
            if isinstance(net.head, SoftmaxHead):
                rows.append((joint.joint.unsqueeze(-1) * net.head.predict(entering)).sum(0))
                continue
            part = net.head.predict(entering)
            probs = joint.joint.unsqueeze(-1)
            mean = (probs * part.mean).sum(0)
            var = (probs * (part.var + (part.mean - mean).square())).sum(0)
            rows.append(torch.stack((mean, var), -1))
    return torch.stack(rows)


def expected_log_likelihood(net: Network, x: Tensor, y: Tensor) -> Tensor:
    """The true ELBO term L_n = E_Q[log p(y | x, θ)] per example, `(N,)`: hidden variables inside the logarithm."""
    return _expected(net, x, y, lambda log_p, hidden: torch.logsumexp(log_p + hidden.log(), -1))


def alternative_bound(net: Network, x: Tensor, y: Tensor) -> Tensor:
    """L̄_n = E_Q E_h[log p(y | h)] per example, `(N,)`, with the exact law of h: hidden variables outside the logarithm.

    Never above L_n, and equal to it where the network is deterministic given its weights.
    """
    return _expected(net, x, y, lambda log_p, hidden: (hidden * log_p).sum(-1))


def _expected(net: Network, x: Tensor, y: Tensor, over_hidden: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    _require(x)
    if y.shape[0] != x.shape[0]:
        raise ValueError(f"y must have one entry per example, {x.shape[0]}, got shape {tuple(y.shape)}")
    if x.shape[0] == 0:
        return x.new_zeros(0)
    terms = []
    head: SoftmaxHead | GaussianHead = net.head
    with torch.no_grad():
        for row, target in zip(x, y, strict=True):
            joint = law(net.body, row.unsqueeze(0))
            states = joint.values.flatten(0, 1)
            log_p = head.log_likelihood(states, target.expand(states.shape[0], *target.shape))
            terms.append((joint.weights * over_hidden(log_p.reshape(joint.hidden.shape), joint.hidden)).sum())
    return torch.stack(terms)
