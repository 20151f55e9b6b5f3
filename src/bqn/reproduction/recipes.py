"""How the networks of the tables are trained: a recipe for each architecture and data set, as plain tables.

`paper` follows the text as far as it goes. `best` is ours: same layers, binary weights and activations, everything
else free; its MLP has batch norm, the paper's has none. Its learning rates and λ and the shift of MLP and CNN were
chosen on validation examples by single runs, results/tuning; docs/ablations.md says what was chosen on what, and what
was not.

A variant of a recipe changes a few settings: λ for the sweeps, the levels, or one idea at a time for the ablations.

Settings are fields of `bqn.training.TrainConfig`. An entry for (architecture, data) stands over the architecture's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from bqn.reproduction import paper
from bqn.training import ConfigError, TrainConfig

Settings = Mapping[str, Any]

# --- recipe "paper" ---------------------------------------------------------------------------------------------------

_TEXT: Settings = {
    "epochs": 100,
    "batch_size": 100,
    "learning_rate": 1e-2,
    "lr_schedule": "exponential",
    "lr_decay": 0.98,
    "lam_schedule": "warm-up",
    "warm_up_epochs": 5.0,
    "warm_up_lam": -1e-4,
    "bound": "jensen",
    "init": "xavier",
    "shift": 2,
    "compile": True,
}
PAPER: Mapping[str | tuple[str, str], Settings] = {
    "mlp": {**_TEXT, "batch_norm": False, "mean_field": True, "lam": 1e-4},
    # The text says nothing of precision; convolutions are in bfloat16.
    "cnn": {**_TEXT, "mean_field": True, "lam": 1e-4, "mixed_precision": True},
    # Its patience keeps a run that does not learn from going on for 300 epochs.
    "vgg": {
        **_TEXT, "epochs": 300, "patience": 15, "mean_field": True, "shift": 4, "flip": True, "lam": 1e-9,
        "mixed_precision": True,
    },
    # The λ at which the paper's figures have the NLL that table 1 prints.
    ("mlp", "mnist"): {"lam": 5e-3},
    ("mlp", "fashion-mnist"): {"lam": 5e-3},
    ("mlp", "kmnist"): {"lam": 5e-3},
    ("cnn", "mnist"): {"lam": 1e-4},
    ("cnn", "fashion-mnist"): {"lam": 5e-4},
    ("cnn", "kmnist"): {"lam": 5e-4},
    ("vgg", "cifar10"): {"lam": 1e-9},
}  # fmt: skip

# --- recipe "best" ----------------------------------------------------------------------------------------------------

# Learning rates, λ and its schedule and the shift of mlp and cnn: the best of a few single runs over 20 to 60 epochs on
# validation examples (results/tuning). λ was compared again when units had come to err together, of mlp over 20 epochs
# and of cnn over 40 (results/tuning/mlp-3.json, cnn-4.json); learning rates and shifts were not. λ of cnn on mnist
# stays at 0.03 by ten seeds of it and of 0.01 (docs/results.md). Turns, sizes and drawn networks of cnn come from
# cnn-5.json and cnn-6.json, on kmnist set by hand on what each gains by itself. Of vgg the learning rate was compared
# over 12 epochs, λ over 40, two settings (results/tuning/vgg-4.json) and three once units erred together (vgg-7.json).
# That all its epochs train drawn networks too comes from vgg-7.json. The numbers of epochs were set by hand.
BEST: Mapping[str | tuple[str, str], Settings] = {
    "mlp": {
        "epochs": 60, "learning_rate": 3e-2, "lam": 3e-2, "lam_schedule": "decay", "lam_end": 0.0, "shift": 1,
        "compile": True,
    },
    "cnn": {
        "epochs": 40, "learning_rate": 3e-2, "lam": 3e-2, "lam_schedule": "decay", "lam_end": 0.0, "shift": 1,
        "mixed_precision": True, "compile": True,
    },
    "vgg": {
        "epochs": 80, "drawn_epochs": 80, "learning_rate": 3e-2, "lam": 1e-2, "lam_schedule": "decay", "lam_end": 0.0,
        "shift": 4, "flip": True, "mixed_precision": True, "compile": True,
    },
    ("mlp", "kmnist"): {"lam": 1e-1},
    ("cnn", "mnist"): {"turn": 10.0, "zoom": 0.1},
    ("cnn", "fashion-mnist"): {"drawn_epochs": 40, "mode_share": 0.5},
    ("cnn", "kmnist"): {"drawn_epochs": 40, "mode_share": 0.5, "turn": 10.0, "zoom": 0.1},
}  # fmt: skip

RECIPES: Mapping[str, Mapping[str | tuple[str, str], Settings]] = {"paper": PAPER, "best": BEST}

# For so many epochs the networks that are to be packed learn the analytic prediction (`bqn.training.distill`). Chosen
# on validation examples of one CNN, with the learning rate (docs/ablations.md).
DISTILLATION: Mapping[str, int] = {"best": 5}

# --- sweeps over λ ----------------------------------------------------------------------------------------------------

# The recipe `paper` sweeps what the paper's figures do. In `best` λ falls to zero from the value that is named, and its
# own lies far above the paper's values, so it sweeps past its own; the MLP, which is cheap, the paper's as well, the
# CNN the one that lies on the way. A VGG takes as long as ten CNNs: as many values as the paper has for it, one on
# either side of its own.
_BEST_SWEEP: Mapping[str, tuple[float, ...]] = {
    "mlp": (1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 3e-2, 1e-1, 3e-1),
    "cnn": (1e-3, 1e-2, 3e-2, 1e-1),
    "vgg": (3e-3, 1e-2, 3e-2),
}


def swept(target: str, recipe: str, architecture: str, data: str) -> tuple[float, ...]:
    """The values of λ of "figure-power" or "figure-gap", ascending; none where the paper has no such figure."""
    lams = paper.swept(target).get((architecture, data), ())
    return _BEST_SWEEP[architecture] if lams and recipe == "best" else tuple(lams)


# --- variants ---------------------------------------------------------------------------------------------------------


class Idea(NamedTuple):
    """An ablation: what is changed, in words and in settings of which recipe and networks.

    `against` names the idea that it is compared with, "" for the recipe itself.
    """

    text: str
    settings: Settings
    recipe: str = "best"
    networks: tuple[tuple[str, str], ...] = paper.NETWORKS
    against: str = ""


# D levels for weights and for activations, about a unit apart where batch norm makes the width of their inputs one.
LEVELS: Mapping[int, tuple[float, ...]] = {
    2: (-1.0, 1.0),
    3: (-1.0, 0.0, 1.0),
    4: (-1.5, -0.5, 0.5, 1.5),
    8: (-1.75, -1.25, -0.75, -0.25, 0.25, 0.75, 1.25, 1.75),
}

_MLPS = tuple(network for network in paper.NETWORKS if network[0] == "mlp")
_SHORT: Settings = {"epochs": 20}


def _short(text: str, networks: tuple[tuple[str, str], ...] = paper.NETWORKS, **changed: Any) -> Idea:
    """A change of the recipe `best`, tried out over twenty epochs against the recipe over as many."""
    return Idea(text, {**_SHORT, **changed}, networks=networks, against="short")


IDEAS: Mapping[str, Idea] = {
    "short": Idea("twenty epochs", _SHORT),
    "jensen": _short("the paper's bound instead of the tilted one", bound="jensen"),
    "no-shift": _short("training images stay as they are", shift=0, flip=False, turn=0.0, zoom=0.0, cutout=0),
    "xavier": _short("the paper's start, all weights nearly undecided", init="xavier"),
    "exponential": _short(
        "the paper's learning rate, 0.01 × 0.98 an epoch", learning_rate=1e-2, lr_schedule="exponential", lr_decay=0.98
    ),
    "label-smoothing": _short("a twentieth of each label counts as every class alike", label_smoothing=0.05),
    "constant-lam": _short("λ stays as it is instead of falling to zero", lam_schedule="constant"),
    "warm-up": _short("λ = -1e-4 for the first five epochs, as in the paper, then constant", lam_schedule="warm-up"),
    "mean-field": _short("all outputs of a layer taken for independent, as in the paper", mean_field=True),
    "drawn": _short("the last five epochs train drawn networks too", _MLPS, drawn_epochs=5),
    "no-batch-norm": _short("no batch norm", _MLPS, batch_norm=False),
    "tilted": Idea("the tilted bound", {"bound": "tilted"}, recipe="paper"),
    "signal": Idea("our start", {"init": "signal"}, recipe="paper"),
}

_LAM = re.compile(r"lam-([0-9]+(?:\.[0-9]+)?(?:e-?[0-9]+)?)")
_LEVELS = re.compile(r"levels-([0-9]+)")


def lam_variant(lam: float) -> str:
    """The name of the variant with another λ, for example "lam-0.001"."""
    return f"lam-{lam:g}"


def levels_variant(count: int) -> str:
    """The name of the variant with D levels, for example "levels-3"."""
    return f"levels-{count}"


def changes(variant: str) -> dict[str, Any]:
    """The settings that a variant changes; none for ""."""
    if variant in IDEAS:
        return dict(IDEAS[variant].settings)
    if match := _LAM.fullmatch(variant):
        return {"lam": float(match[1])}
    if (match := _LEVELS.fullmatch(variant)) and int(match[1]) in LEVELS:
        values = LEVELS[int(match[1])]
        return {"levels": values, "activations": values}
    if variant:
        known = ", ".join([*IDEAS, "lam-NUMBER", *map(levels_variant, LEVELS)])
        raise ConfigError(f"variant must be one of {known}, got {variant!r}")
    return {}


def settings(recipe: str, architecture: str, data: str, variant: str = "") -> dict[str, Any]:
    """All that a recipe says about an architecture on a data set."""
    if recipe not in RECIPES:
        raise ConfigError(f"recipe must be one of {', '.join(RECIPES)}, got {recipe!r}")
    table = RECIPES[recipe]
    if architecture not in table:
        known = ", ".join(name for name in table if isinstance(name, str))
        raise ConfigError(f"recipe {recipe} is for {known}, got {architecture!r}")
    return {**table[architecture], **table.get((architecture, data), {}), **changes(variant)}


def distillation(recipe: str, variant: str = "") -> int:
    """Epochs of distillation once a run has ended; variants have none."""
    return 0 if variant else DISTILLATION.get(recipe, 0)


def config(recipe: str, architecture: str, data: str, variant: str = "", seed: int = 0) -> TrainConfig:
    """The whole config of a run. What a recipe does not say is as `TrainConfig` has it, whatever the presets say."""
    chosen = settings(recipe, architecture, data, variant)
    return TrainConfig(model=architecture, data=data, seed=seed, **chosen)
