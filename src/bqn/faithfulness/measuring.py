"""The analytic prediction of a network beside those of sampled networks, few and many, and its layers beside theirs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from bqn.data import Split, to_input
from bqn.faithfulness.layers import LayerTally
from bqn.faithfulness.votes import Votes, score
from bqn.heads import SoftmaxHead
from bqn.network import Network
from bqn.predictions import Predictor, Prepare

COUNTS = (1, 2, 5, 10, 20, 50, 100)
LAYER_EXAMPLES = 64
_LEAST = 3  # networks, for variances and correlations

Tick = Callable[[str, int, int], None]


def measure(
    net: Network,
    test: Split,
    *,
    counts: Sequence[int] = COUNTS,
    seed: int = 0,
    recalibrate_on: Split | None = None,
    layer_examples: int = LAYER_EXAMPLES,
    batch_size: int = 500,
    bins: int = 15,
    prepare: Prepare = to_input,
    tick: Tick | None = None,
) -> dict[str, Any]:
    """Compare the analytic pass of a classifier with sampled networks; deterministic for a seed.

    Parameters
    ----------
    net : Network
    test : Split
        Examples as stored.
    counts : sequence of int
        How many networks are averaged; the largest, at least three, is how many are drawn, the same for all.
    recalibrate_on : Split or None
        Training examples; if given, everything is measured with batch norm statistics of their own, too.
    layer_examples : int
        On how many test examples, the first ones, layers are compared.
    batch_size, bins, prepare : as for `bqn.evaluation.evaluate`
    tick : function or None
        Called with the mode, the networks done and all of them after each.

    Returns
    -------
    dict
        Ready for JSON. "analytic": scores; by mode, "mc" and "mc_recalibrated": "predictions", as `Votes.table` has
        them, and "layers", as `LayerTally.table` has them; "settings".
    """
    _require(net, counts, layer_examples, test)
    reference = None if recalibrate_on is None else recalibrate_on.x
    predictor = Predictor(
        net, samples=max(counts), seed=seed, batch_size=batch_size, prepare=prepare, recalibrate_on=reference
    )
    x, y = test.x.to(predictor.device), test.y.cpu()
    result: dict[str, Any] = {
        "settings": {
            "examples": len(test),
            "layer_examples": min(layer_examples, len(test)),
            "counts": sorted(set(counts)),
            "seed": seed,
            "bins": bins,
            "recalibration_inputs": None if predictor.reference is None else len(predictor.reference),
        },
        "analytic": score(predictor.classify("analytic", x, split=False).probs, y, bins),
    }
    few = predictor.input(x[:layer_examples])
    for mode in ("mc", "mc_recalibrated"):
        if mode in predictor.modes:
            result[mode] = _judge(predictor, mode, x, Votes(counts, y, bins), LayerTally(net, few, seed), tick)
    return result


@torch.no_grad()
def _judge(
    predictor: Predictor, mode: str, x: Tensor, votes: Votes, layers: LayerTally, tick: Tick | None
) -> dict[str, Any]:
    for member in predictor.members(mode):
        votes.add(torch.cat([cast(Tensor, member.predict(batch)) for _, batch in predictor.batches(x)]).cpu())
        layers.add(member)
        if tick is not None:
            tick(mode, votes.added, predictor.samples)
    return {"predictions": votes.table(), "layers": layers.table()}


def _require(net: Network, counts: Sequence[int], layer_examples: int, test: Split) -> None:
    if not isinstance(net.head, SoftmaxHead):
        raise ValueError("net must be a classifier: faithfulness is measured on class probabilities")
    if not {"analytic", "mc"} <= set(net.modes):
        raise ValueError(f"net must predict analytically and by sampled networks, it knows {', '.join(net.modes)}")
    if not counts or min(counts) < 1 or max(counts) < _LEAST:
        raise ValueError(f"counts must be positive, the largest at least {_LEAST}, got {list(counts)}")
    if layer_examples < 1:
        raise ValueError(f"layer_examples must be at least 1, got {layer_examples}")
    if len(test) < 1:
        raise ValueError("test must hold at least one example, got none")
