"""What exporters take: a packed network in memory, the model that runs it, or the path of its file."""

from __future__ import annotations

import os
from typing import TypeAlias

from bqn.deploy.container import load
from bqn.deploy.model import PackedModel
from bqn.deploy.program import Packed

Given: TypeAlias = Packed | PackedModel | str | os.PathLike[str]


def packed_of(given: Given) -> Packed:
    """The packed network itself."""
    if isinstance(given, PackedModel):
        return given.packed
    return given if isinstance(given, Packed) else load(given)
