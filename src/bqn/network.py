"""Networks: a body of layers and a head, evaluated analytically, by sampling, or at the mode."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias, cast

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_safetensors
from torch import Tensor, nn

from bqn.atomic import write_atomic
from bqn.beliefs import Belief
from bqn.checks import require_floating, require_squarable
from bqn.heads import Head, Prediction
from bqn.nn import (
    Draws,
    Posterior,
    Quantize,
    RandomThreshold,
    Weight,
    computed_once,
    draw,
    drawn,
    fix,
    set_generator,
)
from bqn.nn._layer import own_sums
from bqn.objective import ElboTerms, combine
from bqn.propagate import half

MODES = ("analytic", "mc", "map")
_FORMAT = "bqn-weights-1"
_LEVELS = "levels"

Levels: TypeAlias = dict[str, dict[str, list[float]]]


class QuantizedNetwork(nn.Module):
    """A plain quantized network: what `Network.sample` and `Network.mode` return.

    Calling it takes a tensor `(N, ...)` and returns the tensor that enters the head.
    """

    def __init__(self, body: nn.Module, head: Head) -> None:
        super().__init__()
        self.body = body
        self.head = head

    def forward(self, x: Tensor) -> Tensor:
        return own_sums(cast(Tensor, self.body(x)))

    @torch.no_grad()
    def predict(self, x: Tensor) -> Prediction:
        """Class probabilities `(N, K)`, or the `Moments` of a regression."""
        _require_input(x, self.body)
        return self.head.predict(self(x))


class Network(nn.Module):
    """A Bayesian quantized network.

    Parameters
    ----------
    body : Module
        Belief (or tensor) in, belief out; any module built from `bqn.nn` layers, with a forward of its own if need be.
    head : SoftmaxHead or GaussianHead
    validate : bool
        Whether inputs are checked for their dtype, NaN, infinity and values too large to be squared, and labels for
        their range. The check makes a GPU wait, so a training loop that has checked its data once may set
        `net.validate = False`.

    Attributes
    ----------
    modes : tuple of str
        The ways to predict, the usual one first. Networks of other methods (`bqn.baselines`) have others.
    usual_samples : int
        How many networks a fair comparison draws for the mode "mc".
    """

    modes: tuple[str, ...] = MODES
    usual_samples: int = 5

    def __init__(self, body: nn.Module, head: Head, validate: bool = True) -> None:
        super().__init__()
        self.body = body
        self.head = head
        self.validate = validate

    def forward(self, x: Tensor) -> Belief:
        """The belief that enters the head."""
        if self.validate:
            _require_input(x, self.body)
        return cast(Belief, self.body(x))

    def posteriors(self) -> Iterator[tuple[str, Posterior]]:
        """Names and posteriors of all quantized weights."""
        for name, module in self.named_modules():
            if isinstance(module, Posterior):
                yield name, module

    def kl(self) -> Tensor:
        """KL(Q ‖ prior) of all weights together, in nats: a scalar."""
        terms = [weight.kl() for weight in self.modules() if isinstance(weight, Weight)]
        return torch.stack(terms).sum() if terms else torch.zeros(())

    def elbo_terms(
        self, x: Tensor, y: Tensor, data_size: int, lam: float | Tensor, **options: str | float
    ) -> ElboTerms:
        """The objective with its terms; arguments as for `elbo`."""
        _require_data_size(data_size)
        with computed_once(self):
            return combine(self._log_likelihoods(x, y, **options), self.kl(), data_size, lam)

    def draw(self, generator: torch.Generator | None = None, mode_share: float = 0.0) -> Draws:
        """Weights of one network drawn from the posterior, for `half_drawn_elbo_terms` and
        `drawn_elbo_terms`; with probability `mode_share` its most probable ones."""
        return draw(self.body, generator, mode_share)

    def half_drawn_elbo_terms(
        self, x: Tensor, y: Tensor, data_size: int, lam: float | Tensor, draws: Draws, **options: str
    ) -> ElboTerms:
        """The objective with half of its log-likelihood that of a network that was drawn from the posterior.

        That network's is an unbiased estimate of what the average over all networks has; its gradients are those of
        straight-through estimators, by the means of the weights and through the quantizers. Arguments as for `elbo`,
        `draws` from `draw`.
        """
        _require_data_size(data_size)
        with computed_once(self):
            analytic = self._log_likelihoods(x, y, **options)
            with drawn(self.body, draws):
                sampled = self._log_likelihoods(x, y, **options)
            return combine(0.5 * (analytic + sampled), self.kl(), data_size, lam)

    def drawn_elbo_terms(
        self, x: Tensor, y: Tensor, data_size: int, lam: float | Tensor, draws: Draws, **options: str | float
    ) -> ElboTerms:
        """The objective with the log-likelihood of a network that was drawn from the posterior, as
        `half_drawn_elbo_terms` has it in one half; nothing in it is a bound."""
        _require_data_size(data_size)
        with computed_once(self), drawn(self.body, draws):
            return combine(self._log_likelihoods(x, y, **options), self.kl(), data_size, lam)

    def _log_likelihoods(self, x: Tensor, y: Tensor, **options: Any) -> Tensor:
        belief = half.raised(self(x), torch.float32)  # bounds need the digits that half precision lacks
        return self.head.log_likelihood(belief, y, validate=self.validate, **options)

    def elbo(self, x: Tensor, y: Tensor, data_size: int, lam: float | Tensor, **options: str | float) -> Tensor:
        """What training maximizes: mean log-likelihood bound minus `lam / data_size` times the KL; a scalar.

        Parameters
        ----------
        x : Tensor `(N, ...)`
        y : Tensor of labels `(N,)` or targets `(N, out_features)`
        data_size : int
            Examples in the whole training set.
        lam : float
            Weight λ of the KL.
        **options
            Passed to the head's `log_likelihood`, for example `bound="jensen"` or `smoothing=0.1`.
        """
        return self.elbo_terms(x, y, data_size, lam, **options).value

    def sample(self, generator: torch.Generator | None = None) -> QuantizedNetwork:
        """A quantized network with weights drawn from the posterior. Its hidden variables use `generator` too."""
        sampled = QuantizedNetwork(
            fix(self.body, lambda posterior: posterior.sample(generator)), fix(self.head, _no_posterior)
        ).eval()
        set_generator(sampled, generator)
        return sampled

    def mode(self, generator: torch.Generator | None = None) -> QuantizedNetwork:
        """The quantized network with the most probable weights (MAP). Its hidden variables, if any, use `generator`."""
        body = fix(self.body, lambda posterior: posterior.mode())
        likeliest = QuantizedNetwork(body, fix(self.head, _no_posterior)).eval()
        set_generator(likeliest, generator)
        return likeliest

    @torch.no_grad()
    def predict(
        self, x: Tensor, mode: str | None = None, samples: int = 5, generator: torch.Generator | None = None
    ) -> Prediction:
        """Class probabilities `(N, K)`, or the `Moments` of a regression.

        Parameters
        ----------
        x : Tensor `(N, ...)`
        mode : str or None
            "analytic", the default: one pass of beliefs. "mc": `samples` sampled networks, averaged. "map": the most
            probable one.
        """
        if self.validate:
            _require_input(x, self.body)
        mode = self.modes[0] if mode is None else mode
        if mode == "analytic" and mode in self.modes:
            with evaluating(self):
                return self.head.predict(self(x))
        found = [member.predict(x) for member in self.members(mode, samples, generator)]
        return found[0] if len(found) == 1 else self.head.mix(found)  # type: ignore[arg-type]

    def members(
        self, mode: str, samples: int = 5, generator: torch.Generator | None = None
    ) -> Iterator[QuantizedNetwork]:
        """The plain networks whose predictions a mode averages, one after the other; not for "analytic"."""
        if mode not in self.modes or mode == "analytic":
            raise ValueError(f"mode must be one of {', '.join(self.modes)}, got {mode!r}")
        if samples < 1:
            raise ValueError(f"samples must be at least 1, got {samples}")
        return self._members(mode, samples, generator)

    def _members(self, mode: str, samples: int, generator: torch.Generator | None) -> Iterator[QuantizedNetwork]:
        if mode == "map":
            yield self.mode(generator)
        else:
            for _ in range(samples):
                yield self.sample(generator)

    # --- what a training loop asks; other methods answer differently -----------------------------------------------

    def choose_examples(self, batch: Tensor, data_size: int) -> Tensor:
        """The training examples to learn from in a step whose turn is on `batch` `(B,)`: their numbers, any shape."""
        return batch

    def make_optimizer(self, learning_rate: float) -> torch.optim.Optimizer:
        """What turns the gradients of minus the objective into new parameters."""
        return torch.optim.Adam(self.parameters(), lr=learning_rate, fused=True)

    # --- files ------------------------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write all parameters and buffers to a safetensors file; a crash leaves the old file or the new, whole."""
        tensors = {name: tensor.detach().contiguous().clone() for name, tensor in self.state_dict().items()}
        metadata = {"format": _FORMAT, _LEVELS: json.dumps(_levels(self))}
        write_atomic(Path(path), _reproducible(to_safetensors(tensors, metadata=metadata)))

    def load(self, path: str | os.PathLike[str]) -> Network:
        """Read what `save` wrote into this network, which must have the same architecture and the same levels.

        Nothing is unpickled. Files of older versions do not say which levels their weights have; they are believed.
        """
        own = self.state_dict()
        try:
            with safe_open(path, framework="pt") as file:
                metadata = file.metadata() or {}
                if metadata.get("format") != _FORMAT:
                    raise ValueError(f"path: {path} holds no {_FORMAT} weights")
                names = set(file.keys())
                if names != set(own):
                    missing, extra = sorted(set(own) - names), sorted(names - set(own))
                    raise ValueError(
                        f"path: {path} is of another architecture, or of an older version: missing {missing[:5]}, "
                        f"unexpected {extra[:5]}"
                    )
                loaded = {name: file.get_tensor(name) for name in names}
        except SafetensorError as error:
            raise ValueError(f"path: {path} is not a readable safetensors file: {error}") from None
        for name, tensor in loaded.items():
            if tensor.shape != own[name].shape or tensor.is_floating_point() != own[name].is_floating_point():
                raise ValueError(
                    f"path: {name} in {path} is {tensor.dtype} {tuple(tensor.shape)}, expected {own[name].dtype} "
                    f"{tuple(own[name].shape)}"
                )
            if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
                raise ValueError(f"path: {name} in {path} has NaN or infinite values")
        if _LEVELS in metadata:
            _require_levels(metadata[_LEVELS], _levels(self), path)
        self.load_state_dict(loaded)
        return self


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Evaluation mode inside the block, each module's own mode restored after it."""
    modes = [(child, child.training) for child in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for child, training in modes:
            child.training = training


def _require_data_size(data_size: int) -> None:
    if data_size < 1:
        raise ValueError(f"data_size must be the number of training examples, got {data_size}")


def _require_input(x: Tensor, body: nn.Module) -> None:
    require_floating(x, "x")
    weights = next((part.dtype for part in chain(body.parameters(), body.buffers()) if part.is_floating_point()), None)
    # Layers raise half precision to that of their weights.
    if weights is not None and x.dtype != weights and not half.is_low(x):
        raise ValueError(
            f"x must have the dtype of the network's weights, {weights}, got {x.dtype}; use x.to({weights})"
        )
    require_squarable(x, "x")


def _levels(net: nn.Module) -> Levels:
    """The levels of every posterior, and levels and thresholds of every quantizer, by the name of the module."""
    found: Levels = {}
    for name, module in net.named_modules():
        if isinstance(module, Posterior):
            found[name] = {"levels": list(module.level_values)}
        elif isinstance(module, Quantize | RandomThreshold):
            found[name] = {"levels": list(module.levels), "thresholds": list(module.thresholds)}
    return found


def _require_levels(saved: str, own: Levels, path: str | os.PathLike[str]) -> None:
    """Raise if a module has other levels in the file than here."""
    try:
        given = json.loads(saved)
    except ValueError:
        given = None
    if not isinstance(given, dict):
        raise ValueError(f"path: {path} has levels that cannot be read")
    for name in sorted(own.keys() & given.keys()):
        if given[name] != own[name]:
            raise ValueError(f"path: {name} in {path} has {given[name]}, expected {own[name]}")


def _reproducible(data: bytes) -> bytes:
    """A safetensors file with its metadata in order; safetensors writes them in a random one."""
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + data[8 + size :]


def _no_posterior(posterior: Weight) -> Tensor:
    raise ValueError("a head has no quantized weights")
