"""`mc-dropout`: a real-valued network whose dropout goes on at test time (Gal and Ghahramani 2016).

Each mask of dropout is a network; their predictions are averaged (mode "mc") and doubt is where they disagree. With the
probability p that a unit is dropped and a prior length-scale l, the KL of the objective is (1 - p) l² / 2 · ‖W‖² up to
constants, so (1 - p) l² is the λ of the config. For regression the noise has precision τ, which the head learns.
"""

from __future__ import annotations

import torch

from bqn.baselines._heads import plain_head
from bqn.baselines._layers import MaskedUnits, keep_drawing, put_before, real_body, weighted_sums
from bqn.baselines._method import Method, Plan
from bqn.network import Network, QuantizedNetwork


class DropoutNetwork(Network):
    """A network with dropout. Modes: "mc", masks drawn and averaged; "map", no mask."""

    modes = ("mc", "map")
    usual_samples = 100

    def sample(self, generator: torch.Generator | None = None) -> QuantizedNetwork:
        """A network that draws a new mask at every forward, for each example its own."""
        plain = super().sample(generator)
        keep_drawing(plain)
        return plain


def build(plan: Plan) -> DropoutNetwork:
    """Dropout stands before each layer with weights but the first: what is measured is left whole."""
    net = plan.blank()
    body = real_body(net, plan.outputs)
    put_before(body, weighted_sums(body)[1:], lambda: MaskedUnits(plan.options["dropout"]))
    return DropoutNetwork(body, plain_head(net, plan.outputs))


MC_DROPOUT = Method(
    "real-valued network, dropout at test time too",
    build,
    models=("mlp", "cnn", "vgg", "resnet", "regressor"),
    options={"dropout": 0.2},
)
