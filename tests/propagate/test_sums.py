"""Sums of discrete variables: the exact methods against each other and the CLT against them."""

import copy
import itertools
import math
import operator
from collections.abc import Sequence
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

import bqn
from bqn.propagate import contraction, fourier, half, sums
from tests.nn.contract import assert_named_error, random_categorical

EXACT = {"contract": contraction.sum_terms, "fft": fourier.sum_terms}


def _enumerated(parts: list[tuple[bqn.Categorical, Sequence[Fraction]]]) -> dict[Fraction, float]:
    """The law of the sum of all terms by going through every joint state, in fractions: nothing is rounded."""
    terms = [(levels, row.tolist()) for part, levels in parts for row in part.probs]
    law: dict[Fraction, float] = {}
    for states in itertools.product(*(range(len(levels)) for levels, _ in terms)):
        value = sum((terms[i][0][s] for i, s in enumerate(states)), Fraction(0))
        law[value] = law.get(value, 0.0) + math.prod(terms[i][1][s] for i, s in enumerate(states))
    return law


@given(
    levels=st.lists(st.integers(-4, 4), min_size=2, max_size=4, unique=True),
    other=st.lists(st.integers(-3, 3), min_size=1, max_size=3, unique=True),
    denominator=st.sampled_from([1, 4, 3, 10]),
    count=st.integers(1, 5),
    extreme=st.booleans(),
)
@pytest.mark.parametrize("method", ["contract", "fft"])
def test_exact_methods_against_enumeration(
    method: str, levels: list[int], other: list[int], denominator: int, count: int, extreme: bool
) -> None:
    """The values too, to the last bit: a sum that is zero must not lie a hair below it."""
    torch.manual_seed(0)
    of_levels, of_other = ([Fraction(n, denominator) for n in sorted(numbers)] for numbers in (levels, other))
    part = random_categorical((count,), tuple(map(float, of_levels)))
    rest = random_categorical((1,), tuple(map(float, of_other)))
    if extreme:  # one-hot terms
        part = bqn.Categorical(torch.eye(len(levels))[torch.randint(len(levels), (count,))].double(), part.level_values)
    law = EXACT[method]([part, rest])
    truth = {float(value): prob for value, prob in _enumerated([(part, of_levels), (rest, of_other)]).items()}
    for value, prob in zip(law.level_values, law.probs.tolist(), strict=True):
        assert prob == pytest.approx(truth.pop(value, 0.0), abs=1e-12)
        assert prob >= 0
    assert not truth


@pytest.mark.parametrize("method", ["contract", "fft"])
@pytest.mark.parametrize("inputs", [("-1", "1"), ("-1", "0", "1"), ("-0.3", "0.3")])
@pytest.mark.parametrize(
    "weights",
    [("-0.9", "-0.3", "0.3", "0.9"), ("-0.2", "0.1"), ("-0.6", "-0.2", "0.2", "0.6"), ("-1", "-1/3", "1/3", "1")],
)
def test_sums_that_cancel_go_up(weights: tuple[str, ...], inputs: tuple[str, ...], method: str) -> None:
    """sign(0) = +1 whatever the levels are; the truth by enumeration of fractions."""
    exact_weights, exact_inputs = ([Fraction(level) for level in levels] for levels in (weights, inputs))
    for count in (2, 3):
        layer = bqn.nn.Linear(count, 1, bias=False, levels=tuple(map(float, exact_weights)), method=method).double()
        with torch.no_grad():
            layer.weight.logits.normal_()
        x = random_categorical((1, count), tuple(map(float, exact_inputs)))
        truth = 0.0
        laws = layer.weight.belief().probs[0].detach(), x.probs[0]
        for states in itertools.product(itertools.product(range(len(weights)), range(len(inputs))), repeat=count):
            if sum(exact_weights[w] * exact_inputs[h] for w, h in states) >= 0:
                truth += math.prod(float(laws[0][i, w] * laws[1][i, h]) for i, (w, h) in enumerate(states))
        assert bqn.nn.Sign()(layer(x)).probs[0, 0, 1].item() == pytest.approx(truth, abs=1e-12)


