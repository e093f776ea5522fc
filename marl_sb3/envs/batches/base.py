"""What adapters of other libraries' batches share: arrays by agents with the same spaces, and factories for envs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv
from typing_extensions import override

from marl_sb3.core.envs.batched import BatchedEnv
from marl_sb3.core.envs.converted import MASK
from marl_sb3.core.envs.registry import EnvFactory
from marl_sb3.core.vec_env.observations import agent_groups, map_arrays
from marl_sb3.envs.drawn import FixedSpaces
from marl_sb3.errors import ConfigError
from marl_sb3.types import AgentID, Array, BoolArray, Observations
from marl_sb3.wrappers.observations import policy_actions

MakeBatch = Callable[..., "AdaptedBatch"]  # (num_envs, **env_kwargs)


class AdaptedBatch(BatchedEnv):
    """A batch of another library's envs, whose observations and actions are arranged by agents with the same spaces.

    Args:
        num_envs: E.
        agent_spaces: the observation and the action space of each agent, in the order of the agents.
        metadata: of the envs.
        render_mode: of the envs.
    """

    def __init__(
        self,
        num_envs: int,
        agent_spaces: Mapping[AgentID, tuple[spaces.Space[Any], spaces.Space[Any]]],
        metadata: Mapping[str, Any],
        render_mode: str | None = None,
    ) -> None:
        self.num_envs, self.possible_agents = num_envs, list(agent_spaces)
        self.metadata, self.render_mode = metadata, render_mode
        self._spaces = dict(agent_spaces)
        self.observation_space, self.action_space = self._spaces[self.possible_agents[0]]
        policies = {agent: (seen, policy_actions(done)) for agent, (seen, done) in self._spaces.items()}
        self.groups = [group.agents for group in agent_groups(policies)]

    @override
    def spaces_of(self, agent: AgentID) -> tuple[spaces.Space[Any], spaces.Space[Any]]:
        return self._spaces[agent]

    def seen_by_group(self, of_agents: Mapping[AgentID, Any]) -> Any:
        """Stack the observations of agents, (E, ...), as a `BatchedEnv` returns them: (E, A_group, ...) of each group.

        They get the dtypes of the spaces; libraries count choices in 32 bits.
        """
        stacked = [_stacked([of_agents[agent] for agent in own], self._spaces[own[0]][0]) for own in self.groups]
        return tuple(stacked) if len(stacked) > 1 else stacked[0]

    def masks_by_group(self, of_agents: Mapping[AgentID, Any]) -> Any:
        """Stack the action masks of agents, (E, n), in the same way."""
        masks = [np.stack([np.asarray(of_agents[agent], np.bool_) for agent in own], axis=1) for own in self.groups]
        return tuple(masks) if len(masks) > 1 else masks[0]

    def by_agent(self, actions: Any) -> dict[AgentID, Array]:
        """Take the actions of a step apart: agent -> (E, ...)."""
        of_groups = actions if len(self.groups) > 1 else [actions]
        return {
            agent: own[:, column]
            for group, own in zip(self.groups, of_groups, strict=True)
            for column, agent in enumerate(group)
        }


class OneOfBatch(FixedSpaces, ParallelEnv):  # type: ignore[misc]  # PettingZoo ships no types.
    """A single env: a batch of one.

    Args:
        batch: it has one env.
    """

    def __init__(self, batch: AdaptedBatch) -> None:
        self.batch, self.metadata, self.render_mode = batch, dict(batch.metadata), batch.render_mode
        self.possible_agents, self.agents = list(batch.possible_agents), list[AgentID]()
        self.observation_spaces = {agent: batch.spaces_of(agent)[0] for agent in self.possible_agents}
        self.action_spaces = {agent: batch.spaces_of(agent)[1] for agent in self.possible_agents}
        # In the place of the actions of agents that have ended, which are not read.
        self._unread = {agent: space.sample() for agent, space in self.action_spaces.items()}
        if batch.env_states() is not None:
            self.state = lambda: batch.env_states()[0]  # type: ignore[index]

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[AgentID, Any], dict[AgentID, Any]]:
        """Begin an episode; without a seed, of one from the operating system's entropy."""
        seed = int(np.random.SeedSequence().generate_state(1)[0] >> 1) if seed is None else seed
        self.batch.reset([0], [seed], *([] if not options else [[options]]))
        self.agents = list(self.possible_agents)
        return self._of(self.agents, self.batch.observations()), self._infos(self.agents, {})

    def step(self, actions: Mapping[AgentID, Any]) -> tuple[dict[AgentID, Any], ...]:
        """Take a step with the actions of the agents that have not ended."""
        acting = list(self.agents)
        given = [
            np.stack([np.asarray(actions.get(agent, self._unread[agent])) for agent in group])[None]
            for group in self.batch.groups
        ]
        step = self.batch.step(given if len(given) > 1 else given[0])  # type: ignore[arg-type]
        columns = {agent: column for column, agent in enumerate(self.possible_agents)}
        rewards, terminated, truncated = (
            {agent: array[0, columns[agent]].item() for agent in acting}
            for array in (step.rewards, step.terminated, step.truncated)
        )
        self.agents = [agent for agent in acting if not (terminated[agent] or truncated[agent])]
        seen = self._of(acting, self.batch.observations())
        return seen, rewards, terminated, truncated, self._infos(acting, step.infos)

    def _of(self, agents: Sequence[AgentID], grouped: Any) -> dict[AgentID, Any]:
        """Take what a batch returns for its groups apart: agent -> its array of the only env."""
        of_groups = grouped if len(self.batch.groups) > 1 else [grouped]
        return {
            agent: own if own is None else map_arrays(lambda array, at=column: array[0, at], own)  # type: ignore[misc]
            for group, own in zip(self.batch.groups, of_groups, strict=True)
            for column, agent in enumerate(group)
            if agent in agents
        }

    def _infos(self, agents: Sequence[AgentID], given: Mapping[AgentID, Mapping[str, Array]]) -> dict[AgentID, Any]:
        infos = {agent: {key: array[0] for key, array in given.get(agent, {}).items()} for agent in agents}
        masks = self.batch.action_masks()
        for agent, mask in ({} if masks is None else self._of(agents, masks)).items():
            infos[agent].update({} if mask is None else {MASK: mask})
        return infos

    def render(self) -> Any:
        """Return what the env renders."""
        return self.batch.render(0)

    def close(self) -> None:
        """Close the batch."""
        self.batch.close()


