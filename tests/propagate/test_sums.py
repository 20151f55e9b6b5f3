"""Sums of discrete variables: the exact methods against each other and the CLT against them."""

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

import bqn
from bqn.propagate import contraction, fourier, half, sums
from tests.nn.contract import assert_named_error, random_categorical

EXACT = {"contract": contraction.sum_terms, "fft": fourier.sum_terms}


def _enumerated(parts: list[bqn.Categorical]) -> dict[float, float]:
    """The law of the sum of all terms by going through every joint state."""
    terms = [(part.level_values, row.tolist()) for part in parts for row in part.probs]
    law: dict[float, float] = {}
    for states in itertools.product(*(range(len(levels)) for levels, _ in terms)):
        value = round(sum(terms[i][0][s] for i, s in enumerate(states)), 9)
        law[value] = law.get(value, 0.0) + math.prod(terms[i][1][s] for i, s in enumerate(states))
    return law


@given(
    levels=st.lists(st.integers(-4, 4), min_size=2, max_size=4, unique=True),
    other=st.lists(st.integers(-3, 3), min_size=1, max_size=3, unique=True),
    scale=st.sampled_from([1.0, 0.25, 1 / 3]),
    count=st.integers(1, 5),
    extreme=st.booleans(),
)
@pytest.mark.parametrize("method", ["contract", "fft"])
def test_exact_methods_against_enumeration(
    method: str, levels: list[int], other: list[int], scale: float, count: int, extreme: bool
) -> None:
    torch.manual_seed(0)
    parts = [
        random_categorical((count,), tuple(sorted(scale * level for level in levels))),
        random_categorical((1,), tuple(sorted(scale * level for level in other))),
    ]
    if extreme:  # one-hot terms
        parts[0] = bqn.Categorical(torch.eye(len(levels))[torch.randint(len(levels), (count,))].double(), parts[0].level_values)  # noqa: E501  # fmt: skip
    law = EXACT[method](parts)
    truth = _enumerated(parts)
    for value, prob in zip(law.level_values, law.probs.tolist(), strict=True):
        assert prob == pytest.approx(truth.pop(round(value, 9), 0.0), abs=1e-12)
        assert prob >= 0
    assert sum(truth.values()) == pytest.approx(0.0, abs=1e-12)


def test_contraction_takes_levels_off_any_lattice() -> None:
    part = random_categorical((4,), (-1.0, 2**0.5, 3**0.5))
    law, truth = contraction.sum_terms([part]), _enumerated([part])
    assert len(law.level_values) == len(truth)
    assert_close(law.probs, torch.tensor([truth[key] for key in sorted(truth)], dtype=torch.float64))
    assert_named_error(lambda: fourier.sum_terms([part]), "levels", "lattice", "contract")


def test_gradients_of_both_methods_agree_where_a_transform_is_zero() -> None:
    probs = torch.tensor([[0.5, 0.5], [0.5, 0.5], [0.25, 0.75], [1.0, 0.0]], dtype=torch.float64)
    weights = torch.randn(5, dtype=torch.float64)
    grads = []
    for method in EXACT.values():
        leaf = probs.clone().requires_grad_()
        law = method([bqn.Categorical.of((0.0, 1.0), probs=leaf)])
        (grad,) = torch.autograd.grad((law.probs * weights).sum(), leaf)
        assert bool(torch.isfinite(grad).all())
        grads.append(grad)
    assert_close(grads[0], grads[1])


def test_tree_product_gradient_without_division() -> None:
    factors = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda t: fourier.tree_product(t, 1), (factors,))
    zero = torch.tensor([0.0, 2.0, 0.0, 3.0], requires_grad=True)
    (grad,) = torch.autograd.grad(fourier.tree_product(zero, 0), zero)
    assert_close(grad, torch.zeros(4))


def test_clt_error_shrinks_with_fan_in() -> None:
    """Distance of the normal approximation to the exact law, in distribution: it falls like one over the root."""
    torch.manual_seed(0)
    distances = []
    for fan_in in (8, 32, 128, 512):
        part = bqn.Categorical.from_logits(torch.randn(fan_in, 3, dtype=torch.float64) * 0.5, (-1.0, 0.0, 2.0))
        law = fourier.sum_terms([part])
        mean, var = part.mean.sum(), part.var.sum()
        assert_close(law.mean, mean)
        assert_close(law.var, var)
        edges = law.levels + 0.5  # halfway to the next lattice point
        distance = (law.probs.cumsum(-1) - torch.special.ndtr((edges - mean) / var.sqrt())).abs().max()
        distances.append(float(distance))
    for near, far in itertools.pairwise(distances):
        assert 0.35 < far / near < 0.65  # four times the terms, half the error
    assert distances[-1] < 0.005


