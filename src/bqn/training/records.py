"""What a training run tells about itself, epoch by epoch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from bqn.training.errors import CheckpointError
from bqn.training.files import parse_object, to_json

_OPTIONAL = ("validation_nll", "validation_error", "validation_rmse")


@dataclass(frozen=True)
class EpochRecord:
    """One epoch.

    Attributes
    ----------
    epoch : int
        Counted from 1.
    elbo, log_likelihood, kl : float
        The objective and its terms, each a mean over the steps of the epoch, in the units that are trained on.
    train_nll : float
        Bound on the NLL of the training examples as they passed, in the units of the data. Where the epoch trains drawn
        networks too, that bound and the NLL of these in the shares that they are trained in.
    validation_nll : float or None
        NLL of the analytic prediction, in the units of the data; None without validation data.
    validation_error : float or None
        Fraction of wrong classes; None for regression.
    validation_rmse : float or None
        Root mean squared error in the units of the data; None for classification.
    learning_rate, lam : float
        As they were at the start of the epoch.
    seconds, eta : float
        How long the epoch took, validation included, and how long the rest will take.
    """

    epoch: int
    elbo: float
    log_likelihood: float
    kl: float
    train_nll: float
    validation_nll: float | None
    validation_error: float | None
    validation_rmse: float | None
    learning_rate: float
    lam: float
    seconds: float
    eta: float

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers by name, ready for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], source: str = "record") -> EpochRecord:
        """What `to_dict` gave; anything else is an error."""
        names = {field.name for field in fields(cls)}
        if not isinstance(values, Mapping) or set(values) != names:
            raise CheckpointError(f"{source} must hold exactly the keys {', '.join(sorted(names))}")
        for name, value in values.items():
            if value is None and name in _OPTIONAL:
                continue
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
                raise CheckpointError(f"{source}: {name} must be a number, got {value!r:.40}")
        if not isinstance(values["epoch"], int) or values["epoch"] < 1:
            raise CheckpointError(f"{source}: epoch must be an integer of at least 1, got {values['epoch']!r:.40}")
        floats: dict[str, Any] = {name: value if value is None else float(value) for name, value in values.items()}
        return cls(**{**floats, "epoch": values["epoch"]})


@dataclass(frozen=True)
class History:
    """All epochs of a run so far.

    Attributes
    ----------
    records : tuple of EpochRecord
    best_epoch : int or None
        The epoch of the lowest validation NLL, or error if that is what counts, from 1; None before the first, or
        without validation data.
    stopped_early : bool
        Whether the run ended because the validation NLL no longer fell.
    """

    records: tuple[EpochRecord, ...]
    best_epoch: int | None = None
    stopped_early: bool = False

    @property
    def best(self) -> EpochRecord | None:
        return None if self.best_epoch is None else self.records[self.best_epoch - 1]

    def to_lines(self) -> str:
        """One JSON object a line, one line an epoch."""
        return "".join(f"{to_json(record.to_dict())}\n" for record in self.records)


def best_epoch(records: Sequence[EpochRecord], by: str = "nll", after: int = 0) -> int | None:
    """The epoch with the lowest validation NLL, the first of equals; None without validation.

    With `by="error"` that of the lowest error, or root mean squared error, and of the lowest NLL among equals. The
    first `after` epochs do not count.
    """
    judged = [record for record in records[after:] if record.validation_nll is not None]
    return min(judged, key=lambda record: (_score(record, by), record.validation_nll)).epoch if judged else None


def _score(record: EpochRecord, by: str) -> float:
    scores: list[float | None] = [record.validation_nll]
    if by == "error":
        scores = [record.validation_error, record.validation_rmse, *scores]
    return next(score for score in scores if score is not None)


def parse_records(values: object, source: str) -> tuple[EpochRecord, ...]:
    """Validated records, epochs counted from 1 without a gap, all with or all without validation."""
    if not isinstance(values, (list, tuple)):
        raise CheckpointError(f"{source} must be a list of records")
    records = tuple(EpochRecord.from_dict(value, f"{source}, epoch {n}") for n, value in enumerate(values, 1))
    if any(record.epoch != n for n, record in enumerate(records, 1)):
        raise CheckpointError(f"{source} must count its epochs from 1 without a gap")
    if len({record.validation_nll is None for record in records}) > 1:
        raise CheckpointError(f"{source} must have a validation NLL in all epochs or in none")
    return records


def parse_lines(text: str, source: str) -> tuple[EpochRecord, ...]:
    """What `History.to_lines` wrote."""
    lines = [parse_object(line, f"{source}, line {n}") for n, line in enumerate(text.splitlines(), 1)]
    return parse_records(lines, source)
