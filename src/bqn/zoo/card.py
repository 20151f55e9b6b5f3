"""The card of a packed network: where it comes from, how good it is, and what it is not for."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from typing import Any

from bqn.deploy.program import PackedError
from bqn.strict_json import parse_object

NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
SCORES = ("nll", "error", "ece")


@dataclass(frozen=True, kw_only=True)
class Card:
    """All about one packed network.

    Attributes
    ----------
    name : str
    data, architecture : str
        What it was trained on, and what it is: names as `bqn train` takes them.
    data_size, data_licence, data_source : str
        Examples of the data set, its licence, where it comes from.
    mode : "map" or "mc"
        The most probable network, or sampled ones whose probabilities are averaged.
    samples : int
        How many networks the file holds.
    recalibrated : bool
        Whether they have batch norm statistics of their own, from training examples.
    distilled : bool
        Whether they, or some of them, have learned the analytic prediction of the posterior that they come from.
    temperature : float or None
        What the logits were divided by, fitted on validation examples; None for 1.
    levels, activations : list of float
        Values of a weight, and of a hidden unit.
    weights : int
        Weights of one network.
    size : int
        Bytes of the file.
    sha256 : str
        Checksum of the file, 64 hexadecimal digits.
    test : dict
        "examples", and the scores of the packed file on them: "nll" in nats, "error" and "ece" as fractions.
    training : dict
        Settings of the run.
    seed : int
        Of the run; the draws of sampled networks, and what networks that were distilled have seen, have `draw_seed`.
    draw_seed : int or None
    version : str
        Of the package that packed it.
    use, limits : str
        What the network is good for, and what it cannot do.
    """

    name: str
    data: str
    data_size: str
    data_licence: str
    data_source: str
    architecture: str
    mode: str
    samples: int
    recalibrated: bool
    distilled: bool
    temperature: float | None
    levels: list[float]
    activations: list[float]
    weights: int
    size: int
    sha256: str
    test: dict[str, float]
    training: dict[str, Any]
    seed: int
    draw_seed: int | None
    version: str
    use: str
    limits: str

    def to_dict(self) -> dict[str, Any]:
        """Plain values by name, ready for JSON."""
        return asdict(self)

    def to_json(self) -> str:
        return f"{json.dumps(self.to_dict(), indent=1, allow_nan=False, ensure_ascii=False)}\n"

    @classmethod
    def from_json(cls, text: str | bytes, source: str = "card") -> Card:
        """What `to_json` wrote; a `PackedError` that begins with `source` if it is anything else."""
        values = parse_object(text, source, PackedError)
        known = {field.name: str(field.type) for field in fields(cls)}
        if set(values) != set(known):
            odd = sorted(set(values) ^ set(known))
            raise PackedError(f"{source}: a card must have the entries {', '.join(known)}; see {', '.join(odd[:5])}")
        for name, kind in known.items():
            if not _KINDS[kind](values[name]):
                raise PackedError(f"{source}: {name} must be of the kind {kind}, got {_shown(values[name])}")
        if not all(_is_number(values["test"].get(score)) for score in ("examples", *SCORES)):
            raise PackedError(f"{source}: test must have the numbers examples, {', '.join(SCORES)}")
        return cls(**values)

    @property
    def networks(self) -> str:
        """What the file holds, in words."""
        what = "most probable" if self.mode == "map" else f"{self.samples} sampled"
        what += ", recalibrated" * self.recalibrated + ", distilled" * self.distilled
        return what + ", tempered" * (self.temperature is not None)


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


_KINDS: dict[str, Callable[[Any], bool]] = {
    "str": lambda value: isinstance(value, str),
    "int": _is_integer,
    "int | None": lambda value: value is None or _is_integer(value),
    "float | None": lambda value: value is None or _is_number(value),
    "bool": lambda value: isinstance(value, bool),
    "list[float]": lambda value: isinstance(value, list) and all(map(_is_number, value)),
    "dict[str, float]": lambda value: isinstance(value, dict) and all(map(_is_number, value.values())),
    "dict[str, Any]": lambda value: isinstance(value, dict),
}


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