def test_other_sums_that_cancel_go_up() -> None:
    """Those of `Add` and of average pooling, at thresholds that are not zero as well."""
    halves = [
        bqn.Categorical(torch.full((1, 1, 2), 0.5).double(), levels)
        for levels in ((-0.1, 0.1), (-0.2, 0.2), (-0.3, 0.3))
    ]
    add = bqn.nn.Add()
    for first, second, third in itertools.permutations(halves):
        total = add(add(first, second), third)
        assert total.level_values == (-0.6, -0.4, -0.2, 0.0, 0.2, 0.4, 0.6)
        assert bqn.nn.Sign()(total).probs[0, 0, 1].item() == pytest.approx(5 / 8)
        over = bqn.nn.Quantize((-1, 1), (0.4,))(total)
        assert over.probs[0, 0, 1].item() == pytest.approx(2 / 8)
        moved = bqn.nn.RandomThreshold(1, shifts=(-0.2, 0.2)).double()
        with torch.no_grad():
            moved.shift.logits.zero_()
        assert moved(total).probs[0, 0, 1].item() == pytest.approx((6 / 8 + 3 / 8) / 2)
    image = bqn.Categorical(torch.full((1, 1, 2, 2, 4), 0.25).double(), (-1, -1 / 3, 1 / 3, 1))
    truth = sum(sum(four) >= 0 for four in itertools.product((-3, -1, 1, 3), repeat=4)) / 4**4
    for method in ("auto", "contract", "fft"):
        up = bqn.nn.Sign()(bqn.nn.AvgPool2d(2, method=method)(image)).probs[..., 1]
        assert up.item() == pytest.approx(truth)


def test_contraction_takes_levels_off_any_lattice() -> None:
    part = random_categorical((4,), (-1.0, 2**0.5, 3**0.5))
    law = contraction.sum_terms([part])
    truth: dict[tuple[int, ...], float] = {}  # by how often each level is taken
    for states in itertools.product(range(3), repeat=4):
        key = tuple(states.count(level) for level in range(3))
        truth[key] = truth.get(key, 0.0) + math.prod(part.probs[i, s].item() for i, s in enumerate(states))
    by_value = sorted((sum(n * level for n, level in zip(key, part.level_values, strict=True)), p) for key, p in truth.items())  # noqa: E501  # fmt: skip
    assert_close(torch.tensor(law.level_values), torch.tensor([value for value, _ in by_value]))
    assert_close(law.probs, torch.tensor([prob for _, prob in by_value], dtype=torch.float64))
    assert_named_error(lambda: fourier.sum_terms([part]), "levels", "lattice", "contract")


def _nearly_certain(terms: int, levels: tuple[float, ...]) -> bqn.Categorical:
    logits = torch.randn(3, terms, len(levels), generator=torch.Generator().manual_seed(0)).double() * 3
    return bqn.Categorical.of(levels, probs=logits.softmax(-1))


