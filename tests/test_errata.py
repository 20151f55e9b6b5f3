"""The paper's formulas that are wrong as printed: the library gives the right value, the printed formula does not.

Truth comes from enumeration, quadrature, autograd or finite sums, never from the formula under test.
"""

import math

import numpy as np
import torch
from scipy.stats import norm
from torch.testing import assert_close

import bqn
from bqn import exact
from bqn.heads import taylor_softmax
from bqn.propagate import clt, fourier
from tests.nn.contract import random_categorical


def differ(a: torch.Tensor, b: torch.Tensor, by: float = 1e-3) -> bool:
    return float((a - b).detach().abs().max()) > by


def test_a_regularizer_is_minus_the_divergence() -> None:
    net = bqn.models.mlp(3, 2, hidden=(4,), batch_norm=False)
    x, y = torch.randn(5, 3), torch.randint(2, (5,))
    terms = net.elbo_terms(x, y, data_size=10, lam=2.0)
    assert_close(terms.value, terms.log_likelihood - 0.2 * net.kl())
    assert differ(terms.value, terms.log_likelihood + 0.2 * net.kl())


def test_b1_jensen_goes_down_not_up() -> None:
    """E[log X] ≤ log E[X]: with dropout the alternative bound lies strictly below the true term, not above."""
    net = bqn.Network(
        bqn.nn.Sequential(bqn.nn.Linear(2, 2), bqn.nn.Sign(), bqn.nn.Dropout(0.5), bqn.nn.Linear(2, 2)),
        bqn.SoftmaxHead(2, scale=0.5),
    ).double()
    x, y = torch.randn(3, 2).double(), torch.tensor([0, 1, 0])
    assert bool((exact.alternative_bound(net, x, y) < exact.expected_log_likelihood(net, x, y) - 1e-3).all())


def _hessian_diagonal(mean: torch.Tensor, scale: float) -> torch.Tensor:
    """∂²ℓ_c / ∂h_k² as (c, k), by autograd."""
    full = torch.autograd.functional.hessian
    rows = [full(lambda h, c=c: torch.softmax(h / scale, -1)[c], mean).diagonal() for c in range(len(mean))]
    return torch.stack(rows)


def test_b2_second_derivative() -> None:
    mean, scale = torch.randn(4, dtype=torch.float64), 1.7
    truth = _hessian_diagonal(mean, scale)
    soft = torch.softmax(mean / scale, -1)
    c, k = 0, 2
    right = (-soft[c] * soft[k] + 2 * soft[c] * soft[k] ** 2) / scale**2
    printed = (-soft[c] * soft[k] + 2 * soft[c] ** 2 * soft[k]) / scale**2
    assert_close(truth[c, k], right)
    assert differ(truth[c, k], printed)


def test_b2_prediction() -> None:
    mean, var, scale = torch.randn(4).double(), torch.rand(4).double() * 0.2, 1.3
    soft = torch.softmax(mean / scale, -1)
    truth = soft + 0.5 * _hessian_diagonal(mean, scale) @ var
    ours = taylor_softmax(mean[None] / scale, var[None] / scale**2)[0]
    assert_close(ours, truth)
    head = bqn.SoftmaxHead(4, scale=scale).double()
    assert_close(head.predict(bqn.Gaussian(mean[None], var[None]))[0].detach(), truth, atol=1e-7, rtol=1e-6)
    pull = var - soft @ var
    for printed in (soft + (soft - 2 * soft**2) * pull / 2 / scale**2, soft + (soft - soft**2) * pull / 2 / scale**2):
        assert differ(printed, truth)
        assert abs(float(printed.sum()) - 1) > 1e-4


def test_b2_first_derivative_and_completed_square() -> None:
    h = torch.randn(3, dtype=torch.float64)
    e = h.exp()
    truth = torch.autograd.functional.jacobian(lambda t: torch.softmax(t, -1)[0], h)[0]
    assert_close(truth, (e[0] * e.sum() - e[0] ** 2) / e.sum() ** 2)
    assert differ(truth, (e[0] - e[0] ** 2) / e.sum() ** 2)
    # E[exp(h/s)]: the tilted density is a normal around μ + ν/s, not μ + ν
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    mu, nu, s = 0.3, 0.8, 2.0
    values = mu + math.sqrt(nu) * nodes
    tilted = weights * np.exp(values / s)
    assert abs((tilted * values).sum() / tilted.sum() - (mu + nu / s)) < 1e-9
    assert abs((tilted * values).sum() / tilted.sum() - (mu + nu)) > 0.1
    assert abs(tilted.sum() / weights.sum() - math.exp(mu / s + nu / (2 * s**2))) < 1e-9


