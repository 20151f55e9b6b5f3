import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torch.testing import assert_close

import bqn
from tests.nn.contract import assert_named_error, random_categorical


def test_gaussian_moments_mode_entropy_and_samples() -> None:
    belief = bqn.Gaussian(torch.tensor([1.0, -2.0]).double(), torch.tensor([0.25, 4.0]).double())
    for order in (2, 3, 4):
        expected = torch.tensor([stats.norm.moment(order, 0, s) for s in (0.5, 2.0)])
        assert_close(belief.central_moment(order), expected)
    assert_close(belief.entropy(), torch.tensor([stats.norm.entropy(1, 0.5), stats.norm.entropy(-2, 2.0)]))
    assert_close(belief.mode(), belief.mean)
    generator = torch.Generator().manual_seed(0)
    draws = torch.stack([belief.sample(generator) for _ in range(20_000)])
    assert_close(draws.mean(0), belief.mean, atol=0.06, rtol=0)
    assert_close(draws.var(0), belief.var, atol=0.0, rtol=0.05)


@pytest.mark.parametrize("levels", [bqn.BINARY, bqn.TERNARY, bqn.QUATERNARY, (-0.3, 0.1, 7.0)])
def test_categorical_moments_mode_entropy_and_samples(levels: tuple[float, ...]) -> None:
    belief = random_categorical((3, 2), levels)
    probs, values = belief.probs, torch.tensor(levels, dtype=torch.float64)
    mean = (probs * values).sum(-1)
    assert_close(belief.mean, mean)
    for order in (2, 3, 4):
        assert_close(belief.central_moment(order), (probs * (values - mean[..., None]) ** order).sum(-1))
    assert_close(belief.var, belief.central_moment(2))
    assert_close(belief.entropy(), -(probs * probs.log()).sum(-1))
    assert_close(belief.mode(), values[probs.argmax(-1)])
    generator = torch.Generator().manual_seed(0)
    draws = torch.stack([belief.sample(generator) for _ in range(20_000)])
    frequency = (draws.unsqueeze(-1) == values).double().mean(0)
    assert bool(((frequency - probs).abs() < 5 * (probs * (1 - probs) / 20_000).sqrt() + 1e-4).all())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("levels", [bqn.BINARY, (0.1, 0.3)])
@pytest.mark.parametrize("by", ["logits", "probs"])
def test_draws_of_two_levels(dtype: torch.dtype, levels: tuple[float, float], by: str) -> None:
    """As often as their probabilities say, whatever the dtype; always one of the levels, bit by bit."""
    logits = torch.stack((torch.zeros(61), torch.linspace(-8, 8, 61)), -1).to(dtype)
    known = logits if by == "logits" else torch.softmax(logits.double(), -1).to(dtype)
    probs = torch.softmax(known.double(), -1) if by == "logits" else known.double() / known.double().sum(-1, True)
    belief = bqn.Categorical.of(levels, **{by: known.unsqueeze(1).expand(61, 40_000, 2)})  # type: ignore[arg-type]
    draws = belief.sample(torch.Generator().manual_seed(0))
    assert draws.dtype == dtype
    low, high = torch.tensor(levels, dtype=dtype)
    assert bool(((draws == low) | (draws == high)).all())
    error = ((draws == high).double().mean(-1) - probs[:, 1]).abs()
    assert bool((error <= 4 * (probs[:, 0] * probs[:, 1] / 40_000).sqrt() + 1e-6).all())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("end", [0, 1, None])
