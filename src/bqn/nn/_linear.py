"""Fully connected layer, and what it shares with convolutions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from bqn.beliefs import Belief
from bqn.checks import require_positive
from bqn.levels import BINARY
from bqn.nn._layer import Layer, note_taken_out
from bqn.nn._posterior import DEFAULT_RHO, Posterior, Weight, belief_of
from bqn.nn._shapes import require_input
from bqn.propagate import batch, clt, products, sums

INITS = ("signal", "xavier")


class WeightedSum(Layer):
    """Base of Linear and the convolutions: posteriors, start, and running statistics of the inputs.

    The centre serves a following batch norm, which asks for the noise within the batch alone (`Gaussian.within_batch`).
    It is the mean of what each weight reads, per input feature, or per input channel and kernel offset. When the
    network is sampled, the layer takes the shift that its drawn weights give to the whole training set out of its
    output, because the analytic pass did not count it; without batch norm behind the layer nothing is shifted. Other
    layers that read the same output get the shift back (`bqn.nn._own_sums`). A convolution also keeps what its sums at
    neighbouring positions have in common (`bqn.propagate.neighbours`).
    """

    input_centre: Tensor
    noise_correlation: Tensor | None
    centred_batches: Tensor

    def __init__(
        self,
        weight_shape: tuple[int, ...],
        centre_shape: tuple[int, ...],
        geometry: products.Geometry | None,
        bias: bool,
        levels: Iterable[float] | Tensor,
        bias_levels: Iterable[float] | Tensor | None,
        prior: Iterable[float] | Tensor | None,
        method: str,
        init: str,
        mean_field: bool,
    ) -> None:
        super().__init__()
        self.geometry = geometry
        self.mean_field = mean_field
        self.method = sums.require_method(method)
        if init not in INITS:
            raise ValueError(f"init must be one of {', '.join(INITS)}, got {init!r}")
        self.init = init
        self.weight = Posterior(weight_shape, levels, prior)
        same_levels = bias_levels is None
        self.bias = (
            Posterior(
                weight_shape[:1],
                self.weight.level_values if bias_levels is None else bias_levels,
                prior if same_levels and not (isinstance(prior, Tensor) and prior.dim() > 1) else None,
            )
            if bias
            else None
        )
        self.register_buffer("input_centre", torch.zeros(centre_shape))
        self.register_buffer("centred_batches", torch.tensor(0))
        self.register_buffer("expected_shift", None)
        self.register_buffer("noise_correlation", None if geometry is None else torch.zeros(()))
        self.reset_parameters()

    def reset_parameters(self, rho: float = DEFAULT_RHO, generator: torch.Generator | None = None) -> None:
        """Draw new starting posteriors."""
        fan_in = self.weight.shape[1:].numel()
        fan_out = self.weight.shape[0] * self.weight.shape[2:].numel()
        for posterior in (self.weight, self.bias):
            if posterior is None:
                continue
            if self.init == "signal":
                posterior.signal_init_(rho, generator)
            else:
                posterior.xavier_init_(fan_in, fan_out, generator)

    def forward(self, x: Belief) -> Belief:
        self._require_input(x)
        weight, bias = belief_of(self.weight), belief_of(self.bias)
        assert weight is not None
        statistics = clt.BatchStatistics(self._centre, self._correlation)
        on_levels = isinstance(self.weight, Weight) and self.weight.on_levels
        result = sums.linear(x, weight, bias, self.method, self.geometry, statistics, self.mean_field, on_levels)
        if self.expected_shift is None:
            return result
        assert isinstance(result, Tensor)
        shift = products.per_unit(self._correction(), self.geometry)
        centred = result - shift
        note_taken_out(centred, shift)
        return centred

    def _require_input(self, x: Belief) -> None:
        raise NotImplementedError

    def _centre(self, mean: Tensor, momentum: float | None) -> Tensor:
        if momentum is None:
            return self.input_centre
        if mean.shape[0] == 0:
            return self.input_centre
        centre = batch.mean_of_all(clt.batch_centre(mean, tuple(self.weight.shape[2:]), self.geometry))
        self.update_running(self.centred_batches, momentum, (self.input_centre, centre))
        return centre

    def _correlation(self, measure: Callable[[], Tensor], momentum: float | None) -> Tensor:
        running = self.noise_correlation
        assert running is not None
        if momentum is None:
            return running
        value = measure().to(running.dtype)
        self.move_running(momentum, (running, value))
        return value

    def _shift(self) -> Tensor:
        """What the weights make of the centre of the inputs: one number per output unit."""
        weight = self.weight if isinstance(self.weight, Tensor) else self.weight.mean
        groups = 1 if self.geometry is None else self.geometry.groups
        centre = self.input_centre
        if groups > 1:
            centre = centre.unflatten(0, (groups, -1)).repeat_interleave(weight.shape[0] // groups, 0)
        shift = (weight * centre).flatten(1).sum(-1)
        if self.bias is None:
            return shift
        return shift + (self.bias if isinstance(self.bias, Tensor) else self.bias.mean)

    def _correction(self) -> Tensor:
        """The shift that is taken out of the sums of drawn weights: one number per output unit.

        It is rounded to a power of two that is small beside the sums, to 18 bits in float32. That is far below its
        error, and leaves the shifted sums and the pools of up to 64 of them exact, so that integer inference
        (`bqn.deploy`) can agree with this network bit by bit.
        """
        assert isinstance(self.weight, Tensor)
        shift = self._shift() - self.expected_shift
        largest = self.weight.abs().flatten(1).sum(-1).amax().clamp_min(1)
        bits = max(8, round(-math.log2(torch.finfo(shift.dtype).eps)) - 5)
        grid = largest / torch.frexp(largest).mantissa * 2.0**-bits  # a power of two, exactly
        return (shift / grid).round() * grid

    def _how(self) -> str:
        """The part of `extra_repr` that is the same for all."""
        return f"bias={self.bias is not None}, method={self.method!r}{', mean_field=True' if self.mean_field else ''}"

    def become_fixed(self, original: Layer) -> None:
        assert isinstance(original, WeightedSum)
        if int(original.centred_batches):
            with torch.no_grad():
                self.expected_shift = original._shift()

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        # A fixed network has an expected shift or none, by the training of the network that it comes from.
        if f"{prefix}weight" in state_dict and isinstance(self.weight, Tensor):
            given = state_dict.get(f"{prefix}expected_shift")
            self.expected_shift = None if given is None else self.weight.new_empty(given.shape)
        super()._load_from_state_dict(state_dict, prefix, *args)


class Linear(WeightedSum):
    """Fully connected layer with quantized random weights.

    Parameters
    ----------
    in_features, out_features : int
    bias : bool
    levels : ascending sequence, the values a weight can take
    bias_levels : the same for the bias; those of the weights by default
    prior : categorical prior over the levels; uniform by default
    method : "auto", "contract", "fft" or "clt"
        How the inputs are added up, see `bqn.propagate.sums`. The exact methods need discrete input and return a
        Categorical over the sum's support; "clt" returns a Gaussian.
    init : "signal" or "xavier"
        The start: one that lets the signal through deep networks, or the paper's.
    mean_field : bool
        Whether the layer's outputs are taken for independent, as in the paper. By default they carry with them what
        they have in common (`bqn.propagate.neighbours`, `bqn.propagate.units`), and the layers behind use it.

    Shapes: belief `(N, in_features)` to belief `(N, out_features)`; more leading dimensions are allowed.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        levels: Iterable[float] | Tensor = BINARY,
        bias_levels: Iterable[float] | Tensor | None = None,
        prior: Iterable[float] | Tensor | None = None,
        method: str = "auto",
        init: str = "signal",
        mean_field: bool = False,
    ) -> None:
        self.in_features = require_positive(in_features, "in_features")
        self.out_features = require_positive(out_features, "out_features")
        super().__init__(
            (self.out_features, self.in_features), (self.in_features,),
            None, bias, levels, bias_levels, prior, method, init, mean_field,
        )  # fmt: skip

    def _require_input(self, x: Belief) -> None:
        require_input(x, self.in_features, axis=-1, dims=None, layer="Linear")

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}, {self._how()}"
