"""Mean, standard deviation and confidence interval of a sample."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from marl_sb3.core.metrics.statistics import (
    SampleStats,
    bootstrap_interval,
    difference_interval,
    interquartile_mean,
    mean,
    performance_profile,
    probability_of_improvement,
    sample_stats,
)


def test_figures_of_four_values() -> None:
    found = sample_stats([4.0, 1.0, 3.0, 2.0])
    # Squares about the mean: 2.25 + 0.25 + 0.25 + 2.25 = 5, over 3. Student's t with 3 degrees of freedom: 3.1824.
    sd = math.sqrt(5 / 3)
    assert (found.n, found.mean, found.min, found.max) == (4, 2.5, 1.0, 4.0)
    assert found.sd == pytest.approx(sd)
    assert found.ci95 == pytest.approx((2.5 - 3.18244631 * sd / 2, 2.5 + 3.18244631 * sd / 2))


@pytest.mark.parametrize("n", [2, 3, 20, 500])
def test_interval_is_scipys(n: int) -> None:
    from scipy import stats  # takes most of a second to import, in all processes of pytest-xdist

    values = np.random.default_rng(n).normal(3, 10, n)
    expected = stats.t.interval(0.95, n - 1, loc=values.mean(), scale=stats.sem(values))
    assert sample_stats(values.tolist()).ci95 == pytest.approx(expected)


def test_the_interval_of_a_share_stays_within_0_and_1() -> None:
    # 19 of 20, z = 1.95996: (0.95 + z^2 / 40 +- z sqrt(0.95 * 0.05 / 20 + z^2 / 1600)) / (1 + z^2 / 20)
    low, high = sample_stats([1.0] * 19 + [0.0]).ci95 or (0, 0)
    assert (low, high) == pytest.approx((0.76387, 0.99112), abs=1e-5)  # Student's t: 0.845 to 1.055
    assert sample_stats([1.0, 1.0, 0.5]).ci95 != sample_stats([1.0, 1.0, 0.0]).ci95


def test_too_few_values_have_no_spread() -> None:
    assert sample_stats([]) == SampleStats(0, None, None, None, None, None)
    assert sample_stats([2.0]) == SampleStats(1, 2.0, None, 2.0, 2.0, None)


def test_equal_values_have_an_interval_of_no_width() -> None:
    assert sample_stats([0.1] * 7) == SampleStats(
        7, pytest.approx(0.1), pytest.approx(0), 0.1, 0.1, pytest.approx((0.1, 0.1))
    )


def test_difference_of_three_and_two_values() -> None:
    from scipy import stats  # takes most of a second to import, in all processes of pytest-xdist

    # Means 6 and 2; variances 4 and 2 over 3 and 2 values: v = 4/3 and 1, of which the root of the sum is 1.5275.
    # Degrees of freedom: (7/3)^2 / ((4/3)^2 / 2 + 1^2 / 1) = 5.4444 / 1.8889 = 2.8824; Student's t there: 3.2559.
    found = difference_interval([4.0, 6.0, 8.0], [1.0, 3.0])
    margin = stats.t.ppf(0.975, 5.444444444 / 1.888888889) * (7 / 3) ** 0.5
    assert found == pytest.approx((4 - margin, 4 + margin))
    wider = stats.t.ppf(1 - 0.05 / 3, 5.444444444 / 1.888888889) * (7 / 3) ** 0.5
    assert difference_interval([4.0, 6.0, 8.0], [1.0, 3.0], 0.9, comparisons=3) == pytest.approx((4 - wider, 4 + wider))


@pytest.mark.parametrize(("n", "m"), [(2, 2), (3, 10), (40, 5)])
def test_difference_is_scipys(n: int, m: int) -> None:
    from scipy import stats  # takes most of a second to import, in all processes of pytest-xdist

    rng = np.random.default_rng(n)
    first, second = rng.normal(1, 3, n).tolist(), rng.normal(0, 1, m).tolist()
    expected = stats.ttest_ind(first, second, equal_var=False).confidence_interval(0.95)
    assert difference_interval(first, second) == pytest.approx((expected.low, expected.high))


def test_differences_without_spread_and_without_enough_values() -> None:
    assert difference_interval([5.0, 5.0], [4.0, 4.0]) == (1.0, 1.0)
    assert difference_interval([5.0], [4.0, 4.0]) == (-math.inf, math.inf)
    # All of the uncertainty is on one side: its interval, 1.5 +- 12.706 * 0.5, mirrored about 3.
    assert difference_interval([3.0, 3.0, 3.0], [1.0, 2.0]) == pytest.approx((1.5 - 6.3531, 1.5 + 6.3531), rel=1e-4)


@pytest.mark.parametrize("kind", ["normal", "skewed", "unequal"])
@pytest.mark.parametrize("n", [3, 4, 10])
def test_intervals_hold_as_often_as_they_say(n: int, kind: str) -> None:
    """Of 95 % intervals of means and differences over few seeds, 95 % hold the truth, and 92 % of skewed returns."""
    rng, repeats = np.random.default_rng(7), 2000
    missed = np.zeros(2)
    for _ in range(repeats):
        first, second = rng.normal(0, 1, n), rng.normal(0, 3.0 if kind == "unequal" else 1.0, n)
        if kind == "skewed":  # a mean of 0
            first, second = rng.gamma(4.0, 0.5, n) - 2.0, rng.gamma(4.0, 0.5, n) - 2.0
        bounds = sample_stats(first.tolist()).ci95
        assert bounds is not None
        low, high = difference_interval(first.tolist(), second.tolist())
        missed += not bounds[0] <= 0.0 <= bounds[1], not low <= 0.0 <= high
    allowed = 0.08 if kind == "skewed" else 0.05
    assert (missed / repeats <= allowed + 3 * math.sqrt(0.05 * 0.95 / repeats)).all()


# --- Of several runs -------------------------------------------------------------------------------------------------

# The expected numbers are those of rliable 1.2.0: `aggregate_iqm`, `get_interval_estimates` with 50,000 resamples,
# `probability_of_improvement` with 5,000, `create_performance_profile`.

OURS = [489.9, 500.0, 312.4, 455.1, 478.3, 120.7, 499.2, 463.0, 350.5, 410.9]
THEIRS = [394.8, 401.2, 288.0, 350.3, 420.6, 90.1, 371.7, 300.4, 310.0, 399.9]


@pytest.mark.parametrize(("n", "expected"), [(10, 441.28333333), (7, 446.98), (5, 474.43333333)])
def test_the_interquartile_mean_is_rliables(n: int, expected: float) -> None:
    assert float(interquartile_mean(np.array(OURS[:n]))) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("values", "statistic", "low", "high"),
    [
        (OURS, interquartile_mean, 346.51666667, 485.01666667),
        (THEIRS, interquartile_mean, 285.08333333, 394.16666667),
        (OURS, mean, 330.49, 468.23),
        (THEIRS, mean, 268.93, 381.36),
    ],
)
def test_bootstrap_intervals_are_rliables(values: list[float], statistic: Any, low: float, high: float) -> None:
    """But for the draws: 3 % of the width of the interval."""
    found = bootstrap_interval(np.array(values), statistic)
    assert found == pytest.approx((low, high), abs=0.03 * (high - low))


def test_the_probability_of_improvement_is_rliables() -> None:
    assert probability_of_improvement(OURS, THEIRS) == pytest.approx((0.79, 0.56, 0.98), abs=0.03)
    assert probability_of_improvement(OURS, THEIRS)[0] == pytest.approx(0.79)
    assert probability_of_improvement([1, 2], [2, 3])[0] == pytest.approx(0.125)  # one tie of four pairs
    assert probability_of_improvement(OURS, OURS)[0] == pytest.approx(0.5)


def test_the_performance_profile_is_rliables() -> None:
    found = performance_profile(OURS, np.array([0.0, 300.0, 400.0, 450.0, 490.0]))
    np.testing.assert_allclose(found, [1.0, 0.9, 0.7, 0.6, 0.2])


def test_bands_of_curves_are_those_of_their_points() -> None:
    curves = np.random.default_rng(0).normal(size=(6, 4))
    low, high = bootstrap_interval(curves, mean)
    for point in range(4):
        assert bootstrap_interval(curves[:, point], mean) == pytest.approx((low[point], high[point]))
