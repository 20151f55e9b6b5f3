"""How good the network is on examples that it does not learn from: the numbers by which the best epoch is chosen."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from bqn import metrics
from bqn.data import to_input
from bqn.heads import Moments
from bqn.network import Network
from bqn.training.distributed import ALONE, Processes
from bqn.training.preprocessing import Preprocessing

BATCH = 1000


class Scores(NamedTuple):
    """NLL and error of a classifier, NLL and root mean squared error of a regression; in the units of the data."""

    nll: float
    error: float | None
    rmse: float | None


def validate_once(
    net: Network, x: Tensor, y: Tensor, preprocessing: Preprocessing, processes: Processes = ALONE
) -> Scores:
    """What `validate` finds in the first process: scores decide about the end of a run, so all must have the same."""
    if not processes.several:
        return validate(net, x, y, preprocessing)
    found = validate(net, x, y, preprocessing) if processes.first else (math.nan,) * 3
    told = [math.nan if score is None else score for score in found]
    nll, *others = processes.from_first(told, x.device)
    return Scores(nll, *(None if math.isnan(score) else score for score in others))


def validate(net: Network, x: Tensor, y: Tensor, preprocessing: Preprocessing, batch_size: int = BATCH) -> Scores:
    """Score the predictions for prepared examples, in the first of the network's modes.

    Parameters
    ----------
    net : Network
    x : Tensor `(N, ...)`, pixels as uint8 or standardized features
    y : Tensor, labels `(N,)` or standardized targets `(N, out)`
    preprocessing : how to return to the units of the data
    """
    generator = torch.Generator(x.device).manual_seed(0)  # for modes that draw: training must not notice
    predictions = [net.predict(to_input(part), generator=generator) for part in x.split(batch_size)]
    if preprocessing.targets is None:
        probs = torch.cat([part for part in predictions if isinstance(part, Tensor)])
        if bool(probs.isnan().any()):
            return Scores(math.nan, math.nan, None)  # the loop says what has diverged
        return Scores(metrics.nll(probs, y), metrics.error(probs, y), None)
    mean = torch.cat([part.mean for part in predictions if isinstance(part, Moments)])
    var = torch.cat([part.var for part in predictions if isinstance(part, Moments)])
    square = (y - mean).double().square()
    nll = 0.5 * (square / var + var.double().log() + math.log(2 * math.pi)).sum(-1).mean()
    rmse = (square * preprocessing.targets.std.to(square).square()).mean().sqrt()
    return Scores(float(nll) + preprocessing.log_scale, None, float(rmse))