def test_b3_moments() -> None:
    head = bqn.GaussianHead(3).double()
    hidden = random_categorical((1, 3), (-1.0, 0.5, 2.0))
    with torch.no_grad():
        head.log_noise.fill_(math.log(0.3))
    joint = exact.law(bqn.nn.Flatten(), hidden)
    output = (joint.values @ head.weight.T).flatten().detach()
    probs, noise = joint.joint, 0.3
    mean = (probs * output).sum()
    central = [(probs * (output - mean) ** n).sum() for n in range(5)]
    var = central[2] + noise
    truth = (
        mean, var, central[3] / var**1.5, (central[4] + 6 * central[2] * noise + 3 * noise**2) / var**2,
    )  # fmt: skip
    result = head.predict(hidden)
    for ours, expected in zip(result, truth, strict=True):
        assert_close(ours.squeeze().detach(), expected)
    w, nu, fourth = head.weight.detach()[0], hidden.var[0], hidden.central_moment(4)[0]
    printed = ((w**4 * fourth).sum() + noise * (w**2 * nu).sum()) / var**2
    assert differ(printed, truth[3])


def test_b3_gradients() -> None:
    w = torch.randn(1, 4, dtype=torch.float64)
    head = bqn.GaussianHead(4).double()
    with torch.no_grad():
        head.weight.copy_(w)
        head.log_noise.fill_(math.log(0.7))
    mean = torch.randn(1, 4, dtype=torch.float64, requires_grad=True)
    var, y = torch.rand(1, 4, dtype=torch.float64), torch.tensor([[1.5]]).double()
    head.log_likelihood(bqn.Gaussian(mean, var), y).sum().backward()
    gap = (y - w @ mean.detach().T).item()
    assert_close(mean.grad, gap * w / 0.7)
    assert differ(mean.grad, -gap * w / 0.7)
    assert_close(head.weight.grad, (gap * mean.detach() - w * var) / 0.7)
    assert differ(head.weight.grad, -(gap * mean.detach() + w * var) / 0.7)


def test_c2_all_transforms_have_one_length() -> None:
    terms = random_categorical((3,), (0.0, 1.0))
    truth = exact.law(_Sum(), terms).marginals(torch.arange(4.0).double())
    assert_close(fourier.sum_terms([terms]).probs, truth.squeeze())
    own = torch.fft.fft(terms.probs.to(torch.complex128), dim=-1).prod(-2)  # each of its own length, two
    assert differ(torch.fft.ifft(own).real, truth.squeeze()[:2])


class _Sum(bqn.nn.Layer):
    def forward(self, x: bqn.Belief) -> bqn.Belief:
        return x.sum(-1, keepdim=True)  # only ever called with tensors, by the oracle


def test_c2_length_is_the_span_of_the_sum() -> None:
    """R is not of the order E·D: three levels far apart span many lattice points."""
    law = fourier.sum_terms([random_categorical((4,), (0.0, 1.0, 10.0))])
    assert len(law.level_values) == 4 * 10 + 1


def test_c2_gradient_is_conjugated_and_finite_at_zeros() -> None:
    # p = (½, ½) has the transform zero at the highest frequency of an even length
    probs = torch.tensor([[0.5, 0.5], [0.2, 0.8], [0.7, 0.3]], dtype=torch.float64, requires_grad=True)
    g = torch.tensor([0.3, -1.0, 2.0, 0.5], dtype=torch.float64)
    law = fourier.sum_terms([bqn.Categorical.of((0.0, 1.0), probs=probs)])
    (grad,) = torch.autograd.grad((law.probs * g).sum(), probs)
    # truth: the sum is linear in each factor; its coefficient is the law of the others, correlated with g
    for i in range(3):
        a, b = (probs.detach()[j] for j in range(3) if j != i)
        others = torch.stack([a[0] * b[0], a[0] * b[1] + a[1] * b[0], a[1] * b[1]])
        assert_close(grad[i], torch.stack([(others * g[k : k + 3]).sum() for k in range(2)]))
    spectra = torch.fft.fft(probs.detach().to(torch.complex128), n=4, dim=-1)
    assert spectra.abs().min() < 1e-12
    with np.errstate(all="ignore"):
        without_conjugate = torch.fft.ifft(spectra.prod(0) / spectra[1] * torch.fft.fft(g)).real[:2]
        divided = torch.fft.ifft((spectra.prod(0) / spectra[0]).conj() * torch.fft.fft(g)).real[:2]
    assert differ(without_conjugate, grad[1])
    assert not bool(torch.isfinite(divided).all())


