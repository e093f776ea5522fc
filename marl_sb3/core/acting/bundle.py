"""A policy bundle: the policies of a training, with spaces, agents and weights, usable without an env."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stable_baselines3.common.base_class import BaseAlgorithm

from marl_sb3.core.acting.actor import Actor
from marl_sb3.core.acting.by_agent import PolicyByAgent, PolicySpaces
from marl_sb3.core.acting.policy import PredictingPolicy
from marl_sb3.core.mapping import Deterministic, PolicyRows
from marl_sb3.core.metrics import InfoMetric
from marl_sb3.core.processing import Processing, process_rows
from marl_sb3.types import AgentID, PolicyID


@dataclass(frozen=True)
class PolicyBundle(PolicyByAgent):
    """The policies of a training, ready to act. No env is needed."""

    policies: Mapping[PolicyID, BaseAlgorithm]  # policy id -> SB3 algorithm
    policy_of: Mapping[AgentID, PolicyID]  # agent -> policy id
    spaces: Mapping[PolicyID, PolicySpaces]  # policy id -> observation and action space of the env
    processing: Mapping[PolicyID, Processing]  # policy id -> processing; its running statistics do not change
    checkpoint: str | None = None  # name of the checkpoint that the policies were loaded from; None if they were not
    evaluation_deterministic: Deterministic = True  # the default of evaluations; see `MultiAgentAlgorithm`
    # metrics of evaluations, in addition to those that the env announces. Not saved in checkpoints.
    custom_metrics: Mapping[str, InfoMetric] = field(default_factory=dict)
    # a sentence that says why that one was taken; empty if the latest was asked for, or a number
    checkpoint_why: str = ""
    candidates: Mapping[AgentID, Sequence[PolicyID]] = field(default_factory=dict)  # see `PolicyByAgent`

    def make_actor(self, rows: PolicyRows, deterministic: bool, tells: bool = False) -> Actor:
        """Make an actor of a policy, with its own recurrent state and noise, for envs whose episodes have just begun.

        Args:
            rows: the rows of the policy in these envs.
            deterministic: the most likely actions instead of sampled ones.
            tells: see `PredictingPolicy`.
        """
        algorithm: Any = self.policies[rows.policy_id]
        processed = process_rows(self.processing[rows.policy_id], rows, algorithm.gamma, learns=False)
        actor = Actor(rows, PredictingPolicy(algorithm, deterministic, tells), processed)
        actor.begin_rollout()
        return actor
