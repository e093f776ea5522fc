"""Callbacks: the only hooks into a running training. Each is an SB3 `BaseCallback` in its own file."""

from __future__ import annotations

from marl_sb3.callbacks.agent_metrics import AgentMetricsCallback
from marl_sb3.callbacks.checkpoint import CheckpointCallback
from marl_sb3.callbacks.evaluation import EvaluationCallback
from marl_sb3.callbacks.interrupt import StopOnSignal
from marl_sb3.callbacks.reward_histograms import RewardHistogramCallback
from marl_sb3.callbacks.stop import StopOnMetric
from marl_sb3.training.callback import MultiAgentCallback

__all__ = [
    "AgentMetricsCallback",
    "CheckpointCallback",
    "EvaluationCallback",
    "MultiAgentCallback",
    "RewardHistogramCallback",
    "StopOnMetric",
    "StopOnSignal",
]
