"""The settings of a training run as options: one line of help for each field of `TrainConfig`."""

from __future__ import annotations

import inspect
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer

from bqn.baselines import METHODS
from bqn.levels import BINARY, QUATERNARY, TERNARY
from bqn.training import ARCHITECTURES, TrainConfig
from bqn.training.presets import BY_DATA, BY_MODEL

DATA, MODEL, OPTIMIZER, OBJECTIVE, SWITCHES, MACHINE = "Data", "Model", "Optimizer", "Objective", "Switches", "Machine"
_LEVEL_NAMES = {BINARY: "binary", TERNARY: "ternary", QUATERNARY: "quaternary"}


@dataclass(frozen=True)
class Setting:
    """How a field of `TrainConfig` shows on the command line; `{choices}` stands for what it may be."""

    panel: str
    help: str
    metavar: str = ""


SETTINGS: Mapping[str, Setting] = {
    "data": Setting(DATA, "Name (see bqn data list), or path of a .npz or .csv file or a folder of pictures", "DATA"),
    "split": Setting(DATA, "Which train and test split; a seed where the set has none of its own", "N"),
    "target": Setting(DATA, "Column of a .csv file to predict; the last one if not given", "COLUMN"),
    "task": Setting(DATA, "What your own file is for, {choices}; seen from its targets if not given", "TASK"),
    "validation_fraction": Setting(DATA, "Share of the training examples that choose the best epoch", "FRACTION"),
    "shift": Setting(DATA, "Augmentation: move images at random by up to so many pixels", "PIXELS"),
    "turn": Setting(DATA, "Augmentation: turn images at random by up to so many degrees", "DEGREES"),
    "zoom": Setting(DATA, "Augmentation: enlarge or shrink images at random by up to that share", "SHARE"),
    "cutout": Setting(DATA, "Augmentation: blacken a square of that side at random in each image", "PIXELS"),
    "method": Setting(
        MODEL, "What is trained: {choices}; each has defaults of its own, those shown are of bqn", "NAME"
    ),
    "model": Setting(MODEL, "Architecture: {choices}; mlp or regressor, as the task asks, if not given", "NAME"),
    "hidden": Setting(MODEL, "Units of the hidden layers", "N,N,…"),
    "channels": Setting(MODEL, "Channels of the convolutions", "N,N,…"),
    "levels": Setting(MODEL, "Values of weights: binary, ternary, quaternary or ascending numbers as -1,0,1", "LEVELS"),
    "activations": Setting(MODEL, "Values of activations, likewise", "LEVELS"),
    "bias_levels": Setting(MODEL, "Values of biases, likewise; those of the weights if not given", "LEVELS"),
    "blocks": Setting(MODEL, "Residual blocks a stage", "N"),
    "init": Setting(MODEL, "How weights start: {choices}", "NAME"),
    "weights": Setting(MODEL, "Weights of method ebp: {choices}; fixed is real with a variance of one", "NAME"),
    "nonlinearity": Setting(MODEL, "Hidden units of method npn: {choices}", "NAME"),
    "members": Setting(MODEL, "Networks of an ensemble", "N"),
    "dropout": Setting(MODEL, "Share of units that dropout leaves out", "FRACTION"),
    "prior_std": Setting(MODEL, "Standard deviation of a normal prior", "STD"),
    "temperature": Setting(MODEL, "Of the relaxed draws of bayesbinn", "τ"),
    "epochs": Setting(OPTIMIZER, "Passes over the training examples", "N"),
    "batch_size": Setting(OPTIMIZER, "Examples a step", "N"),
    "accumulate": Setting(OPTIMIZER, "Parts that a batch is cut into, to need less memory", "PARTS"),
    "learning_rate": Setting(OPTIMIZER, "The optimizer's rate at the start", "RATE"),
    "lr_schedule": Setting(OPTIMIZER, "How the rate falls over the run: {choices}", "NAME"),
    "lr_decay": Setting(OPTIMIZER, "Factor an epoch of the exponential schedule", "FACTOR"),
    "best_by": Setting(OPTIMIZER, "What the best epoch is best by, on validation examples: {choices}", "SCORE"),
    "patience": Setting(OPTIMIZER, "Stop after so many epochs without a better one", "EPOCHS"),
    "lam": Setting(OBJECTIVE, "Weight λ of the KL; 1 is the textbook ELBO", "λ"),
    "lam_schedule": Setting(OBJECTIVE, "λ over the run: {choices} (from --lam to --lam-end)", "NAME"),
    "lam_end": Setting(OBJECTIVE, "Where a decay of λ ends", "λ"),
    "warm_up_epochs": Setting(OBJECTIVE, "Length of the warm-up, in epochs", "EPOCHS"),
    "warm_up_lam": Setting(OBJECTIVE, "λ during the warm-up", "λ"),
    "bound": Setting(OBJECTIVE, "Bound on the log-likelihood of a classifier: {choices}", "NAME"),
    "label_smoothing": Setting(OBJECTIVE, "Share of each training label that counts as every class alike", "SHARE"),
    "drawn_epochs": Setting(OBJECTIVE, "Epochs at the end that train networks drawn from the posterior too", "N"),
    "drawn_alone": Setting(OBJECTIVE, "Steps on a drawn network alone after each analytic one; 0: all do both", "N"),
    "mode_share": Setting(OBJECTIVE, "Share of the steps that draw with the most probable network instead", "FRACTION"),
    "flip": Setting(SWITCHES, "Augmentation: mirror images at random"),
    "batch_norm": Setting(SWITCHES, "Batch norm after each hidden layer"),
    "pool_first": Setting(SWITCHES, "Pooling before batch norm and sign"),
    "mean_field": Setting(SWITCHES, "Take all outputs of a layer for independent, as the paper does"),
    "checkpoint_activations": Setting(
        SWITCHES, "Less memory, more time: compute layers again in the backward pass; with --compile, keep less"
    ),
    "mixed_precision": Setting(SWITCHES, "Products in bfloat16, on CUDA or a CPU with AVX512-BF16 or AMX"),
    "compile": Setting(SWITCHES, "Fuse the steps by torch.compile, on CUDA only: faster after a minute of preparation"),
    "seed": Setting(MACHINE, "Decides starting weights, validation split, order and augmentation", "N"),
    "device": Setting(MACHINE, "auto, cpu, cuda or cuda:N; auto takes CUDA if there is one", "DEVICE"),
    "threads": Setting(MACHINE, "CPU threads; torch's own choice if not given", "N"),
    "checkpoint_every": Setting(MACHINE, "Save also after every so many steps, not only after epochs", "STEPS"),
}


