import math
from functools import cache
from itertools import combinations_with_replacement

import numpy as np
import numpy.typing as npt
import pytest
import torch
from scipy import integrate, special
from torch import Tensor
from torch.testing import assert_close

import bqn
from bqn.softmax_integral import expected_softmax

Array = npt.NDArray[np.float64]


def _law(t: Array, mean: float, var: float) -> tuple[Array, Array]:
    """Distribution function and density at t of N(mean, var) plus a Gumbel variable, by dense sums."""
    deviation = math.sqrt(var)
    if deviation < 1.5:
        z = np.linspace(-9, 9, 241)
        weights = np.exp(-(z**2) / 2)
        rate = np.exp(np.clip(deviation * z + mean - t[:, None], None, 700))
        below, density = np.exp(-rate), rate * np.exp(-rate)
    else:
        g = np.linspace(-5, 45, 1201)
        weights = np.exp(-g - np.exp(-g))
        score = (t[:, None] - mean - g) / deviation
        below, density = special.ndtr(score), np.exp(-(score**2) / 2) / (deviation * math.sqrt(2 * math.pi))
    return below @ weights / weights.sum(), density @ weights / weights.sum()


def _truth(mean: Array, var: Array, points: int = 200) -> Array:
    """E[softmax] by the trapezoidal rule on the union of fine grids, one around each class."""
    ends = [(m - 8 * v**0.5 - 4, m + 8 * v**0.5 + 25) for m, v in zip(mean, var, strict=True)]
    t = np.unique(np.concatenate([np.linspace(low, high, points) for low, high in ends]))
    laws = [_law(t, m, v) for m, v in zip(mean, var, strict=True)]
    probs = [
        integrate.trapezoid(density * np.prod([below for j, (below, _) in enumerate(laws) if j != k], axis=0), t)
        for k, (_, density) in enumerate(laws)
    ]
    return np.array(probs)


def _total_variation(found: Tensor, truth: Array) -> float:
    return float(0.5 * (found.detach().double() - torch.from_numpy(truth)).abs().sum(-1).max())


@cache
def _mixtures() -> tuple[Array, Array, Array]:
    """Means and variances of three classes, every mixture from none to 1e8, and the truth."""
    var = np.array(list(combinations_with_replacement((0.0, 1e-2, 1.0, 40.0, 2e3, 1e5, 1e8), 3)))
    draw = np.random.default_rng(0)
    reach = 2 + np.sqrt(var.max(-1, keepdims=True)) * draw.choice((0, 0.1, 1), (len(var), 1))
    mean = (draw.normal(size=var.shape) * reach).round()
    return mean, var, np.array([_truth(*row) for row in zip(mean, var, strict=True)])


def test_two_classes_against_adaptive_quadrature() -> None:
    """For two classes only the difference of the logits counts: E[sigmoid(N(m, v))], by scipy."""
    for gap, variances in (
        (0.3, (0.1, 0.4)),
        (-2.0, (3.0, 1.0)),
        (5.0, (40.0, 0.0)),
        (1.0, (0.0, 0.0)),
        (0.5, (150.0, 50.0)),
    ):
        spread = math.sqrt(sum(variances))

        def weighted(z: float, gap: float = gap, spread: float = spread) -> float:
            return math.exp(-0.5 * z * z) / math.sqrt(2 * math.pi) / (1 + math.exp(-(gap + spread * z)))

        truth, _ = integrate.quad(weighted, -10, 10, epsabs=1e-10, limit=200)
        mean, var = torch.tensor([[gap, 0.0]]).double(), torch.tensor([variances]).double()
        assert expected_softmax(mean, var)[0, 0].item() == pytest.approx(truth, abs=5e-5)


