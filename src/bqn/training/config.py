"""Everything a training run depends on, checked, and written to and read from JSON and TOML."""

from __future__ import annotations

import difflib
import math
import os
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from bqn.baselines import METHODS
from bqn.choices import expected_one_of
from bqn.levels import BINARY, QUATERNARY, TERNARY, as_levels
from bqn.training import presets
from bqn.training.errors import CheckpointError, ConfigError
from bqn.training.files import parse_object, to_json
from bqn.training.models import ARCHITECTURES, method_option_names, option_names, options_of

_LEVEL_NAMES = {"binary": BINARY, "ternary": TERNARY, "quaternary": QUATERNARY}
_MAX_UNITS = 2**16
_MAX_LAYERS = 256


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """One training run. Same config, same data, same machine: same network, bit by bit on a CPU.

    Parameters
    ----------
    data : str
        Name of a data set, or path of a file or folder, as `bqn.data.load` takes it.
    split : int
        Which of its splits, for sets that come with several.
    target, task : str or None
        For files of your own: the column to predict, and whether that is "classification" or "regression".
    validation_fraction : float
        Share of the training examples set aside to choose the best epoch; 0 for none.
    method : str
        Name of a method: "bqn", or one of the others in `bqn.baselines.METHODS`.
    model : str
        Name of an architecture: mlp, cnn, vgg, resnet, regressor.
    hidden, channels, blocks : sequences of int, int
        Units of the hidden layers; channels of the convolutions; residual blocks a stage.
    levels, activations, bias_levels : "binary", "ternary", "quaternary" or ascending numbers
        Values of weights, activations and biases.
    batch_norm, pool_first, init, mean_field
        As in `bqn.models`. Model options left at None get the architecture's default; those that the architecture
        does not have must stay None.
    members, dropout, prior_std, temperature, weights, nonlinearity
        Options of methods, see docs/baselines.md; those that the method does not have must stay None.
    epochs, batch_size : int
        An epoch is cut into batches of nearly equal size, `batch_size` at most.
    learning_rate, lr_schedule, lr_decay
        Adam's rate at the start; "cosine" takes it to zero, step by step; "exponential" multiplies it by `lr_decay`
        after each epoch; "constant" keeps it.
    lam, lam_schedule
        Weight λ of the KL. "constant"; "warm-up": `warm_up_lam` for the first `warm_up_epochs`, then `lam`; "decay":
        from `lam` to `lam_end` along a cosine over all epochs.
    bound : "tilted" or "jensen"
        The bound on the log-likelihood of a classifier.
    label_smoothing : float
        So much of each training label counts as every class alike. Training alone sees it: scores on validation and
        test examples are those of the labels as they are.
    drawn_epochs : int
        In so many epochs at the end, or in all where there are no more, half of the objective is that of a network that
        each step draws from the posterior, with straight-through gradients. Networks whose samples are far from the
        analytic pass gain by it, others little; a step takes longer. The best epoch is one of these then.
    drawn_alone : int
        If above 0, no step does both by halves: steps of the analytic pass and steps with a drawn network alone, which
        are cheaper, alternate, so many of these after each of those, counted from the first step of the run.
    mode_share : float
        In that share of such steps, chosen at random, the most probable network stands for the drawn one: it is trained
        too, then, and not only what is drawn.
    best_by : "nll" or "error"
        What makes an epoch the best one, on validation data: its NLL, or its error (root mean squared for regression).
    patience : int or None
        Stop after so many epochs without a better one.
    shift, flip, turn, zoom, cutout : int, bool, float, float, int
        Augmentation of images: random shift by up to so many pixels; random mirroring; random turns by up to so many
        degrees; random enlarging or shrinking by up to that share; a black square of that side at a random place.
    accumulate : int
        Cut each batch into so many parts of nearly equal size and add up their gradients before the step: as if
        `batch_size` examples were seen at once, in the memory of a part. Batch norm takes its statistics from each
        part by itself.
    checkpoint_activations : bool
        Compute the layers a second time in the backward pass instead of keeping what they have computed: the same
        gradients, in less memory and more time. Compiled steps then keep what plain ones do, which is less than the
        compiler would.
    mixed_precision : bool
        Products in bfloat16 while training, on CUDA or on a CPU with instructions for them, AVX512-BF16 or AMX. Head,
        KL and validation stay in float32.
    compile : bool
        Let torch.compile fuse what the recorded steps on CUDA do element by element: steps take half the time or less,
        and the first one a minute. Without effect where steps are not recorded.
    seed : int
        Decides starting weights, validation split, order of examples and augmentation.
    device : str
        "auto" (CUDA if there is one), "cpu", "cuda" or "cuda:N".
    threads : int or None
        CPU threads; torch's own choice by default. Other numbers of threads round differently.
    checkpoint_every : int or None
        Save also after every so many steps; always at the end of an epoch, on a GPU of one that ends ten seconds after
        the last save, and of the last epoch.
    """

    data: str = "digits"
    split: int = 0
    target: str | None = None
    task: Literal["classification", "regression"] | None = None
    validation_fraction: float = 0.1
    method: str = "bqn"
    model: str = "mlp"
    hidden: tuple[int, ...] | None = None
    channels: tuple[int, ...] | None = None
    blocks: int | None = None
    levels: tuple[float, ...] | None = None
    activations: tuple[float, ...] | None = None
    bias_levels: tuple[float, ...] | None = None
    batch_norm: bool | None = None
    pool_first: bool | None = None
    init: Literal["signal", "xavier"] | None = None
    mean_field: bool | None = None
    weights: Literal["real", "fixed", "binary"] | None = None
    nonlinearity: Literal["relu", "tanh", "sigmoid"] | None = None
    members: int | None = None
    dropout: float | None = None
    prior_std: float | None = None
    temperature: float | None = None
    epochs: int = 10
    batch_size: int = 100
    learning_rate: float = 3e-2
    lr_schedule: Literal["cosine", "exponential", "constant"] = "cosine"
    lr_decay: float = 0.98
    lam: float = 1e-4
    lam_schedule: Literal["constant", "warm-up", "decay"] = "constant"
    lam_end: float = 0.0
    warm_up_epochs: float = 5.0
    warm_up_lam: float = -1e-4
    bound: Literal["tilted", "jensen"] = "tilted"
    label_smoothing: float = 0.0
    drawn_epochs: int = 0
    drawn_alone: int = 0
    mode_share: float = 0.0
    best_by: Literal["nll", "error"] = "nll"
    patience: int | None = None
    shift: int = 0
    flip: bool = False
    turn: float = 0.0
    zoom: float = 0.0
    cutout: int = 0
    accumulate: int = 1
    checkpoint_activations: bool = False
    mixed_precision: bool = False
    compile: bool = False
    seed: int = 0
    device: str = "auto"
    threads: int | None = None
    checkpoint_every: int | None = None

    def __post_init__(self) -> None:
        for name, kind in _types().items():
            object.__setattr__(self, name, _read(name, kind, getattr(self, name)))
        self._settle_options()
        for name, (holds, expected) in _RANGES.items():
            value = getattr(self, name)
            if value is not None and not holds(value):
                raise ConfigError(f"{name} must be {expected}, got {_shown(value)}")
        for name, most in _MOST.items():
            value = getattr(self, name)
            if value is not None and value > most:
                raise ConfigError(f"{name} must be at most {most}, got {_shown(value)}")
        if self.compile and self.method != "bqn":
            raise ConfigError(f"compile is for method bqn, got {self.method}")
        self._require_fitting_memory_options()
        for name in ("drawn_epochs", "label_smoothing"):
            if getattr(self, name) and self.method != "bqn":
                raise ConfigError(f"{name} is for method bqn, got {self.method}")
        for name in ("mode_share", "drawn_alone"):
            if getattr(self, name) and not self.drawn_epochs:
                raise ConfigError(f"{name} needs steps that draw networks: set drawn_epochs above 0")
        if 0 < self.drawn_epochs < self.epochs and self.patience is not None:
            raise ConfigError("patience does not go with drawn_epochs: the best epoch is one of the last")
        if self.patience is not None and not self.validation_fraction:
            raise ConfigError("patience needs validation data: set validation_fraction above 0")

    @property
    def augmentation(self) -> dict[str, Any]:
        """What `bqn.data.augment` is to do to images of training; nothing if it is to leave them alone."""
        asked = {name: getattr(self, name) for name in ("shift", "flip", "turn", "zoom", "cutout")}
        return asked if any(asked.values()) else {}

    @property
    def best_after(self) -> int:
        """How many epochs go by before one can be the best."""
        return max(self.epochs - self.drawn_epochs, 0) if self.drawn_epochs else 0

    def _require_fitting_memory_options(self) -> None:
        if self.accumulate > self.batch_size:
            raise ConfigError(f"accumulate must be at most batch_size, {self.batch_size}, got {self.accumulate}")
        used = {"accumulate": self.accumulate > 1, "checkpoint_activations": self.checkpoint_activations}
        for name in used:
            if used[name] and self.method != "bqn":
                raise ConfigError(f"{name} is for method bqn, got {self.method}")

    def _settle_options(self) -> None:
        """Give the options of model and method their defaults; all others must stay None."""
        for name, known in (("method", METHODS), ("model", ARCHITECTURES)):
            if getattr(self, name) not in known:
                raise ConfigError(expected_one_of(name, known, getattr(self, name)))
        method, of_model = METHODS[self.method], ARCHITECTURES[self.model].options
        if self.model not in method.models:
            raise ConfigError(f"model {self.model} is not for method {self.method}: {', '.join(method.models)}")
        options = options_of(self.method, self.model)
        for name in sorted(option_names()):
            if getattr(self, name) is None or name in options:
                continue
            if name in method_option_names() or name in of_model:
                takes = f"method {self.method}, which takes {', '.join(options)}"
            else:
                takes = f"model {self.model}, which takes {', '.join(of_model)}"
            raise ConfigError(f"{name} is not an option of {takes}")
        for name, default in options.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, default)

    @classmethod
    def preset(cls, values: Mapping[str, Any] | None = None, *, task: str | None = None) -> TrainConfig:
        """The config for what `values` says, with settings that suit its model and data for all the rest.

        Parameters
        ----------
        values : mapping by field name
        task : "classification", "regression" or None
            What the data ask for; it chooses the model where `values` does not.
        """
        given = dict(values or {})
        _require_known(given)
        given.setdefault("model", "regressor" if given.get("task", task) == "regression" else "mlp")
        names = [given["model"], given.get("data", "digits"), given.get("method", "bqn")]
        suited = presets.defaults(*names) if all(isinstance(name, str) for name in names) else {}
        chosen = {**suited, **given}
        if "drawn_epochs" in suited and "drawn_epochs" not in given:  # suited to all epochs, however many there are
            chosen["drawn_epochs"] = chosen["epochs"]
        return cls(**chosen)

    @classmethod
    def from_toml(
        cls,
        path: str | os.PathLike[str],
        overrides: Mapping[str, Any] | None = None,
        *,
        task: str | None = None,
    ) -> TrainConfig:
        """A preset with the settings of a file that `read_toml` takes, and `overrides` (flags, say) over those."""
        return cls.preset({**read_toml(path), **(overrides or {})}, task=task)

    def to_json(self) -> str:
        """All settings as a JSON object."""
        return to_json({field.name: getattr(self, field.name) for field in fields(self)}, indent=2)

    @classmethod
    def from_json(cls, text: str, source: str = "config") -> TrainConfig:
        """What `to_json` wrote. `source` names the text in errors."""
        try:
            values = parse_object(text, source)
            _require_known(values)
            return cls(**values)
        except CheckpointError as error:
            raise ConfigError(str(error)) from None
        except ConfigError as error:
            raise ConfigError(f"{source}: {error}") from None


