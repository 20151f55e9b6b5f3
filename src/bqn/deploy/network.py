"""A packed network in the place of a float one: the same heads and metrics, so that figures can be compared."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from bqn import evaluation
from bqn.data import Split, Standardizer
from bqn.deploy.model import PackedModel
from bqn.heads import GaussianHead, Head, SoftmaxHead
from bqn.network import Network, QuantizedNetwork

MODE = "packed"


class PackedNetwork(Network):
    """A packed model as a `Network` with the one mode "packed", for `bqn.predictions` and `bqn.evaluation`.

    It takes what the packed model takes: pixels as `(2x - 255) / 256`, or features before their standardization. Its
    heads compute in float32 as those of the network that was packed, so that equal integers give equal figures.
    """

    modes = (MODE,)

    def __init__(self, model: PackedModel) -> None:
        super().__init__(nn.Identity(), _head(model, 0))
        self.model = model

    def _members(self, mode: str, samples: int, generator: torch.Generator | None) -> Iterator[QuantizedNetwork]:
        for member in range(self.model.members):
            yield QuantizedNetwork(_Body(self.model, member), _head(self.model, member)).eval()

    @property
    def target_scale(self) -> tuple[Tensor, Tensor] | None:
        """Mean and standard deviation that regression targets were standardized by, each `(out,)`."""
        scale = standardizer(self.model, "target")
        return None if scale is None else (scale.mean, scale.std)


class _Body(nn.Module):
    """One member: the tensor that enters the head."""

    def __init__(self, model: PackedModel, member: int) -> None:
        super().__init__()
        self.model, self.member = model, member

    def forward(self, x: Tensor) -> Tensor:
        integers = torch.from_numpy(self.model.member_logits(self.member, x.cpu().numpy()))
        return (integers.double() * self.model.step).float()


def evaluate(model: PackedModel, examples: Split, bins: int = 15, batch_size: int = 500) -> dict[str, Any]:
    """What a packed model is worth on examples as stored: the scores of `bqn.evaluation.evaluate` for its one mode."""
    net = PackedNetwork(model)
    result = evaluation.evaluate(
        net, examples, batch_size=batch_size, bins=bins, target_scale=net.target_scale, samples=model.members
    )
    scores: dict[str, Any] = result[MODE]
    return scores


def standardizer(model: PackedModel, name: str) -> Standardizer | None:
    """The standardization of the inputs ("input") or of the targets ("target"), if the file has one."""
    if f"{name}.mean" not in model.packed.arrays:
        return None
    return Standardizer(*(torch.tensor(model.packed.array(f"{name}.{part}", 0)) for part in ("mean", "std")))


def _head(model: PackedModel, member: int) -> Head:
    values = {
        name.removeprefix("head."): torch.tensor(model.packed.array(name, member)) for name in model.program.head_arrays
    }
    if model.task == "classification":
        head: Head = SoftmaxHead(1)
    else:
        outputs, features = values["weight"].shape
        head = GaussianHead(features, outputs)
    head.load_state_dict(values)
    return head