def test_c3_gradients_of_the_variance() -> None:
    layer = bqn.nn.Linear(5, 3, levels=bqn.TERNARY, bias=False, method="clt").double()
    mean = torch.randn(2, 5, dtype=torch.float64)
    var = torch.rand(2, 5, dtype=torch.float64, requires_grad=True)
    g = torch.randn(2, 3, dtype=torch.float64)
    M, V = layer.weight.mean.detach(), layer.weight.var.detach()
    (layer(bqn.Gaussian(mean, var)).var * g).sum().backward()
    assert_close(var.grad, g @ (M.square() + V))
    assert differ(var.grad, g @ M.square())
    # by V, with M held fixed: probabilities moved along a direction that leaves the mean alone
    probs = layer.weight.belief().probs.detach().requires_grad_()
    weight = bqn.Categorical.of(bqn.TERNARY, probs=probs)
    variance = clt.linear(bqn.Gaussian(mean, var.detach()), weight, None).var
    (grad,) = torch.autograd.grad((variance * g).sum(), probs)
    along = grad[..., 0] + grad[..., 2] - 2 * grad[..., 1]  # mean unchanged, V grows by 2
    assert_close(along / 2, g.T @ (mean.square() + var.detach()))
    assert differ(along / 2, g.T @ mean.square())


def test_c3_variance_by_probability() -> None:
    """∂V/∂Q(d) = q_d² - 2 M q_d, on the simplex (q_d - M)² up to a constant; the paper prints 2(Q(d) - M)."""
    levels = torch.tensor(bqn.QUATERNARY, dtype=torch.float64)
    probs = torch.softmax(torch.randn(4).double(), -1).requires_grad_()
    belief = bqn.Categorical.of(bqn.QUATERNARY, probs=probs)
    (grad,) = torch.autograd.grad(belief.var, probs)
    mean = belief.mean.detach()
    offset = grad - (levels - mean).square()
    assert_close(offset, offset[:1].expand(4))
    printed = 2 * (levels - mean)
    assert differ(grad - printed, (grad - printed)[:1].expand(4))


def test_c3_variance_of_a_product() -> None:
    """E[θ²]E[h²] - E[θ]²E[h]², not E[θ²]E[h²] - E[θ²]E[h²], which is zero."""
    layer = bqn.nn.Product(1, levels=bqn.TERNARY).double()
    h = random_categorical((1, 1), bqn.TERNARY)
    truth = exact.law(layer, h).moments().var
    w = layer.weight.belief()
    assert_close(layer(h).var, truth)
    right = (w.mean**2 + w.var) * (h.mean**2 + h.var) - (w.mean * h.mean) ** 2
    assert_close(truth, right.detach())
    assert float(truth) > 1e-3


def test_c3_sign_gradients() -> None:
    mean = torch.tensor([[0.7]], dtype=torch.float64, requires_grad=True)
    var = torch.tensor([[2.5]], dtype=torch.float64, requires_grad=True)
    up = bqn.nn.Sign()(bqn.Gaussian(mean, var)).probs[..., 1].sum()
    by_mean, by_var = torch.autograd.grad(up, (mean, var))
    z = 0.7 / math.sqrt(2.5)
    density = math.exp(-z * z / 2) / math.sqrt(2 * math.pi)
    step = 1e-6  # central differences of Φ, in float64
    upper, lower = (norm.cdf((0.7 + sign * step) / 2.5**0.5) for sign in (1, -1))
    assert_close(by_mean.item(), (upper - lower) / (2 * step), rtol=1e-7, atol=0)
    assert_close(by_mean.item(), density / math.sqrt(2.5))
    assert_close(by_var.item(), -0.7 * density / (2 * 2.5**1.5))
    assert abs(by_mean.item() - density) > 1e-3
    assert abs(by_var.item() + density / (2 * 2.5**1.5)) > 1e-3


def test_41_number_of_joint_states_adds_in_the_exponent() -> None:
    """D^(I + K) states of inputs and weights, each with its outputs: not D^(I·J·K)."""
    joint = exact.law(bqn.nn.Linear(3, 2, bias=False), random_categorical((1, 3), bqn.BINARY, torch.float32))
    assert joint.joint.numel() == 2 ** (3 + 6)
