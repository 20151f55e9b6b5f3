"""`gaussian-bnn`: a normal posterior for each real weight, learned by SGVB with local reparameterization.

Q(w) = N(m, v) for every weight and a prior N(0, prior_std²). With an input x known, the sum of a layer is normal with
mean Σ m x and variance Σ v x², so it is the sums that are drawn, one per example, not the weights (Kingma, Salimans and
Welling 2015): the gradient has less variance, and no example shares its noise with another.
"""

from __future__ import annotations

import math
from typing import cast

import torch
from torch import Tensor, nn

from bqn.baselines._heads import plain_head
from bqn.baselines._layers import real_body, replace, set_weights
from bqn.baselines._method import Method, Plan
from bqn.beliefs import Gaussian
from bqn.network import Network
from bqn.nn import Layer, Weight
from bqn.nn._linear import WeightedSum
from bqn.propagate import products


class GaussianWeight(Weight):
    """Independent normal weights; the means start as real weights do, the deviations at a tenth of theirs.

    Parameters
    ----------
    shape : shape of the weight tensor
    fan_in : int
    prior_std : float
        Of the normal prior around zero.
    """

    def __init__(self, shape: torch.Size, fan_in: int, prior_std: float = 1.0) -> None:
        super().__init__()
        spread = math.sqrt(2 / fan_in)
        self.mean = nn.Parameter(torch.randn(shape) * (spread if len(shape) > 1 else 0.0))
        self.log_std = nn.Parameter(torch.full(shape, math.log(0.1 * spread)))
        self.prior_std = prior_std

    @property
    def shape(self) -> torch.Size:
        return self.mean.shape

    @property
    def var(self) -> Tensor:
        return torch.exp(2 * self.log_std)

    def belief(self) -> Gaussian:
        return Gaussian.of(self.mean, self.var)

    @torch.no_grad()
    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        noise = torch.empty_like(self.mean).normal_(generator=generator)
        return self.mean + noise * self.log_std.exp()

    def mode(self) -> Tensor:
        return self.mean.detach().clone()

    def kl(self) -> Tensor:
        """KL from the prior in closed form, in nats."""
        ratio = (self.var + self.mean.square()) / self.prior_std**2
        return (0.5 * (ratio - 1) - self.log_std + math.log(self.prior_std)).sum()


class LocallyDrawn(Layer):
    """A linear layer or convolution with normal weights, whose sums are drawn: tensor in, tensor out.

    In a sampled or MAP network the weights are tensors and nothing is drawn here.
    """

    def __init__(self, layer: WeightedSum) -> None:
        super().__init__()
        self.layer = layer

    def moments(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of the sums, each `(N, out, ...)`."""
        weight, bias = self.layer.weight, self.layer.bias
        assert isinstance(weight, GaussianWeight)
        assert bias is None or isinstance(bias, GaussianWeight)
        shift, doubt = (None, None) if bias is None else (bias.mean, bias.var)
        geometry = self.layer.geometry
        return products.product(x, weight.mean, geometry, shift), products.product(
            x.square(), weight.var, geometry, doubt
        )

    def forward(self, x: Tensor) -> Tensor:
        if isinstance(self.layer.weight, Tensor):
            fixed: Tensor = self.layer(x)
            return fixed
        mean, var = self.moments(x)
        return mean + torch.randn_like(mean) * (var + 1e-12).sqrt()  # the root has no slope at zero


class GaussianNetwork(Network):
    """A network with normal weights. Modes: "mc", networks drawn and averaged; "map", the mean weights."""

    modes = ("mc", "map")
    usual_samples = 20


def build(plan: Plan) -> GaussianNetwork:
    net = plan.blank()
    body = real_body(net, plan.outputs)
    prior_std = plan.options["prior_std"]
    set_weights(body, lambda shape, fan_in: GaussianWeight(shape, fan_in, prior_std))
    replace(body, WeightedSum, lambda layer: LocallyDrawn(cast(WeightedSum, layer)))
    return GaussianNetwork(body, plain_head(net, plan.outputs))


GAUSSIAN_BNN = Method(
    "normal posteriors, local reparameterization",
    build,
    models=("mlp", "cnn", "vgg", "resnet", "regressor"),
    options={"prior_std": 1.0},
)
