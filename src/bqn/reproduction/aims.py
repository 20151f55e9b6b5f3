"""What the recipe `best` is meant to reach on the test set; aims, not gates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Aim(NamedTuple):
    """NLL in 1e-3 nats and error in percent."""

    nll: float
    error: float


AIMS: Mapping[tuple[str, str], Mapping[str, Aim]] = {
    ("mlp", "mnist"): {"analytic": Aim(50, 1.4), "mc": Aim(65, 1.8), "map": Aim(85, 2.4)},
    ("mlp", "fashion-mnist"): {"analytic": Aim(330, 11.0), "mc": Aim(350, 11.6), "map": Aim(390, 12.4)},
    ("mlp", "kmnist"): {"analytic": Aim(250, 6.0), "mc": Aim(280, 7.0), "map": Aim(340, 8.5)},
    ("cnn", "mnist"): {"analytic": Aim(18, 0.50), "mc": Aim(18, 0.50), "map": Aim(20, 0.60)},
    ("cnn", "fashion-mnist"): {"analytic": Aim(220, 7.8), "mc": Aim(225, 8.0), "map": Aim(240, 8.6)},
    ("cnn", "kmnist"): {"analytic": Aim(120, 2.5), "mc": Aim(120, 2.7), "map": Aim(140, 3.2)},
    ("vgg", "cifar10"): {"analytic": Aim(330, 9.0), "mc": Aim(360, 10.0), "map": Aim(420, 11.0)},
}

# How much worse than the analytic NLL that of five sampled networks may be.
MC_RATIO: Mapping[str, float] = {"cnn": 1.1, "vgg": 1.2}

BOSTON_RMSE, BOSTON_LOG_LIKELIHOOD = 3.0, -2.5
