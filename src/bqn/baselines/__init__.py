"""The methods that Bayesian quantized networks are compared with, each in a file of its own.

Every method gives a `bqn.Network` with the layers of the architecture that was asked for, so that one training loop,
one evaluation and one command line serve all. A new one is a file and a line in `METHODS`.
"""

from __future__ import annotations

from collections.abc import Mapping

from bqn.baselines._method import SIZES, Method, Plan
from bqn.baselines.bayesbinn import BAYESBINN
from bqn.baselines.ebp import EBP
from bqn.baselines.ensemble import ENSEMBLE, EQNN
from bqn.baselines.gaussian_bnn import GAUSSIAN_BNN
from bqn.baselines.mc_dropout import MC_DROPOUT
from bqn.baselines.npn import NPN
from bqn.baselines.pbp import PBP
from bqn.baselines.qnn import QNN

BQN = Method(
    "Bayesian quantized network",
    build=lambda plan: plan.blank(),
    models=("mlp", "cnn", "vgg", "resnet", "regressor"),
    model_options=(*SIZES, "levels", "activations", "bias_levels", "init", "mean_field"),
)

# Fixed: a config names an entry here and can name nothing else.
METHODS: Mapping[str, Method] = {
    "bqn": BQN,
    "qnn": QNN,
    "e-qnn": EQNN,
    "gaussian-bnn": GAUSSIAN_BNN,
    "bayesbinn": BAYESBINN,
    "mc-dropout": MC_DROPOUT,
    "ensemble": ENSEMBLE,
    "pbp": PBP,
    "ebp": EBP,
    "npn": NPN,
}

__all__ = ["METHODS", "Method", "Plan"]
