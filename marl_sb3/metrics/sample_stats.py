"""How the values of several episodes spread: what a mean alone does not say."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from scipy.special import stdtrit


@dataclass(frozen=True)
class SampleStats:
    """How the values of episodes spread; None where there are too few of them.

    Attributes:
        n: how many values.
        mean: their mean.
        sd: standard deviation of the sample (divided by n - 1); from two values on.
        min: the least.
        max: the greatest.
        ci95: bounds of the 95 % confidence interval of the mean, by Student's t; from two values on. It takes the mean
            for normally distributed, which it nearly is for 20 episodes and more.
    """

    n: int
    mean: float | None
    sd: float | None
    min: float | None
    max: float | None
    ci95: tuple[float, float] | None


def sample_stats(values: Sequence[float]) -> SampleStats:
    """The figures of a sample."""
    n = len(values)
    if n == 0:
        return SampleStats(0, None, None, None, None, None)
    mean = math.fsum(values) / n
    if n == 1:
        return SampleStats(1, mean, None, mean, mean, None)
    sd = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (n - 1))
    margin = float(stdtrit(n - 1, 0.975)) * sd / math.sqrt(n)
    return SampleStats(n, mean, sd, min(values), max(values), (mean - margin, mean + margin))
