"""The interface of a batched env: E envs of one kind as arrays, instead of E objects stepped one by one.

A `ParallelEnv` class brings its batched twin by a class method `make_batched(num_envs, **env_kwargs)`; `make_vec_env`
then uses the twin by itself. The two must agree exactly: same seeds and actions, same everything.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gymnasium import spaces

from marl_sb3.storage.state import State, StateReader
from marl_sb3.types import AgentID, Array, BoolArray, Observations


@dataclass(frozen=True)
class BatchedStep:
    """What a step of E envs brought, before any of them is reset. A = number of agents.

    Attributes:
        rewards: (E, A) numbers.
        terminated: (E, A) bool.
        truncated: (E, A) bool.
        infos: agent -> key -> (E,) values.
    """

    rewards: Array
    terminated: BoolArray
    truncated: BoolArray
    infos: Mapping[AgentID, Mapping[str, Array]]


class BatchedEnv(ABC):
    """E envs whose agents all have the same spaces and begin their episodes together.

    Attributes:
        num_envs: E.
        possible_agents: in the order of the agent axis.
        metadata: as that of the `ParallelEnv`.
        render_mode: as that of the `ParallelEnv`.
        observation_space: of every agent.
        action_space: of every agent.
    """

    num_envs: int
    possible_agents: Sequence[AgentID]
    metadata: Mapping[str, Any]
    render_mode: str | None
    observation_space: spaces.Space[Any]
    action_space: spaces.Space[Any]

    @abstractmethod
    def reset(self, env_indices: Sequence[int], seeds: Sequence[int]) -> None:
        """Begin an episode in these envs, each as the `ParallelEnv` does in `reset(seed=...)`."""

    @abstractmethod
    def step(self, actions: Array) -> BatchedStep:
        """Step every env.

        Args:
            actions: `(E, A, *action_space.shape)`. Those of agents that have ended are filler.

        Raises:
            EnvError: an action is not accepted.
        """

    @abstractmethod
    def observations(self) -> Observations:
        """(E, A, ...): what every agent sees now. New arrays: the caller keeps them."""

    def action_masks(self) -> BoolArray | None:
        """(E, A, n) bool: the actions that every agent may take now, laid out as in `VecStep.action_masks`.

        None at the first reset: the envs have no masks, and are not asked again.
        """
        return None

    def get_state(self) -> State | None:
        """All that `set_state` needs to go on from here: a tree of plain data and arrays.

        None: the envs cannot be put back, so that a resumed run begins new episodes, and says so.
        """
        return None

    def set_state(self, state: StateReader) -> None:
        """Go on from where `get_state` was called.

        Raises:
            CheckpointError: it is not the state of such envs. It may come from a stranger: check all of it first.
        """
        raise NotImplementedError(f"{type(self).__name__} cannot be put back")

    def render(self, env_index: int) -> Any:
        """What `ParallelEnv.render` returns for one of the envs."""
        raise NotImplementedError(f"{type(self).__name__} does not render")

    def close(self) -> None:  # noqa: B027 - most envs hold nothing
        """Release what the envs hold."""
