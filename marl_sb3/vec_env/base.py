"""What a vectorised multi-agent env is: E envs, A agents, arrays with both axes in front.

Every vectorizer (batched, sync, SuperSuit's) fulfils `MultiAgentVecEnv`;
nothing above this layer sees a single env or an agent dictionary.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from marl_sb3.storage.state import State, StateReader
from marl_sb3.types import AgentID, Array, BoolArray, FloatArray, Observations
from marl_sb3.vec_env.groups import AgentGroup
from marl_sb3.vec_env.observations import map_arrays

if TYPE_CHECKING:
    from marl_sb3.vec_env.sb3_vec_env import FlatVecEnv


class StepInfos(Protocol):
    """The infos of one step of E envs, as the envs gave them."""

    def __getitem__(self, env_index: int) -> Mapping[str, Any]:
        """The info dictionary of one env: by agent id, plus any other key that the env put in."""

    def values(self, agent: AgentID, key: str) -> Array:
        """(E,) float64: `infos[agent][key]` of each env, NaN where it is absent."""


class DictInfos:
    """`StepInfos` over one dictionary per env."""

    def __init__(self, infos: Sequence[Mapping[str, Any]]) -> None:
        self._infos = infos

    def __getitem__(self, env_index: int) -> Mapping[str, Any]:
        return self._infos[env_index]

    def values(self, agent: AgentID, key: str) -> Array:
        """See `StepInfos.values`."""
        return np.array([infos.get(agent, {}).get(key, np.nan) for infos in self._infos], dtype=np.float64)


class FinalObservations(Mapping[tuple[int, int], Any]):
    """{(env index, agent column): the observation that the agent ended on}."""

    def __init__(self, by_place: Mapping[tuple[int, int], Any]) -> None:
        self._by_place = by_place

    def __getitem__(self, place: tuple[int, int]) -> Any:
        return self._by_place[place]

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(self._by_place)

    def __len__(self) -> int:
        return len(self._by_place)

    def stacked(self, wanted: BoolArray) -> Observations:
        """Those of the places that are marked in `wanted`, (E, A), as one batch in the order of `np.argwhere`."""
        chosen = [self[env_index, column] for env_index, column in np.argwhere(wanted).tolist()]
        if isinstance(chosen[0], Mapping):
            return {key: np.stack([observation[key] for observation in chosen]) for key in chosen[0]}
        return np.stack(chosen)


class StackedFinalObservations(FinalObservations):
    """The same from one batch, for envs that have it as arrays.

    Args:
        ended: (E, A) bool; the places there are.
        observations: (E, A, ...); what every agent saw last.
    """

    def __init__(self, ended: BoolArray, observations: Observations) -> None:
        self._observations = observations
        env_indices, columns = np.nonzero(ended)
        super().__init__(dict.fromkeys(zip(env_indices.tolist(), columns.tolist(), strict=True)))

    def __getitem__(self, place: tuple[int, int]) -> Any:
        if place not in self._by_place:
            raise KeyError(place)
        return map_arrays(lambda array: array[place], self._observations)

    def stacked(self, wanted: BoolArray) -> Observations:
        """See `FinalObservations.stacked`."""
        return map_arrays(lambda array: array[wanted], self._observations)


@dataclass(frozen=True)
class VecStep:
    """One step of E envs with A agents.

    Rewards and ends belong to an agent whether or not it acted: one that waits for its turn may be paid, and may end,
    on another agent's move. What an agent is paid before its first action or after its end belongs to nothing and is 0.

    The vec env owns the arrays, and may write the next step into the same ones: they are valid until the next `step`
    or `reset`. Whoever keeps one copies it.

    Attributes:
        observations: per group, (E, A_group, ...). Where an episode is over, the first observation of the next one;
            zeros where the agent does not act next.
        rewards: (E, A) float32.
        terminated: (E, A) bool; True in the one step in which the agent was terminated.
        truncated: (E, A) bool; True in the one step in which the agent was truncated.
        acted: (E, A) bool; the agents that acted in this step.
        to_act: (E, A) bool; the agents that act in the next step.
        episode_done: (E,) bool; the envs whose last agents ended here, and which have been reset.
        final_observations: {(env index, agent column): the observation that the agent ended on}.
        infos: what the envs said in this step.
        reset_infos: {env index: what an env whose episode is over said when it was reset}.
    """

    observations: tuple[Observations, ...]
    rewards: FloatArray
    terminated: BoolArray
    truncated: BoolArray
    acted: BoolArray
    to_act: BoolArray
    episode_done: BoolArray
    final_observations: FinalObservations
    infos: StepInfos
    reset_infos: Mapping[int, Mapping[str, Any]]


class MultiAgentVecEnv(ABC):
    """E envs stepped together. An env resets itself in the step in which the last of its agents ends.

    Attributes:
        num_envs: E.
        agents: all agent ids, in the order of the agent axis.
        groups: the agents by their spaces, in order of first appearance.
        to_act: (E, A) bool; the agents that act in the next step.
        observations: per group, what the latest `reset` or `step` showed; empty before the first.
        metadata: the env's own metadata.
        render_mode: the env's render mode, or None.
    """

    num_envs: int
    agents: tuple[AgentID, ...]
    groups: tuple[AgentGroup, ...]
    to_act: BoolArray
    observations: tuple[Observations, ...] = ()
    metadata: Mapping[str, Any]
    render_mode: str | None

    @abstractmethod
    def seed(self, seed: int) -> None:
        """Start the seeds of all episodes anew at the next `reset`; see `seeding.episode_seed`."""

    @abstractmethod
    def reset(self, options: Sequence[Mapping[str, Any]] | None = None) -> tuple[Observations, ...]:
        """Begin a new episode in every env.

        Args:
            options: what each env's `reset` gets as its options.

        Returns:
            Per group, observations of shape (E, A_group, ...).
        """

    @abstractmethod
    def step(self, actions: Sequence[Array]) -> VecStep:
        """Take one step in every env.

        Args:
            actions: per group, `(E, A_group, *action_space.shape)`. Places of agents that do not act are not read.

        Raises:
            EnvError: an env broke the `ParallelEnv` contract.
        """

    @abstractmethod
    def reset_infos(self) -> Sequence[Mapping[str, Any]]:
        """What each env said at its latest reset."""

    @abstractmethod
    def get_attr(self, name: str, env_indices: Sequence[int]) -> list[Any]:
        """An attribute of each of these envs, wrappers included."""

    @abstractmethod
    def set_attr(self, name: str, value: Any, env_indices: Sequence[int]) -> None:
        """Set an attribute of each of these envs, where it is defined."""

    @abstractmethod
    def env_method(self, name: str, env_indices: Sequence[int], *args: Any, **kwargs: Any) -> list[Any]:
        """Call a method of each of these envs."""

    @abstractmethod
    def env_is_wrapped(self, wrapper_class: type, env_indices: Sequence[int]) -> list[bool]:
        """Whether each of these envs is an instance of, or wrapped in, `wrapper_class`."""

    @abstractmethod
    def close(self) -> None:
        """Close every env. A second call does nothing."""

    @abstractmethod
    def get_state(self) -> State:
        """All that `set_state` needs to go on from here, in the middle of episodes."""

    @abstractmethod
    def set_state(self, state: StateReader) -> Mapping[int, str]:
        """Go on from where `get_state` was called, on envs made in the same way.

        Returns:
            For every env that could not be brought back exactly, why; it has begun its next episode.

        Raises:
            CheckpointError: it is not the state of such envs.
        """

    def as_sb3_vec_env(self) -> FlatVecEnv:
        """A plain SB3 `VecEnv`, one row per agent: row `e * A + a` is agent `a` of env `e`.

        Stock SB3's PPO on it trains as `MultiAgentAlgorithm` with one shared policy does, to the same weights, if every
        agent acts in every step of an episode: bit for bit on PyTorch's path, to floating-point tolerance on the fused
        one. Where agents end at different steps, join late or take turns, the two differ: a `VecEnv` has no idle rows,
        so SB3 also trains on the steps in which an agent does not act.

        Raises:
            ConfigError: the agents' spaces differ.
        """
        from marl_sb3.vec_env.sb3_vec_env import FlatVecEnv

        return FlatVecEnv(self)
