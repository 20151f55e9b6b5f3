"""Natural-parameter networks with Gaussian weights (Wang, Shi and Yeung 2016), trained by backpropagation.

Means and variances flow through the layers; weights have both, and gradient descent learns both. The variance of the
output is the noise model: it differs from example to example. The objective is the log-likelihood of the targets under
the normal output (the paper's KL between output and target, up to a constant) with λ times the KL of the weights to a
normal prior.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from bqn.baselines._filtered import layer_sizes
from bqn.baselines._heads import NoiseHead
from bqn.baselines._method import Method, Plan
from bqn.baselines._votes import LogisticHead
from bqn.beliefs import Belief, Gaussian
from bqn.heads import Head
from bqn.network import Network
from bqn.objective import ElboTerms, combine

_START_VARIANCE = 1e-2  # of a weight, as a share of 1 / fan-in
_LEAST_VARIANCE = 1e-6  # of an output


def relu_moments(mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
    """Moments of max(a, 0) for normal a, exact; any shape."""
    deviation = var.sqrt()
    z = mean / deviation
    above = 0.5 * torch.special.erfc(z * -math.sqrt(0.5))  # ndtr loses the left tail
    density = torch.exp(-0.5 * z.square()) / math.sqrt(2 * math.pi)
    first = mean * above + deviation * density
    second = (mean.square() + var) * above + mean * deviation * density
    return first, (second - first.square()).clamp_min(0)


def sigmoid_moments(mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
    """Moments of σ(a) for normal a, good to 0.01; any shape.

    The mean is MacKay's approximation, as in the paper. For the second moment σ² = σ - σ', and E[σ'] is the derivative
    of that mean: closer, and shorter, than the paper's logistic function in place of σ², which is up to 0.02 off.
    """
    shrink = 1 / (1 + (math.pi / 8) * var).sqrt()
    first = torch.sigmoid(mean * shrink)
    return first, first * (1 - first) * (1 - shrink)


def tanh_moments(mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
    """Moments of tanh(a) = 2σ(2a) - 1, likewise."""
    first, spread = sigmoid_moments(2 * mean, 4 * var)
    return 2 * first - 1, 4 * spread


NONLINEARITIES: Mapping[str, Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]] = {
    "relu": relu_moments,
    "tanh": tanh_moments,
    "sigmoid": sigmoid_moments,
}


class GaussianLinear(nn.Module):
    """Weighted sums with independent normal weights: moments in, moments out.

    Attributes
    ----------
    mean, raw_var : Parameter `(out, in)`
        The variance of a weight is `softplus(raw_var)`.
    bias_mean, bias_raw_var : Parameter `(out,)`
    """

    def __init__(self, inputs: int, units: int) -> None:
        super().__init__()
        start = math.log(math.expm1(_START_VARIANCE / inputs))
        self.mean = nn.Parameter(torch.randn(units, inputs) * math.sqrt(1 / inputs))
        self.raw_var = nn.Parameter(torch.full((units, inputs), start))
        self.bias_mean = nn.Parameter(torch.zeros(units))
        self.bias_raw_var = nn.Parameter(torch.full((units,), start))

    @property
    def var(self) -> Tensor:
        return nn.functional.softplus(self.raw_var)

    @property
    def bias_var(self) -> Tensor:
        return nn.functional.softplus(self.bias_raw_var)

    def forward(self, mean: Tensor, var: Tensor | None) -> tuple[Tensor, Tensor]:
        """Moments `(N, out)` of the sums from those of the inputs, `(N, in)`; `var` is None for known inputs."""
        output = nn.functional.linear(mean, self.mean, self.bias_mean)
        square = mean.square() if var is None else mean.square() + var
        spread = nn.functional.linear(square, self.var, self.bias_var)
        return output, spread if var is None else spread + var @ self.mean.square().mT

    def kl(self, prior_var: float) -> Tensor:
        """KL to N(0, prior_var) of all weights, in nats."""
        parts = ((self.mean, self.var), (self.bias_mean, self.bias_var))
        terms = [0.5 * ((var + mean.square()) / prior_var - 1 - (var / prior_var).log()).sum() for mean, var in parts]
        return torch.stack(terms).sum()


class NPNBody(nn.Module):
    """Layers with a nonlinearity between them; a tensor in, a Gaussian out."""

    def __init__(self, sizes: list[tuple[int, int]], nonlinearity: str) -> None:
        super().__init__()
        self.layers = nn.ModuleList([GaussianLinear(inputs, units) for inputs, units in sizes])
        self.nonlinearity = NONLINEARITIES[nonlinearity]

    def forward(self, x: Tensor) -> Belief:
        mean, var = x.flatten(1), None
        for position, layer in enumerate(self.layers):
            if position:
                assert var is not None
                mean, var = self.nonlinearity(mean, var)
            mean, var = layer(mean, var)
        assert var is not None
        return Gaussian.of(mean, var.clamp_min(_LEAST_VARIANCE))


class OutputHead(NoiseHead):
    """The output as it is: its variance is that of the target, and there is no noise beside it."""

    def __init__(self, out_features: int) -> None:
        nn.Module.__init__(self)
        self.in_features = self.out_features = out_features
        self.register_buffer("no_noise", torch.zeros(out_features), persistent=False)

    no_noise: Tensor

    @property
    def noise(self) -> Tensor:
        return self.no_noise

    def log_likelihood(self, belief: Belief, y: Tensor, validate: bool = True) -> Tensor:
        """log p(y) per example: Tensor `(N,)`; y is `(N, out_features)`."""
        mean, var = self._output(belief)
        self.require_targets(y, mean.shape[0], read=validate)
        return -0.5 * ((y - mean).square() / var + var.log() + math.log(2 * math.pi)).sum(-1)


class NPNNetwork(Network):
    """A Gaussian natural-parameter network; `prior_std` is that of the weights' prior, times the root of the fan-in."""

    modes = ("analytic",)

    def __init__(self, body: NPNBody, head: Head, prior_std: float) -> None:
        super().__init__(body, head)
        self.prior_std = prior_std

    def kl(self) -> Tensor:
        layers = [layer for layer in self.modules() if isinstance(layer, GaussianLinear)]
        return torch.stack([layer.kl(self.prior_std**2 / layer.mean.shape[1]) for layer in layers]).sum()

    def elbo_terms(
        self, x: Tensor, y: Tensor, data_size: int, lam: float | Tensor, **options: str | float
    ) -> ElboTerms:
        return combine(self.head.log_likelihood(self(x), y, validate=self.validate), self.kl(), data_size, lam)


def build(plan: Plan) -> NPNNetwork:
    sizes = layer_sizes(math.prod(plan.input_shape), plan.options["hidden"], plan.outputs)
    head: Head = OutputHead(plan.outputs) if plan.model == "regressor" else LogisticHead(sizes[-1][0])
    return NPNNetwork(NPNBody(sizes, plan.options["nonlinearity"]), head, plan.options["prior_std"])


NPN = Method(
    "natural-parameter network: Gaussian weights and units, trained by backpropagation",
    build=build,
    models=("mlp", "regressor"),
    options={"nonlinearity": "relu", "prior_std": 1.0},
    model_options=("hidden",),
)
