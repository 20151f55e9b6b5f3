"""The expected entropy against sampling, one-dimensional quadrature and closed forms."""

import math

import numpy as np
import pytest
import torch
from scipy import integrate, special
from torch import Tensor

from bqn import entropy_integral
from bqn.entropy_integral import entropies
from bqn.metrics import entropy
from bqn.softmax_integral import expected_softmax

SAMPLES = 1_000_000


def _logits(rows: int, classes: int, var: float, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    mean = 2 * torch.randn(rows, classes, generator=generator, dtype=torch.float64)
    return mean, 2 * var * torch.rand(rows, classes, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("var", [0.01, 0.3, 1.0, 5.0, 60.0])
def test_against_a_million_samples(var: float) -> None:
    mean, spread = _logits(2, 4, var)
    _, expected = entropies(mean, spread)
    noise = torch.randn(SAMPLES, 2, 4, generator=torch.Generator().manual_seed(1))
    drawn = entropy(torch.softmax(mean + noise * spread.sqrt(), -1))
    standard_error = drawn.std(0) / math.sqrt(SAMPLES)
    assert ((expected - drawn.mean(0)).abs() < 4 * standard_error).all()
    assert standard_error.max() < 1e-3


@pytest.mark.parametrize("spread", [0.05, 0.9, 1.1, 20.0])
def test_two_classes_against_adaptive_quadrature(spread: float) -> None:
    mean, var = torch.tensor([[0.7, -0.4]]), torch.tensor([[spread, spread / 2]])
    centre, deviation = 1.1, math.sqrt(1.5 * spread)

    def integrand(z: float) -> float:
        logit = centre + deviation * z
        high, low = 1 / (1 + math.exp(-logit)), 1 / (1 + math.exp(logit))
        return -(high * math.log(high) + low * math.log(low)) * math.exp(-z * z / 2) / math.sqrt(2 * math.pi)

    truth = integrate.quad(integrand, -12, 12, epsabs=1e-12, limit=500)[0]
    assert float(entropies(mean.double(), var.double())[1]) == pytest.approx(truth, abs=3e-8)


def test_without_doubt_both_are_the_entropy_of_the_softmax() -> None:
    mean, _ = _logits(50, 10, 1.0)
    total, expected = entropies(mean, torch.zeros_like(mean))
    truth = entropy(torch.softmax(mean, -1))
    assert torch.allclose(total, truth, rtol=0, atol=1e-8)
    assert torch.allclose(expected, truth, rtol=0, atol=1e-8)


@pytest.mark.parametrize("var", [0.1, 2.0])
def test_the_total_is_the_entropy_of_the_expected_softmax(var: float) -> None:
    mean, spread = _logits(20, 10, var)
    assert torch.allclose(entropies(mean, spread)[0], entropy(expected_softmax(mean, spread)), rtol=0, atol=2e-4)


def test_small_variances_follow_the_second_order_expansion() -> None:
    """I = ½ Σ_k p_k (1 - p_k) v_k + O(v²), from the curvature of the entropy."""
    mean, spread = _logits(30, 5, 1e-4)
    total, expected = entropies(mean, spread)
    soft = torch.softmax(mean, -1)
    assert torch.allclose(total - expected, 0.5 * (soft * (1 - soft) * spread).sum(-1), rtol=2e-2, atol=2e-8)


@pytest.mark.parametrize("var", [0.0, 0.5, 1e3])
def test_order(var: float) -> None:
    mean, spread = _logits(40, 10, var)
    total, expected = entropies(30 * mean, spread)
    assert (expected >= 0).all()
    assert (expected <= total).all()
    assert (total <= math.log(10) + 1e-12).all()


def test_great_doubt_is_all_epistemic() -> None:
    total, expected = entropies(torch.zeros(1, 4), torch.full((1, 4), 1e6))
    assert float(total) == pytest.approx(math.log(4), abs=1e-6)
    assert float(expected) < 2e-3


@pytest.mark.parametrize("wide", [60.0, 1e4, 1e6, 1e8, 1e9])
@pytest.mark.parametrize("gap", [0.0, -7.0, 300.0])
def test_one_wide_logit_beside_two_narrow_ones(wide: float, gap: float) -> None:
    """Nested sums: the wide logit on a fine line where it competes, below it has lost and above it has won."""
    means, variances = (gap, 0.5, -0.2), (wide, 0.3, 0.8)
    nodes, weights = np.polynomial.hermite_e.hermegauss(40)
    weights = weights / weights.sum()
    x = np.linspace(-60, 60, 1201)
    density = np.exp(-0.5 * (x - gap) ** 2 / wide) / math.sqrt(2 * math.pi * wide)
    second, third = (mean + math.sqrt(var) * nodes for mean, var in zip(means[1:], variances[1:], strict=True))
    logits = np.stack(np.broadcast_arrays(x, second[:, None, None], third[:, None]), -1)
    joint = weights[:, None] * weights
    soft, lost = special.softmax(logits, -1), special.softmax(logits[:, :, 0, 1:], -1)
    below, above = special.ndtr((-60 - gap) / math.sqrt(wide)), special.ndtr((gap - 60) / math.sqrt(wide))
    expected = integrate.trapezoid(np.tensordot(joint, special.entr(soft).sum(-1)) * density, x)
    expected += below * np.sum(joint * special.entr(lost).sum(-1))
    probs = integrate.trapezoid(np.tensordot(joint, soft) * density[:, None], x, axis=0)
    probs += np.array([above, *(below * np.tensordot(joint, lost))])
    found = entropies(torch.tensor([means]).double(), torch.tensor([variances]).double())
    assert float(found[0]) == pytest.approx(special.entr(probs).sum(), abs=1e-6)
    assert float(found[1]) == pytest.approx(expected, abs=1e-6)


def test_work_hardly_grows_with_the_variance() -> None:
    def points(var: float) -> int:
        mean = torch.zeros(1, 3, dtype=torch.float64)
        return entropy_integral._points(*entropy_integral._window(mean, torch.full_like(mean, var)))

    assert points(1.0) < 100
    assert points(1e9) < 500
    assert points(1e18) < 1000


def test_rows_do_not_depend_on_their_company() -> None:
    mean, spread = _logits(300, 10, 1.0)
    spread[7] *= 400  # a wide row makes all others share a longer grid
    together = torch.stack(entropies(mean, spread))
    alone = torch.cat([torch.stack(entropies(m, v)) for m, v in zip(mean.split(1), spread.split(1), strict=True)], 1)
    assert torch.allclose(together, alone, rtol=0, atol=1e-8)


def test_empty_batch() -> None:
    total, expected = entropies(torch.zeros(0, 3), torch.zeros(0, 3))
    assert total.shape == expected.shape == (0,)


def test_bad_input() -> None:
    with pytest.raises(ValueError, match="mean and var must have one shape"):
        entropies(torch.zeros(2, 3), torch.zeros(2, 4))
    with pytest.raises(ValueError, match="var must be finite, got 6"):
        entropies(torch.zeros(2, 3), torch.full((2, 3), torch.inf))
