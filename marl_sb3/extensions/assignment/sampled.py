"""An assignment that draws the policy of each agent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from typing_extensions import override

from marl_sb3.core.config import shown
from marl_sb3.core.state import State, StateReader
from marl_sb3.doors import Assignment
from marl_sb3.errors import ConfigError
from marl_sb3.types import AgentID, PolicyID

if TYPE_CHECKING:
    import numpy as np


class SampledAssignment(Assignment):
    """Draws one of the candidates of each agent in each episode, independently of the other agents.

    Args:
        candidates: agent -> ids of policies; the first one plays in evaluations.
        weights: policy id -> how often it is drawn, relative to the others; policies that are left out have 1.

    Attributes:
        weights: may be changed in a training, and is part of checkpoints.

    Raises:
        ConfigError: `candidates` is no mapping, or a weight is no number from 0 on.
    """

    def __init__(
        self,
        candidates: Mapping[AgentID, Sequence[PolicyID] | PolicyID],
        weights: Mapping[PolicyID, float] | None = None,
    ) -> None:
        if not isinstance(candidates, Mapping):
            words = "a mapping of agents to lists of policies"
            raise ConfigError(
                f"SampledAssignment: candidates is {shown(candidates)}; accepted: {words}", key="policies"
            )
        self._candidates = {a: (own,) if isinstance(own, str) else tuple(own) for a, own in candidates.items()}
        self.weights = dict(weights or {})
        self._require_weights()

    def _require_weights(self) -> None:
        known = list(dict.fromkeys(policy_id for own in self._candidates.values() for policy_id in own))
        for policy_id, weight in self.weights.items():
            if policy_id not in known:
                words = f"weights has policy {shown(policy_id)}; accepted: {', '.join(known)}"
                raise ConfigError(f"SampledAssignment: {words}", key="policies")
            if not isinstance(weight, int | float) or not 0 <= weight < float("inf"):
                words = f"the weight of policy {policy_id!r} is {shown(weight)}; accepted: a number from 0 on"
                raise ConfigError(f"SampledAssignment: {words}", key="policies")

    @override
    def candidates(self, agents: Sequence[AgentID]) -> Mapping[AgentID, Sequence[PolicyID]]:
        unknown = [agent for agent in self._candidates if agent not in agents]
        if unknown:
            words = f"candidates names agent {unknown[0]!r}; the env has {', '.join(agents)}"
            raise ConfigError(f"SampledAssignment: {words}", key="policies")
        return self._candidates

    @override
    def assign(self, env_index: int, episode: int, rng: np.random.Generator) -> Mapping[AgentID, PolicyID]:
        return {agent: self._drawn(agent, policy_ids, rng) for agent, policy_ids in self._candidates.items()}

    def _drawn(self, agent: AgentID, policy_ids: Sequence[PolicyID], rng: np.random.Generator) -> PolicyID:
        weights = [float(self.weights.get(policy_id, 1.0)) for policy_id in policy_ids]
        total = sum(weights)
        if not total:
            words = f"no policy of agent {agent!r} has a weight above 0; its policies: {', '.join(policy_ids)}"
            raise ConfigError(f"SampledAssignment: {words}", key="policies")
        return policy_ids[rng.choice(len(policy_ids), p=[weight / total for weight in weights])]

    @override
    def get_state(self) -> State:
        self._require_weights()
        return {"weights": {policy_id: float(weight) for policy_id, weight in self.weights.items()}}

    @override
    def set_state(self, state: StateReader) -> None:
        saved = state.fields("weights")
        self.weights = {policy_id: saved.number(policy_id, 0.0) for policy_id in saved.names()}
