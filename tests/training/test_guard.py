"""The search for what was not finite."""

import pytest
import torch

from bqn import Gaussian, nn
from bqn.models import mlp
from bqn.training import guard
from bqn.training.guard import find_cause, health


class Spoil(nn.Layer):
    """Passes its input on; spoils it, or only its gradient."""

    def __init__(self, forward_too):
        super().__init__()
        self.forward_too = forward_too

    def forward(self, x):
        if self.forward_too:
            return Gaussian.of(x.mean / 0, x.var)
        # the gradient of a square root at zero is infinite
        return Gaussian.of(x.mean + 0 * (x.mean.detach() - x.mean).abs().sqrt(), x.var)


def network(spoil=None, at=2):
    net = mlp(6, 3, hidden=(4,))
    if spoil is not None:
        net.body.insert(at, spoil)
    return net


def search(net):
    x, y = torch.linspace(-1, 1, 30).reshape(5, 6), torch.tensor([0, 1, 2, 0, 1])

    def forward():
        return net.elbo_terms(x, y, 5, 1.0)

    terms = forward()
    (-terms.value).backward()
    return bool(torch.isfinite(health(terms.value, net.parameters()))), find_cause(net, forward)


def test_a_sound_network_has_no_cause():
    assert search(network()) == (True, None)


def test_layer():
    healthy, cause = search(network(Spoil(forward_too=True)))
    assert not healthy
    assert cause == ("log-likelihood", "first in the output of body.2 (Spoil)")


def test_gradient():
    healthy, cause = search(network(Spoil(forward_too=False)))
    assert not healthy
    assert cause == ("gradient of the log-likelihood", "first in that of the parameter body.1.weight.logits")


@pytest.mark.parametrize(
    ("name", "term"), [("head.log_scale", "log-likelihood"), ("body.4.weight.logits", "log-likelihood")]
)
def test_parameter(name, term):
    net = network()
    with torch.no_grad():
        parameter = net.get_parameter(name)
        parameter[(0,) * parameter.dim()] = torch.nan
    healthy, cause = search(net)
    assert not healthy
    assert cause == (term, f"because the parameter {name} is not finite")


def test_kl():
    net = network()
    net.body[1].weight.log_prior.fill_(-torch.inf)
    net.body[1].weight.uniform_prior = False
    healthy, cause = search(net)
    assert not healthy
    assert cause is not None
    assert cause.term == "KL"


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_health_shows_any_gradient_that_is_not_finite(bad: float, device: str) -> None:
    net = mlp(6, 3, hidden=(5,)).to(device)
    value = net.elbo(torch.randn(4, 6, device=device), torch.tensor([0, 1, 2, 0], device=device), 4, 0.1)
    (-value).backward()
    assert torch.isfinite(health(value, net.parameters()))
    assert not torch.isfinite(health(value * bad, net.parameters()))
    for parameter in net.parameters():
        grad = parameter.grad
        kept = grad.flatten()[-1].clone()
        grad.view(-1)[-1] = bad
        assert not torch.isfinite(health(value, net.parameters()))
        grad.view(-1)[-1] = kept
    net.zero_grad()
    assert torch.equal(health(value, net.parameters()), value.detach())


def test_sizes_are_finite_exactly_if_all_numbers_are() -> None:
    sound = [torch.tensor([1.0, -2.0]), torch.zeros(0), torch.tensor(3.0)]
    assert [float(size) for size in guard._sizes(sound)] == [3.0, 0.0, 3.0]
    for bad in (float("nan"), float("inf"), float("-inf")):
        assert [bool(torch.isfinite(size)) for size in guard._sizes([*sound, torch.tensor([1.0, bad])])] == [
            True, True, True, False,
        ]  # fmt: skip
