"""A candidate next to the preset: figures by hand and by scipy, and what they let one say."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from marl_sb3.tuning.confirmed import Comparison, compare


def test_figures_of_three_and_two_seeds() -> None:
    found = compare([4.0, 6.0, 8.0], [1.0, 3.0])
    # Means 6 and 2; variances 4 and 2 over 3 and 2 seeds: v = 4/3 and 1, of which the root of the sum is 1.5275.
    # Degrees of freedom: (7/3)^2 / ((4/3)^2 / 2 + 1^2 / 1) = 5.4444 / 1.8889 = 2.8824; Student's t there: 3.2559.
    margin = stats.t.ppf(0.975, 5.444444444 / 1.888888889) * (7 / 3) ** 0.5
    assert found.difference_ci == pytest.approx((4 - margin, 4 + margin))
    assert (found.improvement, found.improvement_ci) == (1.0, (pytest.approx(0.025**0.5), 1.0))  # two pairs, both won


@pytest.mark.parametrize(("n", "m"), [(2, 2), (3, 10), (10, 10), (40, 5)])
def test_welch_and_mann_whitney_are_scipys(n: int, m: int) -> None:
    rng = np.random.default_rng(n)
    candidate, preset = rng.normal(1, 3, n).round(1), rng.normal(0, 1, m).round(1)
    found = compare(candidate.tolist(), preset.tolist())
    expected = stats.ttest_ind(candidate, preset, equal_var=False)
    interval = expected.confidence_interval(0.95)
    assert found.difference_ci == pytest.approx((interval.low, interval.high))
    assert (found.verdict() != "undecided") == (expected.pvalue < 0.05)
    assert found.improvement == pytest.approx(stats.mannwhitneyu(candidate, preset).statistic / (n * m))


def test_half_of_a_tie_counts() -> None:
    # Of the six pairs (1, 2), (1, 1), (2, 2), (2, 1), (3, 2), (3, 1) three are won and two are ties.
    assert compare([1, 2, 3], [2, 1]).improvement == pytest.approx(4 / 6)
    assert compare([2, 1], [1, 2, 3]).improvement == pytest.approx(2 / 6)


def test_bootstrap_draws_each_side_anew() -> None:
    candidate, preset = [3.0, 5.0, 4.0, 9.0, 2.0], [1.0, 4.0, 6.0, 3.5]
    rng = np.random.default_rng(7)
    resampled = []
    for _ in range(2000):
        difference = np.subtract.outer(rng.choice(candidate, 5), rng.choice(preset, 4))
        resampled.append(np.mean(difference > 0) + np.mean(difference == 0) / 2)
    found = compare(candidate, preset)
    low, high = found.improvement_ci
    assert (low, high) == pytest.approx(np.quantile(resampled, (0.025, 0.975)), abs=0.051)  # one pair of twenty
    assert 0 <= low < found.improvement < high <= 1
    assert found == compare(candidate, preset)


@pytest.mark.parametrize(
    ("candidate", "preset", "verdict"),
    [
        ([10.0, 11.0, 12.0], [1.0, 2.0, 3.0], "better"),
        ([1.0, 2.0, 3.0], [10.0, 11.0, 12.0], "worse"),
        ([1.0, 5.0, 9.0], [2.0, 4.0, 6.0], "undecided"),
        ([10.0], [1.0, 2.0, 3.0], "undecided"),
        ([4.0, 4.0], [4.0, 4.0], "undecided"),
        ([5.0, 5.0], [4.0, 4.0], "better"),
        ([1e-200, 2e-200], [1e-200, 2e-200], "undecided"),  # its variance is no divisor
    ],
)
def test_verdict(candidate: list[float], preset: list[float], verdict: str) -> None:
    assert compare(candidate, preset).verdict() == verdict


def test_one_seed_says_nothing_about_spread() -> None:
    assert compare([10.0], [1.0]) == Comparison((-math.inf, math.inf), 1.0, (0.0, 1.0))


def test_equal_returns_on_one_side() -> None:
    # All of the uncertainty is the preset's: its interval, 1.5 +- 12.706 * 0.5, mirrored about 3.
    found = compare([3.0, 3.0, 3.0], [1.0, 2.0])
    assert found.difference_ci == pytest.approx((1.5 - 6.3531, 1.5 + 6.3531), rel=1e-4)