def with_settings(command: Callable[..., None], several: frozenset[str] = frozenset()) -> Callable[..., None]:
    """Give a command one option for each setting; those that the user gave arrive as `**settings`, parsed.

    The settings in `several` take one number or more, with commas between them, and arrive as lists.
    """
    kinds = {**get_type_hints(TrainConfig), **dict.fromkeys(several, tuple[float, ...])}
    own = inspect.signature(command, eval_str=True)

    def wrapper(**arguments: Any) -> None:
        given = {name: value for name in SETTINGS if (value := arguments.pop(name)) is not None}
        parsed = {name: parse_numbers(given[name]) if _is_sequence(kinds[name]) else given[name] for name in given}
        command(**arguments, **parsed)

    parameters = [each for each in own.parameters.values() if each.kind is not inspect.Parameter.VAR_KEYWORD]
    for name, setting in SETTINGS.items():
        if name in several:
            setting = Setting(setting.panel, f"{setting.help}; one or more", f"{setting.metavar},…")
        annotation: Any = Annotated[_option_type(kinds[name]) | None, _option(name, setting, kinds[name])]
        parameters.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation))
    wrapper.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
    wrapper.__annotations__ = {each.name: each.annotation for each in parameters}
    wrapper.__name__, wrapper.__doc__ = command.__name__, command.__doc__
    return wrapper


