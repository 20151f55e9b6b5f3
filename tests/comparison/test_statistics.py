"""Statistics against scipy."""

import numpy as np
import pytest
from scipy import special, stats

from bqn.comparison import statistics


@pytest.mark.parametrize("seed", range(5))
def test_the_plain_test_is_that_of_scipy(seed: int) -> None:
    generator = np.random.default_rng(seed)
    first = generator.normal(size=20)
    second = first + generator.normal(0.2, 0.5, size=20)
    expected = stats.ttest_rel(first, second).pvalue
    assert statistics.paired_t_test(first.tolist(), second.tolist()) == pytest.approx(expected, rel=1e-10)


def test_the_corrected_test_widens_the_error_by_what_nadeau_and_bengio_say() -> None:
    generator = np.random.default_rng(0)
    differences = generator.normal(0.4, 1.0, size=20)
    ratio = 51 / 455
    t = differences.mean() / np.sqrt((1 / 20 + ratio) * differences.var(ddof=1))
    expected = 2 * stats.t.sf(abs(t), 19)
    got = statistics.paired_t_test(differences.tolist(), [0.0] * 20, overlap=ratio)
    assert got == pytest.approx(expected, rel=1e-10)
    plain = statistics.paired_t_test(differences.tolist(), [0.0] * 20)
    assert plain is not None
    assert got > plain


@pytest.mark.parametrize("freedom", [1, 2, 9, 19, 200])
@pytest.mark.parametrize("t", [0.0, 0.3, 2.1, 12.0, -5.0])
def test_students_distribution(t: float, freedom: int) -> None:
    expected = 2 * stats.t.sf(abs(t), freedom)
    assert statistics.student_two_sided(t, freedom) == pytest.approx(expected, rel=1e-9, abs=1e-300)


@pytest.mark.parametrize("x", [0.0, 1e-6, 0.2, 0.5, 0.97, 1.0])
@pytest.mark.parametrize(("a", "b"), [(0.5, 0.5), (9.5, 0.5), (2.0, 7.0), (80.0, 90.0)])
def test_the_incomplete_beta_function(x: float, a: float, b: float) -> None:
    assert statistics.regularized_beta(x, a, b) == pytest.approx(special.betainc(a, b, x), rel=1e-9, abs=1e-14)


def test_standard_error_is_that_of_scipy() -> None:
    values = [3.1, 2.8, 3.6, 2.9]
    assert statistics.standard_error(values) == pytest.approx(stats.sem(values))
    assert statistics.standard_error([3.1]) is None


def test_what_does_not_vary() -> None:
    assert statistics.paired_t_test([1.0, 2.0], [1.0, 2.0]) == 1.0
    assert statistics.paired_t_test([1.0, 2.0], [0.5, 1.5]) == 0.0
    assert statistics.paired_t_test([1.0], [0.5]) is None
    with pytest.raises(ValueError, match="zip"):
        statistics.paired_t_test([1.0, 2.0], [1.0])