@pytest.mark.parametrize("variances", [(1e5, 0.0), (3e5, 0.0), (1e6, 0.0), (1e6, 1.0), (1e8, 0.3)])
@pytest.mark.parametrize("gap", [0.0, 3.0, -400.0])
def test_one_huge_variance_beside_a_small_one(variances: tuple[float, float], gap: float) -> None:
    """Of the head, in float32. E[sigmoid(x)] is P(x > 0) and what the sigmoid differs from a step, which is narrow."""
    spread, x = math.sqrt(sum(variances)), np.linspace(-60, 60, 240_001)
    density = np.exp(-0.5 * ((x - gap) / spread) ** 2) / (spread * math.sqrt(2 * math.pi))
    truth = special.ndtr(gap / spread) + integrate.trapezoid((special.expit(x) - (x > 0) - 0.5 * (x == 0)) * density, x)
    belief = bqn.Gaussian(torch.tensor([[gap, 0.0]]), torch.tensor([variances]))
    for method in ("integral", "taylor"):
        probs = bqn.SoftmaxHead(4, scale=1.0).predict(belief, method)
        assert probs[0, 0].item() == pytest.approx(truth, abs=5e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_mixture_of_variances(dtype: torch.dtype) -> None:
    mean, var, truth = _mixtures()
    logits, doubt = torch.tensor(mean, dtype=dtype), torch.tensor(var, dtype=dtype)
    assert _total_variation(expected_softmax(logits, doubt), truth) < 1e-3
    # So far from zero float32 has no digits for the noise of size one.
    wide = doubt.amax(-1) > 50
    assert _total_variation(expected_softmax(logits[wide] + 2**23, doubt[wide]), truth[wide.numpy()]) < 1e-3


def test_many_classes_of_mixed_variances() -> None:
    draw = np.random.default_rng(1)
    var = 10 ** draw.uniform(-2, (2.5, 4, 8), (20, 3)).T * (draw.random((3, 20)) < 0.8)
    mean = draw.normal(size=var.shape) * (1 + np.sqrt(var))
    truth = np.array([_truth(*row, points=100) for row in zip(mean, var, strict=True)])
    assert _total_variation(expected_softmax(torch.tensor(mean).float(), torch.tensor(var).float()), truth) < 1e-3


def test_every_mixture_of_variances_where_values_cannot_be_read() -> None:
    mean, var = (torch.tensor(part) for part in _mixtures()[:2])
    plain = expected_softmax(mean, var)
    assert_close(torch.func.vmap(expected_softmax)(mean[:, None], var[:, None])[:, 0], plain)
    torch.compiler.reset()
    compiled = torch.compile(expected_softmax, backend="aot_eager", fullgraph=True, dynamic=False)
    assert_close(compiled(mean, var), plain)


def test_gradients_at_every_mixture_of_variances() -> None:
    """By the mean of one class, against differences of the truth, to what the grid resolves; finite for all."""
    mean, var, _ = _mixtures()
    logits, doubt = (torch.tensor(part, dtype=torch.float32, requires_grad=True) for part in (mean, var))
    by_mean, by_var = torch.autograd.grad(expected_softmax(logits, doubt)[:, 0].sum(), (logits, doubt))
    assert bool(by_mean.isfinite().all() & by_var.isfinite().all())
    for row in range(5, len(mean), 14):
        shift = np.array([0.05, 0.0, 0.0])
        higher, lower = (_truth(mean[row] + sign * shift, var[row], 500)[0] for sign in (1, -1))
        assert float(by_mean[row, 0]) == pytest.approx((higher - lower) / 0.1, rel=0.03, abs=5e-4)


def test_certain_logits_give_the_softmax() -> None:
    mean = torch.randn(5, 7, dtype=torch.float64) * 3
    assert_close(expected_softmax(mean, torch.zeros_like(mean)), torch.softmax(mean, -1), atol=1e-6, rtol=0)


def test_shift_and_order_of_classes_do_not_matter() -> None:
    mean, var = torch.randn(4, 6).double() * 2, torch.rand(4, 6).double() * 5
    probs = expected_softmax(mean, var)
    assert_close(expected_softmax(mean + 123.0, var), probs)
    order = torch.randperm(6)
    assert_close(expected_softmax(mean[:, order], var[:, order]), probs[:, order])


def test_large_batches_pass_in_chunks() -> None:
    mean, var = torch.randn(700, 10), torch.rand(700, 10)
    whole = expected_softmax(mean, var)
    assert_close(whole[650:660], expected_softmax(mean[650:660], var[650:660]))
    assert whole.shape == (700, 10)


def test_gradcheck() -> None:
    mean = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)
    var = torch.tensor([[0.5, 0.2, 0.9], [2.0, 5.0, 0.3]], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(expected_softmax, (mean, var), atol=1e-4)


def test_the_coarse_grid() -> None:
    for scale, variance in ((3, 0.0), (3, 0.5), (5, 2.0), (5, 8.0), (8, 30.0)):
        mean, var = torch.randn(400, 10) * scale, 2 * variance * torch.rand(400, 10)
        coarse = expected_softmax(mean, var, coarse=True)
        distance = 0.5 * (coarse - expected_softmax(mean, var)).abs().sum(-1)
        assert float(distance.mean()) < 0.003
        assert float(distance.max()) < 0.2
        assert_close(coarse.sum(-1), torch.ones(400))
    mean, var = torch.tensor([[-1.0, -1.5, -2.5, -2.4]]), torch.tensor([[49.0, 0.24, 0.15, 0.58]])
    worst = 0.5 * (expected_softmax(mean, var, coarse=True) - expected_softmax(mean, var)).abs().sum()
    assert 0.1 < float(worst) < 0.2
    for variance in (200, 1e4, 1e6):  # a graded grid, which knows that all are wide
        mean, var = torch.randn(200, 10) * 8, 2 * variance * torch.rand(200, 10)
        coarse = expected_softmax(mean, var, coarse=True)
        distance = 0.5 * (coarse - expected_softmax(mean, var)).abs().sum(-1)
        assert float(distance.mean()) < 0.001
        assert float(distance.max()) < 0.02
