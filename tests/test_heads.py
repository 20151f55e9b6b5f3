import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize
from torch import nn
from torch.testing import assert_close

import bqn
from bqn.heads import TAYLOR_UP_TO, taylor_softmax
from bqn.log_sum_exp import tilted_log_sum_exp
from tests.nn.contract import assert_named_error, random_categorical


def _samples(mean: torch.Tensor, var: torch.Tensor, count: int = 1_000_000) -> torch.Tensor:
    """E[softmax] of one row by sampling; a million draws put the total variation's own error near 5e-4."""
    generator = torch.Generator().manual_seed(1)
    total = torch.zeros_like(mean)
    for _ in range(10):
        noise = torch.randn(count // 10, mean.shape[-1], generator=generator, dtype=mean.dtype)
        total += torch.softmax(mean + var.sqrt() * noise, -1).mean(0) / 10
    return total


def _cases(limit: float, count: int = 12) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    cases = []
    for i in range(count):
        classes = (2, 3, 10)[i % 3]
        mean = torch.randn(classes, generator=generator).double() * (0.5, 2.0, 5.0)[i // 3 % 3]
        var = torch.rand(classes, generator=generator).double() * limit
        if i % 4 == 0:
            var[:] = limit
        if i % 4 == 1:
            var[0] = 0
        cases.append((mean, var))
    return cases


@pytest.mark.parametrize(("limit", "allowed"), [(0.25, 0.01), (1.0, 0.01), (4.0, 0.06), (200.0, 0.06)])
def test_prediction_against_a_million_samples(limit: float, allowed: float) -> None:
    head = bqn.SoftmaxHead(1, scale=1.0).double()
    worst = 0.0
    for mean, var in _cases(limit):
        probs = head.predict(bqn.Gaussian(mean[None], var[None])).detach()[0]
        worst = max(worst, 0.5 * float((probs - _samples(mean, var)).abs().sum()))
    assert worst < allowed
    assert worst < 0.005  # what is reached; the expansion is used up to 0.25 and is the worst part


def test_taylor_is_used_where_it_is_valid_only() -> None:
    worst = 0.0
    for mean, var in _cases(TAYLOR_UP_TO):
        probs = taylor_softmax(mean[None], var[None])[0]
        worst = max(worst, 0.5 * float((probs - _samples(mean, var, 200_000)).abs().sum()))
    assert worst < 0.01
    head = bqn.SoftmaxHead(1, scale=1.0).double()
    mean, var = torch.randn(6, 4).double(), torch.full((6, 4), TAYLOR_UP_TO).double()
    var[3:] *= 4
    belief = bqn.Gaussian(mean, var)
    mixed, integral = head.predict(belief), head.predict(belief, "integral")
    assert_close(mixed[:3], taylor_softmax(mean, var)[:3])
    assert_close(mixed[3:], integral[3:])


@given(
    means=st.lists(st.floats(-300, 300), min_size=2, max_size=10),
    log_var=st.floats(-30, 12),
    seed=st.integers(0, 100),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_predictions_are_probabilities_at_any_variance(
    means: list[float], log_var: float, seed: int, dtype: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(seed)
    mean = torch.tensor([means], dtype=dtype, requires_grad=True)
    var = (torch.rand(1, len(means), generator=generator).to(dtype) * math.exp(log_var)).requires_grad_()
    head = bqn.SoftmaxHead(1, scale=1.0).to(dtype)
    for method in ("taylor", "integral", "mean"):
        probs = head.predict(bqn.Gaussian(mean, var), method)
        assert bool((probs >= 0).all())
        assert_close(probs.sum(-1), torch.ones(1, dtype=dtype), atol=1e-5, rtol=0)
        grads = torch.autograd.grad(probs.square().sum(), (mean, var), allow_unused=True)
        assert all(grad is None or bool(torch.isfinite(grad).all()) for grad in grads)


def _true_log_likelihood(mean: torch.Tensor, var: torch.Tensor, y: int, count: int = 400_000) -> float:
    noise = torch.randn(count, len(mean), dtype=mean.dtype, generator=torch.Generator().manual_seed(0))
    return float(torch.log_softmax(mean + var.sqrt() * noise, -1)[:, y].mean())


@pytest.mark.parametrize(("limit", "gap"), [(1.0, 0.05), (4.0, 0.4), (20.0, 4.0)])
def test_bounds_are_bounds_and_the_tilted_one_is_close(limit: float, gap: float) -> None:
    head = bqn.SoftmaxHead(1, scale=1.0).double()
    for mean, var in _cases(limit, count=6):
        belief, y = bqn.Gaussian(mean[None], var[None]), torch.tensor([0])
        truth = _true_log_likelihood(mean, var, 0)
        tilted = head.log_likelihood(belief, y).item()
        jensen = head.log_likelihood(belief, y, bound="jensen").item()
        noise = 5 * math.sqrt(limit / 400_000) + 1e-9
        assert jensen <= tilted + 1e-12
        assert tilted <= truth + noise
        assert truth - tilted < gap


def test_jensen_is_the_papers_formula() -> None:
    head = bqn.SoftmaxHead(9).double()
    belief = bqn.Gaussian(torch.randn(4, 3).double(), torch.rand(4, 3).double())
    y = torch.tensor([0, 1, 2, 1])
    expected = belief.mean[range(4), y] / 3 - torch.logsumexp(belief.mean / 3 + belief.var / 18, -1)
    assert_close(head.log_likelihood(belief, y, bound="jensen"), expected)
    assert head.scale.item() == pytest.approx(3.0)


@pytest.mark.parametrize("limit", [0.5, 4.0, 50.0, 500.0, 2000.0])
def test_tilt_is_optimal(limit: float) -> None:
    """Against a general optimizer from several starts, in float64."""
    generator = torch.Generator().manual_seed(0)
    for classes in (2, 5, 10):
        mean = torch.randn(1, classes, generator=generator).double() * 3
        var = torch.rand(1, classes, generator=generator).double() * limit

        def bound(a: np.ndarray, mean: torch.Tensor = mean, var: torch.Tensor = var) -> tuple[float, np.ndarray]:
            tilt = torch.tensor(a, requires_grad=True)
            value = 0.5 * (tilt**2 * var).sum() + torch.logsumexp(mean + (0.5 - tilt) * var, -1).sum()
            (grad,) = torch.autograd.grad(value, tilt)
            return value.item(), grad.numpy()

        starts = (np.zeros(classes), np.full(classes, 1 / classes), torch.softmax(mean, -1)[0].numpy())
        best = min(minimize(bound, start, jac=True, method="BFGS").fun for start in starts)
        assert tilted_log_sum_exp(mean, var).item() <= best + 1e-6


@given(
    log_var=st.floats(-20, 9), spread=st.floats(0, 100), seed=st.integers(0, 50),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)  # fmt: skip
def test_tilted_never_falls_below_jensen(log_var: float, spread: float, seed: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(seed)
    mean = (torch.randn(3, 6, generator=generator).to(dtype) * spread).requires_grad_()
    var = (torch.rand(3, 6, generator=generator).to(dtype) * math.exp(log_var)).requires_grad_()
    head, y = bqn.SoftmaxHead(1, scale=1.0).to(dtype), torch.tensor([0, 3, 5])
    belief = bqn.Gaussian(mean, var)
    tilted, jensen = head.log_likelihood(belief, y), head.log_likelihood(belief, y, bound="jensen")
    rounding = 4 * torch.finfo(dtype).eps * (1 + jensen.abs())  # without variance the two are the same number
    assert bool((tilted >= jensen - rounding).all())
    for grad in torch.autograd.grad(tilted.sum(), (mean, var)):
        assert bool(torch.isfinite(grad).all())


@pytest.mark.parametrize("bound", ["tilted", "jensen"])
@pytest.mark.parametrize("kind", ["gaussian", "categorical", "tensor"])
def test_smoothed_labels_are_averages_over_classes(bound: str, kind: str) -> None:
    """(1 - ε) of the bound for the label and ε of the average over all labels, whatever the belief."""
    head = bqn.SoftmaxHead(9).double()
    mean = torch.randn(4, 5, generator=torch.Generator().manual_seed(2)).double()
    belief = {
        "gaussian": bqn.Gaussian(mean, mean.abs() + 0.5),
        "categorical": random_categorical((4, 5), (-1.0, 0.5, 2.0), torch.float64),
        "tensor": mean,
    }[kind]
    y = torch.tensor([0, 4, 2, 2])
    every = torch.stack([head.log_likelihood(belief, torch.full((4,), k), bound=bound) for k in range(5)], -1)
    own = every.gather(-1, y[:, None]).squeeze(-1)
    smoothed = head.log_likelihood(belief, y, bound=bound, smoothing=0.2)
    assert_close(smoothed, 0.8 * own + 0.2 * every.mean(-1))
    with pytest.raises(ValueError, match="smoothing must be at least 0 and below 1, got 1"):
        head.log_likelihood(belief, y, smoothing=1.0)


def test_smoothed_labels_in_single_precision_with_the_compiled_pass() -> None:
    head = bqn.SoftmaxHead(9)
    mean = torch.randn(6, 10, generator=torch.Generator().manual_seed(2))
    belief, y = bqn.Gaussian(mean, mean.square()), torch.arange(6)
    wide = bqn.Gaussian(mean.double(), mean.double().square())
    expected = bqn.SoftmaxHead(9).double().log_likelihood(wide, y, smoothing=0.1).float()
    assert_close(head.log_likelihood(belief, y, smoothing=0.1), expected, rtol=1e-5, atol=1e-5)


@given(
    levels=st.lists(st.integers(-9, 9), min_size=2, max_size=4, unique=True).map(lambda values: tuple(sorted(values))),
    log_scale=st.floats(-4, 2), sharp=st.floats(0, 40), seed=st.integers(0, 50),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)  # fmt: skip
def test_discrete_bounds_hold_at_any_variance(
    levels: tuple[int, ...], log_scale: float, sharp: float, seed: int, dtype: torch.dtype
) -> None:
    """Enumerated truth above the tilted bound above Jensen's; gradients are finite however certain a logit is."""
    torch.manual_seed(seed)
    values = tuple(map(float, levels))
    logits = (torch.randn(2, 3, len(levels)).to(dtype) * sharp).requires_grad_()
    head, y = bqn.SoftmaxHead(1, scale=math.exp(log_scale)).to(dtype), torch.tensor([0, 2])
    belief = bqn.Categorical.of(values, probs=logits.softmax(-1))
    tilted, jensen = head.log_likelihood(belief, y), head.log_likelihood(belief, y, bound="jensen")
    assert bool((tilted >= jensen).all())
    joint = torch.cartesian_prod(*([torch.arange(len(levels))] * 3))
    states = torch.tensor(values).double()[joint] / head.scale.item()
    wide = belief.probs.double() / belief.probs.double().sum(-1, keepdim=True)
    probs = torch.stack([wide[:, k, joint[:, k]] for k in range(3)]).prod(0)
    truth = (probs * torch.log_softmax(states, -1)[:, y].T).sum(-1)
    reach = 18 / head.scale.item()
    assert bool((tilted.double() <= truth + 8 * torch.finfo(dtype).eps * (1 + reach)).all())
    for grad in torch.autograd.grad(tilted.sum(), (logits, head.log_scale)):
        assert bool(torch.isfinite(grad).all())


@pytest.mark.parametrize("levels", [(-1.0, 1.0), (-3.0, -1.0, 0.0, 1.0, 3.0), tuple(map(float, range(-20, 21)))])
@pytest.mark.parametrize("sharp", [1.0, 5.0, 20.0])
@pytest.mark.parametrize("scale", [0.2, 1.0])
def test_the_gradient_of_a_discrete_bound_is_that_of_its_value(
    levels: tuple[float, ...], sharp: float, scale: float
) -> None:
    """By the probabilities and by the scale: the tilt must be the best one of this bound, not of a Gaussian's."""
    torch.manual_seed(0)
    y, logits = torch.tensor([0, 1, 2, 1]), torch.randn(4, 3, len(levels)).double() * sharp
    head = bqn.SoftmaxHead(1, scale=scale).double()

    def bound(logits: torch.Tensor, log_scale: torch.Tensor) -> torch.Tensor:
        belief = bqn.Categorical.of(levels, probs=logits.softmax(-1))
        result: torch.Tensor = torch.func.functional_call(_Likelihood(head), {"head.log_scale": log_scale}, (belief, y))
        return result

    log_scale = head.log_scale.detach().clone().requires_grad_()
    assert torch.autograd.gradcheck(bound, (logits.requires_grad_(), log_scale), atol=1e-6)


class _Likelihood(nn.Module):
    """The head's likelihood as a forward, for `functional_call`."""

    def __init__(self, head: bqn.SoftmaxHead) -> None:
        super().__init__()
        self.head = head

    def forward(self, belief: bqn.Belief, y: torch.Tensor) -> torch.Tensor:
        return self.head.log_likelihood(belief, y)


@pytest.mark.parametrize("seed", range(3))
def test_the_gradient_of_an_elbo_with_an_exact_last_layer(seed: int) -> None:
    torch.manual_seed(seed)
    net = bqn.models.mlp(3, 3, hidden=(4,), batch_norm=False).double()
    x, y = torch.randn(5, 3).double(), torch.tensor([0, 1, 2, 0, 1])
    assert isinstance(net(x), bqn.Categorical)
    (grad,) = torch.autograd.grad(net.elbo(x, y, 5, 1.0), net.head.log_scale)
    values = []
    for step in (1e-6, -2e-6):
        with torch.no_grad():
            net.head.log_scale.add_(step)
            values.append(net.elbo(x, y, 5, 1.0).item())
    assert grad.item() == pytest.approx((values[0] - values[1]) / 2e-6, abs=1e-7)


def test_a_compiler_takes_the_search_for_a_discrete_tilt_as_one_operation() -> None:
    head, y = bqn.SoftmaxHead(4), torch.tensor([0, 2, 1])
    logits = torch.randn(3, 3, 3).requires_grad_()

    def bound(logits: torch.Tensor) -> torch.Tensor:
        belief = bqn.Categorical.of(bqn.TERNARY, probs=logits.softmax(-1))
        return head.log_likelihood(belief, y, validate=False).sum()

    compiled = torch.compile(bound, backend="aot_eager", fullgraph=True, dynamic=False)
    assert_close(compiled(logits), bound(logits))
    ours, theirs = (torch.autograd.grad(f(logits), logits)[0] for f in (compiled, bound))
    assert_close(ours, theirs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_tilt_is_optimal_for_discrete_logits(dtype: torch.dtype) -> None:
    """Against a general optimizer from several starts, in float64."""
    values = torch.arange(-15.0, 16.0).double()
    for seed, (sharp, scale) in enumerate([(0.5, 3.0), (0.5, 0.5), (4.0, 3.0), (4.0, 0.3), (30.0, 1.0)]):
        torch.manual_seed(seed)
        logits = torch.randn(1, 4, len(values)).double() * sharp
        belief = bqn.Categorical.of(tuple(values.tolist()), probs=logits.softmax(-1).to(dtype))
        head = bqn.SoftmaxHead(1, scale=scale).to(dtype)
        log_probs, levels = logits.log_softmax(-1)[0], values / scale
        mean = (log_probs.exp() * levels).sum(-1)

        def bound(a, log_probs=log_probs, levels=levels, mean=mean):  # type: ignore[no-untyped-def]
            tilt = torch.tensor(a, requires_grad=True)
            without = torch.logsumexp(log_probs - tilt[:, None] * levels, -1)
            own = torch.logsumexp(log_probs + (1 - tilt)[:, None] * levels, -1)
            value = (tilt * mean).sum() + torch.logsumexp(without.sum() - without + own, -1)
            (grad,) = torch.autograd.grad(value, tilt)
            return value.item(), grad.numpy()

        best = min(
            minimize(bound, np.full(4, start), jac=True, method="L-BFGS-B", bounds=[(0, 1)] * 4).fun
            for start in (0.0, 0.25, 0.5)
        )
        reached = mean[0].item() - head.log_likelihood(belief, torch.tensor([0])).item()
        assert reached <= best + 1e-6 + 40 / scale * torch.finfo(dtype).eps * 4


@pytest.mark.parametrize("bound", ["tilted", "jensen"])
def test_bounds_hold_for_discrete_logits(bound: str) -> None:
    """Against the enumerated expectation; a Gaussian of the same moments would exceed it here."""
    head = bqn.SoftmaxHead(1, scale=2.0).double()
    gaussian_exceeds = False
    for seed in range(30):
        torch.manual_seed(seed)
        belief = random_categorical((1, 3), (-1.0, 3.0))
        joint = bqn.exact.law(bqn.nn.Flatten(), belief)
        truth = (joint.joint * torch.log_softmax(joint.values.squeeze(1) / 2.0, -1)[:, 0]).sum()
        y = torch.tensor([0])
        assert head.log_likelihood(belief, y, bound=bound).item() <= truth.item() + 1e-9
        assert head.log_likelihood(belief, y).item() >= head.log_likelihood(belief, y, bound="jensen").item()
        gaussian = bqn.Gaussian(belief.mean, belief.var)
        gaussian_exceeds |= head.log_likelihood(gaussian, y).item() > truth.item() + 1e-3
    assert gaussian_exceeds


def test_tilted_gradient_needs_no_gradient_of_the_tilt() -> None:
    """At the optimum the envelope theorem holds: gradcheck sees the full derivative."""
    mean = torch.randn(2, 4, dtype=torch.float64, requires_grad=True)
    var = (torch.rand(2, 4, dtype=torch.float64) * 3).requires_grad_()
    assert torch.autograd.gradcheck(tilted_log_sum_exp, (mean, var))


def test_known_logits_are_an_ordinary_softmax() -> None:
    head = bqn.SoftmaxHead(4)
    h, y = torch.randn(5, 3), torch.tensor([0, 1, 2, 0, 1])
    assert_close(head.predict(h), torch.softmax(h / 2, -1))
    assert_close(head.log_likelihood(h, y), torch.log_softmax(h / 2, -1)[range(5), y])
    certain = bqn.Gaussian(h, torch.zeros_like(h))
    assert_close(head.predict(certain), torch.softmax(h / 2, -1))
    assert_close(head.log_likelihood(certain, y), torch.log_softmax(h / 2, -1)[range(5), y])


def test_mixing_softmax_predictions_averages_probabilities() -> None:
    a, b = torch.tensor([[0.2, 0.8]]), torch.tensor([[0.6, 0.4]])
    assert_close(bqn.SoftmaxHead(1).mix([a, b]), torch.tensor([[0.4, 0.6]]))


def test_gaussian_head_likelihood_against_enumeration() -> None:
    """Several outputs; the expectation over all joint hidden states."""
    head = bqn.GaussianHead(3, out_features=2).double()
    with torch.no_grad():
        head.log_noise.normal_()
    hidden, y = random_categorical((2, 3), bqn.TERNARY), torch.randn(2, 2).double()
    for row in range(2):
        joint = bqn.exact.law(bqn.nn.Flatten(), hidden[row : row + 1])
        states = joint.values.squeeze(1)
        gap = y[row] - states @ head.weight.T
        log_p = (-0.5 * gap.square() / head.noise - 0.5 * (2 * math.pi * head.noise).log()).sum(-1)
        assert_close(head.log_likelihood(hidden, y)[row], (joint.joint * log_p).sum())


def test_gaussian_head_moments_by_sampling_several_outputs() -> None:
    head = bqn.GaussianHead(5, out_features=2).double()
    hidden = random_categorical((3, 5), (-1.0, 0.0, 3.0))
    result = head.predict(hidden)
    generator = torch.Generator().manual_seed(0)
    draws = torch.stack([hidden.sample(generator) for _ in range(40_000)]) @ head.weight.detach().T
    draws = draws + torch.randn(draws.shape, generator=generator, dtype=draws.dtype) * head.noise.detach().sqrt()
    gap = draws - draws.mean(0)
    var = gap.square().mean(0)
    assert_close(result.mean.detach(), draws.mean(0), atol=0.05, rtol=0)
    assert_close(result.var.detach(), var, atol=0, rtol=0.05)
    assert_close(result.skewness.detach(), gap.pow(3).mean(0) / var**1.5, atol=0.08, rtol=0)
    assert_close(result.kurtosis.detach(), gap.pow(4).mean(0) / var**2, atol=0.25, rtol=0)


def test_mixture_moments_against_a_grid() -> None:
    head = bqn.GaussianHead(2)
    parts = [
        bqn.Moments(*(torch.tensor([[v]], dtype=torch.float64) for v in values))
        for values in ((0.0, 1.0, 0.0, 3.0), (2.0, 0.25, 0.0, 3.0), (-1.0, 0.5, 0.0, 3.0))
    ]
    t = torch.linspace(-15, 15, 200_001, dtype=torch.float64)
    density = sum(
        torch.exp(-0.5 * (t - p.mean.item()) ** 2 / p.var.item()) / math.sqrt(2 * math.pi * p.var.item()) for p in parts
    )
    density = density / density.sum()
    mean = (density * t).sum()
    var = (density * (t - mean) ** 2).sum()
    expected = (mean, var, (density * (t - mean) ** 3).sum() / var**1.5, (density * (t - mean) ** 4).sum() / var**2)
    for ours, truth in zip(head.mix(parts), expected, strict=True):
        assert_close(ours.squeeze(), truth)


def test_bad_arguments_are_named() -> None:
    head = bqn.SoftmaxHead(4)
    belief = bqn.Gaussian(torch.zeros(3, 2), torch.ones(3, 2))
    assert_named_error(lambda: head.log_likelihood(belief, torch.tensor([0, 1, 2])), "y", "0 to 1")
    assert_named_error(lambda: head.log_likelihood(belief, torch.tensor([0, 1, -1])), "y", "-1")
    assert_named_error(lambda: head.log_likelihood(belief, torch.tensor([0, 1])), "y", "(3,)")
    assert_named_error(lambda: head.log_likelihood(belief, torch.zeros(3)), "y", "integer", kind=TypeError)
    assert_named_error(lambda: head.log_likelihood(belief, torch.zeros(3).long(), bound="best"), "bound", "tilted")
    assert_named_error(lambda: head.predict(belief, method="mc"), "method", "taylor")
    assert_named_error(lambda: head.predict(torch.zeros(3, 2, 2)), "belief", "(N, classes)")
    assert_named_error(lambda: bqn.SoftmaxHead(0), "fan_in")
    assert_named_error(lambda: bqn.SoftmaxHead(4, scale=-1.0), "scale")
    regression = bqn.GaussianHead(2)
    assert_named_error(lambda: regression.log_likelihood(belief, torch.zeros(3)), "y", "(3, 1)")
    assert_named_error(lambda: regression.log_likelihood(belief, torch.zeros(3, 1).long()), "y", kind=TypeError)
    assert_named_error(lambda: regression.log_likelihood(belief, torch.full((3, 1), math.nan)), "y", "finite")
    assert_named_error(lambda: regression.predict(torch.zeros(3, 4)), "belief", "(N, 2)")


def test_empty_batch() -> None:
    empty = bqn.Gaussian(torch.zeros(0, 3), torch.zeros(0, 3))
    head = bqn.SoftmaxHead(4)
    assert head.predict(empty).shape == (0, 3)
    assert head.predict(empty, "integral").shape == (0, 3)
    assert head.log_likelihood(empty, torch.zeros(0).long()).shape == (0,)
    assert bqn.GaussianHead(3).predict(empty).kurtosis.shape == (0, 1)
