"""Bayesian quantized networks as scikit-learn estimators; needs the extra `sklearn`."""

try:
    import sklearn  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "sklearn":
        raise  # scikit-learn is there, but something that it needs is not
    raise ImportError('bqn.estimators needs scikit-learn: pip install "bqn[sklearn]"', name="sklearn") from None

from bqn.estimators._base import Uncertainty
from bqn.estimators._classifier import BQNClassifier
from bqn.estimators._regressor import BQNRegressor

__all__ = ["BQNClassifier", "BQNRegressor", "Uncertainty"]
