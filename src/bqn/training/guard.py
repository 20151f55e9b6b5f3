"""Finding out where a number that is not finite came from."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from bqn.beliefs import mean_of, var_of
from bqn.network import Network
from bqn.nn import Layer
from bqn.objective import ElboTerms

Forward = Callable[[], ElboTerms]


class Cause(NamedTuple):
    """What was not finite, and the first place that shows it."""

    term: str
    where: str


def health(value: Tensor, parameters: Iterable[nn.Parameter]) -> Tensor:
    """A scalar that is finite exactly if `value` and all gradients are, short of overflow; nothing waits for it."""
    grads = [parameter.grad for parameter in parameters if parameter.grad is not None]
    sums = _sizes(grads) if grads and value.is_cuda else [grad.sum() for grad in grads]
    return torch.stack([value.detach(), *sums]).sum()


def _sizes(grads: list[Tensor]) -> tuple[Tensor, ...]:
    """Their sums of absolute values, on a GPU a few kernels for all; on a CPU it takes longer than plain sums.

    The public `torch.nn.utils.get_total_norm` is younger than the oldest torch that we support.
    """
    return torch._foreach_norm(grads, 1)


def find_cause(net: Network, forward: Forward) -> Cause | None:
    """Search in the order of the computation: parameters, layers, the terms of the ELBO, their gradients.

    Parameters
    ----------
    net : Network
    forward : function
        The failed step's forward pass; called several times, so it must give the same terms every time.
    """
    with torch.no_grad():
        layers, terms = _watch_layers(net, forward)
    broken = _first_broken(net.named_parameters())
    term = next((name for name, value in _named(terms) if not _finite(value)), "")
    if term:
        if broken:
            return Cause(term, f"because the parameter {broken} is not finite")
        return Cause(term, f"first in the output of {layers[0]}" if layers else "though the output of every layer is")
    for name in ("log_likelihood", "kl", "value"):
        gradient = _broken_gradient(net, getattr(forward(), name))
        if gradient:
            return Cause(f"gradient of the {_WORDS[name]}", f"first in that of the parameter {gradient}")
    return None


_WORDS = {"log_likelihood": "log-likelihood", "kl": "KL", "value": "ELBO"}


def _named(terms: ElboTerms) -> list[tuple[str, Tensor]]:
    return [(word, getattr(terms, name)) for name, word in _WORDS.items()]


def _finite(tensor: Tensor) -> bool:
    return bool(torch.isfinite(tensor).all())


def _first_broken(named: Iterable[tuple[str, Tensor]]) -> str:
    return next((name for name, tensor in named if not _finite(tensor)), "")


def _broken_gradient(net: Network, term: Tensor) -> str:
    """The parameter nearest to the loss whose gradient is not finite: gradients flow from the end."""
    if not term.requires_grad:
        return ""
    names, parameters = zip(*((n, p) for n, p in net.named_parameters() if p.requires_grad), strict=True)
    gradients = torch.autograd.grad(term, parameters, allow_unused=True)
    pairs = [(name, grad) for name, grad in zip(names, gradients, strict=True) if grad is not None]
    return _first_broken(reversed(pairs))


def _watch_layers(net: Network, forward: Forward) -> tuple[list[str], ElboTerms]:
    """Run `forward` and list the layers whose output is not finite, in the order in which they ran."""
    broken: list[str] = []

    def hook(name: str) -> Callable[[nn.Module, Any, Any], None]:
        def look(module: nn.Module, inputs: Any, output: Any) -> None:
            var = var_of(output)
            if not _finite(mean_of(output)) or not (var is None or _finite(var)):
                broken.append(f"{name} ({type(module).__name__})")

        return look

    layers = [
        (f"body.{name}".rstrip("."), child)
        for name, child in net.body.named_modules()
        if isinstance(child, Layer) or not any(True for _ in child.children())
    ]
    handles = [child.register_forward_hook(hook(name)) for name, child in layers]
    try:
        return broken, forward()
    finally:
        for handle in handles:
            handle.remove()