def read_toml(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The settings in a TOML file, their names checked; or in a `.json` file, as `config.json` of a run is one."""
    form = "JSON" if Path(path).suffix.lower() == ".json" else "TOML"
    try:
        text = Path(path).read_text(encoding="utf-8")
        values = parse_object(text, str(path)) if form == "JSON" else tomllib.loads(text)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except CheckpointError as error:  # it names the file
        raise ConfigError(str(error)) from None
    except (ValueError, RecursionError) as error:  # no TOML, or no UTF-8
        raise ConfigError(f"{path} is not valid {form}: {error}") from None
    values = {name: value for name, value in values.items() if value is not None}  # a run's way to say: not set
    try:
        _require_known(values)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    return values


def _require_known(names: Iterable[str]) -> None:
    known = list(_types())
    for name in names:
        if name not in known:
            nearest = difflib.get_close_matches(name, known, n=1, cutoff=0.0)[0]
            raise ConfigError(f"{name!r} is not a setting; the nearest is {nearest!r}")


@cache
def _types() -> dict[str, Any]:
    return get_type_hints(TrainConfig)


def _read(name: str, kind: Any, value: Any) -> Any:
    """`value` as the type `kind`, or an error that says what came."""
    if get_origin(kind) in (Union, UnionType):
        if value is None:
            return None
        (kind,) = (choice for choice in get_args(kind) if choice is not type(None))
    if get_origin(kind) is Literal:
        if value not in get_args(kind) or not isinstance(value, str):
            raise ConfigError(expected_one_of(name, get_args(kind), value))
        return value
    if get_origin(kind) is tuple:
        return _read_sequence(name, get_args(kind)[0], value)
    if isinstance(value, kind) and (kind is bool or not isinstance(value, bool)):
        return value
    if kind is float and isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**53:
        return float(value)
    words = {bool: "true or false", int: "an integer", float: "a number", str: "a string"}
    raise ConfigError(f"{name} must be {words[kind]}, got {_shown(value)}")


def _read_sequence(name: str, kind: type, value: Any) -> tuple[Any, ...]:
    if kind is float and isinstance(value, str):
        if value not in _LEVEL_NAMES:
            names = ", ".join(_LEVEL_NAMES)
            raise ConfigError(f"{name} must be one of {names} or ascending numbers, got {_shown(value)}")
        return _LEVEL_NAMES[value]
    if not isinstance(value, (list, tuple)) or len(value) > _MAX_LAYERS:
        raise ConfigError(f"{name} must be a list of at most {_MAX_LAYERS} numbers, got {_shown(value)}")
    numbers = tuple(_read(name, kind, entry) for entry in value)
    if kind is float:
        try:
            return as_levels(numbers, name, at_least=2)
        except ValueError as error:
            raise ConfigError(str(error)) from None
    return numbers


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _sizes(value: tuple[int, ...]) -> bool:
    return all(0 < size <= _MAX_UNITS for size in value)


def _positive(value: float) -> bool:
    return 0 < value < math.inf


_RANGES: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "split": (lambda value: value >= 0, "at least 0"),
    "validation_fraction": (lambda value: 0 <= value < 1, "at least 0 and below 1"),
    "hidden": (_sizes, f"numbers from 1 to {_MAX_UNITS}"),
    "channels": (_sizes, f"numbers from 1 to {_MAX_UNITS}"),
    "blocks": (lambda value: 0 < value <= _MAX_LAYERS, f"from 1 to {_MAX_LAYERS}"),
    "members": (lambda value: 0 < value <= _MAX_LAYERS, f"from 1 to {_MAX_LAYERS}"),
    "dropout": (lambda value: 0 <= value < 1, "at least 0 and below 1"),
    "prior_std": (_positive, "positive and finite"),
    "temperature": (_positive, "positive and finite"),
    "epochs": (_positive, "at least 1"),
    "label_smoothing": (lambda value: 0 <= value < 1, "at least 0 and below 1"),
    "drawn_epochs": (lambda value: value >= 0, "at least 0"),
    "drawn_alone": (lambda value: value >= 0, "at least 0"),
    "mode_share": (lambda value: 0 <= value <= 1, "from 0 to 1"),
    "batch_size": (_positive, "at least 1"),
    "accumulate": (_positive, "at least 1"),
    "learning_rate": (_positive, "positive and finite"),
    "lr_decay": (lambda value: 0 < value <= 1, "above 0 and at most 1"),
    "lam": (math.isfinite, "finite"),
    "lam_end": (math.isfinite, "finite"),
    "warm_up_epochs": (_positive, "positive and finite"),
    "warm_up_lam": (math.isfinite, "finite"),
    "patience": (_positive, "at least 1"),
    "shift": (lambda value: value >= 0, "at least 0"),
    "turn": (lambda value: 0 <= value <= 180, "from 0 to 180"),
    "zoom": (lambda value: 0 <= value < 1, "at least 0 and below 1"),
    "cutout": (lambda value: value >= 0, "at least 0"),
    "seed": (lambda value: 0 <= value < 2**63, "from 0 to 2**63 - 1"),
    "device": (lambda value: re.fullmatch(r"auto|cpu|cuda(:[0-9]{1,3})?", value) is not None, "auto, cpu or cuda[:N]"),
    "threads": (_positive, "at least 1"),
    "checkpoint_every": (_positive, "at least 1"),
}

_COUNTS = (
    "split", "epochs", "drawn_epochs", "drawn_alone", "batch_size", "accumulate", "patience", "shift", "cutout",
    "checkpoint_every",
)  # fmt: skip
_MOST: Mapping[str, int] = {**dict.fromkeys(_COUNTS, 2**31 - 1), "threads": 1024}  # beyond, torch overflows or gives up
