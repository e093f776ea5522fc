"""Agents grouped by their spaces, and the observations of a group as arrays: one, or one for each key of a `Dict`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from gymnasium import spaces

from marl_sb3.errors import ConfigError
from marl_sb3.types import AgentID, Array, BoolArray, Observations

_SPACES = ("observation_space", "action_space")
_WHOLE = ""  # the key of a space that is no Dict


@dataclass(frozen=True)
class AgentGroup:
    """Agents with the same spaces: their observations fit one array, (E, len(agents), ...)."""

    agents: tuple[AgentID, ...]
    columns: tuple[int, ...]  # index of each agent on the axis of all agents
    observation_space: spaces.Space[Any]
    action_space: spaces.Space[Any]


@dataclass(frozen=True)
class Place:
    """The indices of an agent in the arrays of a vec env."""

    column: int  # on the agent axis
    group: int
    group_column: int  # on the agent axis of its group


class AgentLayout:
    """The places of an env's agents in the arrays."""

    def __init__(self, agents: Sequence[AgentID], groups: tuple[AgentGroup, ...]) -> None:
        self.possible_agents = list(agents)  # all agent ids, in the order of the agent axis
        self.groups = groups  # the agents by their spaces
        # agent -> its place
        self.places = {
            agent: Place(column, number, place)
            for number, group in enumerate(self.groups)
            for place, (agent, column) in enumerate(zip(group.agents, group.columns, strict=True))
        }

    def observation_space(self, agent: AgentID) -> spaces.Space[Any]:
        """As `ParallelEnv.observation_space`."""
        return self.groups[self.places[agent].group].observation_space

    def action_space(self, agent: AgentID) -> spaces.Space[Any]:
        """As `ParallelEnv.action_space`."""
        return self.groups[self.places[agent].group].action_space

    def flags(self, agents: Collection[AgentID]) -> BoolArray:
        """Return (A,) bool: True for these agents."""
        return np.array([agent in agents for agent in self.possible_agents], dtype=np.bool_)

    def flagged(self, flags: BoolArray) -> list[AgentID]:
        """Return the agents that are marked in `flags`, (A,)."""
        return [agent for agent, flag in zip(self.possible_agents, flags.tolist(), strict=True) if flag]


def agent_groups(spaces_of: Mapping[AgentID, tuple[spaces.Space[Any], spaces.Space[Any]]]) -> tuple[AgentGroup, ...]:
    """Group agents by their observation and action spaces."""
    agents, both = list(spaces_of), list(spaces_of.values())
    numbers = [both.index(own) for own in both]  # the same for agents with the same spaces
    groups = [[at for at, own in enumerate(numbers) if own == number] for number in dict.fromkeys(numbers)]
    return tuple(AgentGroup(tuple(agents[at] for at in group), tuple(group), *both[group[0]]) for group in groups)


def require_same_agents(env: Any, env_index: int, first: Any) -> None:
    """Refuse an env that differs from the first one of its vec env."""
    where = f"all envs of a vec env need the same agents and spaces, but env {env_index} has"
    if set(env.possible_agents) != set(first.possible_agents):
        raise ConfigError(f"{where} agents {env.possible_agents}; those before it: {first.possible_agents}")
    for agent in first.possible_agents:
        for kind in _SPACES:
            ours, theirs = getattr(first, kind)(agent), getattr(env, kind)(agent)
            if ours != theirs:
                raise ConfigError(f"{where} the {kind} {theirs} for agent {agent!r}; those before it: {ours}")


def map_arrays(function: Callable[[Array], Array], observations: Observations) -> Observations:
    """Apply `function` to the array, or to each key's array."""
    if isinstance(observations, dict):
        return {key: function(array) for key, array in observations.items()}
    return function(observations)


def pairs(own: Any, given: Observations) -> Iterator[tuple[Array, Array]]:
    """Pair the arrays of two batches of observations, part by part."""
    if isinstance(given, dict):
        yield from ((own[key], given[key]) for key in own)
    else:
        yield own, given


def with_rows(array: Array, rows: BoolArray, values: Array) -> Array:
    """Return a copy of an array with other values in some rows, (rows,) bool, or in some places, (E, A) bool."""
    copy = array.copy()
    copy[rows] = values
    return copy


def joined_observations(batches: Sequence[Observations]) -> Observations:
    """Join batches of observations, (n, ...) each, to one."""
    first = batches[0]
    if isinstance(first, dict):
        return {key: np.concatenate([batch[key] for batch in batches]) for key in first}
    return np.concatenate(batches)  # type: ignore[arg-type]


def zero_observations(groups: Sequence[AgentGroup], num_envs: int) -> tuple[Observations, ...]:
    """Return zeros of shape (E, A_group, ...) per group.

    Raises:
        ConfigError: observations of a space cannot be held in arrays.
    """
    observations = []
    for group in groups:
        try:
            observations.append(zeros(group.observation_space, (num_envs, len(group.agents))))
        except ConfigError as error:
            raise ConfigError(f"agents {', '.join(group.agents)}: {error}", key="env") from None
    return tuple(observations)


