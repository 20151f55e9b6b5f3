"""Bayesian quantized networks: calibrated uncertainty from networks of a few bits, without sampling."""

from typing import Any

from bqn import corruptions, data, evaluation, exact, metrics, models, nn, objective, predictions, training
from bqn._version import __version__
from bqn.beliefs import Belief, Categorical, Gaussian
from bqn.heads import GaussianHead, Moments, SoftmaxHead
from bqn.levels import BINARY, QUATERNARY, TERNARY
from bqn.network import Network, QuantizedNetwork
from bqn.nn import recalibrate

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
    "evaluation",
    "exact",
    "metrics",
    "models",
    "nn",
    "objective",
    "predictions",
    "recalibrate",
    "training",
]


def __getattr__(name: str) -> Any:
    """The scikit-learn estimators, which need an extra, are imported when they are first asked for."""
    if name in ("BQNClassifier", "BQNRegressor"):
        from bqn import estimators

        return getattr(estimators, name)
    raise AttributeError(f"module 'bqn' has no attribute {name!r}")
