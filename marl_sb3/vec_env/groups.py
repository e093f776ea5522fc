"""Group agents by their spaces; check that envs have the same agents and are separate objects."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces

from marl_sb3.errors import ConfigError
from marl_sb3.types import AgentID, BoolArray
from marl_sb3.wrappers.env_interface import innermost_env

_SPACES = ("observation_space", "action_space")


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
    """The places of an env's agents in the arrays.

    Attributes:
        agents: all agent ids, in the order of the agent axis.
        groups: the agents by their spaces.
        places: agent -> its place.
    """

    def __init__(self, env: Any) -> None:
        self.agents: tuple[AgentID, ...] = tuple(env.possible_agents)
        self.groups = agent_groups(env)
        self.places = {
            agent: Place(column, number, place)
            for number, group in enumerate(self.groups)
            for place, (agent, column) in enumerate(zip(group.agents, group.columns, strict=True))
        }

    def flags(self, agents: Collection[AgentID]) -> BoolArray:
        """Return (A,) bool: True for these agents."""
        return np.array([agent in agents for agent in self.agents], dtype=np.bool_)

    def flagged(self, flags: BoolArray) -> list[AgentID]:
        """Return the agents that are marked in `flags`, (A,)."""
        return [agent for agent, flag in zip(self.agents, flags.tolist(), strict=True) if flag]


def agent_groups(env: Any) -> tuple[AgentGroup, ...]:
    """Group the agents of an env by their spaces."""
    members: list[tuple[Any, list[AgentID]]] = []
    for agent in env.possible_agents:
        own = (env.observation_space(agent), env.action_space(agent))
        found = next((agents for both, agents in members if both == own), None)
        if found is None:
            members.append((own, [agent]))
        else:
            found.append(agent)
    columns = {agent: column for column, agent in enumerate(env.possible_agents)}
    return tuple(AgentGroup(tuple(agents), tuple(columns[agent] for agent in agents), *own) for own, agents in members)


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


def require_separate(envs: Sequence[Any]) -> None:
    """Refuse a factory that returned the same env twice."""
    if len({id(innermost_env(env)) for env in envs}) < len(envs):
        raise ConfigError("the env factory returned the same env twice; it has to make a new one at each call")
