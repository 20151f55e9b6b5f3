"""From stored examples to what a network sees, and from what it says back to the units of the data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bqn.data import DataError, Split, Standardizer, to_input
from bqn.heads import Moments, Prediction
from bqn.training.errors import CheckpointError
from bqn.training.files import parse_object, to_json

_FORMAT = "bqn-preprocessing-1"
_KEYS = ("format", "input_shape", "outputs", "classes", "inputs", "targets")
_NAMES = ("feature_names", "target_name")  # of columns: only where the data have them


@dataclass(frozen=True, eq=False)
class Preprocessing:
    """What was learned about the form of the data, from the training examples alone.

    Attributes
    ----------
    input_shape : shape of one example, `(C, H, W)` or `(F,)`
    outputs : int
        Classes, or columns of the regression target.
    classes : tuple of str
        Names of the classes; `()` for regression, or where nobody gave names.
    inputs : Standardizer or None
        For tables of features; pixels need none.
    targets : Standardizer or None
        For regression; None means classification.
    feature_names : tuple of str
        Names of the columns of a table; `()` where it has none, and for images.
    target_name : str or None
        Name of the column that is predicted, likewise.
    """

    input_shape: tuple[int, ...]
    outputs: int
    classes: tuple[str, ...] = ()
    inputs: Standardizer | None = None
    targets: Standardizer | None = None
    feature_names: tuple[str, ...] = ()
    target_name: str | None = None

    @classmethod
    def of(
        cls,
        train: Split,
        outputs: int | None = None,
        classes: Sequence[str] = (),
        feature_names: Sequence[str] = (),
        target_name: str | None = None,
    ) -> Preprocessing:
        """Learn from training examples.

        `outputs` is taken from the names of the classes or the columns of the target where it is not given.
        """
        regression = train.y.is_floating_point()
        if outputs is None:
            outputs = train.y.shape[1] if regression else len(classes) or int(train.y.max()) + 1
        return cls(
            tuple(train.x.shape[1:]),
            outputs,
            tuple(classes),
            Standardizer.fit(train.x) if train.x.is_floating_point() and train.x.dim() == 2 else None,
            Standardizer.fit(train.y) if regression else None,
            tuple(feature_names),
            target_name,
        )

    @property
    def task(self) -> str:
        return "classification" if self.targets is None else "regression"

    def input(self, x: Tensor) -> Tensor:
        """Examples `(N, *input_shape)`, uint8 or float, as the network takes them: float32."""
        if tuple(x.shape[1:]) != self.input_shape:
            raise DataError(f"x must have shape (N, {', '.join(map(str, self.input_shape))}), got {tuple(x.shape)}")
        return (to_input(x) if self.inputs is None else self.inputs.transform(x)).float()

    def target(self, y: Tensor) -> Tensor:
        """Labels `(N,)` unchanged; targets `(N, out)` standardized."""
        return y if self.targets is None else self.targets.transform(y)

    def output(self, prediction: Prediction) -> Prediction:
        """A network's prediction in the units of the data; probabilities unchanged."""
        if self.targets is None or not isinstance(prediction, Moments):
            return prediction
        mean, var = self.targets.inverse(prediction.mean), self.targets.inverse_var(prediction.var)
        return prediction._replace(mean=mean, var=var)

    @property
    def target_scale(self) -> tuple[Tensor, Tensor] | None:
        """Mean and standard deviation that regression targets were standardized by, each `(out,)`."""
        return None if self.targets is None else (self.targets.mean, self.targets.std)

    @property
    def log_scale(self) -> float:
        """What to add to an NLL of standardized targets to get that of the targets themselves."""
        return 0.0 if self.targets is None else float(self.targets.std.double().log().sum())

    def to_json(self) -> str:
        return to_json({
            "format": _FORMAT,
            "input_shape": self.input_shape,
            "outputs": self.outputs,
            "classes": self.classes,
            "inputs": _numbers(self.inputs),
            "targets": _numbers(self.targets),
            **({"feature_names": self.feature_names} if self.feature_names else {}),
            **({} if self.target_name is None else {"target_name": self.target_name}),
        })  # fmt: skip

    @classmethod
    def from_json(cls, text: str, source: str) -> Preprocessing:
        """What `to_json` wrote."""
        values = parse_object(text, source)
        if values.get("format") != _FORMAT or set(values) - set(_NAMES) != set(_KEYS):
            raise CheckpointError(f"{source} is not a {_FORMAT} object with the keys {', '.join(_KEYS)}")
        shape, outputs, classes = values["input_shape"], values["outputs"], values["classes"]
        if not _counts(shape) or not _counts([outputs]) or math.prod(shape) > 2**24:
            raise CheckpointError(f"{source}: input_shape and outputs must be positive integers")
        if not isinstance(classes, list) or not all(isinstance(name, str) for name in classes):
            raise CheckpointError(f"{source}: classes must be a list of names")
        if classes and len(classes) != outputs:
            raise CheckpointError(f"{source}: {len(classes)} classes for {outputs} outputs")
        inputs = _standardizer(values["inputs"], math.prod(shape), f"{source}: inputs")
        targets = _standardizer(values["targets"], outputs, f"{source}: targets")
        names, target = values.get("feature_names", []), values.get("target_name")
        if (
            not isinstance(names, list)
            or not all(isinstance(name, str) for name in names)
            or not isinstance(target, str | None)
        ):
            raise CheckpointError(f"{source}: feature_names must be a list of names, target_name a name")
        if names and (len(set(names)) < len(names) or [len(names)] != shape):
            raise CheckpointError(f"{source}: {len(names)} feature_names for {shape}, expected one name a feature")
        return cls(tuple(shape), outputs, tuple(classes), inputs, targets, tuple(names), target)


def _counts(values: object) -> bool:
    return (
        isinstance(values, list)
        and 0 < len(values) <= 8
        and all(isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**28 for value in values)
    )


def _numbers(standardizer: Standardizer | None) -> dict[str, list[float]] | None:
    # float32 → Python float → JSON → float32 loses nothing.
    return None if standardizer is None else {name: value.tolist() for name, value in standardizer.state().items()}


def _standardizer(values: Any, columns: int, source: str) -> Standardizer | None:
    if values is None:
        return None
    if not isinstance(values, dict) or not all(isinstance(column, list) for column in values.values()):
        raise CheckpointError(f"{source} must hold a mean and a std")
    for column in values.values():
        if len(column) != columns or any(isinstance(n, bool) or not isinstance(n, (int, float)) for n in column):
            raise CheckpointError(f"{source} must hold {columns} numbers each for mean and std")
    try:
        state = {name: torch.tensor(column, dtype=torch.float32) for name, column in values.items()}
        return Standardizer.from_state(state)
    except (DataError, RuntimeError, OverflowError) as error:
        raise CheckpointError(f"{source}: {error}") from None
