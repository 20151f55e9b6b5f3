"""The classifier."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import validate_data

from bqn import models
from bqn.estimators._base import Array, BQNEstimator, Uncertainty
from bqn.levels import BINARY
from bqn.network import Network
from bqn.training import Preprocessing, TrainConfig


class BQNClassifier(ClassifierMixin, BQNEstimator):  # type: ignore[misc]
    """Classifier with calibrated probabilities from a network of quantized weights, without sampling.

    Features are standardized inside. Every example counts alike: there are no sample weights.

    Parameters
    ----------
    hidden : sequence of int
        Units of the hidden layers.
    levels, activations : "binary", "ternary", "quaternary" or ascending numbers
        Values of the weights and of the hidden units.
    lam : float
        Weight λ of the prior. Larger: simpler functions, more doubt.
    epochs : int or None
        Passes over the training set. None: 40, and as many more as it takes for 200 steps.
    batch_size : int
        An epoch is cut into batches of nearly equal size, this at most.
    learning_rate : float
        Adam's rate at the start of `fit`, which takes it to zero along a cosine; `partial_fit` keeps it.
    validation_fraction : float
        Share of the training examples that `fit` sets aside to choose the best epoch by; 0 for none.
    patience : int or None
        Stop after so many epochs without a better one; needs a validation fraction.
    device : str
        Where `fit` trains: "cpu", "cuda", "cuda:N" or "auto". Everything else happens on the CPU.
    random_state : int, RandomState or None
        Decides starting weights, validation examples and order of the examples.

    Attributes
    ----------
    classes_ : ndarray `(K,)`
    network_ : Network
        Takes what `scaler_` makes of the features, as a float32 tensor.
    scaler_ : StandardScaler
    history_ : bqn.training.History
        One record an epoch or call of `partial_fit`.
    n_features_in_, feature_names_in_, n_samples_seen_

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from bqn.estimators import BQNClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> model = BQNClassifier(random_state=0).fit(X, y)
    >>> probs = model.predict_proba(X)
    >>> aleatoric, epistemic = model.predict_uncertainty(X)
    """

    def __init__(
        self,
        *,
        hidden: Sequence[int] = (128, 128),
        levels: Sequence[float] | str = BINARY,
        activations: Sequence[float] | str = BINARY,
        lam: float = 0.05,
        epochs: int | None = None,
        batch_size: int = 100,
        learning_rate: float = 0.05,
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

    def _network(self, features: int, outputs: int, config: TrainConfig) -> Network:
        return models.mlp(features, outputs, config.hidden or (), config.levels or (), config.activations or ())

    def fit(self, X: Any, y: Any) -> Self:
        """Train from scratch on features X `(N, F)` and labels y `(N,)`, of any type."""
        X, y = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(y)
        classes, labels = np.unique(y, return_inverse=True)
        self._start(classes, "y")
        self._fit(X, torch.from_numpy(labels), Preprocessing(X.shape[1:], len(classes)))
        return self

    def partial_fit(self, X: Any, y: Any, classes: Any = None) -> Self:
        """Learn from more examples, in one pass.

        The prior counts as much as it would for all the examples seen so far together.

        Parameters
        ----------
        X : features `(N, F)`
        y : labels `(N,)`
        classes : sequence
            All the labels that will ever come; needed on the first call.
        """
        first = not hasattr(self, "network_")
        if first and classes is None:
            raise ValueError("classes must be given on the first call to partial_fit: all labels that will ever come")
        X, y = validate_data(self, X, y, dtype=np.float64, reset=first)
        check_classification_targets(y)
        known = self.classes_ if classes is None else np.unique(classes)
        if not first and not np.array_equal(known, self.classes_):
            raise ValueError(f"classes must be those of the first call, {self.classes_}, got {known}")
        if not np.isin(y, known).all():
            raise ValueError(f"y must hold only the classes {known}, got {np.setdiff1d(y, known)} too")
        if first:
            self._start(known, "classes")
        self._partial_fit(X, torch.from_numpy(np.searchsorted(known, y)))
        return self

    def _start(self, classes: Array, name: str) -> None:
        if len(classes) < 2:
            raise ValueError(f"{name} must hold at least two classes, got one class: {classes[0]!r}")
        self._begin(len(classes))
        self.classes_ = classes

    def predict_proba(self, X: Any) -> Array:
        """Class probabilities `(N, K)`, in the order of `classes_`, for features X `(N, F)`."""
        x = self._input(X)
        return self._predictor.classify("analytic", x, split=False).probs.numpy()

    def predict(self, X: Any) -> Array:
        """The most probable class of each example, `(N,)`, for features X `(N, F)`."""
        probs = self.predict_proba(X)
        chosen: Array = self.classes_[probs.argmax(1)]
        return chosen

    def predict_uncertainty(self, X: Any) -> Uncertainty:
        """Entropy of the predicted label in nats, taken apart; each `(N,)`, for features X `(N, F)`.

        The epistemic part is the mutual information between the label and the logits, the score of BALD.
        """
        x = self._input(X)
        answer = self._predictor.classify("analytic", x)
        assert answer.epistemic is not None
        return Uncertainty(answer.aleatoric.numpy(), answer.epistemic.numpy())
