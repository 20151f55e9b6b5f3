"""Pretrained networks that come with the package: packed, a few bits a weight, with a card each.

Nothing here needs torch: `bqn.load_pretrained("digits-mlp")` gives what `bqn.load_packed` gives. `bqn.zoo.build` makes
new entries from runs, and does need it.
"""

from __future__ import annotations

from pathlib import Path

from bqn.deploy.model import PackedModel
from bqn.zoo.card import Card
from bqn.zoo.folder import Zoo

__all__ = ["PRETRAINED", "Card", "Zoo", "load_pretrained", "pretrained"]

PRETRAINED = Zoo(Path(__file__).with_name("models"))


def pretrained() -> list[str]:
    """Names of the networks that come with the package; `bqn.zoo.PRETRAINED.card(name)` tells all about one."""
    return PRETRAINED.names()


def load_pretrained(name: str, kernels: str | None = None) -> PackedModel:
    """A network that comes with the package, ready to use.

    Parameters
    ----------
    name : str
        One of `bqn.pretrained()`, for example "digits-mlp".
    kernels : str or None
        As for `bqn.deploy.PackedModel`.

    Returns
    -------
    PackedModel
        What `bqn.load_packed` returns: uint8 images `(N, C, H, W)` in, class probabilities `(N, K)` out.

    Raises
    ------
    UnknownNameError
        A ValueError: no network is called so; the message names those that there are.
    PackedError
        A ValueError: the installed file is damaged.
    """
    return PackedModel(PRETRAINED.read(name), kernels)
