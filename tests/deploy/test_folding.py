"""Thresholds against the float layers on every integer, and the lattices of level sets."""

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bqn import nn
from bqn.deploy.folding import Symbol, UnpackableError, common_unit, find_thresholds, lattice_of
from bqn.deploy.program import Lattice


@pytest.mark.parametrize(
    ("values", "unit", "lattice"),
    [
        ((-1.0, 1.0), 1, Lattice(-1, 2, 2)),
        ((-1.0, 0.0, 1.0), 1, Lattice(-1, 1, 3)),
        ((-3.0, -1.0, 1.0, 3.0), 1, Lattice(-3, 2, 4)),
        ((-0.25, 0.0, 0.25), Fraction(1, 4), Lattice(-1, 1, 3)),
        ((-0.5, 0.0, 1.5), Fraction(1, 2), Lattice(-1, 1, 5)),
        ((0.0, 6.0), 6, Lattice(0, 1, 2)),
        ((-2.0, 6.0), 2, Lattice(-1, 4, 2)),
        ((2.5,), Fraction(5, 2), Lattice(1, 1, 1)),
        ((0.0,), 1, Lattice(0, 1, 1)),
    ],
)
def test_lattices(values, unit, lattice):
    assert lattice_of(values, 256, "layer") == (unit, lattice)
    assert [float((lattice.low + lattice.stride * code) * unit) for code in (0, lattice.levels - 1)] == [
        values[0],
        values[-1],
    ]


def test_no_lattice():
    with pytest.raises(UnpackableError, match=r"layer has the levels 0, 0.1, 1, which lie on no common lattice"):
        lattice_of((0.0, 0.1, 1.0), 256, "layer")
    for values, instead in (
        (np.linspace(-1, 1, 4), "-3, -1, 1, 3"),
        ((-0.3, 0.1, 0.5), "-3, 1, 5"),
        (np.linspace(-1, 1, 256), "-255, -253, -251"),
    ):
        # Their integers are the levels but for the rounding, and these do lie on a lattice.
        with pytest.raises(
            UnpackableError, match=f"they would, but float32 rounds them; take integers such as {instead}"
        ):
            lattice_of(torch.tensor(np.array(values)).float().tolist(), 256, "layer")
    for values in ((-1.0, 0.123456, 1.0), (0.0, 1e-30, 1.0), (1e30, 1.000001e30, 3e30)):
        with pytest.raises(UnpackableError, match=r"of at most 256 steps$"):
            lattice_of(torch.tensor(values).tolist(), 256, "layer")
    assert common_unit([Fraction(1, 4), Fraction(1, 6)]) == Fraction(1, 12)


@settings(deadline=None, max_examples=60)
@given(
    low=st.integers(-300, 0),
    size=st.integers(0, 400),
    unit=st.sampled_from((Fraction(1), Fraction(1, 256), Fraction(1, 4), Fraction(3, 8))),
    levels=st.sampled_from(((-1.0, 1.0), (-1.0, 0.0, 1.0), (-3.0, -1.0, 1.0, 3.0))),
    seed=st.integers(0, 999),
)
def test_thresholds_are_those_of_the_layers(low, size, unit, levels, seed):
    """Batch norms of every sign and size, with and without a shift, on every integer of the range."""
    generator = torch.Generator().manual_seed(seed)
    count = 12
    norm, quantizer = nn.BatchNorm1d(count).eval(), nn.Quantize(levels)
    with torch.no_grad():
        norm.running_mean.copy_((torch.randn(count, generator=generator) * 20).round() * float(unit))
        norm.running_var.copy_(torch.rand(count, generator=generator) * 50)
        norm.weight.copy_(torch.randn(count, generator=generator))
        norm.bias.copy_(torch.randn(count, generator=generator).round())
        norm.weight[:3] = torch.tensor([0.0, 1e-30, -1e-30])
        norm.running_var[3:5] = torch.tensor([0.0, 1e12])
        norm.bias[5:] = 0.0  # the mean itself is then on the threshold
    shifts = None if seed % 2 else torch.randn(1, count, generator=generator).mul(64).round().double() / 64
    symbol = Symbol("q", unit, low, low + size, channels=count, shifts=shifts).then([lambda x, added: norm(x)])
    grid = torch.tensor(levels)
    with torch.no_grad():
        thresholds, flips = find_thresholds(
            symbol, 0, lambda x: torch.searchsorted(grid, quantizer(x)), range(len(levels)), "layer"
        )
        q = np.arange(low, low + size + 1)[:, None].repeat(count, 1)
        expected = torch.searchsorted(grid, quantizer(norm(symbol.values(0, q).float()))).numpy()
    directed = np.where(flips, -q, q)
    given_ = (directed[:, None] >= thresholds[0]).sum(1)
    np.testing.assert_array_equal(given_, expected)
    assert (np.diff(thresholds, axis=1) >= 0).all()


def test_a_sum_of_24_bits_is_exact_and_one_more_is_not():
    assert Symbol("q", Fraction(1, 256), -(2**24), 2**24).rounded(10).error == 0
    assert Symbol("q", Fraction(1), -(2**24) - 1, 2**24).rounded(10).error > 0
    # A unit of three takes two bits of them.
    assert Symbol("q", Fraction(3), -(2**22), 2**22).rounded(10).error == 0
    assert Symbol("q", Fraction(3), -(2**23), 2**23).rounded(10).error > 0
    shifted = Symbol("q", Fraction(1), -(2**20), 2**20)
    assert shifted.with_shifts(torch.tensor([[1 / 8]])).error == 0
    assert shifted.with_shifts(torch.tensor([[1 / 64]])).error > 0
