"""Our runs of other methods: the records under results/rivals, which docs/baselines.md shows too."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from bqn.reproduction.records import RecordError, check_scores
from bqn.training.files import parse_object, read_text


class Rival(NamedTuple):
    """Seeds with their figures under "test", and how many networks vote together, None for one."""

    seeds: list[dict[str, Any]]
    members: int | None


def read(out: Path, method: str, architecture: str, data: str, mode: str) -> Rival | None:
    """The record of a method, which must have `mode`; None without one.

    An ensemble of five, or a run that saw shifted images, comes first where there is one.
    """
    name = f"{method}-{architecture}-{data}"
    paths = [out / "rivals" / f"{name}{ending}.json" for ending in ("-five", "-shifted", "")]
    path = next((path for path in paths if path.exists()), None)
    if path is None:
        return None
    try:
        document = parse_object(read_text(path), str(path))
    except ValueError as error:
        raise RecordError(str(error)) from None
    expected = {"method": method, "model": architecture, "data": data}
    for key, value in expected.items():
        if document.get(key) != value:
            raise RecordError(f"{path}: {key} must be {value!r}, got {document.get(key)!r:.40}")
    config, seeds = document.get("config"), document.get("seeds")
    members = config.get("members") if isinstance(config, dict) else False
    if members is not None and (isinstance(members, bool) or not isinstance(members, int)):
        raise RecordError(f"{path}: config must be an object with members, a count or null")
    if not isinstance(seeds, list) or not seeds or not all(isinstance(row, dict) for row in seeds):
        raise RecordError(f"{path}: seeds must be a list of objects, one a seed")
    for row in seeds:
        _check(row, mode, f"{path}: seed {row.get('seed')!r:.20}, test")
    return Rival(seeds, members)


def _check(row: dict[str, Any], mode: str, place: str) -> None:
    scores = row.get("test")
    if not isinstance(scores, dict) or not isinstance(scores.get(mode), dict):
        raise RecordError(f"{place} must have the mode {mode}")
    for name in ("nll", "error"):
        if name not in scores[mode]:
            raise RecordError(f"{place}, {mode} must have {name}")
    check_scores({mode: {name: scores[mode][name] for name in ("nll", "error")}}, place)
