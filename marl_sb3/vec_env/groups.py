"""Agents by their spaces; envs that have to be alike, and apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gymnasium import spaces

from marl_sb3.errors import ConfigError
from marl_sb3.types import AgentID
from marl_sb3.wrappers.env_interface import innermost_env

_SPACES = ("observation_space", "action_space")


@dataclass(frozen=True)
class AgentGroup:
    """Agents with the same spaces: their observations fit one array, (E, len(agents), ...)."""

    agents: tuple[AgentID, ...]
    columns: tuple[int, ...]  # where each stands on the agent axis of `MultiAgentVecEnv.agents`
    observation_space: spaces.Space[Any]
    action_space: spaces.Space[Any]


def agent_groups(env: Any) -> tuple[AgentGroup, ...]:
    """The agents of an env by their spaces."""
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
    """Refuse an env that differs from the first one of its vec env.

    Raises:
        ConfigError: its agents or their spaces are others.
    """
    where = f"all envs of a vec env need the same agents and spaces, but env {env_index} has"
    if set(env.possible_agents) != set(first.possible_agents):
        raise ConfigError(f"{where} agents {env.possible_agents}; those before it: {first.possible_agents}")
    for agent in first.possible_agents:
        for kind in _SPACES:
            ours, theirs = getattr(first, kind)(agent), getattr(env, kind)(agent)
            if ours != theirs:
                raise ConfigError(f"{where} the {kind} {theirs} for agent {agent!r}; those before it: {ours}")


def require_separate(envs: Sequence[Any]) -> None:
    """Refuse a factory that returned one env for several.

    Raises:
        ConfigError: it did.
    """
    if len({id(innermost_env(env)) for env in envs}) < len(envs):
        raise ConfigError("the env factory returned the same env twice; it has to make a new one at each call")
