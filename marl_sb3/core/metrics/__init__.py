"""Metrics of finished episodes, and mean, SD and confidence interval of samples.

A metric has the same name everywhere: its path in the nested result, joined with `/`.
"""

from __future__ import annotations

from marl_sb3.core.metrics.episodes import Episode, EpisodeTracker, InfoMetric, info_metrics
from marl_sb3.core.metrics.names import Result, finite_or_none, flatten, require_metric
from marl_sb3.core.metrics.running_episode import LatestStep, RunningEpisode

__all__ = [
    "Episode",
    "EpisodeTracker",
    "InfoMetric",
    "LatestStep",
    "Result",
    "RunningEpisode",
    "finite_or_none",
    "flatten",
    "info_metrics",
    "require_metric",
]
