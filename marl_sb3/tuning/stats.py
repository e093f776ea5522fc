"""Statistics that compare the returns of two settings over several seeds: is the winner better than the preset?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtr, stdtrit

from marl_sb3.errors import ConfigError
from marl_sb3.metrics.sample_stats import SampleStats, sample_stats
from marl_sb3.types import Array

BETTER, WORSE, UNKNOWN = "better", "worse", "undecided"
_UNBOUNDED = (-math.inf, math.inf)  # an interval that cannot be estimated from one seed

Interval = tuple[float, float]


@dataclass(frozen=True)
class Comparison:
    """The returns of the winner compared with those of the preset; more is better.

    All intervals are 95 % confidence intervals. With one seed, intervals that need a standard deviation are unbounded.

    Attributes:
        winner_ci: interval of that mean, by Student's t.
        preset_ci: interval of that mean, by Student's t.
        difference: the winner's mean minus the preset's.
        difference_ci: interval of the difference, by Welch's t, which allows for unequal variances.
        p_value: two-sided p-value of the difference, by Welch's t; 1 with one seed.
        improvement: probability that a training with the winner's settings returns more than one with the preset's.
        improvement_ci: interval of that probability, by the bootstrap; see `_improvement_ci`.
    """

    winner_mean: float
    winner_ci: Interval
    preset_mean: float
    preset_ci: Interval
    difference: float
    difference_ci: Interval
    p_value: float
    improvement: float
    improvement_ci: Interval

    def verdict(self) -> str:
        """`better` or `worse` if the interval of the difference excludes 0, else `undecided`."""
        low, high = self.difference_ci
        return BETTER if low > 0 else WORSE if high < 0 else UNKNOWN


def compare(
    winner: Sequence[float], preset: Sequence[float], n_resamples: int = 2000, bootstrap_seed: int = 0
) -> Comparison:
    """Compare two samples of returns, one return per seed.

    The seeds must differ from those of the search: the return for which a trial was selected is biased upwards.

    Args:
        bootstrap_seed: seed of the bootstrap; equal returns give equal intervals.

    Raises:
        ConfigError: a sample is empty or has a return that is not finite.
    """
    ours, theirs = _sample("the winner", winner), _sample("the preset", preset)
    difference_ci, p_value = welch(ours, theirs)
    return Comparison(
        winner_mean=_mean(ours),
        winner_ci=ours.ci95 or _UNBOUNDED,
        preset_mean=_mean(theirs),
        preset_ci=theirs.ci95 or _UNBOUNDED,
        difference=_mean(ours) - _mean(theirs),
        difference_ci=difference_ci,
        p_value=p_value,
        improvement=probability_of_improvement(winner, preset),
        improvement_ci=_improvement_ci(winner, preset, n_resamples, bootstrap_seed),
    )


def _sample(name: str, returns: Sequence[float]) -> SampleStats:
    if not len(returns) or not all(map(math.isfinite, returns)):
        raise ConfigError(f"the returns of {name} are {list(returns)}; accepted: finite numbers, at least one")
    return sample_stats(returns)


def _mean(sample: SampleStats) -> float:
    assert sample.mean is not None, "samples are not empty"
    return sample.mean


def welch(ours: SampleStats, theirs: SampleStats) -> tuple[Interval, float]:
    """The 95 % confidence interval of the difference of two means, and its two-sided p-value.

    Welch, "The generalization of 'Student's' problem when several different population variances are involved",
    Biometrika 34, 1947: t = difference / sqrt(v1 + v2), where v = sd^2 / n, with
    (v1 + v2)^2 / (v1^2 / (n1 - 1) + v2^2 / (n2 - 1)) degrees of freedom (Satterthwaite, Biometrics Bulletin 2, 1946).
    If both standard deviations are 0, the interval has no width, and the p-value is 0 or 1.
    """
    if ours.sd is None or theirs.sd is None:
        return _UNBOUNDED, 1.0
    difference = _mean(ours) - _mean(theirs)
    v1, v2 = ours.sd**2 / ours.n, theirs.sd**2 / theirs.n
    if v1 + v2 == 0:
        return (difference, difference), float(difference == 0)
    share = v1 / (v1 + v2)
    freedom = 1 / (share**2 / (ours.n - 1) + (1 - share) ** 2 / (theirs.n - 1))
    error = math.sqrt(v1 + v2)
    margin = float(stdtrit(freedom, 0.975)) * error
    return (difference - margin, difference + margin), 2 * float(stdtr(freedom, -abs(difference) / error))


def probability_of_improvement(winner: Sequence[float], preset: Sequence[float]) -> float:
    """P(X > Y) over all pairs of a winner's and a preset's return; a tie counts as one half.

    It is the Mann-Whitney U statistic over n * m, as in Agarwal et al., "Deep Reinforcement Learning at the Edge of
    the Statistical Precipice", NeurIPS 2021, here for one task.
    """
    return float(_wins(winner, preset).mean())


def _wins(winner: Sequence[float], preset: Sequence[float]) -> Array:
    """(n, m) float64: 1 where the winner returns more, 0.5 at a tie, 0 where it returns less."""
    x, y = np.asarray(winner, dtype=np.float64), np.asarray(preset, dtype=np.float64)
    return 0.5 + 0.5 * np.sign(x[:, None] - y[None, :])


def _improvement_ci(winner: Sequence[float], preset: Sequence[float], n_resamples: int, seed: int) -> Interval:
    """Percentile bootstrap: the seeds of each side are resampled with replacement (Agarwal et al. 2021).

    If every return of one side exceeds all of the other, the bootstrap's interval has no width, however few the seeds.
    The interval is then that of min(n, m) independent pairs, all won: from 0.025^(1 / min(n, m)) to 1 (Clopper and
    Pearson, "The use of confidence or fiducial limits illustrated in the case of the binomial", Biometrika 26, 1934).
    """
    wins = _wins(winner, preset)
    n, m = wins.shape
    if n < 2 or m < 2:
        return 0.0, 1.0
    all_won: float = 0.025 ** (1 / min(n, m))
    if (wins == 1).all():
        return all_won, 1.0
    if (wins == 0).all():
        return 0.0, 1 - all_won
    rng = np.random.default_rng(seed)
    # With counts of how often each seed is drawn, the mean over a resample's pairs is a matrix product.
    ours, theirs = (rng.multinomial(size, np.full(size, 1 / size), n_resamples) for size in (n, m))
    low, high = np.quantile(((ours @ wins) * theirs).sum(axis=1) / (n * m), (0.025, 0.975))
    return float(low), float(high)