def zeros(space: spaces.Space[Any], shape: tuple[int, ...], key: str = "") -> Observations:
    """Return a batch of zeros, (*shape, ...), for observations of a space; `key` is its own in a Dict, for messages.

    Raises:
        ConfigError: they cannot be held in arrays.
    """
    if isinstance(space, spaces.Dict):
        return {key: zeros(part, shape, str(key)) for key, part in space.spaces.items()}  # type: ignore[misc]
    if not isinstance(space, (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)):
        known = "Box, Discrete, MultiDiscrete, MultiBinary, Dict or Tuple of these"
        way = "minigrid.wrappers.ImgObsWrapper or gymnasium.wrappers.FilterObservation as env_wrapper can leave it out"
        part, way = (f" of {key!r}", f"; {way}") if key else ("", "")
        raise ConfigError(f"the observation space{part} is a {type(space).__name__}; accepted: {known}{way}")
    return np.zeros((*shape, *(space.shape or ())), dtype=space.dtype)


def same(one: Sequence[Observations], other: Sequence[Observations]) -> bool:
    """Whether two sets of observations agree to the last bit."""
    return all(np.array_equal(*both) for a, b in zip(one, other, strict=True) for both in pairs(a, b))


def stacked(of_envs: Sequence[Observations]) -> Observations:
    """Stack the observations of E envs to one batch, (E, ...)."""
    first = of_envs[0]
    if isinstance(first, dict):
        return {key: np.stack([observations[key] for observations in of_envs]) for key in first}
    return np.stack(of_envs)  # type: ignore[arg-type]


def taken(observations: Observations, place: Any) -> Any:
    """Return the observation at a place; several at several."""
    return map_arrays(lambda array: array[place], observations)


def put(observation: Any, array: Observations, place: Any) -> None:
    """Write one agent's observation into its place in (E, A_group, ...) or (A_group, ...); several into theirs."""
    if isinstance(array, dict):
        for key in array:
            array[key][place] = observation[key]
    else:
        array[place] = observation


def zeros_where_idle(
    groups: Sequence[AgentGroup], observations: Sequence[Observations], to_act: BoolArray
) -> tuple[Observations, ...]:
    """Return copies with zeros where an agent does not act next; the originals may hold final observations there."""
    idle = [partial(with_rows, rows=~to_act[:, group.columns], values=np.zeros(())) for group in groups]
    return tuple(map(map_arrays, idle, observations))


class ZeroBased:
    """Counts from 0 where a space counts from its `start`; everything else passes unchanged.

    Args:
        space: the env's observation or action space, or a Dict of such spaces.
    """

    def __init__(self, space: spaces.Space[Any]) -> None:
        self._parts: dict[str, Any] = dict(space.spaces) if isinstance(space, spaces.Dict) else {_WHOLE: space}
        starts = {key: np.asarray(getattr(part, "start", 0)) for key, part in self._parts.items()}
        # the starts of the parts that count from another number, by their keys; empty if nothing changes
        self.shifts = {key: start for key, start in starts.items() if start.any()}
        self.space = _counted_from_zero(space) if self.shifts else space  # the same space, counted from 0

    def from_env(self, observation: Any) -> Any:
        """Observations of the env, one or a batch, counted from 0."""
        return self._each(observation, lambda key, values: values - self.shifts[key])

    def from_rows(self, observations: Observations) -> Observations:
        """Like `from_env`, for rows of which some do not act: the zeros in their places become points of the space."""
        return self._each(observations, self._clipped)  # type: ignore[no-any-return]

    def _clipped(self, key: str, values: Array) -> Array:
        part = self._parts[key]
        largest = (part.n if isinstance(part, spaces.Discrete) else part.nvec) - 1
        clipped: Array = np.clip((values - self.shifts[key]).astype(values.dtype), 0, largest)
        return clipped

    def to_env(self, actions: Any) -> Any:
        """Actions counted from 0, one or a batch, as the env counts them."""
        return self._each(actions, lambda key, values: values + self.shifts[key])

    def _each(self, values: Any, function: Callable[[str, Array], Array]) -> Any:
        """Apply a function to the parts that count from another number; their dtypes stay."""
        if not self.shifts:
            return values
        if _WHOLE in self.shifts:
            array = np.asarray(values)
            return function(_WHOLE, array).astype(array.dtype)
        changed = {key: np.asarray(values[key]) for key in self.shifts}
        return {**values, **{key: function(key, array).astype(array.dtype) for key, array in changed.items()}}


def _counted_from_zero(space: spaces.Space[Any]) -> spaces.Space[Any]:
    if isinstance(space, spaces.Dict):
        return spaces.Dict([(key, _counted_from_zero(part)) for key, part in space.spaces.items()])
    if isinstance(space, spaces.Discrete):
        return spaces.Discrete(int(space.n), dtype=space.dtype.type) if np.any(space.start) else space
    if isinstance(space, spaces.MultiDiscrete) and np.any(space.start):
        return spaces.MultiDiscrete(space.nvec.copy(), dtype=space.dtype.type)
    return space
