"""What a worker is told when it starts, and what it tells about its envs."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gymnasium import spaces

from marl_sb3.envs.registry import EnvFactory
from marl_sb3.types import AgentID, Array, Observations
from marl_sb3.vec_env.interface import MultiAgentVecEnv
from marl_sb3.vec_env.slot_states import SlotState
from marl_sb3.vec_env.step import ActionMasks
from marl_sb3.vec_env.workers.worker_log import log_levels

_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")


@dataclass(frozen=True)
class SharePlan:
    """A share of the envs.

    Attributes:
        factory: makes the envs.
        env_kwargs: arguments of the factory.
        first_index: index of the first env of the share.
        num_envs: number of envs of the share.
        seed: the run seed.
        batched: whether the share is stepped by a `BatchedEnv`.
        worker: index of its worker.
        n_workers: number of workers.
    """

    factory: EnvFactory
    env_kwargs: Mapping[str, Any]
    first_index: int
    num_envs: int
    seed: int
    batched: bool
    worker: int = 0
    n_workers: int = 1

    @property
    def indices(self) -> range:
        """The indices of the envs."""
        return range(self.first_index, self.first_index + self.num_envs)

    @property
    def rows(self) -> slice:
        """The rows of the envs in arrays of all envs."""
        return slice(self.indices.start, self.indices.stop)

    def rows_of(self, env_indices: Sequence[int]) -> list[int]:
        """Return the rows, within the share, of those envs that belong to it."""
        return [index - self.first_index for index in env_indices if index in self.indices]

    def envs_text(self) -> str:
        """The envs, for messages."""
        first, last = self.indices[0], self.indices[-1]
        return f"env {first}" if first == last else f"envs {first} to {last}"

    def of_one(self, env_index: int) -> SharePlan:
        """Return the plan of one env of the share."""
        return replace(self, first_index=env_index, num_envs=1)


@dataclass(frozen=True)
class Surroundings:
    """What code in the main process finds around it, and has to find in a worker, too."""

    folder: str
    search_path: Sequence[str]
    environment: Mapping[str, str]
    log_levels: Mapping[str, int]

    @classmethod
    def here(cls) -> Surroundings:
        """Return those of this process; libraries start one thread in a worker, if the user has not set another number.

        The workers share the cores.
        """
        environment = {**dict.fromkeys(_THREADS, "1"), **os.environ}
        return cls(os.getcwd(), list(sys.path), environment, log_levels())

    def enter(self) -> None:
        """Give them to this process."""
        os.chdir(self.folder)
        sys.path[:] = self.search_path
        for name in set(os.environ) - set(self.environment):
            del os.environ[name]
        os.environ.update(self.environment)
        for name, level in self.log_levels.items():
            logging.getLogger(name).setLevel(level)


@dataclass(frozen=True)
class EnvFacts:
    """What a vec env is: the part that a worker tells the main process.

    Attributes:
        possible_agents: all agent ids.
        observation_spaces: agent -> space.
        action_spaces: agent -> space.
        metadata: the env's own metadata.
        render_mode: the env's render mode, or None.
    """

    possible_agents: Sequence[AgentID]
    observation_spaces: Mapping[AgentID, spaces.Space[Any]]
    action_spaces: Mapping[AgentID, spaces.Space[Any]]
    metadata: Mapping[str, Any]
    render_mode: str | None

    @classmethod
    def of(cls, env: MultiAgentVecEnv) -> EnvFacts:
        """Return those of a vec env."""
        groups = {agent: group for group in env.groups for agent in group.agents}
        return cls(
            list(env.agents),
            {agent: groups[agent].observation_space for agent in env.agents},
            {agent: groups[agent].action_space for agent in env.agents},
            env.metadata,
            env.render_mode,
        )

    def observation_space(self, agent: AgentID) -> spaces.Space[Any]:
        """As `ParallelEnv.observation_space`."""
        return self.observation_spaces[agent]

    def action_space(self, agent: AgentID) -> spaces.Space[Any]:
        """As `ParallelEnv.action_space`."""
        return self.action_spaces[agent]


@dataclass(frozen=True)
class SeparateState:
    """The state of a share of separate envs.

    Attributes:
        slots: of each env.
        action_masks: per group, (share, A_group, n) bool, or None.
    """

    slots: Sequence[SlotState]
    action_masks: ActionMasks


ShareState = SeparateState | Mapping[str, Any]  # a mapping: of a batch, see `BatchedVecEnv.get_state`


@dataclass(frozen=True)
class Shown:
    """What the agents of a share are shown: by it, a share that was brought back is compared with the lost one.

    Attributes:
        to_act: (share, A) bool.
        observations: per group, (share, A_group, ...).
        episodes: (share,) index of the running episode.
        masked: group -> whether it has masks, for the groups of which this is known.
    """

    to_act: Array
    observations: Sequence[Observations]
    episodes: Array
    masked: Mapping[int, bool]


Event = tuple[str, tuple[Any, ...]]  # what happened to the envs of a share: a method of `ShareServer`, its arguments
