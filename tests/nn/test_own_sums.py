"""A sum that a batch norm reads and others too: in a sampled network the others read what its weights give."""

import copy
import pickle
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

import bqn
from bqn.deploy import UnpackableError, pack_in_memory
from tests.deploy.networks import assert_exact, disturb, pixels, sampled


class Skip(nn.Module):
    """A shortcut around batch norm, from before it: no batch norm stands behind the sum of both."""

    def __init__(self, features: int = 4, units: int = 30) -> None:
        super().__init__()
        self.first, self.norm = bqn.nn.Linear(features, units, bias=False), bqn.nn.BatchNorm1d(units)
        self.inner = bqn.nn.Linear(units, units, bias=False, method="clt")
        self.sign, self.sign2, self.add = bqn.nn.Sign(), bqn.nn.Sign(), bqn.nn.Add()
        self.last = bqn.nn.Linear(units, 3)

    def forward(self, x: bqn.Belief) -> bqn.Belief:
        h = self.first(x)
        return self.last(self.sign2(self.add(h, self.inner(self.sign(self.norm(h))))))


class Tower(nn.Module):
    """`layers` on a convolution's sums, and a batch norm that reads the same sums."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.conv, self.norm = bqn.nn.Conv2d(1, 3, 3, padding=1, bias=False), bqn.nn.BatchNorm2d(3)
        self.sign, self.add = bqn.nn.Sign(), bqn.nn.Add()
        self.layers = bqn.nn.Sequential(*layers)

    def forward(self, x: bqn.Belief) -> bqn.Belief:
        h = self.conv(x)
        return self.add(self.layers(h), self.sign(self.norm(h)))


def trained(net: bqn.Network, x: Tensor) -> bqn.Network:
    net.double().train()
    for _ in range(120):  # until the running statistics are those of x
        net(x)
    return net.eval()


def read_by(module: nn.Module, x: Tensor, reader: nn.Module) -> tuple[Tensor, ...]:
    """What `reader` is given while `module` runs on `x`."""
    seen: list[tuple[Tensor, ...]] = []
    original = reader.forward

    def spy(*inputs: Tensor) -> Tensor:
        seen.append(inputs)
        return original(*inputs)

    reader.forward = spy  # type: ignore[method-assign]
    try:
        module(x)
    finally:
        del reader.forward
    return seen[-1]


def test_a_shortcut_from_before_batch_norm_carries_the_sums_of_the_weights() -> None:
    x = torch.randn(500, 4, generator=torch.Generator().manual_seed(0)).double() + 4
    net = trained(bqn.Network(Skip(), bqn.SoftmaxHead(30)), x)
    belief, generator = net.body.first(x), torch.Generator().manual_seed(0)
    centre, draws = belief.mean.mean(0).detach(), []
    for _ in range(300):
        plain = net.sample(generator)
        weights = x @ plain.body.first.weight.T
        (total,) = read_by(plain, x, plain.body.sign2)
        (normed,) = read_by(plain, x, plain.body.norm)
        inner = torch.where(plain.body.norm(normed) >= 0, 1.0, -1.0).double() @ plain.body.inner.weight.T
        assert_close(total, weights + inner)
        assert_close(normed.mean(0), centre, atol=1e-3, rtol=0)  # no common shift
        draws.append((total - inner)[0])
    moments = torch.stack(draws)
    assert_close(moments.mean(0), belief.mean[0].detach(), atol=1.2, rtol=0)
    assert_close(moments.var(0), belief.var[0].detach(), rtol=0.35, atol=0)


def test_predictions_of_sampled_networks_come_to_the_analytic_one() -> None:
    """The error of mean field is left, about 0.03; with the shift gone from both readers it was 0.08."""
    torch.manual_seed(0)
    net = bqn.Network(Skip(), bqn.SoftmaxHead(30))
    x = torch.randn(500, 4) + 4
    net = trained(net, x.double())
    probs = net.predict(x[:2].double(), "mc", samples=400, generator=torch.Generator().manual_seed(0))
    assert_close(net.predict(x[:2].double()), probs, atol=0.05, rtol=0)


@pytest.mark.parametrize(
    ("layers", "make"),
    [
        ((bqn.nn.Sign(),), lambda h: h),
        ((bqn.nn.MaxPool2d(3, 1, 1),), lambda h: h),
        ((bqn.nn.AvgPool2d(3, 1, 1), bqn.nn.Sign()), lambda h: nn.functional.avg_pool2d(h, 3, 1, 1)),
        ((bqn.nn.Shortcut(bqn.nn.AvgPool2d(3, 1, 1)), bqn.nn.Sign()),
         lambda h: h + nn.functional.avg_pool2d(h, 3, 1, 1)),
        ((bqn.nn.Conv2d(3, 3, 1),), lambda h: h),
        ((bqn.nn.Dropout(0.3),), lambda h: h),
    ],
)  # fmt: skip
def test_every_reader_but_batch_norm(layers: tuple[nn.Module, ...], make: Callable[[Tensor], Tensor]) -> None:
    x = torch.randn(50, 1, 5, 5, generator=torch.Generator().manual_seed(0)).double() + 2
    plain = trained(bqn.Network(Tower(*copy.deepcopy(layers)), bqn.SoftmaxHead(3)), x).sample()
    h = nn.functional.conv2d(x, plain.body.conv.weight, padding=1)
    (given,) = read_by(plain, x, plain.body.layers[-1])
    assert_close(given, make(h))
    (normed,) = read_by(plain, x, plain.body.norm)
    shift = plain.body.conv._correction()
    assert shift.abs().max() > 1
    assert_close(normed, h - shift.reshape(-1, 1, 1))


def test_flatten_and_the_head() -> None:
    class Body(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm, self.flat = bqn.nn.Conv2d(1, 3, 2), bqn.nn.BatchNorm2d(3), bqn.nn.Flatten()

        def forward(self, x: bqn.Belief) -> bqn.Belief:
            h = self.conv(x)
            self.norm(h)
            return self.flat(h)

    x = torch.randn(40, 1, 3, 3).double() + 2
    plain = trained(bqn.Network(Body(), bqn.SoftmaxHead(3)), x).sample()
    conv = plain.body.conv
    assert conv.expected_shift is not None
    assert_close(plain(x), nn.functional.conv2d(x, conv.weight, conv.bias).flatten(1))
    assert plain(x[:0]).shape == (0, 12)


def test_layers_read_by_their_batch_norm_alone_are_as_they_were() -> None:
    """Bit by bit what the layers give one after the other, without anything put back."""
    net = bqn.models.cnn((1, 8, 8), 3, channels=(4, 4), hidden=8)
    x = torch.randn(20, 1, 8, 8) + 1
    net(x)
    plain = net.eval().sample(torch.Generator().manual_seed(0))
    bare = copy.deepcopy(plain)
    for layer in bare.modules():
        layer._forward_pre_hooks.clear()
        layer._forward_hooks.clear()
    assert any(layer._forward_pre_hooks for layer in plain.modules())
    assert torch.equal(plain(x), bare(x))
    assert torch.equal(pickle.loads(pickle.dumps(plain))(x), plain(x))


class Signs(nn.Module):
    """Signs of a sum and of the same sum behind batch norm, added up: all of it packs."""

    def __init__(self, pool: nn.Module, units: int) -> None:
        super().__init__()
        self.conv, self.pool = bqn.nn.Conv2d(1, 5, 3, bias=False), pool
        self.norm, self.sign, self.sign2 = bqn.nn.BatchNorm2d(5), bqn.nn.Sign(), bqn.nn.Sign()
        self.add, self.flat, self.last = bqn.nn.Add(), bqn.nn.Flatten(), bqn.nn.Linear(units, 4)

    def forward(self, x: bqn.Belief) -> bqn.Belief:
        h = self.pool(self.conv(x))
        return self.last(self.flat(self.add(self.sign(self.norm(h)), self.sign2(h))))


@pytest.mark.parametrize(("pool", "units"), [(nn.Identity(), 5 * 36), (bqn.nn.AvgPool2d(2, method="clt"), 5 * 9)])
def test_packed_networks_read_the_same(pool: nn.Module, units: int) -> None:
    torch.manual_seed(0)
    net = disturb(bqn.Network(Signs(pool, units), bqn.SoftmaxHead(units)), (1, 8, 8))
    members = sampled(net)
    assert all(member.body.conv.expected_shift is not None for member in members)
    assert_exact(members, pixels(60, (1, 8, 8)), input_shape=(1, 8, 8))


def test_packing_refuses_averages_that_are_no_binary_fractions_of_shifted_sums() -> None:
    torch.manual_seed(0)
    net = disturb(bqn.Network(Signs(bqn.nn.AvgPool2d(3, 1, method="clt"), 80), bqn.SoftmaxHead(80)), (1, 8, 8))
    with pytest.raises(UnpackableError, match=r"^sign2 reads averages of sums that are shifted for a batch norm"):
        pack_in_memory(sampled(net), input_shape=(1, 8, 8))
