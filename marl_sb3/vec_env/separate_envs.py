"""What vec envs have in common that are made of E separate `ParallelEnv`s in this process."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from pettingzoo import ParallelEnv

from marl_sb3.errors import ConfigError
from marl_sb3.types import AgentID
from marl_sb3.vec_env.base import AgentGroup, MultiAgentVecEnv

EnvFactory = Callable[[int], ParallelEnv]  # env index -> a new env

_SPACES = ("observation_space", "action_space")


class SeparateEnvs(MultiAgentVecEnv):
    """A `MultiAgentVecEnv` whose single envs can be asked and told things."""

    _closed = False

    @property
    @abstractmethod
    def envs(self) -> Sequence[Any]:
        """The E envs, wrappers included."""

    def get_attr(self, name: str, env_indices: Sequence[int]) -> list[Any]:
        """See `MultiAgentVecEnv.get_attr`."""
        return [_attribute(self.envs[index], name) for index in env_indices]

    def set_attr(self, name: str, value: Any, env_indices: Sequence[int]) -> None:
        """See `MultiAgentVecEnv.set_attr`."""
        for index in env_indices:
            setattr(_owner(self.envs[index], name), name, value)

    def env_method(self, name: str, env_indices: Sequence[int], *args: Any, **kwargs: Any) -> list[Any]:
        """See `MultiAgentVecEnv.env_method`."""
        return [_attribute(self.envs[index], name)(*args, **kwargs) for index in env_indices]

    def env_is_wrapped(self, wrapper_class: type, env_indices: Sequence[int]) -> list[bool]:
        """See `MultiAgentVecEnv.env_is_wrapped`."""
        return [any(isinstance(layer, wrapper_class) for layer in _layers(self.envs[index])) for index in env_indices]

    def close(self) -> None:
        """See `MultiAgentVecEnv.close`."""
        if not self._closed:
            self._closed = True
            for env in self.envs:
                env.close()


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
    if len({id(env.unwrapped) for env in envs}) < len(envs):
        raise ConfigError("the env factory returned the same env twice; it has to make a new one at each call")


def _layers(env: Any) -> Iterator[Any]:
    """The env's wrappers from the outermost inwards, then the env itself."""
    while env is not None:
        yield env
        env = getattr(env, "__dict__", {}).get("env")


def _attribute(env: Any, name: str) -> Any:
    return getattr(_owner(env, name), name)


def _owner(env: Any, name: str) -> Any:
    """The outermost layer that defines `name`; the innermost where none does."""
    layers = list(_layers(env))
    return next((layer for layer in layers if name in layer.__dict__ or hasattr(type(layer), name)), layers[-1])