@pytest.mark.parametrize("levels", [bqn.BINARY, bqn.QUATERNARY, (-9.0, -3.0, -1.0, 0.0, 1.0, 3.0, 9.0)])
def test_contraction_keeps_the_tails(levels: tuple[float, ...]) -> None:
    """In single precision every probability is right to five digits, down to 1e-37; a transform has nothing there."""
    wide = _nearly_certain(16, levels)
    truth = contraction.sum_terms([wide]).probs
    law = contraction.sum_terms([bqn.Categorical.of(levels, probs=wide.probs.float())])
    known = truth > 1e-37
    assert float(truth.min()) < 1e-12
    assert_close(law.probs.double()[known], truth[known], rtol=1e-5, atol=0)
    enumerated = law.level_values.index(16 * levels[-1])  # all terms at their highest level: a plain product
    assert_close(truth[:, enumerated], wide.probs[..., -1].prod(-1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("terms", [16, 128, 512])
def test_transforms_never_say_less_than_the_tail_has(dtype: torch.dtype, terms: int) -> None:
    """What lies below their rounding error is lifted to it."""
    wide = _nearly_certain(terms, bqn.QUATERNARY)
    truth = contraction.sum_terms([wide]).probs
    law = fourier.sum_terms([bqn.Categorical.of(bqn.QUATERNARY, probs=wide.probs.to(dtype))])
    assert law.probs.dtype == dtype
    error = law.probs.double() - truth
    slack = terms * torch.finfo(dtype).eps  # of the probabilities that it was given
    assert bool((error >= -0.3 * truth - (slack * truth)).all())
    assert bool((error <= 2e-14 + slack * truth.amax()).all())
    assert bool(((law.probs.sum(-1) - 1).abs() <= 2e-14 * law.probs.shape[-1] + slack).all())


@pytest.mark.parametrize("levels", [bqn.BINARY, bqn.TERNARY, bqn.QUATERNARY])
def test_single_precision_does_not_change_what_the_head_is_told(levels: tuple[float, ...]) -> None:
    """The softmax multiplies a sum's tail by e to the level, the variance by its square."""
    torch.manual_seed(0)
    head, y = bqn.SoftmaxHead(31), torch.tensor([0, 1, 2])
    x = bqn.Categorical(torch.full((3, 31, len(levels)), 1 / len(levels)), levels)
    for sharp in (1.0, 30.0):
        layer = bqn.nn.Linear(31, 3, levels=levels)
        with torch.no_grad():
            layer.weight.logits.mul_(sharp)
            layer.bias.logits.mul_(sharp)
        wide = copy.deepcopy(layer).double()
        wide.method = "contract"
        truth = wide(bqn.Categorical.of(levels, probs=x.probs.double()))
        for bound in ("tilted", "jensen"):
            known = copy.deepcopy(head).double().log_likelihood(truth, y, bound=bound).float()
            layer.method = "contract"
            assert_close(head.log_likelihood(layer(x), y, bound=bound), known, rtol=1e-4, atol=1e-4)
            layer.method = "fft"
            assert bool((head.log_likelihood(layer(x), y, bound=bound) <= known + 1e-4).all())
        for method in ("contract", "fft", "auto"):
            layer.method = method
            sure = bqn.Categorical.certain(torch.tensor(levels)[torch.randint(len(levels), (3, 31))], levels)
            exact = wide(bqn.Categorical.of(levels, probs=sure.probs.double()))
            assert_close(layer(sure).var.double(), exact.var, rtol=1e-3, atol=1e-6)
            assert_close(layer(sure).mean.double(), exact.mean, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("levels", [(-1.0, 1.0), (-3.0, -1.0, 0.0, 1.0, 3.0), (0.0, 1.0, 2**0.5)])
def test_gradient_of_a_combination(levels: tuple[float, ...]) -> None:
    """Values side by side in the result and with gaps; leading dimensions broadcast; either may be the larger."""
    a = torch.rand(3, 1, len(levels), dtype=torch.float64, requires_grad=True)
    b = torch.rand(2, 4, dtype=torch.float64, requires_grad=True)
    numbers = (-2.0, -1.0, 1.0, 2.0)
    for operation in (operator.add, operator.mul):

        def law(a: torch.Tensor, b: torch.Tensor, operation=operation) -> torch.Tensor:  # type: ignore[no-untyped-def]
            one, other = bqn.Categorical.of(levels, probs=a), bqn.Categorical.of(numbers, probs=b)
            return contraction.combine(one, other, operation).probs

        assert torch.autograd.gradcheck(law, (a, b))
        other_way = contraction.combine(
            bqn.Categorical.of(numbers, probs=b), bqn.Categorical.of(levels, probs=a), operation
        )
        assert_close(law(a, b), other_way.probs)


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
        (9, bqn.BINARY, "contract"),
        (25, bqn.QUATERNARY, "contract"),
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


def test_choice_is_exact_only_where_that_costs_little() -> None:
    """By what one example asks for; the size of the batch does not matter."""
    assert sums.choose("auto", [(16, bqn.BINARY), (1, bqn.BINARY)], outputs=10) == "contract"
    assert sums.choose("auto", [(31, bqn.BINARY), (1, bqn.BINARY)], outputs=10) == "contract"
    assert sums.choose("auto", [(31, bqn.BINARY), (1, bqn.BINARY)], outputs=100) == "clt"
    assert sums.choose("auto", [(2, bqn.BINARY)], outputs=10**6) == "contract"
    sharp = [(31, (-3.0, -1.0, 0.0, 1.0, 3.0)), (1, bqn.TERNARY)]
    assert sums.choose("auto", sharp, outputs=10) == "contract"
    assert sums.choose("auto", sharp, outputs=11) == "clt"
    x = random_categorical((2, 31), bqn.QUATERNARY)
    assert isinstance(bqn.nn.Linear(31, 100, levels=bqn.TERNARY).double()(x), bqn.Gaussian)
    assert isinstance(bqn.nn.Linear(8, 3, levels=bqn.TERNARY).double()(x[:, :8]), bqn.Categorical)


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
