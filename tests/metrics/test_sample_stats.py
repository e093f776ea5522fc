"""Mean, standard deviation and confidence interval of a sample."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from marl_sb3.metrics.sample_stats import SampleStats, sample_stats


def test_figures_of_four_values() -> None:
    found = sample_stats([4.0, 1.0, 3.0, 2.0])
    # Squares about the mean: 2.25 + 0.25 + 0.25 + 2.25 = 5, over 3. Student's t with 3 degrees of freedom: 3.1824.
    sd = math.sqrt(5 / 3)
    assert (found.n, found.mean, found.min, found.max) == (4, 2.5, 1.0, 4.0)
    assert found.sd == pytest.approx(sd)
    assert found.ci95 == pytest.approx((2.5 - 3.18244631 * sd / 2, 2.5 + 3.18244631 * sd / 2))


@pytest.mark.parametrize("n", [2, 3, 20, 500])
def test_interval_is_scipys(n: int) -> None:
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
