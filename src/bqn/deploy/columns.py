"""Names of a table's columns in a packed file, as a text about it; files without them are read by position."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from bqn.deploy.program import PackedError
from bqn.strict_json import parse_object

KEY = "columns"


class Columns(NamedTuple):
    """Names of the features in the order of the network, `()` if unknown; and that of the target, if it has one."""

    features: tuple[str, ...] = ()
    target: str | None = None


def to_about(features: Sequence[str], target: str | None) -> dict[str, str]:
    """What to write into the file: JSON in a text, since lists have no place there. Nothing, if there are no names."""
    return {KEY: json.dumps({"features": list(features), "target": target})} if features else {}


def from_about(about: Mapping[str, Any]) -> Columns:
    """What `to_about` wrote; the file may come from anywhere."""
    if KEY not in about:
        return Columns()
    if not isinstance(about[KEY], str):
        raise PackedError(f"{KEY} must be a text, got {about[KEY]!r}")
    given = parse_object(about[KEY], KEY, PackedError)
    names, target = given.get("features"), given.get("target")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise PackedError(f"{KEY} must name the features, got {names!r:.80}")
    if len(set(names)) < len(names) or not isinstance(target, str | None):
        raise PackedError(f"{KEY} must be distinct names, got {names!r:.80} and {target!r:.80}")
    return Columns(tuple(names), target)