def batch_factory(make: MakeBatch, name: str) -> EnvFactory:
    """Return a factory of envs that come as batches, for `make_vec_env`, `train` and `register_env`.

    Args:
        make: `make(num_envs, **env_kwargs)` returns a batch.
        name: of the envs, for messages.
    """

    def factory(**env_kwargs: Any) -> OneOfBatch:
        return OneOfBatch(make(1, **env_kwargs))

    factory.__qualname__ = name
    vars(factory).update(make_batched=make, found_as=name)
    return factory


def _stacked(arrays: Sequence[Any], space: Any) -> Any:
    if isinstance(space, spaces.Dict):
        return {key: _stacked([array[key] for array in arrays], own) for key, own in space.spaces.items()}
    return np.stack(arrays, axis=1).astype(space.dtype, copy=False)


def gymnasium_space(space: Any) -> spaces.Space[Any]:
    """Return Gymnasium's space that is like one of another library, by the name of its class.

    Raises:
        ConfigError: it is none of Box, Discrete, MultiDiscrete and Dict.
    """
    kind = type(space).__name__
    if kind == "Discrete":
        return spaces.Discrete(int(space.n))
    if kind == "MultiDiscrete":
        sizes = space.nvec if hasattr(space, "nvec") else space.num_categories
        return spaces.MultiDiscrete(np.asarray(sizes, np.int64))
    if kind == "Box":
        dtype = np.dtype(space.dtype)
        low, high = (np.array(np.broadcast_to(bound, space.shape), dtype) for bound in (space.low, space.high))
        return spaces.Box(low, high, tuple(space.shape), dtype.type)
    if kind == "Dict":
        return spaces.Dict({key: gymnasium_space(own) for key, own in space.spaces.items()})
    raise ConfigError(f"the space {space}; accepted: Box, Discrete, MultiDiscrete and Dict", key="env")


def is_asked_for(batch: BatchedEnv, env_indices: Sequence[int], ended: BoolArray) -> bool:
    """Whether a reset begins anew from its seeds, where a library seeds all envs at once.

    It does for a single env, and for a batch that is reset as a whole before its episodes have ended.
    """
    return len(env_indices) == batch.num_envs and (batch.num_envs == 1 or not ended.all())


def with_rows(observations: Observations, env_indices: Sequence[int], rows: Any) -> Observations:
    """Return a copy of observations, (E, ...), with those of some envs in their places: (len(env_indices), ...)."""
    copied = map_arrays(np.array, observations)
    for array, own in [(copied[key], rows[key]) for key in copied] if isinstance(copied, dict) else [(copied, rows)]:
        array[list(env_indices)] = own
    return copied
