"""What a worker has to know of its envs, and what it says about them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from gymnasium import spaces

from marl_sb3.config.values import counted
from marl_sb3.envs.registry import EnvFactory, batched_factory
from marl_sb3.errors import ConfigError
from marl_sb3.types import AgentID, Array, Observations
from marl_sb3.vec_env.interface import MultiAgentVecEnv
from marl_sb3.vec_env.slot_states import SlotState
from marl_sb3.vec_env.step import ActionMasks


@dataclass(frozen=True)
class WorkerSpec:
    """The envs of a worker.

    Attributes:
        factory: makes the envs.
        env_kwargs: arguments of the factory.
        first_index: index of the first env of the worker.
        num_envs: number of envs of the worker.
        seed: the run seed.
        batched: whether the worker steps its envs as one `BatchedEnv`.
        worker: index of the worker.
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

    @property
    def name(self) -> str:
        """The worker and its envs, for messages."""
        first, last = self.indices[0], self.indices[-1]
        return f"worker {self.worker} ({f'env {first}' if first == last else f'envs {first} to {last}'})"

    def rows_of(self, env_indices: Sequence[int]) -> list[int]:
        """Return the rows, within the worker's arrays, of those envs that belong to it."""
        return [index - self.first_index for index in env_indices if index in self.indices]

    def of_one(self, env_index: int) -> WorkerSpec:
        """Return the spec of one env of the worker."""
        return replace(self, first_index=env_index, num_envs=1)

    def divided(self, n_workers: int) -> list[WorkerSpec]:
        """Divide the envs among workers; the first workers get one more where the envs do not divide equally.

        Raises:
            ConfigError: there are more workers than envs.
        """
        if n_workers > self.num_envs:
            raise ConfigError(
                f"n_workers is {n_workers}, but n_envs is {self.num_envs}; accepted: at most "
                f"{counted(self.num_envs, 'worker')}, or auto",
                key="n_workers",
            )
        firsts = [-(-number * self.num_envs // n_workers) for number in range(n_workers + 1)]
        return [
            replace(self, first_index=first, num_envs=last - first, worker=worker, n_workers=n_workers)
            for worker, (first, last) in enumerate(pairwise(firsts))
        ]


# --- Settings --------------------------------------------------------------------------------------------------------

_POLLING_S = 5e-4  # longer than most policies take to choose actions


def workers_for(n_workers: int | str, n_envs: int) -> int:
    """Return the number of workers for a setting: `auto` is one for each core, but no more than envs."""
    if n_workers != "auto":
        return int(n_workers)
    return min(_cores(), n_envs)


def polling_s(n_workers: int) -> float:
    """Return how long a worker and the main process poll for a message; 0 if they have no core each."""
    return _POLLING_S if n_workers < _cores() else 0.0


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def makes_batches(factory: EnvFactory, vectorizer: str) -> bool:
    """Whether workers step their envs as batches.

    Raises:
        ConfigError: the vectorizer is not for workers, or the env has no batched version.
    """
    can = batched_factory(factory) is not None
    if vectorizer == "batched" and not can:
        raise ConfigError("the env has no batched version (`make_batched`); use the sync vectorizer", key="vectorizer")
    if vectorizer not in ("auto", "batched", "sync"):
        raise ConfigError(
            f"vectorizer is {vectorizer!r}, which has no workers; accepted with n_workers: auto, batched or sync",
            key="vectorizer",
        )
    return can and vectorizer != "sync"


# --- What a worker says ----------------------------------------------------------------------------------------------


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
    """The state of a worker's separate envs.

    Attributes:
        slots: of each env.
        action_masks: per group, (envs of the worker, A_group, n) bool, or None.
    """

    slots: Sequence[SlotState]
    action_masks: ActionMasks


WorkerState = SeparateState | Mapping[str, Any]  # a mapping: of a batch, see `BatchedVecEnv.get_state`


@dataclass(frozen=True)
class Shown:
    """What the agents of a worker were shown last: the envs in a new worker are compared with it.

    Attributes:
        to_act: (envs of the worker, A) bool.
        observations: per group, (envs of the worker, A_group, ...).
        episodes: (envs of the worker,) index of the running episode.
        masked: group -> whether it has masks, for the groups of which this is known.
    """

    to_act: Array
    observations: Sequence[Observations]
    episodes: Array
    masked: Mapping[int, bool]


Event = tuple[str, tuple[Any, ...]]  # what happened to the envs of a worker: a method of `EnvServer`, its arguments
