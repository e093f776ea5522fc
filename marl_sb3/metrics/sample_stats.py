"""Statistics of a sample of episodes: mean, standard deviation, extremes, confidence interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from scipy.special import stdtrit


@dataclass(frozen=True)
class SampleStats:
    """Statistics of a sample; None if there are too few values.

    Attributes:
        n: number of values.
        mean: mean.
        sd: sample standard deviation (divided by n - 1); needs two values.
        min: minimum.
        max: maximum.
        ci95: bounds of the 95 % confidence interval of the mean, by Student's t; needs two values. It assumes a
            normally distributed mean, which is nearly true of 20 episodes and more.
    """

    n: int
    mean: float | None
    sd: float | None
    min: float | None
    max: float | None
    ci95: tuple[float, float] | None


def sample_stats(values: Sequence[float]) -> SampleStats:
    """Compute the statistics of a sample."""
    n = len(values)
    if n == 0:
        return SampleStats(0, None, None, None, None, None)
    mean = math.fsum(values) / n
    if n == 1:
        return SampleStats(1, mean, None, mean, mean, None)
    sd = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (n - 1))
    margin = float(stdtrit(n - 1, 0.975)) * sd / math.sqrt(n)
    return SampleStats(n, mean, sd, min(values), max(values), (mean - margin, mean + margin))
