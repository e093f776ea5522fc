"""Statistics of a sample of episodes or of runs: means, intervals, comparisons; rows as a DataFrame."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np

from marl_sb3.types import Array

RESAMPLES = 2000  # how many a bootstrap draws


@dataclass(frozen=True)
class SampleStats:
    """Statistics of a sample; None if there are too few values."""

    n: int  # number of values
    mean: float | None  # mean
    sd: float | None  # sample standard deviation (divided by n - 1); needs two values
    min: float | None  # minimum
    max: float | None  # maximum
    # bounds of the 95 % confidence interval of the mean; needs two values. By Student's t, which assumes a normally
    # distributed mean: nearly true of 20 episodes and more. Where every value is 0 or 1, and both occur, the mean is a
    # share, and the interval is Wilson's (1927), which stays within 0 and 1.
    ci95: tuple[float, float] | None


def _t_quantile(freedom: float, share: float) -> float:
    """Return a quantile of Student's t distribution."""
    from scipy.special import stdtrit  # takes a seventh of a second to import, which trainings do not need

    return float(stdtrit(freedom, share))


def sample_stats(values: Sequence[float]) -> SampleStats:
    """Compute the statistics of a sample."""
    n = len(values)
    if n == 0:
        return SampleStats(0, None, None, None, None, None)
    mean = math.fsum(values) / n
    if n == 1:
        return SampleStats(1, mean, None, mean, mean, None)
    sd = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (n - 1))
    margin = _t_quantile(n - 1, 0.975) * sd / math.sqrt(n)
    ci95 = wilson_interval(mean, n) if set(values) == {0.0, 1.0} else (mean - margin, mean + margin)
    return SampleStats(n, mean, sd, min(values), max(values), ci95)


def share_stats(values: Sequence[float]) -> SampleStats:
    """Compute the statistics of a share: of values 0 and 1. The interval is Wilson's, also where all are the same."""
    if not values:
        return sample_stats(values)
    share = math.fsum(values) / len(values)
    return SampleStats(len(values), share, None, None, None, wilson_interval(share, len(values)))


def wilson_interval(share: float, n: int, level: float = 0.95) -> tuple[float, float]:
    """The confidence interval of a share of n: Wilson, Journal of the American Statistical Association 22, 1927."""
    z = NormalDist().inv_cdf((1 + level) / 2)
    center = share + z**2 / (2 * n)
    margin = z * math.sqrt(share * (1 - share) / n + z**2 / (4 * n**2))
    return (center - margin) / (1 + z**2 / n), (center + margin) / (1 + z**2 / n)


def table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str] | None = None) -> Any:
    """Return the rows as a `pandas.DataFrame`; without pandas, as a list of dictionaries with the same columns.

    Args:
        columns: the order of the columns; None: the order of first appearance.
    """
    names = list(columns or dict.fromkeys(name for row in rows for name in row))
    complete = [{name: row.get(name) for name in names} for row in rows]
    try:
        import pandas
    except ImportError:
        return complete
    return pandas.DataFrame(complete, columns=names)


def difference_interval(
    ours: Sequence[float], theirs: Sequence[float], level: float = 0.95, comparisons: int = 1
) -> tuple[float, float]:
    """The confidence interval of the difference of two means.

    Welch, "The generalization of 'Student's' problem when several different population variances are involved",
    Biometrika 34, 1947: t = difference / sqrt(v1 + v2), where v = sd^2 / n, with
    (v1 + v2)^2 / (v1^2 / (n1 - 1) + v2^2 / (n2 - 1)) degrees of freedom (Satterthwaite, Biometrics Bulletin 2, 1946).
    Of several comparisons, all intervals together hold with the probability `level`: Dunn, "Multiple comparisons among
    means", Journal of the American Statistical Association 56, 1961.

    Args:
        ours, theirs: the samples; with fewer than two values in one of them the interval is unbounded.
        level: probability that the interval holds the true difference.
        comparisons: the number of intervals that are to hold together.
    """
    first, second = sample_stats(ours), sample_stats(theirs)
    if first.sd is None or second.sd is None or first.mean is None or second.mean is None:
        return -math.inf, math.inf
    difference = first.mean - second.mean
    v1, v2 = first.sd**2 / first.n, second.sd**2 / second.n
    if v1 + v2 == 0:
        return difference, difference
    share = v1 / (v1 + v2)
    freedom = 1 / (share**2 / (first.n - 1) + (1 - share) ** 2 / (second.n - 1))
    margin = _t_quantile(freedom, 1 - (1 - level) / 2 / comparisons) * math.sqrt(v1 + v2)
    return difference - margin, difference + margin


# --- Of several runs -------------------------------------------------------------------------------------------------

# Agarwal et al., "Deep reinforcement learning at the edge of the statistical precipice", NeurIPS 2021, and its library
# rliable: the interquartile mean, percentile bootstrap over runs, probability of improvement, performance profiles.


def mean(values: Array) -> Array:
    """The mean over the first axis, the runs."""
    return np.mean(values, axis=0)  # type: ignore[no-any-return]


def interquartile_mean(values: Array) -> Array:
    """The mean over the first axis, the runs, without the lowest and the highest quarter of them, rounded down."""
    cut = len(values) // 4
    return np.mean(np.sort(values, axis=0)[cut : len(values) - cut], axis=0)  # type: ignore[no-any-return]


def bootstrap_interval(
    values: Array, statistic: Callable[[Array], Array], level: float = 0.95, seed: int = 0
) -> tuple[Array, Array]:
    """The bounds of a statistic by the percentile bootstrap: of the runs, drawn anew with replacement.

    Args:
        values: (R, ...) of R runs.
        statistic: of (R, ...) over the first axis.
        level: the share of the resamples that lies within.
        seed: from which the draws follow.

    Returns:
        Two arrays of the shape that the statistic has.
    """
    drawn = np.random.default_rng(seed).integers(len(values), size=(RESAMPLES, len(values)))
    found = statistic(np.moveaxis(np.asarray(values)[drawn], 1, 0))
    low, high = np.quantile(found, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return low, high


def probability_of_improvement(
    ours: Sequence[float], theirs: Sequence[float], level: float = 0.95, seed: int = 0
) -> tuple[float, float, float]:
    """The probability that a run of ours is better than one of theirs, where a tie counts half, and its interval.

    It is Mann and Whitney's U over the number of pairs (Annals of Mathematical Statistics 18, 1947); the interval is by
    the percentile bootstrap of both samples.
    """
    better = np.subtract.outer(np.asarray(ours), np.asarray(theirs))
    wins = (better > 0) + 0.5 * (better == 0)
    random, shape = np.random.default_rng(seed), (RESAMPLES, 1)
    rows = random.integers(len(ours), size=(*shape, len(ours)))
    columns = random.integers(len(theirs), size=(*shape, len(theirs)))
    found = wins[np.moveaxis(rows, 1, 2), columns].mean(axis=(1, 2))
    low, high = np.quantile(found, [(1 - level) / 2, (1 + level) / 2])
    return float(wins.mean()), float(low), float(high)


def performance_profile(values: Sequence[float], thresholds: Array) -> Array:
    """The share of runs above each threshold."""
    return (np.asarray(values)[:, None] > thresholds).mean(axis=0)  # type: ignore[no-any-return]
