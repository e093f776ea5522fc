"""The infos of a step that workers return: those that are not empty are unpickled when they are read."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from marl_sb3.types import AgentID, Array, BoolArray
from marl_sb3.vec_env.step import StepInfos


class SilentInfos:
    """Infos that say nothing: an empty dictionary for each agent that acted.

    Args:
        acted: (E, A) bool.
        agents: in the order of the agent axis.
    """

    def __init__(self, acted: BoolArray, agents: Sequence[AgentID]) -> None:
        self._acted = acted
        self._agents = agents

    def __getitem__(self, env_index: int) -> dict[AgentID, dict[str, Any]]:
        return {agent: {} for agent, did in zip(self._agents, self._acted[env_index].tolist(), strict=True) if did}

    def values(self, agent: AgentID, key: str) -> Array:
        """See `StepInfos.values`."""
        return np.full(len(self._acted), np.nan)


class PickledInfos:
    """The infos of a share of the envs, as a worker has pickled them."""

    def __init__(self, pickled: bytes) -> None:
        self._pickled = pickled
        self._infos: StepInfos | None = None

    def _unpickled(self) -> StepInfos:
        if self._infos is None:
            self._infos = pickle.loads(self._pickled)
        assert self._infos is not None
        return self._infos

    def __getitem__(self, env_index: int) -> Mapping[str, Any]:
        return self._unpickled()[env_index]

    def values(self, agent: AgentID, key: str) -> Array:
        """See `StepInfos.values`."""
        return self._unpickled().values(agent, key)


class JoinedInfos:
    """The infos of all shares, one after the other.

    Args:
        shares: of each worker.
        starts: index of the first env of each share.
    """

    def __init__(self, shares: Sequence[StepInfos], starts: Sequence[int]) -> None:
        self._shares = shares
        self._starts = starts

    def __getitem__(self, env_index: int) -> Mapping[str, Any]:
        number = int(np.searchsorted(self._starts, env_index, side="right")) - 1
        return self._shares[number][env_index - self._starts[number]]

    def values(self, agent: AgentID, key: str) -> Array:
        """See `StepInfos.values`."""
        return np.concatenate([share.values(agent, key) for share in self._shares])
