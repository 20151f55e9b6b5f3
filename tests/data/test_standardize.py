"""Standardization and the way back."""

from __future__ import annotations

import pytest
import torch

from bqn.data import DataError, Standardizer


def test_columns_get_zero_mean_and_unit_variance() -> None:
    x = torch.randn(500, 3) * torch.tensor([1.0, 20.0, 1e-3]) + torch.tensor([5.0, -100.0, 0.0])
    z = Standardizer.fit(x).transform(x)
    torch.testing.assert_close(z.mean(0), torch.zeros(3), atol=1e-4, rtol=0)
    torch.testing.assert_close(z.std(0, correction=0), torch.ones(3), atol=1e-4, rtol=0)


def test_inverse_undoes_transform_and_scales_variances() -> None:
    x = torch.randn(50, 2) * 7 + 3
    standardizer = Standardizer.fit(x)
    torch.testing.assert_close(standardizer.inverse(standardizer.transform(x)), x)
    scaled = standardizer.inverse(2.0 * torch.randn(10_000, 2))
    variance = standardizer.inverse_var(torch.full((1, 2), 4.0))
    torch.testing.assert_close(scaled.var(0), variance[0], rtol=0.1, atol=0)


@pytest.mark.parametrize("value", [0.0, 288.0, 0.998, 1e30])
def test_a_column_without_variation_becomes_zero(value: float) -> None:
    x = torch.full((1193, 1), value)
    standardizer = Standardizer.fit(x)
    assert standardizer.std.item() == 1.0
    torch.testing.assert_close(standardizer.transform(x) / max(value, 1), torch.zeros(1193, 1))


def test_a_large_offset_does_not_hide_variation() -> None:
    x = 1.6e9 + 1000 * torch.randn(200, 1)
    assert 800 < Standardizer.fit(x).std.item() < 1200


def test_state_makes_the_same_one() -> None:
    standardizer = Standardizer.fit(torch.randn(20, 2))
    again = Standardizer.from_state(standardizer.state())
    assert torch.equal(again.mean, standardizer.mean)
    assert torch.equal(again.std, standardizer.std)


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"mean": torch.zeros(2)}, "must hold mean and std"),
        ({"mean": torch.zeros(2), "std": torch.zeros(2)}, "std must be positive"),
        ({"mean": torch.zeros(2), "std": torch.ones(3)}, "same shape"),
        ({"mean": torch.zeros(2) / 0, "std": torch.ones(2)}, "mean must be finite"),
        ({"mean": torch.zeros(2).double(), "std": torch.ones(2)}, "float32"),
    ],
)
def test_refuses_a_broken_state(state: dict[str, torch.Tensor], message: str) -> None:
    with pytest.raises(DataError, match=message):
        Standardizer.from_state(state)


@pytest.mark.parametrize("x", [torch.zeros(0, 2), torch.zeros(3), torch.zeros(3, 2, dtype=torch.uint8)])
def test_refuses_what_has_no_columns_of_numbers(x: torch.Tensor) -> None:
    with pytest.raises(DataError, match="x must be floating-point features"):
        Standardizer.fit(x)