def test_clt_moments_equal_the_exact_ones_at_any_fan_in() -> None:
    for fan_in in (1, 5, 40):
        x = random_categorical((2, fan_in), bqn.TERNARY)
        layer = bqn.nn.Linear(fan_in, 3, method="fft").double()
        law = layer(x)
        layer.method = "clt"
        assert_close(layer(x).mean, law.mean)
        assert_close(layer(x).var, law.var)


@pytest.mark.parametrize(
    ("fan_in", "levels", "expected"),
    [
        (2, bqn.BINARY, "contract"),
        (3, (-1.0, 2**0.5), "contract"),
        (9, bqn.BINARY, "fft"),
        (25, bqn.QUATERNARY, "fft"),
        (9, (-1.0, 2**0.5, 2.0), "clt"),
        (500, bqn.BINARY, "clt"),
    ],
)
def test_choice_follows_fan_in_levels_and_lattice(fan_in: int, levels: tuple[float, ...], expected: str) -> None:
    assert sums.choose("auto", [(fan_in, levels)]) == expected
    for named in ("contract", "fft", "clt"):
        assert sums.choose(named, [(fan_in, levels)]) == named  # overridable by name


def test_choice_for_real_values() -> None:
    assert sums.choose("auto", None) == sums.choose("clt", None) == "clt"
    for named in ("contract", "fft"):
        assert_named_error(lambda named=named: sums.choose(named, None), named, "discrete", "real-valued")
    assert_named_error(lambda: sums.require_method("best"), "method", "auto")


def test_large_batches_are_summed_in_parts() -> None:
    layer = bqn.nn.Linear(8, 4, method="fft").double()
    x = random_categorical((50, 8), bqn.BINARY)
    whole = layer(x)
    limit, sums.EXACT_WORK = sums.EXACT_WORK, 2**12
    try:
        parts = layer(x)
    finally:
        sums.EXACT_WORK = limit
    assert_close(parts.probs, whole.probs)
    # and the choice does not depend on the batch
    assert sums.choose("auto", [(25, bqn.TERNARY)], outputs=10**6) == "clt"


def test_a_known_bias_is_not_lost() -> None:
    x, weight = random_categorical((2, 3), bqn.BINARY), random_categorical((2, 3), bqn.BINARY)
    bias = torch.tensor([10.0, 20.0]).double()
    assert_close(sums.linear(x, weight, bias, "auto").mean, x.mean @ weight.mean.T + bias)
    assert_named_error(lambda: sums.linear(x, weight, bias, "fft"), "fft", "discrete")


def test_sums_too_large_for_an_exact_method_say_so() -> None:
    x = random_categorical((1, 20_000), bqn.BINARY, torch.float32)
    assert_named_error(lambda: bqn.nn.Linear(20_000, 1, method="fft")(x), "fft", "clt")
    odd = random_categorical((1, 30), (1.0, 2**0.5), torch.float32)
    layer = bqn.nn.Linear(30, 1, levels=(1.0, 3**0.5, 5**0.5), method="contract")
    assert_named_error(lambda: layer(odd), "distinct values", "clt")


@pytest.mark.parametrize("levels", [(-1.0, 1.0), (-1.0, 0.0, 2.0)])
def test_transforms_of_half_precision(levels: tuple[float, ...]) -> None:
    """There are none, so float32 takes over: the law is that of the rounded probabilities."""
    rounded = random_categorical((3, 4), levels).probs.bfloat16()
    law = fourier.sum_terms([bqn.Categorical.of(levels, probs=rounded)])
    truth = fourier.sum_terms([bqn.Categorical.of(levels, probs=rounded.double())])
    assert law.probs.dtype == torch.float32
    assert_close(law.probs.double(), truth.probs, rtol=1e-5, atol=1e-6)
    none = fourier.sum_terms([bqn.Categorical.of(levels, probs=rounded[:0])])
    assert none.probs.dtype == torch.float32
    assert none.shape == (0,)


@pytest.mark.parametrize("activations", [bqn.BINARY, bqn.TERNARY])
def test_pooling_last_goes_with_half_precision(activations: tuple[float, ...]) -> None:
    torch.manual_seed(0)
    net = bqn.models.cnn((1, 8, 8), 3, (16, 16), 32, pool_first=False, activations=activations)
    x, y = torch.rand(32, 1, 8, 8) * 2 - 1, torch.randint(3, (32,))
    full = net.elbo(x, y, 1000, 1e-2)
    full_grads = torch.autograd.grad(full, list(net.parameters()))
    with half.lowered():
        mixed = net.elbo(x, y, 1000, 1e-2)
    mixed_grads = torch.autograd.grad(mixed, list(net.parameters()))
    assert_close(mixed, full, rtol=1e-2, atol=0)
    for ours, theirs in zip(mixed_grads, full_grads, strict=True):
        assert ours.dtype == torch.float32
        if theirs.numel() > 100:
            assert float(torch.cosine_similarity(ours.flatten(), theirs.flatten(), 0)) > 0.995
