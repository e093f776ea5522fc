"""Evaluations: policies play complete episodes in separate envs, without changing the training."""

from __future__ import annotations

from marl_sb3.evaluation.plan import EvaluationPlan, evaluation_seed
from marl_sb3.evaluation.play import (
    Evaluation,
    episodes_of_env,
    evaluate_policies,
    metric_names,
    play_episodes,
    preserve_training_state,
    require_same_agents,
)

__all__ = [
    "Evaluation",
    "EvaluationPlan",
    "episodes_of_env",
    "evaluate_policies",
    "evaluation_seed",
    "metric_names",
    "play_episodes",
    "preserve_training_state",
    "require_same_agents",
]
