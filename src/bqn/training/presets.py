"""Settings that work, by model and by data set: what a config takes where the user says nothing.

A data set's entries stand over the model's, and the user's over both. They are meant for a first run of few epochs. The
λ of mlp comes from a few single runs, learning rate and λ of vgg from those of the recipe `best` of `bqn.reproduction`;
the settings of cnn and resnet are taken over from mlp and the paper. Longer runs on validation examples
(results/tuning, docs/ablations.md) found a larger λ and a shift of 1 to be better for cnn and a shift of 1 for mlp:
those are in that recipe, not here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

BY_MODEL: Mapping[str, Mapping[str, Any]] = {
    # Lowest NLL in all three modes among 1e-4 to 3e-2 on MNIST's validation part (results/benchmarks/mlp_lam.json); at
    # 1e-1 the analytic prediction is better still, 0.056 against 0.066, but the most probable network fails.
    "mlp": {"epochs": 10, "learning_rate": 3e-2, "lam": 3e-2},
    "cnn": {"epochs": 10, "learning_rate": 3e-2, "lam": 1e-4, "shift": 2},
    # As in the recipe `best`. Its λ was over 40 epochs ahead of a constant 3e-3 (results/tuning/vgg-4.json), which over
    # twelve had been ahead of 1e-4 with a prototype; networks drawn in all epochs, however many: vgg-7.json.
    "vgg": {
        "epochs": 100,
        "drawn_epochs": 100,
        "learning_rate": 3e-2,
        "lam": 1e-2,
        "lam_schedule": "decay",
        "lam_end": 0.0,
        "shift": 4,
        "flip": True,
    },
    "resnet": {"epochs": 100, "learning_rate": 3e-2, "lam": 1e-4, "shift": 4, "flip": True},
    # Chosen on validation parts of Boston's training splits: docs/baselines-regression.md. A batch holds a small set
    # whole: the mean of a small batch is uncertain, and behind batch norm that would count as noise of the targets.
    "regressor": {
        "epochs": 150,
        "batch_size": 500,
        "learning_rate": 0.1,
        "lam": 0.3,
        "hidden": (64, 64),
        "levels": (-2.0, -1.0, 0.0, 1.0, 2.0),
        "activations": (0.0, 0.5, 1.0, 1.5),
        "batch_norm": True,
        "validation_fraction": 0.0,
    },
}

BY_DATA: Mapping[str, Mapping[str, Any]] = {
    # Eighteen hundred small images: an epoch is a blink, and a shift would push the digit out of the picture.
    "digits": {"epochs": 20, "shift": 0},
    "cifar10": {"shift": 4, "flip": True},
}


# What the other methods take instead of BY_MODEL: for all models, or for one.
_AUGMENTED: Mapping[str, Mapping[str, Any]] = {
    model: {name: BY_MODEL[model][name] for name in ("epochs", "shift", "flip") if name in BY_MODEL[model]}
    for model in ("cnn", "vgg", "resnet")
}
# Signs make a network sure of itself long before it stops to improve: its best epoch is that of the lowest error.
_BINARY: Mapping[str, Any] = {"epochs": 20, "learning_rate": 1e-2, "best_by": "error"}
_REAL: Mapping[str, Any] = {"epochs": 20, "learning_rate": 3e-3}
# As many steps as the published runs on small tables make, and like these on all training examples.
_REGRESSION: Mapping[str, Any] = {
    "epochs": 400,
    "batch_size": 128,
    "learning_rate": 1e-2,
    "lam": 1.0,
    "validation_fraction": 0.0,
}
BY_METHOD: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "qnn": {**_AUGMENTED, "all": _BINARY},
    "e-qnn": {**_AUGMENTED, "all": _BINARY},
    # λ as the paper's BNN has its best NLL; less for networks so large that their KL would outweigh the data.
    "gaussian-bnn": {
        **_AUGMENTED,
        "vgg": {**_AUGMENTED["vgg"], "lam": 1e-4},
        "resnet": {**_AUGMENTED["resnet"], "lam": 1e-4},
        "all": {**_REAL, "lam": 2e-3},
        "regressor": _REGRESSION,
    },
    # α = 1e-4 of the paper times 54,000 examples; its λ is 1.
    "bayesbinn": {**_AUGMENTED, "all": {"epochs": 20, "learning_rate": 5.4, "lam": 1.0, "best_by": "error"}},
    "mc-dropout": {**_AUGMENTED, "all": {**_REAL, "lam": 0.1}, "regressor": _REGRESSION},
    # Fewer steps: after 400 epochs a member without masks believes in far too little noise.
    "ensemble": {
        **_AUGMENTED,
        "all": {**_REAL, "lam": 1.0},
        "regressor": {**_REGRESSION, "epochs": 150, "lam": 10.0},
    },
    # One pass is one round of filtering; the published runs make forty and look at no validation data.
    "pbp": {
        "all": {"epochs": 40, "learning_rate": 1.0, "lr_schedule": "constant", "validation_fraction": 0.0},
        "mlp": {"epochs": 5},
    },
    "ebp": {
        "all": {"epochs": 20, "learning_rate": 1.0, "lr_schedule": "constant", "validation_fraction": 0.0},
        "mlp": {"epochs": 5},
    },
    "npn": {
        "regressor": {"epochs": 100, "batch_size": 32, "learning_rate": 1e-2, "lam": 1.0, "validation_fraction": 0.0},
        "mlp": {"epochs": 10, "learning_rate": 1e-2, "lam": 0.1},
    },
}


def defaults(model: str, data: str, method: str = "bqn") -> dict[str, Any]:
    """The settings for `model` on `data` with `method`, by field of `TrainConfig`."""
    if method == "bqn":
        return {**BY_MODEL.get(model, {}), **BY_DATA.get(data, {})}
    suited = BY_METHOD.get(method, {})
    return {**suited.get("all", {}), **suited.get(model, {}), **BY_DATA.get(data, {})}
