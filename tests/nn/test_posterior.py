import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributions import Categorical, kl_divergence
from torch.testing import assert_close

import bqn
from bqn.nn import Posterior, computed_once
from bqn.nn._posterior import _MomentsAndKL, logit_width


@pytest.mark.parametrize("levels", [bqn.BINARY, bqn.TERNARY, (-2.0, 0.5, 0.75, 9.0)])
@pytest.mark.parametrize("uniform", [True, False])
def test_kl_against_torch_distributions(levels: tuple[float, ...], uniform: bool) -> None:
    prior = None if uniform else torch.softmax(torch.randn(len(levels)), -1)
    posterior = Posterior((3, 2), levels, prior).double()
    with torch.no_grad():
        posterior.logits.normal_().mul_(3)
    reference = Categorical(probs=posterior.log_prior.exp().double().expand(3, 2, -1))
    expected = kl_divergence(Categorical(logits=posterior.logits), reference).sum()
    assert_close(posterior.kl(), expected, rtol=1e-6, atol=1e-6)
    (grad,) = torch.autograd.grad(posterior.kl(), posterior.logits)
    (expected_grad,) = torch.autograd.grad(expected, posterior.logits)
    assert_close(grad, expected_grad, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("prior", [None, ((0.2, 0.8), (0.5, 0.5), (0.9, 0.1))])
def test_kl_gradcheck_also_with_a_prior_per_weight(prior: tuple[tuple[float, ...], ...] | None) -> None:
    posterior = Posterior((3,), bqn.BINARY, None if prior is None else torch.tensor(prior)).double()
    holder = torch.nn.ModuleDict({"posterior": posterior})
    holder.forward = posterior.kl  # type: ignore[method-assign]

    def run(logits: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(holder, {"posterior.logits": logits}, ())

    assert torch.autograd.gradcheck(run, (torch.randn(3, 2, dtype=torch.float64, requires_grad=True),))


@given(st.floats(-200, 200), st.floats(-200, 200))
def test_binary_kl_is_finite_bounded_and_has_finite_gradients(a: float, b: float) -> None:
    posterior = Posterior((1,))
    with torch.no_grad():
        posterior.logits.copy_(torch.tensor([[a, b]]))
    kl = posterior.kl()
    kl.backward()
    assert -1e-6 <= kl.item() <= math.log(2) + 1e-6
    assert bool(torch.isfinite(posterior.logits.grad).all())


@given(st.lists(st.floats(-200, 200), min_size=3, max_size=3))
def test_ternary_kl_is_finite_bounded_and_has_finite_gradients(logits: list[float]) -> None:
    posterior = Posterior((1,), bqn.TERNARY)
    with torch.no_grad():
        posterior.logits.copy_(torch.tensor([logits]))
    kl = posterior.kl()
    kl.backward()
    assert -1e-6 <= kl.item() <= math.log(3) + 1e-6
    assert bool(torch.isfinite(posterior.logits.grad).all())


@pytest.mark.parametrize("prior", [None, (0.2, 0.5, 0.3)])
def test_moments_and_kl_of_several_levels_gradcheck(prior: tuple[float, ...] | None) -> None:
    levels = (-1.0, 0.5, 3.0)
    posterior = Posterior((4,), levels, prior).double()

    def run(logits: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return _MomentsAndKL.apply(logits, posterior.levels, posterior.log_prior)  # type: ignore[no-any-return, no-untyped-call]

    logits = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(run, (logits,))
    with torch.no_grad():
        posterior.logits.copy_(logits)
    with computed_once(posterior):
        belief = posterior.law()
        assert_close(belief.mean, posterior.logits.softmax(-1) @ posterior.levels)
        assert_close(belief.var, belief.central_moment(2))


def test_uniform_prior_gives_the_entropy_up_to_a_constant() -> None:
    posterior = Posterior((4, 5), bqn.QUATERNARY)
    posterior.signal_init_()
    assert_close(-posterior.kl(), posterior.entropy().sum() - 20 * math.log(4))


def test_samples_mode_and_moments() -> None:
    posterior = Posterior((50,), bqn.TERNARY).signal_init_()
    assert_close(posterior.mean, posterior.belief().mean)
    assert_close(posterior.var, posterior.belief().var)
    generator = torch.Generator().manual_seed(0)
    draws = torch.stack([posterior.sample(generator) for _ in range(4000)])
    error = (posterior.var / 4000).sqrt()
    assert bool(((draws.mean(0) - posterior.mean).abs() < 5 * error + 2e-3).all())
    assert_close(posterior.mode(), posterior.levels[posterior.logits.argmax(-1)])
    assert not draws.requires_grad
    again = torch.stack([posterior.sample(torch.Generator().manual_seed(0)) for _ in range(2)])
    assert torch.equal(again[0], draws[0])
    assert torch.equal(again[1], draws[0])


@pytest.mark.parametrize("levels", [bqn.BINARY, bqn.TERNARY, bqn.QUATERNARY])
@pytest.mark.parametrize("rho", [0.1, 0.54, 0.9])
def test_start_has_the_stated_share(levels: tuple[float, ...], rho: float) -> None:
    posterior = Posterior((400, 250), levels).signal_init_(rho)
    second = posterior.mean.square() + posterior.var
    assert_close(posterior.mean.square().mean() / second.mean(), torch.tensor(rho), rtol=0.02, atol=0)


def test_log_odds_of_deviation_three_have_a_share_of_about_054() -> None:
    assert logit_width(bqn.BINARY, 0.54) * math.sqrt(2) == pytest.approx(3.0, abs=0.1)


def test_xavier_start_is_the_papers() -> None:
    layer = bqn.nn.Linear(300, 100, init="xavier")
    bound = math.sqrt(6 / 400)
    assert layer.weight.logits.abs().max() <= bound
    assert layer.weight.logits.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.02)


def test_a_start_can_be_repeated_with_a_generator() -> None:
    layer = bqn.nn.Linear(5, 4)
    layer.reset_parameters(generator=torch.Generator().manual_seed(7))
    first = layer.weight.logits.detach().clone()
    layer.reset_parameters(generator=torch.Generator().manual_seed(7))
    assert torch.equal(layer.weight.logits, first)


@pytest.mark.parametrize("rho", [bqn.nn.DEFAULT_RHO, 0.9])
def test_signal_follows_the_recursion_through_a_wide_network(rho: float) -> None:
    """E[h²] of eight layers of 1,000 units against q' = (2/π) arcsin(ρ q), within ten percent in every layer."""
    generator = torch.Generator().manual_seed(0)
    measured = torch.zeros(8, dtype=torch.float64)
    networks = 8
    for _ in range(networks):
        x: bqn.Belief = torch.randn(4, 1000, generator=generator).sign()
        for depth in range(8):
            layer = bqn.nn.Linear(1000, 1000, bias=False)
            layer.reset_parameters(rho, generator)
            with torch.no_grad():
                x = bqn.nn.Sign()(layer(x))
                measured[depth] += x.mean.double().square().mean() / networks
    q = 1.0
    for depth in range(8):
        q = 2 / math.pi * math.asin(rho * q)
        assert measured[depth].item() == pytest.approx(q, rel=0.1), f"layer {depth + 1}"


def test_bad_rho_is_named() -> None:
    with pytest.raises(ValueError, match="rho"):
        Posterior((2,)).signal_init_(1.0)


def test_divergence_of_many_weights_is_precise_and_not_negative() -> None:
    posterior = Posterior((3136, 1024))
    assert posterior.kl().item() == pytest.approx(0.0, abs=1e-6)
    with torch.no_grad():
        posterior.logits[..., 1] = 0.01
    assert posterior.kl().item() == pytest.approx(3136 * 1024 * 0.01**2 / 8, rel=2e-2)


@pytest.mark.parametrize("prior", [None, (0.3, 0.3, 0.4)])
def test_prior_is_exact_in_float64(prior: tuple[float, ...] | None) -> None:
    posterior = Posterior((50,), bqn.TERNARY, prior).double()
    with torch.no_grad():
        posterior.logits.copy_(torch.tensor(prior or (1.0, 1.0, 1.0), dtype=torch.float64).log())
    assert abs(posterior.kl().item()) < 1e-12


def test_binary_divergence_can_be_differentiated_twice() -> None:
    posterior = Posterior((3,)).double()
    holder = torch.nn.ModuleDict({"posterior": posterior})
    holder.forward = posterior.kl  # type: ignore[method-assign]

    def run(logits: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(holder, {"posterior.logits": logits}, ())

    assert torch.autograd.gradgradcheck(run, (torch.randn(3, 2, dtype=torch.float64, requires_grad=True),))


@pytest.mark.parametrize("levels", [bqn.BINARY, bqn.TERNARY])
def test_computed_once_changes_nothing_but_the_work(levels: tuple[float, ...]) -> None:
    """Belief and KL share one node of the graph; values and gradients are those of the separate ones."""
    layer = bqn.nn.Linear(5, 3, levels=levels).double()
    posterior, x = layer.weight, torch.randn(4, 5, dtype=torch.float64)

    def objective() -> torch.Tensor:
        belief = layer(x)
        return (belief.mean.sin() + belief.var).sum() + 0.3 * posterior.kl()

    apart = objective()
    with computed_once(layer):
        together = objective()
        assert posterior.belief() is posterior.belief()
    assert posterior.belief() is not posterior.belief()
    assert_close(together, apart)
    for ours, theirs in zip(
        torch.autograd.grad(together, list(layer.parameters())),
        torch.autograd.grad(apart, list(layer.parameters())),
        strict=True,
    ):
        assert_close(ours, theirs)


def test_computed_once_forgets_after_an_error() -> None:
    layer = bqn.nn.Linear(5, 3)
    with pytest.raises(RuntimeError, match="stop"), computed_once(layer):
        raise RuntimeError("stop")
    before = layer.weight.kl().item()
    with torch.no_grad():
        layer.weight.logits.mul_(2)
    assert layer.weight.kl().item() > before
