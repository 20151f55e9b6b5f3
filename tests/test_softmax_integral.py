import math

import pytest
import torch
from scipy import integrate
from torch.testing import assert_close

from bqn.softmax_integral import expected_softmax


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
        assert expected_softmax(mean, var)[0, 0].item() == pytest.approx(
            truth, abs=3e-3 if sum(variances) > 60 else 5e-5
        )


def test_very_large_variances() -> None:
    for variances in ((1e4, 0.0), (1000.0, 0.0), (3000.0, 0.5)):
        mean, var = torch.zeros(1, 2).double(), torch.tensor([variances]).double()
        assert expected_softmax(mean, var)[0, 0].item() == pytest.approx(0.5, abs=0.02)


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
    mean, var = torch.tensor([[-1.0, -1.5, -2.5, -2.4]]), torch.tensor([[59.0, 0.24, 0.15, 0.58]])
    worst = 0.5 * (expected_softmax(mean, var, coarse=True) - expected_softmax(mean, var)).abs().sum()
    assert 0.1 < float(worst) < 0.2
