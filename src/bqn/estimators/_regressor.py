"""The regressor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import RegressorMixin
from sklearn.preprocessing import StandardScaler
from sklearn.utils.validation import validate_data
from torch import Tensor

from bqn import nn
from bqn.data import Standardizer
from bqn.estimators._base import Array, BQNEstimator, Uncertainty, single_precision
from bqn.heads import GaussianHead
from bqn.levels import TERNARY
from bqn.network import Network
from bqn.training import Preprocessing, TrainConfig

# Evenly spaced about zero with thresholds at -1, 0 and 1, where batch norm puts a good share of the values.
_FOUR_LEVELS = (-1.5, -0.5, 0.5, 1.5)


class BQNRegressor(RegressorMixin, BQNEstimator):  # type: ignore[misc]
    """Regression with error bars from a network of quantized weights, without sampling.

    Features and targets are standardized inside. Every example counts alike: there are no sample weights.

    Parameters
    ----------
    hidden, levels, activations, lam, epochs, batch_size, learning_rate, validation_fraction, patience, device,
    random_state
        As for `BQNClassifier`. The weights behind the last hidden layer are real numbers. Batches are larger, because
        the mean of a small batch is uncertain, and behind batch norm that would count as noise of the targets.

    Attributes
    ----------
    network_ : Network
        Takes what `scaler_` makes of the features, as a float32 tensor, and predicts what `target_scaler_` makes of y.
    scaler_, target_scaler_ : StandardScaler
    history_ : bqn.training.History
        One record an epoch or call of `partial_fit`, for the standardized target.
    n_features_in_, feature_names_in_, n_samples_seen_

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from bqn.estimators import BQNRegressor
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = BQNRegressor(random_state=0).fit(X, y)
    >>> mean, std = model.predict(X, return_std=True)
    """

    def __init__(
        self,
        *,
        hidden: Sequence[int] = (64, 64),
        levels: Sequence[float] | str = TERNARY,
        activations: Sequence[float] | str = _FOUR_LEVELS,
        lam: float = 1.0,
        epochs: int | None = None,
        batch_size: int = 500,
        learning_rate: float = 0.1,
        validation_fraction: float = 0.0,
        patience: int | None = None,
        device: str = "cpu",
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        super().__init__(
            hidden=hidden,
            levels=levels,
            activations=activations,
            lam=lam,
            epochs=epochs,
            batch_size=batch_size,
            learning_rate=learning_rate,
            validation_fraction=validation_fraction,
            patience=patience,
            device=device,
            random_state=random_state,
        )

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def _network(self, features: int, outputs: int, config: TrainConfig) -> Network:
        layers: list[nn.Layer] = []
        width = features
        for units in config.hidden or ():
            layers += [
                nn.Linear(width, units, bias=False, levels=config.levels or ()),
                nn.BatchNorm1d(units),
                nn.Quantize(config.activations or ()),
            ]
            width = units
        return Network(nn.Sequential(*layers), GaussianHead(width, outputs))

    def fit(self, X: Any, y: Any) -> Self:
        """Train from scratch on features X `(N, F)` and targets y `(N,)` or `(N, D)`."""
        X, y = validate_data(self, X, y, dtype=np.float64, multi_output=True, y_numeric=True)
        self._start(y)
        self.target_scaler_.fit(_columns(y))
        outputs = len(self.target_scaler_.mean_)
        units = Standardizer(torch.zeros(outputs), torch.ones(outputs))  # the targets are standardized already
        self._fit(X, self._target(y), Preprocessing(X.shape[1:], outputs, targets=units))
        return self

    def partial_fit(self, X: Any, y: Any) -> Self:
        """Learn from more examples, features X `(N, F)` and targets y `(N,)` or `(N, D)`, in one pass.

        The prior counts as much as it would for all the examples seen so far together.
        """
        first = not hasattr(self, "network_")
        X, y = validate_data(self, X, y, dtype=np.float64, multi_output=True, y_numeric=True, reset=first)
        if first:
            self._start(y)
        elif y.shape[1:] != self._target_shape:
            raise ValueError(f"y must have shape {('N', *self._target_shape)} as before, got {y.shape}")
        self.target_scaler_.partial_fit(_columns(y))
        self._partial_fit(X, self._target(y))
        return self

    def _start(self, y: Array) -> None:
        self._begin(_columns(y).shape[1])
        self.target_scaler_ = StandardScaler()
        self._target_shape: tuple[int, ...] = y.shape[1:]

    def _target(self, y: Array) -> Tensor:
        return single_precision(self.target_scaler_.transform(_columns(y)))

    def predict(self, X: Any, return_std: bool = False) -> Array | tuple[Array, Array]:
        """Mean of the prediction, and its standard deviation if asked for.

        Parameters
        ----------
        X : features `(N, F)`
        return_std : bool

        Returns
        -------
        ndarray, or two of them
            Shaped and in the units of the y of training.
        """
        mean, aleatoric, epistemic = self._predict(X)
        return (mean, np.sqrt(aleatoric + epistemic)) if return_std else mean

    def predict_uncertainty(self, X: Any) -> Uncertainty:
        """Variance of the prediction for features X `(N, F)`, taken apart; each in the shape of the y of training.

        The aleatoric part is the variance of the noise, the same for all examples.
        """
        _, aleatoric, epistemic = self._predict(X)
        return Uncertainty(aleatoric, epistemic)

    def _predict(self, X: Any) -> list[Array]:
        x = self._input(X)
        scaler = self.target_scaler_
        answer = self._predictor.regress(
            "analytic", x, shift=torch.from_numpy(scaler.mean_), unit=torch.from_numpy(scaler.scale_)
        )
        assert answer.epistemic is not None
        shape = (len(x), *self._target_shape)
        return [part.numpy().reshape(shape) for part in (answer.mean, answer.aleatoric, answer.epistemic)]


def _columns(y: Array) -> Array:
    return y.reshape(len(y), -1)
