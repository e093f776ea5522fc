"""A policy bundle: the policies of a training, with spaces, agents and weights, usable without an env."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from gymnasium import spaces
from stable_baselines3.common.base_class import BaseAlgorithm

from marl_sb3.config.ids import file_names
from marl_sb3.learners.actor import RowActor
from marl_sb3.learners.agent_policy import AgentPolicy
from marl_sb3.learners.by_agent import PolicyByAgent
from marl_sb3.learners.deciders import Actions, PredictDecider
from marl_sb3.learners.player import Player
from marl_sb3.learners.sb3.vec_normalize import write_processing
from marl_sb3.learners.sb3.zip_file import write_zip
from marl_sb3.metrics import InfoMetric
from marl_sb3.policies.determinism import Deterministic
from marl_sb3.policies.placement import PolicyRows
from marl_sb3.processing import Processing, process_rows
from marl_sb3.storage.space_data import space_to_plain
from marl_sb3.storage.state import State
from marl_sb3.types import AgentID, PolicyID


class PolicySpaces(NamedTuple):
    """The observation and action space of a policy's agents."""

    observation: spaces.Space[Any]
    action: spaces.Space[Any]


@dataclass(frozen=True)
class PolicyBundle(PolicyByAgent):
    """The policies of a training, ready to act. No env is needed.

    Attributes:
        policies: policy id -> SB3 algorithm.
        policy_of: agent -> policy id.
        spaces: policy id -> observation and action space of the env.
        processing: policy id -> processing; its running statistics do not change.
        checkpoint: name of the checkpoint that the policies were loaded from; None if they were not.
        checkpoint_why: a sentence that says why that one was taken; empty if the latest was asked for, or a number.
        evaluation_deterministic: the default of evaluations; see `MultiAgentAlgorithm`.
        custom_metrics: metrics of evaluations, in addition to those that the env announces. Not saved in checkpoints.
    """

    policies: Mapping[PolicyID, BaseAlgorithm]
    policy_of: Mapping[AgentID, PolicyID]
    spaces: Mapping[PolicyID, PolicySpaces]
    processing: Mapping[PolicyID, Processing]
    checkpoint: str | None = None
    evaluation_deterministic: Deterministic = True
    custom_metrics: Mapping[str, InfoMetric] = field(default_factory=dict)
    checkpoint_why: str = ""

    def agents_of(self, policy_id: PolicyID) -> list[AgentID]:
        """Return the agents that a policy acts for, in the env's order."""
        return [agent for agent, its_policy in self.policy_of.items() if its_policy == policy_id]

    def make_actor(self, rows: PolicyRows, deterministic: bool) -> RowActor[Actions]:
        """Make an actor of a policy for some envs, with its own recurrent state and noise.

        Args:
            rows: the rows of the policy in these envs.
            deterministic: the most likely actions instead of sampled ones.
        """
        algorithm = self.policies[rows.policy_id]
        return RowActor(rows, algorithm, PredictDecider(algorithm, deterministic))

    def make_player(self, rows: PolicyRows, deterministic: bool) -> Player:
        """Make an actor of a policy, with its processing, for envs whose episodes have just begun.

        Args:
            rows: the rows of the policy in these envs.
            deterministic: the most likely actions instead of sampled ones.
        """
        processing, gamma = self.processing[rows.policy_id], self.policies[rows.policy_id].gamma  # type: ignore[attr-defined]
        return Player(self.make_actor(rows, deterministic), process_rows(processing, rows, gamma, learns=False))

    def agent_policies(self, agents: Iterable[AgentID]) -> dict[AgentID, AgentPolicy]:
        """See `PolicyByAgent.agent_policies`."""
        return {agent: self._agent_policy(agent) for agent in agents}

    def _agent_policy(self, agent: AgentID) -> AgentPolicy:
        policy_id = self.policy_of[agent]
        place, its = self.agents_of(policy_id).index(agent), self.spaces[policy_id]
        return AgentPolicy(agent, place, policy_id, self.policies[policy_id], self.processing[policy_id], *its)

    def save_policies(self, folder: str | Path) -> dict[PolicyID, Path]:
        """Save each policy as `folder/<policy id>.zip`, which stock SB3's `load` opens; see `ids.file_names`.

        A policy with processing gets `<policy id>.processing.json` beside it; one with normalisation
        `<policy id>.vecnormalize.pkl`, which SB3's `VecNormalize.load` opens.

        Returns:
            policy id -> file.
        """
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        paths = {policy_id: folder / name for policy_id, name in file_names(list(self.policies), ".zip").items()}
        for policy_id, path in paths.items():
            algorithm = self.policies[policy_id]
            write_zip(algorithm, path)
            write_processing(self.processing[policy_id], algorithm.gamma, path)  # type: ignore[attr-defined]
        return paths

    def spaces_to_plain(self) -> State:
        """Return the spaces as plain data for a checkpoint; None for a space that a checkpoint cannot hold."""
        return {
            policy_id: {"observation": space_to_plain(its.observation), "action": space_to_plain(its.action)}
            for policy_id, its in self.spaces.items()
        }
