"""Statistics of a batch of which others hold a part: against the whole batch in one place.

Two processes with the same examples make it possible without processes: a sum over both is twice what one has.
"""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from bqn import models, nn
from bqn.beliefs import Gaussian
from bqn.network import Network
from bqn.propagate import batch


def half_of(examples: int) -> batch.Share:
    return batch.Share(examples, 2 * examples, lambda tensor: 2 * tensor)


def loss_and_gradients(norm: nn.BatchNorm1d, mean: Tensor, var: Tensor, signs: bool, weights: Tensor):
    mean, var = mean.clone().requires_grad_(), var.clone().requires_grad_()
    belief = norm(Gaussian.of(mean, var))
    belief = nn.Sign()(belief) if signs else belief
    loss = (weights * (belief.mean + 0.3 * belief.var)).sum()
    return loss.detach(), torch.autograd.grad(loss, [mean, var, *norm.parameters()], allow_unused=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("signs", [True, False])
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("shape", [(6, 4), (3, 4, 5, 2)])
def test_half_a_batch_among_two_is_the_batch_twice(dtype, signs, affine, shape):
    kind = nn.BatchNorm1d if len(shape) == 2 else nn.BatchNorm2d
    generator = torch.Generator().manual_seed(1)
    mean = torch.randn(shape, generator=generator, dtype=dtype)
    var = torch.rand(shape, generator=generator, dtype=dtype) + 0.1
    weights = torch.randn(shape, generator=generator, dtype=dtype)
    norms = [kind(4, affine=affine).to(dtype) for _ in range(2)]
    for norm in norms if affine else ():
        with torch.no_grad():
            norm.weight.copy_(torch.tensor([1.5, -0.5, 0.7, 0.0]))  # also mirrored, also nothing at all
            norm.bias.copy_(torch.tensor([0.3, -0.2, 0.0, 0.4]))
    with batch.shared(half_of(shape[0])):
        loss, ours = loss_and_gradients(norms[0], mean, var, signs, weights)
    mean, var, weights = (torch.cat((tensor, tensor)) for tensor in (mean, var, weights))
    whole, theirs = loss_and_gradients(norms[1], mean, var, signs, weights)
    tolerance = {"rtol": 1e-4, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 1e-10, "atol": 1e-12}
    assert_close(2 * loss, whole, **tolerance)
    for gradient, expected in zip(ours[:2], theirs[:2], strict=True):
        assert_close(gradient, expected[: shape[0]], **tolerance)
    for gradient, expected in zip(ours[2:], theirs[2:], strict=True):
        assert_close(2 * gradient, expected, **tolerance)
    for name in ("running_mean", "running_var", "num_batches_tracked"):
        assert_close(getattr(norms[0], name), getattr(norms[1], name), **tolerance)


def twice(net: Network, x: Tensor, y: Tensor, shared: bool) -> tuple[list[Tensor], dict[str, Tensor]]:
    net.zero_grad()
    with batch.shared(half_of(len(x))) if shared else nullcontext():
        net.elbo(*((x, y) if shared else (torch.cat((x, x)), torch.cat((y, y)))), 100, 0.1).backward()
    return [parameter.grad for parameter in net.parameters()], dict(net.named_buffers())


@pytest.mark.parametrize("levels", [(-1.0, 1.0), (-1.0, 0.0, 1.0)])
def test_networks_with_convolutions_and_pools(levels):
    x = torch.randn(5, 1, 8, 8, dtype=torch.float64)
    y = torch.tensor([0, 1, 2, 0, 1])
    results = []
    for shared in (True, False):
        torch.manual_seed(3)
        net = models.cnn((1, 8, 8), 3, channels=(3, 4), hidden=6, levels=levels, activations=levels).double().train()
        results.append(twice(net, x, y, shared))
    for ours, theirs in zip(results[0][0], results[1][0], strict=True):
        assert_close(ours, theirs, rtol=1e-9, atol=1e-12)
    for name, buffer in results[0][1].items():
        assert_close(buffer, results[1][1][name], rtol=1e-9, atol=1e-12, msg=name)


def test_batch_norm_of_a_tensor_is_shared_too():
    x = torch.randn(6, 4, dtype=torch.float64)
    ours, theirs = nn.BatchNorm1d(4).double(), nn.BatchNorm1d(4).double()
    with batch.shared(half_of(6)):
        result = ours(x)
    assert_close(result, theirs(x.repeat(2, 1))[:6])
    assert_close(ours.running_var, theirs.running_var)


def test_alone_nothing_is_added_up():
    values = torch.randn(3)
    assert batch.current_share() is None
    assert batch.mean_of_all(values) is values
    assert batch.moments_of_all(values, values) == (values, values)
    assert batch.count_of_all(7) == 7
    with batch.shared(half_of(7)):
        assert batch.count_of_all(21) == 42
    assert batch.current_share() is None
