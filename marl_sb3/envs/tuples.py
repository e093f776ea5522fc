"""Gymnasium envs of several agents whose spaces are tuples, as those of lbforaging and rware, as a `ParallelEnv`."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker
from pettingzoo import ParallelEnv
from pettingzoo.utils import BaseParallelWrapper

from marl_sb3.doors import EnvKind
from marl_sb3.envs.drawn import FixedSpaces
from marl_sb3.errors import ConfigError
from marl_sb3.types import AgentID

_log = logging.getLogger(__name__)


class TupleEnv(FixedSpaces, ParallelEnv):  # type: ignore[misc]
    """Wraps a Gymnasium env that takes a tuple of actions, one of each agent, and returns a tuple of observations.

    Its agents are agent_0, agent_1, and so on; they act in each step, and their episode is over for all at once: ends
    are one for all, or a list in which all agree. Rewards are a list of the agents', or one number for each of them.

    Args:
        env: with `n_agents`, its own or that of a wrapper, and two `Tuple` spaces of as many parts.
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        self.env = _without_checker(env)
        self.possible_agents: list[AgentID] = [f"agent_{index}" for index in range(_agents(env))]
        self.observation_spaces, self.action_spaces = (
            dict(zip(self.possible_agents, space, strict=True)) for space in _both(env)
        )
        self.agents: list[AgentID] = []
        self.metadata = {**(env.metadata or {}), "name": _name(env)}
        self.render_mode = env.render_mode

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[AgentID, Any], dict[AgentID, dict[str, Any]]]:
        """Begin an episode; each agent gets the env's infos."""
        observations, info = self.env.reset(seed=seed, options=options)
        self.agents = self.possible_agents[:]
        return self._by_agent("observations", observations), {agent: dict(info) for agent in self.agents}

    def step(self, actions: Mapping[AgentID, Any]) -> tuple[dict[AgentID, Any], ...]:
        """Step the env with the actions of all agents.

        Raises:
            ValueError: the env does not return one observation, reward and end for each agent, or ends some agents
                only.
        """
        chosen = tuple(actions[agent] for agent in self.possible_agents)
        observations, rewards, terminated, truncated, info = self.env.step(chosen)
        if np.ndim(rewards) == 0:
            rewards = [rewards] * len(chosen)
        terminated, truncated = self._of_all("terminated", terminated), self._of_all("truncated", truncated)
        inner: Any = self.env.unwrapped
        # lbforaging calls its limit of steps a termination, too: then food is left.
        if terminated and type(inner).__module__.startswith("lbforaging.") and np.any(inner.field):
            terminated, truncated = False, True
        parts = self._by_agent("observations", observations), self._by_agent("rewards", rewards)
        ends = (dict.fromkeys(self.possible_agents, end) for end in (terminated, truncated))
        infos = {agent: dict(info) for agent in self.possible_agents}
        if terminated or truncated:
            self.agents = []
        return *parts, *ends, infos

    def _by_agent(self, what: str, returned: Sequence[Any]) -> dict[AgentID, Any]:
        if len(returned) != len(self.possible_agents):
            raise ValueError(f"{len(returned)} {what}; accepted: {len(self.possible_agents)}, one of each agent")
        return dict(zip(self.possible_agents, returned, strict=True))

    def _of_all(self, what: str, end: Any) -> bool:
        """Return an end that is one for all agents: a list of them is true as it is, whatever it says."""
        if np.ndim(end) == 0:
            return bool(end)
        of_agents = {bool(each) for each in self._by_agent(what, end).values()}
        if len(of_agents) > 1:
            raise ValueError(f"{what} is {end!r}; accepted: one for all agents, as they end at once")
        return of_agents.pop()

    def render(self) -> Any:
        """Return what the env renders."""
        return self.env.render()

    def close(self) -> None:
        """Close the env."""
        self.env.close()