def _option(name: str, setting: Setting, kind: Any) -> Any:
    flag = name.replace("_", "-")
    named = {"model": ARCHITECTURES, "method": METHODS}
    choices = tuple(named[name]) if name in named else _choices(kind)
    default = "" if name == "model" else describe_default(name)
    text = f"{setting.help.format(choices=_alternatives(choices))}."
    return typer.Option(
        f"--{flag}/--no-{flag}" if _option_type(kind) is bool else f"--{flag}",
        help=f"{text} [dim]\\[default: {default}][/]" if default else text,
        metavar=setting.metavar,
        rich_help_panel=setting.panel,
        show_default=False,
        autocompletion=(lambda: list(choices)) if choices else None,
    )


def _alternatives(choices: tuple[str, ...]) -> str:
    return f"{', '.join(choices[:-1])} or {choices[-1]}" if choices else ""


def _plain(kind: Any) -> Any:
    """The type without None."""
    return next((part for part in get_args(kind) if part is not type(None)), kind) if _is_optional(kind) else kind


def _is_optional(kind: Any) -> bool:
    return type(None) in get_args(kind)


def _is_sequence(kind: Any) -> bool:
    return get_origin(_plain(kind)) is tuple


def _choices(kind: Any) -> tuple[str, ...]:
    plain = _plain(kind)
    return get_args(plain) if get_args(plain) and not _is_sequence(kind) else ()


def _option_type(kind: Any) -> Any:
    """What the parser makes of the text; `TrainConfig` checks the rest, in one place for flags and files."""
    return str if _choices(kind) or _is_sequence(kind) else _plain(kind)


def parse_numbers(text: str) -> Any:
    """`512,256` as numbers, a word such as `ternary` as it is."""
    parts = [part.strip() for part in text.split(",")]
    try:
        return [int(part) if part.lstrip("+-").isdecimal() else float(part) for part in parts]
    except ValueError:
        return text


def parse_setting(name: str, text: str) -> Any:
    """What a setting is to be, written as after its option; switches as true and false."""
    kind = get_type_hints(TrainConfig).get(name)
    if kind is not None and _is_sequence(kind):
        return parse_numbers(text)
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def describe_default(name: str) -> str:
    """What a setting is where the user says nothing, by model and data where these matter."""
    field = next(each for each in fields(TrainConfig) if each.name == name)
    base = field.default
    special: dict[str, list[str]] = {}
    for model, value in _by_model(name).items():
        if value != base:
            special.setdefault(describe_value(value), []).append(model)
    for method, entry in METHODS.items():
        if name in entry.options:
            special.setdefault(describe_value(entry.options[name]), []).append(method)
    for data, values in BY_DATA.items():
        if name in values and (values[name] != base or special):  # the data have the last word
            special.setdefault(describe_value(values[name]), []).append(data)
    if base is None and len(special) == 1:
        return next(iter(special))
    parts = [] if base is None else [describe_value(base)]
    return "; ".join([*parts, *(f"{', '.join(keys)} {value}" for value, keys in special.items())])


def _by_model(name: str) -> dict[str, Any]:
    """The setting in each architecture that has it, by its options and then its preset."""
    if name == "drawn_epochs":  # of a preset: all, see `TrainConfig.preset`
        return {model: "all" for model, preset in BY_MODEL.items() if name in preset}
    return {
        model: {**architecture.options, **BY_MODEL.get(model, {})}[name]
        for model, architecture in ARCHITECTURES.items()
        if name in {**architecture.options, **BY_MODEL.get(model, {})}
    }


def describe_value(value: Any) -> str:
    """A setting as the user would write it; empty for None."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return _LEVEL_NAMES.get(value) or (",".join(f"{each:g}" for each in value) if len(value) < 6 else _range(value))
    if isinstance(value, float) and float(f"{value:g}") == value:
        return f"{value:g}"
    return str(value)


def _range(values: tuple[float, ...]) -> str:
    return f"{len(values)} numbers from {values[0]:g} to {values[-1]:g}"
