"""Check the interface of an env before its first reset."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import Any

from gymnasium import spaces
from pettingzoo import ParallelEnv

from marl_sb3.config.ids import require_ids
from marl_sb3.envs.faults import RAISED, raise_in_words
from marl_sb3.envs.single_agent import SingleAgentEnv
from marl_sb3.errors import ConfigError

_RENAME = '; name the agents in the env, e.g. possible_agents = [f"agent_{i}" for i in range(n)]'


def require_interface(env: ParallelEnv, env_index: int = 0) -> None:
    """Check agents, spaces, metadata and the signature of `reset`.

    Raises:
        ConfigError: says what is wrong and what is accepted.
        EnvRaisedError: the env raised an exception when it was asked for a space.
    """
    require_agents(getattr(env, "possible_agents", None))
    metadata = getattr(env, "metadata", None)
    if not isinstance(metadata, Mapping):
        raise ConfigError(
            f'the env\'s metadata is {metadata!r}; accepted: a mapping, such as {{"name": "my_env_v0"}}', key="env"
        )
    for agent in env.possible_agents:
        for kind in ("observation_space", "action_space"):
            try:
                space = getattr(env, kind)(agent)
            except RAISED as error:
                raise_in_words(error, f"{kind}({agent!r})", f"env {env_index}")
                raise
            if not isinstance(space, spaces.Space):
                raise ConfigError(f"{kind}({agent!r}) is {space!r}; accepted: a gymnasium space", key="env")
    require_seeded_reset(env.reset)
    require_seeded_reset(innermost_env(env).reset)


def innermost_env(env: ParallelEnv) -> Any:
    """Return the env below all wrappers: a `ParallelEnv`, or the `gymnasium.Env` inside a `SingleAgentEnv`."""
    inner = env.unwrapped
    return inner.env.unwrapped if isinstance(inner, SingleAgentEnv) else inner


def require_agents(agents: Any) -> None:
    """Refuse anything but a list of different agent ids. A set is refused: its order differs between processes."""
    if not isinstance(agents, Collection) or isinstance(agents, (str, set, frozenset)) or len(agents) == 0:
        raise ConfigError(
            f"the env's possible_agents is {agents!r}; accepted: a list of agent ids, not empty", key="env"
        )
    require_ids("agent", agents, "env", _RENAME)
    twice = [agent for agent, count in Counter(agents).items() if count > 1]
    if twice:
        raise ConfigError(f"the env's possible_agents has {twice[0]!r} twice; accepted: each agent once", key="env")


def require_seeded_reset(reset: Callable[..., Any]) -> None:
    """Refuse a `reset` that cannot be called with `seed` and `options`."""
    try:
        signature = inspect.signature(reset)
    except (TypeError, ValueError):
        return  # some builtins have no signature; then the call itself fails
    try:
        signature.bind(seed=None, options=None)
    except TypeError as error:
        raise ConfigError(
            f"the env's reset takes {signature}: {error}; accepted: reset(self, seed=None, options=None)", key="env"
        ) from error