class AsAgents(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Says that each part of an env's two `Tuple` spaces is that of an agent, where the env has no `n_agents`."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        lengths = [len(each) for each in _both(env) if isinstance(each, spaces.Tuple)]
        if len(lengths) != 2 or lengths[0] != lengths[1]:
            observed, taken = _both(env)
            words = f"as_agents: the env observes {observed} and takes {taken}"
            raise ConfigError(f"{words}; accepted: two Tuple spaces of as many parts", key="env_wrapper")
        self.n_agents = lengths[0]


class TupleKind(EnvKind):
    """Gymnasium envs of `n_agents` agents; those without this attribute have one agent, whatever their spaces are."""

    what = "a Gymnasium env with n_agents and Tuple spaces"

    def recognises(self, env: Any) -> bool:
        """Whether an env has agents, an observation space and an action space of as many parts."""
        if not isinstance(env, gymnasium.Env):
            return False
        both = _both(env)
        if not all(isinstance(space, spaces.Tuple) for space in both):
            return False
        are_alike = all(part == space[0] for space in both for part in space)
        if _agents(env) == 0 and len(both[0]) == len(both[1]) > 1 and are_alike:
            _warn_of_one_agent(_name(env), len(both[0]))
        return all(len(space) == _agents(env) for space in both)

    def as_parallel(self, env: Any) -> TupleEnv:
        """Wrap it."""
        return TupleEnv(env)


KIND = TupleKind()


_SB3 = "stable_baselines3.common.vec_env.base_vec_env"
# The module of a base class of envs -> what these are, and what makes an env of Gymnasium of one.
_OTHERS: Mapping[str, tuple[str, str]] = {
    "gym.core": (
        "of gym, which Gymnasium has replaced",
        "GymV26CompatibilityV0(env=env), or shimmy.GymV21CompatibilityV0(env=env) where step() returns four values",
    ),
    "dm_env._environment": ("of dm_env", "DmControlCompatibilityV0(env)"),
}


class SeveralKind(EnvKind):
    """What is refused in words: objects that step several envs at once, and envs with another interface."""

    what = "a gymnasium.Env"

    def recognises(self, env: Any) -> bool:
        """Whether it is a vectorised env of Gymnasium, SB3 or EnvPool, or an env of gym or dm_env.

        Only Gymnasium is imported for that.
        """
        is_of_envpool = hasattr(env, "all_env_ids") and not isinstance(env, type)
        is_other = _base(env) != "" and not isinstance(env, gymnasium.Env)
        return isinstance(env, gymnasium.vector.VectorEnv) or is_other or is_of_envpool

    def as_parallel(self, env: Any) -> ParallelEnv:
        """Refuse it.

        Raises:
            ConfigError: always.
        """
        if (base := _base(env)) in _OTHERS:
            of, way = _OTHERS[base]
            words = f"the env is a {type(env).__name__} {of}; accepted: a factory of an env of Gymnasium, such as"
            raise ConfigError(f"{words} shimmy.{way}; pip install shimmy", key="env")
        words = f"the env is a {type(env).__name__}, which holds several envs; accepted: a factory of one env, of which"
        more = ", or marl_sb3.envs.batches.vector_envs of what makes it; see docs/how_to/batches.md"
        if base == _SB3:
            more = "; algorithms of SB3 take it as it is; see docs/coming_from/sb3.md"
        if type(env).__module__.startswith("supersuit."):
            more = ", without pettingzoo_env_to_vec_env_v1 and concat_vec_envs_v1; see docs/coming_from/pettingzoo.md"
        raise ConfigError(f"{words} --n-envs (n_envs) makes as many as it says{more}", key="env")


SEVERAL = SeveralKind()


class DeadActKind(EnvKind):
    """Envs in SuperSuit's `black_death`, whose agents act after their end: taken as they are, with a warning."""

    what = "a pettingzoo.ParallelEnv"

    def recognises(self, env: Any) -> bool:
        """Whether one of its wrappers is `black_death`; SuperSuit is not imported for that."""
        while isinstance(env, BaseParallelWrapper) and type(env).__name__ != "black_death_par":
            env = env.env
        return type(env).__name__ == "black_death_par"

    def as_parallel(self, env: Any) -> ParallelEnv:
        """Return the env."""
        _warn_of_dead_agents()
        return env


DEAD_ACT = DeadActKind()


def _base(env: Any) -> str:
    """The module of the base class of an env of SB3, gym or dm_env, none of which is imported; "" for another one."""
    return next((base.__module__ for base in type(env).__mro__ if base.__module__ in (_SB3, *_OTHERS)), "")


def _agents(env: gymnasium.Env[Any, Any]) -> int:
    """The number of agents that an env says it has; 0 if it does not say."""
    found = env.get_wrapper_attr("n_agents") if env.has_wrapper_attr("n_agents") else 0
    return int(found) if isinstance(found, (int, np.integer)) else 0


def _both(env: Any) -> list[Any]:
    return [getattr(env, name, None) for name in ("observation_space", "action_space")]


@cache
def _warn_of_one_agent(name: str, parts: int) -> None:
    words = "env %s: observations and actions are tuples of %s equal parts, and are taken as those of one agent"
    way = "if each part is that of an agent, use --set env_wrapper=as_agents, or marl_sb3.envs.AsAgents(env)"
    _log.warning(f"{words}; {way}", name, parts)


@cache
def _warn_of_dead_agents() -> None:
    words = "the env is wrapped in SuperSuit's black_death: agents act and are trained after their end"
    _log.warning("%s; leave it out, agents may end one by one here; see docs/coming_from/pettingzoo.md", words)


def _name(env: Any) -> str:
    return env.spec.id if env.spec else type(env.unwrapped).__name__


def _without_checker(env: Any) -> Any:
    """Take `PassiveEnvChecker` off, which raises where rewards are a list; the other wrappers stay."""
    while isinstance(env, (OrderEnforcing, PassiveEnvChecker)):  # `gymnasium.make` puts them on
        env = env.env
    outer = env
    while isinstance(outer, gymnasium.Wrapper):
        while isinstance(outer.env, PassiveEnvChecker):
            outer.env = outer.env.env
        outer = outer.env
    return env
