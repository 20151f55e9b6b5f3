"""What all layers share: how a network of posteriors becomes a plain quantized network."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar, cast

import torch
from torch import Tensor, nn

from bqn.checks import in_plain_torch
from bqn.nn._posterior import Posterior, Weight

Choose = Callable[[Weight], Tensor]
M = TypeVar("M", bound=nn.Module)
T = TypeVar("T")


class Layer(nn.Module):
    """A module that takes beliefs and returns a belief.

    A subclass implements `forward`. Its posteriors are attributes; they are replaced by plain tensors of the same
    name when the network is sampled or maximized, so `forward` reads them through `belief_of`.

    Attributes
    ----------
    recomputing : bool
        Whether a forward pass is repeated for the sake of its backward pass: then nothing may change that has changed
        in the first one.
    cut_behind : bool
        Whether activation checkpointing may cut here: what the layer returns is small and holds on to little else.
    """

    recomputing: bool = False
    cut_behind: bool = False

    def update_running(self, counter: Tensor, momentum: float, *pairs: tuple[Tensor, Tensor]) -> None:
        """Move running statistics towards those of a batch, in place, and count it; `pairs` are (running, new)."""
        self.move_running(momentum, *pairs)
        if not self.recomputing:
            counter.add_(1)

    def move_running(self, momentum: float, *pairs: tuple[Tensor, Tensor]) -> None:
        """The same without counting."""
        if self.recomputing:
            return
        for running, value in pairs:
            value = value.detach().to(running.dtype)
            if running.is_cpu and in_plain_torch():  # `lerp_` cannot run under `vmap`
                running.lerp_(value, momentum)
            else:
                running.mul_(1 - momentum).add_(value, alpha=momentum)

    def become_fixed(self, original: Layer) -> None:
        """Called on the copy after its posteriors have been replaced. Override to settle anything else."""


_TAKEN_OUT = "_bqn_taken_out"


def note_taken_out(sums: Tensor, shift: Tensor) -> None:
    """Remember with a tensor of a sampled network that `shift`, the same for all examples, was taken out of it."""
    setattr(sums, _TAKEN_OUT, shift)


def taken_out(x: Any) -> Tensor | None:
    return getattr(x, _TAKEN_OUT, None) if isinstance(x, Tensor) else None


def own_sums(x: T) -> T:
    """`x` with what was taken out of it."""
    shift = taken_out(x)
    return x if shift is None else cast(T, cast(Tensor, x) + shift)


class HiddenVariableLayer(Layer):
    """A layer with hidden random variables of its own, such as dropout masks.

    Analytic propagation sums them out. In a sampled or MAP network they are drawn anew at every forward, with
    `generator` (torch's default generator if None).
    """

    def __init__(self) -> None:
        super().__init__()
        self.draws = False
        self.generator: torch.Generator | None = None
        self.chooser: Callable[[Tensor, torch.Size], Tensor] | None = None

    def become_fixed(self, original: Layer) -> None:
        self.draws = True

    def draw(self, probs: Tensor, shape: torch.Size) -> Tensor:
        """Indices of shape `shape`, each from the distribution `probs` `(K,)`."""
        if self.chooser is not None:
            return self.chooser(probs, shape)
        probs = probs.to(torch.promote_types(probs.dtype, torch.float32))  # in half precision the race has ties
        race = torch.empty((*shape, probs.shape[-1]), dtype=probs.dtype, device=probs.device)
        return (probs / race.exponential_(generator=self.generator)).argmax(-1)


def fix(module: M, choose: Choose) -> M:
    """A copy of `module` in which `choose` has settled every posterior: an ordinary quantized network, in eval mode.

    A posterior that is used in several places is chosen once. Nothing in it is learned any more.
    """
    from bqn.nn._own_sums import let_others_read_own_sums  # which knows all layers

    posteriors = {id(child): child for child in module.modules() if isinstance(child, Weight)}
    # The gaps spare a copy of the logits, which are the bulk of the network.
    gaps: dict[int, object] = {key: nn.Identity() for key in posteriors}
    clone = copy.deepcopy(module, gaps)
    chosen = {key: choose(posterior) for key, posterior in posteriors.items()}
    for name, original in module.named_modules():
        target = clone.get_submodule(name) if not isinstance(original, Weight) else None
        if target is None:
            continue
        for child_name, child in original.named_children():
            if isinstance(child, Weight):
                delattr(target, child_name)
                target.register_buffer(child_name, chosen[id(child)])
        if isinstance(target, Layer) and isinstance(original, Layer):
            target.become_fixed(original)
    let_others_read_own_sums(clone)
    return clone.eval().requires_grad_(False)


def set_generator(module: nn.Module, generator: torch.Generator | None) -> None:
    """Let all hidden variables below `module` be drawn with `generator`."""
    for child in module.modules():
        if isinstance(child, HiddenVariableLayer):
            child.generator = generator


class Draws(NamedTuple):
    """One draw of everything below a module that is not known.

    Attributes
    ----------
    weights : one Tensor for each posterior, in the order of `modules()`
    generator : Generator or None, for hidden variables, which are drawn when they are needed; None if there are none
    """

    weights: tuple[Tensor, ...]
    generator: torch.Generator | None = None


def draw(module: nn.Module, generator: torch.Generator | None = None, mode_share: float = 0.0) -> Draws:
    """Draw the weights of all posteriors below `module`, for `drawn`; with probability `mode_share` take the most
    probable ones of all instead."""
    hides = any(isinstance(child, HiddenVariableLayer) for child in module.modules())
    posteriors = [child for child in module.modules() if isinstance(child, Posterior)]
    weights = tuple(posterior.sample(generator) for posterior in posteriors)
    if mode_share and weights:
        # Decided on the device, where the host cannot see it: a recorded step has no branches.
        most_probable = torch.rand((), device=weights[0].device, generator=generator) < mode_share
        for posterior, weight in zip(posteriors, weights, strict=True):
            weight.lerp_(posterior.mode(), most_probable.to(weight.dtype))  # exact at both ends, faster than `where`
    return Draws(weights, generator if hides else None)


class _StraightThrough(torch.autograd.Function):
    """A drawn weight whose gradient is that of its mean, in one pass over the weights, which are many.

    A copy, not a view: a compiler may lose the gradient of an output that is a view.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(weight: Tensor, mean: Tensor) -> Tensor:
        return weight.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[None, Tensor]:
        return None, grads[0]


@contextmanager
def drawn(module: nn.Module, draws: Draws) -> Iterator[None]:
    """Inside the block every posterior below `module` stands for what was drawn from it, a tensor, and hidden variables
    are drawn too.

    Gradients by the drawn weights pass on to the means of the posteriors as they are (straight-through). For what is
    linear in the weights that is the gradient of the expectation; elsewhere it is an estimate with a bias.
    """
    posteriors = [child for child in module.modules() if isinstance(child, Posterior)]
    hidden = [child for child in module.modules() if isinstance(child, HiddenVariableLayer)]
    weights_before = [posterior._drawn for posterior in posteriors]
    hidden_before = [(layer.draws, layer.generator) for layer in hidden]
    try:
        for posterior, weight in zip(posteriors, draws.weights, strict=True):
            posterior._drawn = _StraightThrough.apply(weight, posterior.mean)  # type: ignore[no-untyped-call]
        for layer in hidden:
            layer.draws, layer.generator = True, draws.generator
        yield
    finally:
        for posterior, before in zip(posteriors, weights_before, strict=True):
            posterior._drawn = before
        for layer, (draws_before, generator_before) in zip(hidden, hidden_before, strict=True):
            layer.draws, layer.generator = draws_before, generator_before
