"""What the estimators share: from tables to standardized tensors, and training.

`fit` is `bqn.training.fit`. `partial_fit` is a short loop of its own: what it has to remember from call to call, Adam's
moments and how many examples there were, is nothing that a run of `bqn.training` keeps.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from sklearn.base import BaseEstimator
from sklearn.preprocessing import StandardScaler
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from bqn import nn
from bqn.data import Split, split_validation
from bqn.heads import GaussianHead
from bqn.network import Network
from bqn.predictions import Predictor
from bqn.training import EpochRecord, History, Preprocessing, TrainConfig, fit

Array: TypeAlias = npt.NDArray[Any]

# Without a number of epochs: so many, and more of them where a small set would not give so many steps.
_EPOCHS = 40
_STEPS = 200


class Uncertainty(NamedTuple):
    """What a prediction does not know, taken apart. The two add up to the whole.

    Attributes
    ----------
    aleatoric : ndarray
        Stays however much data there is: the noise of the world.
    epistemic : ndarray
        Comes from doubt about the weights: more data would remove it.
    """

    aleatoric: Array
    epistemic: Array


class BQNEstimator(BaseEstimator):  # type: ignore[misc]
    """Base of classifier and regressor; a subclass makes the network and knows what its targets mean."""

    def __init__(
        self,
        *,
        hidden: Sequence[int],
        levels: Sequence[float] | str,
        activations: Sequence[float] | str,
        lam: float,
        epochs: int | None,
        batch_size: int,
        learning_rate: float,
        validation_fraction: float,
        patience: int | None,
        device: str,
        random_state: int | np.random.RandomState | None,
    ) -> None:
        self.hidden = hidden
        self.levels = levels
        self.activations = activations
        self.lam = lam
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.validation_fraction = validation_fraction
        self.patience = patience
        self.device = device
        self.random_state = random_state

    def _network(self, features: int, outputs: int, config: TrainConfig) -> Network:
        raise NotImplementedError

    def _begin(self, outputs: int) -> None:
        """Make an untrained network, and forget all that was learned before."""
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        config = self._config(seed)
        # Layers draw from torch's own generator when they are made. It is given back untouched, and what counts is
        # drawn with a generator of our own: estimators may be fitted in several threads at once.
        with torch.random.fork_rng(devices=[]):
            net = self._network(self.n_features_in_, outputs, config)
        _draw_start(net, torch.Generator().manual_seed(seed))
        self.scaler_ = StandardScaler()
        self.network_ = net.eval()
        self.history_ = History(())
        self.n_samples_seen_ = 0
        self._seed = seed
        self._optimizer: torch.optim.Optimizer | None = None

    def _config(self, seed: int) -> TrainConfig:
        """The parameters, checked."""
        settings = {name: _plain(value) for name, value in self.get_params(deep=False).items()}
        del settings["random_state"]
        if self.epochs is None:
            del settings["epochs"]
        for name in ("hidden", "levels", "activations"):
            if settings[name] is None:
                raise ValueError(f"{name} must be a sequence, got None")
        return TrainConfig(model="mlp", seed=seed, **settings)

    def _fit(self, X: Array, y: Tensor, preprocessing: Preprocessing) -> None:
        """Train on all examples at once; y as the network sees it."""
        config = self._config(self._seed)
        split, validation = Split(single_precision(self.scaler_.fit_transform(X)), y), None
        if config.validation_fraction:
            split, validation = split_validation(
                split, config.validation_fraction, config.seed, stratify=not y.is_floating_point()
            )
        if self.epochs is None:
            batches = -(-len(split) // config.batch_size)
            config = replace(config, epochs=max(_EPOCHS, -(-_STEPS // batches)))
        self.history_ = fit(self.network_, split, validation, config, preprocessing=preprocessing)
        self.network_.cpu()
        self.n_samples_seen_ = len(X)

    def _partial_fit(self, X: Array, y: Tensor) -> None:
        """One pass over new examples, in batches, with an optimizer that remembers the passes before."""
        config = self._config(self._seed)
        if self._optimizer is None:
            self._optimizer = torch.optim.Adam(self.network_.parameters())
        for group in self._optimizer.param_groups:
            group["lr"] = config.learning_rate
        self.n_samples_seen_ += len(X)
        started, x = time.perf_counter(), single_precision(self.scaler_.partial_fit(X).transform(X))
        generator = torch.Generator().manual_seed(config.seed + self.n_samples_seen_)
        batches = torch.randperm(len(x), generator=generator).tensor_split(-(-len(x) // config.batch_size))
        self.network_.train()
        try:
            terms = torch.stack([self._step(x[batch], y[batch], config.lam) for batch in batches])
        finally:
            self.network_.eval()
        self._remember(terms.double().mean(0), config, time.perf_counter() - started)

    def _step(self, x: Tensor, y: Tensor, lam: float) -> Tensor:
        """A step of the optimizer; returns the terms of the ELBO `(3,)`."""
        assert self._optimizer is not None
        terms = self.network_.elbo_terms(x, y, self.n_samples_seen_, lam)
        if not math.isfinite(terms.value.item()):
            raise RuntimeError(f"the ELBO is {terms.value.item()}; a lower learning_rate may help")
        self._optimizer.zero_grad()
        (-terms.value).backward()
        self._optimizer.step()
        return torch.stack(terms).detach()

    def _remember(self, terms: Tensor, config: TrainConfig, seconds: float) -> None:
        elbo, log_likelihood, kl = terms.tolist()
        record = EpochRecord(
            epoch=len(self.history_.records) + 1,
            elbo=elbo,
            log_likelihood=log_likelihood,
            kl=kl,
            train_nll=-log_likelihood,
            validation_nll=None,
            validation_error=None,
            validation_rmse=None,
            learning_rate=config.learning_rate,
            lam=config.lam,
            seconds=seconds,
            eta=0.0,
        )
        self.history_ = replace(self.history_, records=(*self.history_.records, record))

    def _input(self, X: Any) -> Tensor:
        """Examples to predict, checked, as the network sees them: float64 `(N, F)`."""
        check_is_fitted(self)
        return torch.from_numpy(self.scaler_.transform(validate_data(self, X, dtype=np.float64, reset=False)))

    @property
    def _predictor(self) -> Predictor:
        # In float64, so that what is said about an example does not depend on those that are asked about beside it.
        return Predictor(copy.deepcopy(self.network_).double())


@torch.no_grad()
def _draw_start(net: Network, generator: torch.Generator) -> None:
    """Draw the starting weights anew, with `generator`."""
    for layer in net.modules():
        if isinstance(layer, nn.Linear):
            layer.reset_parameters(generator=generator)
    if isinstance(net.head, GaussianHead):
        net.head.weight.normal_(std=1 / math.sqrt(net.head.in_features), generator=generator)


def single_precision(values: Array) -> Tensor:
    return torch.from_numpy(values).float()


def _plain(value: Any) -> Any:
    """Numbers as Python has them: a search hands in those of numpy."""
    if isinstance(value, (np.generic, np.ndarray)):
        return value.tolist()
    return [_plain(entry) for entry in value] if isinstance(value, (list, tuple)) else value
