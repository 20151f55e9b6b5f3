"""Bayesian quantized networks: calibrated uncertainty from networks of a few bits, without sampling."""

from bqn import exact, metrics, models, nn, objective
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
    "exact",
    "metrics",
    "models",
    "nn",
    "objective",
    "recalibrate",
]
