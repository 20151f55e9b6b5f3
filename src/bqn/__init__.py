"""Bayesian quantized networks: calibrated uncertainty from networks of a few bits, without sampling.

Everything is imported when it is first asked for: the packed runtime, `bqn.deploy`, works where there is no torch, and
the scikit-learn estimators need an extra.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from bqn._version import __version__

if TYPE_CHECKING:
    from bqn import (
        corruptions,
        data,
        deploy,
        evaluation,
        exact,
        metrics,
        models,
        nn,
        objective,
        predictions,
        reproduction,
        training,
        zoo,
    )
    from bqn.beliefs import Belief, Categorical, Gaussian
    from bqn.deploy import load_packed, pack
    from bqn.heads import GaussianHead, Moments, SoftmaxHead
    from bqn.levels import BINARY, QUATERNARY, TERNARY
    from bqn.network import Network, QuantizedNetwork
    from bqn.nn import recalibrate
    from bqn.zoo import load_pretrained, pretrained

__all__ = [
    "BINARY",
    "QUATERNARY",
    "TERNARY",
    "Belief",
    "Categorical",
    "Gaussian",
    "GaussianHead",
    "Moments",
    "Network",
    "QuantizedNetwork",
    "SoftmaxHead",
    "__version__",
    "corruptions",
    "data",
    "deploy",
    "evaluation",
    "exact",
    "load_packed",
    "load_pretrained",
    "metrics",
    "models",
    "nn",
    "objective",
    "pack",
    "predictions",
    "pretrained",
    "recalibrate",
    "reproduction",
    "training",
    "zoo",
]

# Where each name lives; all other names are modules.
_HOMES = {
    **dict.fromkeys(("Belief", "Categorical", "Gaussian"), "beliefs"),
    **dict.fromkeys(("GaussianHead", "Moments", "SoftmaxHead"), "heads"),
    **dict.fromkeys(("BINARY", "QUATERNARY", "TERNARY"), "levels"),
    **dict.fromkeys(("Network", "QuantizedNetwork"), "network"),
    **dict.fromkeys(("load_packed", "pack"), "deploy"),
    **dict.fromkeys(("BQNClassifier", "BQNRegressor"), "estimators"),
    **dict.fromkeys(("load_pretrained", "pretrained"), "zoo"),
    "recalibrate": "nn",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        value = getattr(import_module(f"bqn.{_HOMES[name]}"), name)
    elif name in __all__:
        value = import_module(f"bqn.{name}")
    else:
        raise AttributeError(f"module 'bqn' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, *_HOMES})
