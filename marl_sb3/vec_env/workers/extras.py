"""The parts of a step that are not in the shared arrays: infos, observations at an end, masks that are new."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from marl_sb3.types import AgentID, Array, BoolArray
from marl_sb3.vec_env.step import FinalObservations, StepInfos
from marl_sb3.vec_env.workers.plan import SharePlan
from marl_sb3.vec_env.workers.worker_log import pass_on


@dataclass(frozen=True)
class Extras:
    """The part of a step that does not fit into arrays; rows are counted within the share.

    Attributes:
        infos: pickled infos; None: empty ones, one for each agent that acted.
        final_observations: (row, column) -> observation.
        reset_infos: row -> infos of its reset.
        masked: group -> whether an agent that acts has a mask, for groups of which this is not known yet.
        messages: log records and warnings: see `worker_log`.
    """

    infos: bytes | None = None
    final_observations: Mapping[tuple[int, int], Any] | None = None
    reset_infos: Mapping[int, Mapping[str, Any]] | None = None
    masked: Mapping[int, bool] | None = None
    messages: Sequence[Any] = ()


NO_EXTRAS = Extras()


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


class JoinedExtras:
    """The extras of all shares.

    Args:
        shares: of each worker.
        plans: of the shares.
    """

    def __init__(self, shares: Sequence[Extras], plans: Sequence[SharePlan]) -> None:
        self._shares = shares
        self._plans = plans
        self._starts = [plan.first_index for plan in plans]

    @classmethod
    def unpickled(cls, payloads: Sequence[bytes], plans: Sequence[SharePlan]) -> JoinedExtras:
        """Return those in the answers to a step; an answer without a payload has none."""
        return cls([pickle.loads(payload) if payload else NO_EXTRAS for payload in payloads], plans)

    def infos(self, acted: BoolArray, agents: Sequence[AgentID]) -> StepInfos:
        """Return the infos of all envs.

        Args:
            acted: (E, A) bool.
            agents: in the order of the agent axis.
        """
        shares: list[StepInfos] = [
            SilentInfos(acted[plan.rows], agents) if share.infos is None else PickledInfos(share.infos)
            for share, plan in zip(self._shares, self._plans, strict=True)
        ]
        return shares[0] if len(shares) == 1 else JoinedInfos(shares, self._starts)

    def final_observations(self) -> FinalObservations:
        """Return the observations on which agents ended."""
        return FinalObservations(
            {
                (start + row, column): seen
                for share, start in zip(self._shares, self._starts, strict=True)
                for (row, column), seen in (share.final_observations or {}).items()
            }
        )

    def reset_infos(self) -> dict[int, Mapping[str, Any]]:
        """Return env index -> infos of its reset."""
        return {
            start + row: infos
            for share, start in zip(self._shares, self._starts, strict=True)
            for row, infos in (share.reset_infos or {}).items()
        }

    def found_masks(self) -> dict[int, bool]:
        """Return group -> whether an agent of any share has a mask, for groups of which this is not known yet."""
        found: dict[int, bool] = {}
        for share in self._shares:
            for number, has_masks in (share.masked or {}).items():
                found[number] = found.get(number, False) or has_masks
        return found

    def pass_on_messages(self) -> None:
        """Log what the workers have logged."""
        for share in self._shares:
            pass_on(share.messages)
