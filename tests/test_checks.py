"""Checks of what users hand in: what they let pass, what they refuse, and in which words."""

import numpy as np
import pytest
import torch

import bqn
from bqn.checks import require_labels, require_positive, require_squarable
from tests.nn.contract import assert_named_error


@pytest.mark.parametrize(
    ("dtype", "classes"),
    [(torch.uint8, 256), (torch.uint8, 300), (torch.int8, 128), (torch.int8, 256), (torch.int16, 5)],
)
def test_labels_of_any_integer_dtype_are_compared_as_numbers(dtype: torch.dtype, classes: int) -> None:
    require_labels(torch.tensor([0, 3, 4], dtype=dtype), (3,), classes)
    assert_named_error(lambda: require_labels(torch.tensor([3], dtype=dtype), (1,), 3), "y", "0 to 2", "3 to 3")
    head, logits = bqn.SoftmaxHead(4), torch.randn(3, classes)
    narrow = torch.tensor([3, 0, 4], dtype=dtype)
    assert torch.equal(head.log_likelihood(logits, narrow), head.log_likelihood(logits, narrow.long()))


def test_labels_below_zero_are_refused() -> None:
    assert_named_error(lambda: require_labels(torch.tensor([-1], dtype=torch.int8), (1,), 200), "y", "-1 to -1")


@pytest.mark.parametrize("four", [4, np.int64(4), np.uint8(4), torch.tensor(4)])
def test_integers_of_any_kind_are_sizes(four: object) -> None:
    assert type(require_positive(four, "size")) is int  # type: ignore[arg-type]
    assert bqn.nn.Linear(four, 3).weight.shape == (3, 4)  # type: ignore[arg-type]
    assert bqn.nn.Conv1d(four, four, 1, groups=four).weight.shape == (4, 1, 1)  # type: ignore[arg-type]
    assert bqn.nn.BatchNorm1d(four).running_mean.shape == (4,)  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [0, -1, True, 4.0, np.float64(4), np.bool_(True), "4", None, np.int64(0)])
def test_other_things_are_no_sizes(wrong: object) -> None:
    assert_named_error(lambda: require_positive(wrong, "size"), "size must be a positive integer, got")  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_values_too_large_to_be_squared(dtype: torch.dtype) -> None:
    require_squarable(torch.tensor([3.0, -1000.0], dtype=dtype), "x")
    require_squarable(torch.zeros(0, 3, dtype=dtype), "x")
    for bad in (float("nan"), float("inf"), -float("inf")):
        broken = torch.tensor([1.0, bad], dtype=dtype)
        assert_named_error(lambda x=broken: require_squarable(x, "x"), "x must be finite, got 1 NaN or infinite")
    if dtype == torch.float16:  # its largest number can be squared in float32
        return
    for sign in (-1, 1):
        large = torch.tensor([1.0, sign * torch.finfo(dtype).max ** 0.5], dtype=dtype)
        assert_named_error(lambda x=large: require_squarable(x, "x"), "x must lie within", "overflow")


@pytest.mark.parametrize("mode", ["analytic", "map"])
@pytest.mark.parametrize("levels", [bqn.BINARY, bqn.QUATERNARY])
def test_predictions_hold_up_to_the_limit(mode: str, levels: tuple[float, ...]) -> None:
    """Against float64; a network of one layer, whose sums no quantizer makes small again."""
    net = bqn.Network(bqn.nn.Sequential(bqn.nn.Linear(3000, 3, levels=levels)), bqn.SoftmaxHead(3000, scale=1e18))
    x = torch.randn(4, 3000).clamp(-1, 1) * 1.1e15
    given = net.predict(x, mode)
    assert_named_error(lambda: net.predict(2 * x, mode), "x must lie within ±1.1e+15")
    torch.testing.assert_close(given, net.double().predict(x.double(), mode).float(), atol=1e-4, rtol=1e-3)
    assert (given - 1 / 3).abs().max() > 0.01