def test_a_level_without_probability_is_never_drawn(
    dtype: torch.dtype, end: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even by the lowest and the highest random number there is, nor where the other is rounded below one."""

    def at_the_end(numbers: torch.Tensor, low: float, high: float, generator: object) -> torch.Tensor:
        edge = numbers.new_tensor((low, high))
        return numbers.copy_(edge[0] if end == 0 else torch.nextafter(edge[1], edge[0]))

    if end is not None:
        monkeypatch.setattr(torch.Tensor, "uniform_", at_the_end)
    rounded, generator = 1 - torch.finfo(dtype).eps, torch.Generator().manual_seed(0)
    never = {"probs": [(0.0, 1.0), (0.0, rounded), (1.0, 0.0), (rounded, 0.0)], "logits": [(-2e3, 0.0), (0.0, -2e3)]}
    for by, pairs in never.items():
        for pair in pairs:
            known = torch.tensor(pair, dtype=dtype)
            belief = bqn.Categorical.of((0.1, 0.3), **{by: known.expand(10_000, 2)})  # type: ignore[arg-type]
            assert bool((belief.sample(generator) == belief.levels[known.argmax()]).all())


def test_two_ways_to_the_same_belief() -> None:
    logits = torch.randn(5, 2, dtype=torch.float64)
    by_logits = bqn.Categorical.from_logits(logits, (-2.0, 1.0))
    by_probs = bqn.Categorical(torch.softmax(logits, -1), (-2.0, 1.0))
    by_mean = bqn.Categorical.of((-2.0, 1.0), mean=by_probs.mean)
    for belief in (by_logits, by_mean):
        for name in ("mean", "var", "probs", "log_probs"):
            assert_close(getattr(belief, name), getattr(by_probs, name))
        assert_close(belief.entropy(), by_probs.entropy())
        assert_close(belief.levels, torch.tensor([-2.0, 1.0]).double())
        assert belief.shape == (5,)


@given(st.floats(-1e4, 1e4), st.floats(-1e4, 1e4), st.sampled_from([torch.float32, torch.float64]))
def test_extreme_logits_stay_finite(a: float, b: float, dtype: torch.dtype) -> None:
    """Where a probability underflows, log-space still knows it; values and gradients are finite."""
    for levels in (bqn.BINARY, (-1.0, 0.0, 1.0)):
        logits = torch.tensor([[a, b, 0.0][: len(levels)]], dtype=dtype, requires_grad=True)
        belief = bqn.Categorical.from_logits(logits, levels)
        values = (belief.mean, belief.var, belief.probs, belief.log_probs, belief.entropy())
        sum(value.sum() for value in values).backward()
        for value in (*values, logits.grad):
            assert bool(torch.isfinite(value).all())
        assert bool((belief.var >= 0).all())
    assert_close(belief.log_probs.detach(), torch.log_softmax(logits.detach(), -1))


def test_small_variances_are_accurate_in_float32() -> None:
    odds = 25.0
    belief = bqn.Categorical.from_logits(torch.tensor([0.0, odds]), bqn.BINARY)
    assert belief.var.item() == pytest.approx(4 * math.exp(-odds), rel=1e-5)  # 1 - tanh² would be zero


def test_mode_prefers_the_higher_of_equals() -> None:
    assert bqn.Categorical(torch.tensor([0.5, 0.5]), bqn.BINARY).mode() == 1
    assert bqn.Categorical.from_logits(torch.tensor([1.0, 2.0, 2.0]), bqn.TERNARY).mode() == 1


def test_certain_belief() -> None:
    values = torch.tensor([[1.0, -1.0], [0.0, 1.0]])
    belief = bqn.Categorical.certain(values, bqn.TERNARY)
    assert_close(belief.mean, values)
    assert_close(belief.var, torch.zeros(2, 2))
    assert_named_error(lambda: bqn.Categorical.certain(values, bqn.BINARY), "values", "levels")


def test_rearranging_and_slicing() -> None:
    for belief in (
        random_categorical((4, 6), bqn.TERNARY),
        bqn.Categorical.of(bqn.BINARY, mean=torch.rand(4, 6)),
        bqn.Gaussian(torch.randn(4, 6), torch.rand(4, 6)),
    ):
        turned = belief.reshape(2, 12)
        assert turned.shape == (2, 12)
        assert_close(turned.mean, belief.mean.reshape(2, 12))
        assert_close(turned.var, belief.var.reshape(2, 12))
        assert_close(belief[1:3].mean, belief.mean[1:3])
        if isinstance(belief, bqn.Categorical):
            assert_close(turned.probs, belief.probs.reshape(2, 12, -1))


def test_beliefs_are_immutable() -> None:
    for belief in (random_categorical((2,), bqn.BINARY), bqn.Gaussian(torch.zeros(1), torch.ones(1))):
        for name in ("mean", "var", "probs", "other"):
            with pytest.raises(AttributeError):
                setattr(belief, name, torch.zeros(1))


def test_bad_arguments_are_named() -> None:
    nan = float("nan")
    half = torch.tensor([0.5, 0.5])
    assert_named_error(lambda: bqn.Categorical(half, (1, -1)), "levels", "ascending")
    assert_named_error(lambda: bqn.Categorical(half, (1, 1)), "levels", "duplicates")
    assert_named_error(lambda: bqn.Categorical(half, (0, 1, 2)), "probs", "3")
    assert_named_error(lambda: bqn.Categorical(torch.tensor([0.5, 0.4]), (0, 1)), "probs", "sum to one")
    assert_named_error(lambda: bqn.Categorical(torch.tensor([1.5, -0.5]), (0, 1)), "probs", "negative")
    assert_named_error(lambda: bqn.Categorical(torch.tensor([nan, 1.0]), (0, 1)), "probs", "finite")
    assert_named_error(lambda: bqn.Categorical(torch.tensor([0, 1]), (0, 1)), "probs", "floating", kind=TypeError)
    assert_named_error(lambda: bqn.Categorical([0.5, 0.5], (0, 1)), "probs", "list", kind=TypeError)  # type: ignore[arg-type]
    one = torch.ones(2)
    assert_named_error(lambda: bqn.Gaussian(one, -one), "var", "negative")
    assert_named_error(lambda: bqn.Gaussian(one, torch.ones(3)), "var", "shape")
    assert_named_error(lambda: bqn.Gaussian(one * nan, one), "mean", "finite")
    assert_named_error(lambda: bqn.Gaussian(one, one / 0), "var", "finite")
    assert_named_error(lambda: bqn.Gaussian(one.int(), one), "mean", "floating", kind=TypeError)


def test_opposite_pair_is_the_same_while_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    upper = torch.randn(3, 4)
    plain = bqn.beliefs.opposite_pair(upper)
    assert torch.equal(plain, torch.stack((-upper, upper), -1))
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert torch.equal(bqn.beliefs.opposite_pair(upper), plain)
