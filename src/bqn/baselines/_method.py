"""What a method is: a way to make, train and read a network, chosen by its name in a config."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from bqn.network import Network

SIZES = ("hidden", "channels", "blocks", "batch_norm", "pool_first")


@dataclass(frozen=True)
class Plan:
    """The network that a config asks for, before a method has made it.

    Attributes
    ----------
    model : str
        Name of the architecture.
    input_shape : shape of one input, `(C, H, W)` or `(F,)`
    outputs : int
        Classes, or columns of a regression target.
    seed : int
        Of the starting weights. torch's own generator is seeded with it while a method builds; whoever needs a stream
        of its own (a bootstrap) derives it from this.
    options : mapping by name
        What the config says for the options of the architecture and of the method, defaults filled in.
    blank : function
        Makes the Bayesian quantized network of this architecture, with its starting weights.
    """

    model: str
    input_shape: tuple[int, ...]
    outputs: int
    seed: int
    options: Mapping[str, Any]
    blank: Callable[[], Network]


@dataclass(frozen=True)
class Method:
    """A method that can be named.

    Its network is a `bqn.Network`: the training loop, evaluation, prediction and report ask for nothing but what that
    class has. A method overrides what it does differently: `modes` and `members` (how it predicts), `elbo_terms` and
    `kl` (what it maximizes), `make_optimizer` (how it learns), `choose_examples` (from which examples).

    Parameters
    ----------
    what : one line about it
    build : function of a Plan that returns its network
    models : names of the architectures that it can take
    options : options of its own, each with its default; each is a field of `TrainConfig`
    model_options : names of those options of the architectures that it heeds; all others must stay unset
    """

    what: str
    build: Callable[[Plan], Network]
    models: tuple[str, ...] = ("mlp", "cnn", "vgg", "resnet")
    options: Mapping[str, Any] = field(default_factory=dict)
    model_options: tuple[str, ...] = SIZES
