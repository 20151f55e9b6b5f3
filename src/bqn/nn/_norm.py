"""Batch norm on beliefs, and the re-estimation of its statistics."""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bqn.beliefs import Belief, Gaussian
from bqn.checks import require_finite, require_floating, require_positive
from bqn.nn._layer import Layer
from bqn.nn._shapes import require_input
from bqn.propagate import batch
from bqn.propagate.normalization import Normalization, normalized_moments
from bqn.propagate.normalized_sign import statistics


class _BatchNorm(Layer):
    """Batch norm on beliefs.

    The statistics are those that a sampled network will see: by the law of total variance, the variance of the mean
    over the batch plus the average variance. Batch norm subtracts what is common to the batch, so noise that is common
    to the batch is not noise behind it. The layer before is asked for the noise within the batch alone
    (`Gaussian.within_batch`): the two need no setting and no knowledge of each other, and any other layer may stand
    between them if it passes the question on, as pooling, `Add` and `Flatten` do. Others that read the same sum, as
    around a shortcut, get all of its noise, and so do they in a sampled network.

    Parameters
    ----------
    num_features : int
        Channels, dimension 1 of the input.
    eps, momentum, affine : as in `torch.nn.BatchNorm2d`
    """

    dims: tuple[int, ...]
    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor

    def __init__(self, num_features: int, eps: float = 1e-5, momentum: float = 0.1, affine: bool = True) -> None:
        super().__init__()
        self.num_features = require_positive(num_features, "num_features")
        if not 0 < momentum <= 1:
            raise ValueError(f"momentum must lie above 0 and at most be 1, got {momentum}")
        self.eps, self.momentum = eps, momentum
        self.weight = nn.Parameter(torch.ones(self.num_features)) if affine else None
        self.bias = nn.Parameter(torch.zeros(self.num_features)) if affine else None
        self.register_buffer("running_mean", torch.zeros(self.num_features))
        self.register_buffer("running_var", torch.ones(self.num_features))
        self.register_buffer("num_batches_tracked", torch.tensor(0))

    def forward(self, x: Belief) -> Belief:
        require_input(x, self.num_features, axis=1, dims=self.dims, layer=type(self).__name__)
        if isinstance(x, Tensor):
            return self._normalize_tensor(x)
        batch_statistics = self.training and x.shape[0] > 0
        x = x.within_batch(self.momentum if batch_statistics else None)
        mean, var = x.mean, x.var
        if batch_statistics:
            centre, total = batch.moments_of_all(*statistics(mean.detach(), var.detach()))
            self._update(centre, total, batch.count_of_all(mean.numel() // self.num_features))
        else:
            centre, total = self.running_mean, self.running_var
        source = Normalization(mean, var, centre, total + self.eps, self.weight, self.bias, batch_statistics)
        return Gaussian.deferred(
            mean.shape,
            mean,
            lambda: normalized_moments(source, self.eps),
            origin=source,
            neighbours=x.neighbours,
            units=x.units,
        )

    def _normalize_tensor(self, x: Tensor) -> Tensor:
        batch_statistics = self.training and x.shape[0] > 0
        if batch_statistics and batch.current_share() is not None:
            # half precision would lose what the statistics take out
            wide = x.to(torch.promote_types(x.dtype, self.running_mean.dtype))
            return cast(Gaussian, self(Gaussian.of(wide, torch.zeros_like(wide)))).mean.to(x.dtype)
        if batch_statistics:
            self.update_running(self.num_batches_tracked, self.momentum)
        mean, var = self.running_mean, self.running_var
        if self.recomputing:
            mean, var = mean.clone(), var.clone()
        return F.batch_norm(x, mean, var, self.weight, self.bias, batch_statistics, self.momentum, self.eps)

    def _update(self, centre: Tensor, total: Tensor, count: int) -> None:
        unbiased = total * (count / max(count - 1, 1))
        pairs = ((self.running_mean, centre), (self.running_var, unbiased))
        self.update_running(self.num_batches_tracked, self.momentum, *pairs)

    def extra_repr(self) -> str:
        return f"{self.num_features}, eps={self.eps}, momentum={self.momentum}, affine={self.weight is not None}"


class BatchNorm1d(_BatchNorm):
    __doc__ = _BatchNorm.__doc__
    dims = (2, 3)


class BatchNorm2d(_BatchNorm):
    __doc__ = _BatchNorm.__doc__
    dims = (4,)


@torch.no_grad()
def recalibrate(net: nn.Module, x: Tensor, batch_size: int | None = None) -> nn.Module:
    """Re-estimate the batch norm statistics of a network on training inputs, in place.

    For a sampled or MAP network: one sampled filter serves every position and example, so its error shifts a whole
    channel; fresh statistics take that shift out again. For a network with posteriors: while it trains, its running
    statistics lag behind its weights. The training loop does this before it validates.

    Parameters
    ----------
    net : a network from `Network.sample` or `Network.mode`, or a Network itself
    x : Tensor `(N, ...)`
        Some training inputs, no labels; a thousand are plenty. At least two.
    batch_size : int or None
        Inputs at a time; all at once by default. Statistics are averaged over batches, which should be random parts of
        the data.

    Returns
    -------
    The same network.
    """
    require_floating(x, "x")
    require_finite(x, "x")
    if x.shape[0] < 2:
        raise ValueError(f"x must hold at least two examples to estimate statistics from, got {x.shape[0]}")
    if batch_size is not None and batch_size < 2:
        raise ValueError(f"batch_size must be at least two, got {batch_size}")
    norms = [module for module in net.modules() if isinstance(module, _BatchNorm)]
    if not norms:
        return net
    was_training = {module: module.training for module in norms}
    momenta = {norm: norm.momentum for norm in norms}
    # Of nearly equal size, since they count alike, and none of a single input, which has no variance.
    count = x.shape[0]
    batches = x.tensor_split(min(-(-count // (batch_size or count)), count // 2))
    try:
        for norm in norms:
            norm.train()
        for seen, batch in enumerate(batches):
            for norm in norms:
                norm.momentum = 1 / (seen + 1)
            net(batch)
    finally:
        for norm in norms:
            norm.momentum = momenta[norm]
            norm.train(was_training[norm])
    return net
