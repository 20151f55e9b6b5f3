"""qnn: the straight-through gradients by hand, clipping, and a trained network as a plain one."""

import pytest
import torch
from torch import nn

from bqn.baselines.qnn import BinaryWeight, clip_after_steps
from bqn.nn import Linear, Sign
from bqn.training.models import build_model
from tests.training import tiny


def network(**options):
    return build_model(tiny.config(method="qnn", **options), (1, 6, 6), 3)


def test_sign_and_its_gradient():
    x = torch.tensor([-2.0, -1.0, -0.3, 0.0, 0.5, 1.0, 1.5], requires_grad=True)
    signs = Sign()(x)
    assert signs.tolist() == [-1, -1, -1, 1, 1, 1, 1]
    weights = torch.arange(1.0, 8.0)
    (signs * weights).sum().backward()
    assert x.grad.tolist() == [0, 2, 3, 4, 5, 6, 0]  # that of hard tanh


def test_gradients_of_two_layers_by_hand():
    """y = v · sign(w x) with w = sign(a), v = sign(b): dy/db = sign(w x) and dy/da = x · v where |w x| ≤ 1."""
    first, second = Linear(1, 2, bias=False), Linear(2, 1, bias=False)
    first.weight, second.weight = (BinaryWeight(torch.Size(shape), 1) for shape in ((2, 1), (1, 2)))
    with torch.no_grad():
        first.weight.latent.copy_(torch.tensor([[0.3], [-0.7]]))
        second.weight.latent.copy_(torch.tensor([[-0.2, 0.9]]))
    net = nn.Sequential(first, Sign(), second)
    for x, passes in ((0.5, 1.0), (-0.5, 1.0), (3.0, 0.0)):
        net.zero_grad()
        y = net(torch.tensor([[x]]))
        hidden = [1.0, -1.0] if x > 0 else [-1.0, 1.0]
        assert y.item() == -hidden[0] + hidden[1]
        y.sum().backward()
        assert second.weight.latent.grad.tolist() == [hidden]
        assert first.weight.latent.grad.tolist() == [[passes * x * -1.0], [passes * x * 1.0]]


def test_latent_weights_stay_within_one_and_others_do_not():
    clipped, free = nn.Parameter(torch.tensor([0.9, -0.9])), nn.Parameter(torch.tensor([5.0]))
    optimizer = torch.optim.Adam([clipped, free], lr=0.5)
    clip_after_steps(optimizer, [clipped])
    (-clipped[0] + clipped[1] - free[0]).backward()
    optimizer.step()
    assert clipped.tolist() == [1.0, -1.0]
    assert free.item() == pytest.approx(5.5)


def test_the_optimizer_knows_all_latent_weights():
    net = network()
    optimizer = net.make_optimizer(10.0)
    images = tiny.images(20)
    (-net.elbo((2 * images.x.float() - 255) / 256, images.y, 20, 0.0)).backward()
    optimizer.step()
    latents = [weight.latent for weight in net.modules() if isinstance(weight, BinaryWeight)]
    assert len(latents) == 3  # two weights and the last bias
    assert all(latent.abs().max() <= 1 for latent in latents)
    assert any(latent.abs().max() == 1 for latent in latents)


def test_the_plain_network_is_the_trained_one():
    net = network().eval()
    plain = net.mode()
    x = torch.randn(5, 1, 6, 6)
    assert torch.equal(plain(x), net(x))
    assert sum(type(layer) is Sign for layer in plain.modules()) == 1
    assert set(plain.body[1].weight.unique().tolist()) == {-1.0, 1.0}
    assert not list(plain.body.parameters()) or all(p.dim() == 1 for p in plain.body.parameters())  # batch norm only


def test_a_network_without_doubt():
    net = network().eval()
    x = torch.randn(4, 1, 6, 6)
    assert net.kl() == 0
    assert torch.equal(net.predict(x), net.predict(x, "map"))
    assert torch.equal(net.sample()(x), net.mode()(x))
    with pytest.raises(ValueError, match=r"mode must be one of map, got 'analytic'"):
        net.predict(x, "analytic")
