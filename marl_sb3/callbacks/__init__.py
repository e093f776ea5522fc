"""Callbacks: the only hooks into a training run. Each is an SB3 `BaseCallback`."""

from __future__ import annotations

from marl_sb3.callbacks.checkpoint import CheckpointCallback
from marl_sb3.callbacks.curriculum import CurriculumCallback
from marl_sb3.callbacks.evaluation import EvaluationCallback
from marl_sb3.callbacks.metrics import AgentMetricsCallback, RewardHistogramCallback
from marl_sb3.callbacks.recording import RecordEpisodes
from marl_sb3.callbacks.stop import StopAfterSteps, StopOnMetric, StopOnSignal
from marl_sb3.core.training.algorithm import MultiAgentCallback

__all__ = [
    "AgentMetricsCallback",
    "CheckpointCallback",
    "CurriculumCallback",
    "EvaluationCallback",
    "MultiAgentCallback",
    "RecordEpisodes",
    "RewardHistogramCallback",
    "StopAfterSteps",
    "StopOnMetric",
    "StopOnSignal",
]
