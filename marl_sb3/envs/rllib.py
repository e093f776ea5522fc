"""RLlib's `MultiAgentEnv` as a `ParallelEnv`. An env is recognised by its methods, so that Ray is not imported."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
from gymnasium import spaces
from pettingzoo import AECEnv, ParallelEnv

from marl_sb3.doors import EnvKind
from marl_sb3.errors import ConfigError
from marl_sb3.types import AgentID

_SPACES = ("observation_spaces", "action_spaces")
_CONFIG = ("config", "env_config", "_")  # the names of the one argument that RLlib's envs and creators take
_EVERYBODY, _NOBODY = "__all__", "__common__"  # RLlib's keys beside agent ids, in flags and in infos


class EnvContext(dict[str, Any]):
    """The argument of RLlib's envs: a dictionary of settings, with the attributes of RLlib's `EnvContext`."""

    worker_index = num_workers = 0
    remote = recreated_worker = False

    def __init__(self, settings: Mapping[str, Any], vector_index: int) -> None:
        super().__init__(settings)
        self.vector_index = vector_index


class RLlibEnv(ParallelEnv):  # type: ignore[misc]
    """Wraps an RLlib `MultiAgentEnv`; ids of agents that are integers become strings.

    Its `agents` are those that act in the next step: the ones that the env has just shown an observation. All others
    wait; they may be paid and may end. Flags of an agent say how it ends; an agent without one ends as `__all__` says,
    so that an agent that was truncated is not terminated by the end of the episode.
    """

    def __init__(self, env: Any) -> None:
        self.env = env
        ids = _agent_ids(env)
        self._ids = {str(agent): agent for agent in ids}
        self.possible_agents: list[AgentID] = [str(agent) for agent in ids]
        self.agents: list[AgentID] = []
        self.metadata = {"name": type(self.unwrapped).__name__, **(getattr(env, "metadata", None) or {})}
        self.render_mode = getattr(env, "render_mode", None)
        self._shown: Mapping[AgentID, Any] = {}
        self._in_play: dict[AgentID, None] = {}  # have acted and have not ended; a dict, which keeps their order
        self._ended: set[AgentID] = set()

    @property
    def unwrapped(self) -> Any:
        """The env below its wrappers."""
        return getattr(self.env, "unwrapped", self.env)

    def observation_space(self, agent: AgentID) -> spaces.Space[Any]:
        """The env's observation space of an agent."""
        space: spaces.Space[Any] = _space(self.env, "observation_space", self._ids[agent])
        return space

    def action_space(self, agent: AgentID) -> spaces.Space[Any]:
        """The env's action space of an agent."""
        space: spaces.Space[Any] = _space(self.env, "action_space", self._ids[agent])
        return space

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[AgentID, Any], dict[AgentID, dict[str, Any]]]:
        """Begin an episode; the observations are those of the agents that act first."""
        returned: Any = self.env.reset(seed=seed, options=options)
        if not (isinstance(returned, tuple) and len(returned) == 2):
            return returned  # type: ignore[no-any-return]  # `EnvSlot` says what is wrong
        self._in_play, self._ended = {}, set()
        self._shown, infos = _by_name("observations", returned[0]), _infos(returned[1])
        self.agents = list(self._shown)
        return dict(self._shown), infos

    def step(self, actions: Mapping[AgentID, Any]) -> tuple[dict[AgentID, Any], ...]:
        """Let the agents act that have been shown an observation.

        An agent that acted, and ends by termination without an observation, gets its previous one, from which nothing
        is learned. RLlib does the same.

        Raises:
            RuntimeError: an agent that has ended is shown an observation; RLlib refuses that, too.
        """
        returned: Any = self.env.step({self._ids[agent]: action for agent, action in actions.items()})
        if not (isinstance(returned, tuple) and len(returned) == 5):
            return returned  # type: ignore[no-any-return]
        names = ("observations", "rewards", "terminateds", "truncateds")
        observations, rewards, *given = map(_by_name, names, returned[:4])
        self._in_play.update(dict.fromkeys(actions))
        ends, is_over = self._ends(given)
        for agent in self._ended.intersection(observations):
            if not any(ends.get(agent, ())):
                raise RuntimeError(f"agent {agent!r} has ended, but is shown another observation in this episode")
        self._ended.update(agent for agent, flags in ends.items() if any(flags))
        for agent in actions:
            if agent not in observations:
                rewards.setdefault(agent, 0.0)
                if ends[agent][0]:
                    observations[agent] = self._shown[agent]
        self._shown = observations
        self.agents = [] if is_over else [agent for agent in observations if not any(ends.get(agent, ()))]
        flags = tuple({agent: of_agent[which] for agent, of_agent in ends.items()} for which in (0, 1))
        return dict(observations), rewards, *flags, _infos(returned[4])

    def _ends(self, given: list[dict[AgentID, Any]]) -> tuple[dict[AgentID, tuple[bool, bool]], bool]:
        """Return (terminated, truncated) of each agent that is in play or has flags, and whether the episode is over.

        Args:
            given: what the env returned as terminateds and as truncateds.
        """
        terminated, truncated = given
        of_all = bool(terminated.pop(_EVERYBODY, False)), bool(truncated.pop(_EVERYBODY, False))
        ends: dict[AgentID, tuple[bool, bool]] = {}
        for agent in dict.fromkeys([*self._in_play, *terminated, *truncated]):
            own = bool(terminated.get(agent, False)), bool(truncated.get(agent, False))
            ends[agent] = own if any(own) or agent not in self._in_play else of_all
            if any(ends[agent]):
                self._in_play.pop(agent, None)
        return ends, any(of_all)

    def render(self) -> Any:
        """Return what the env renders."""
        return self.env.render()

    def close(self) -> None:
        """Close the env, if it can be closed."""
        if hasattr(self.env, "close"):
            self.env.close()


class RLlibKind(EnvKind):
    """What RLlib trains in. Its envs are instances of `gymnasium.Env`, too: this kind is asked first."""

    what = "an RLlib MultiAgentEnv"

    def recognises(self, env: Any) -> bool:
        """Whether an env, or a class of envs, has the interface of RLlib's `MultiAgentEnv`."""
        cls = env if isinstance(env, type) else type(env)
        if issubclass(cls, (ParallelEnv, AECEnv)):
            return False
        has_agents = any(hasattr(env, name) for name in ("possible_agents", "get_agent_ids"))
        by_agent = any(callable(getattr(env, name, None)) for name in ("get_observation_space", "with_agent_groups"))
        shared = isinstance(getattr(env, "observation_space", None), spaces.Space)  # of all; without Ray's base class
        is_other = isinstance(env, gymnasium.Env | gymnasium.vector.VectorEnv) or hasattr(env, "num_envs")
        by_agent = by_agent or (shared and not is_other)
        return has_agents and (by_agent or all(isinstance(getattr(env, name, None), Mapping) for name in _SPACES))

    def as_parallel(self, env: Any) -> RLlibEnv:
        """Wrap it."""
        return RLlibEnv(env)

    def arguments(
        self, factory: Any, signature: inspect.Signature, env_kwargs: Mapping[str, Any], env_index: int
    ) -> Sequence[Any] | None:
        """All settings in one dictionary, as RLlib calls `MyEnv(config)` and creators; `env_config` may be this one.

        A factory of other envs that has a default for its `config` keeps it, unless settings are given.
        """
        if len(signature.parameters) != 1:
            return None
        ((name, parameter),) = signature.parameters.items()
        if name not in _CONFIG or name in env_kwargs or parameter.kind is not parameter.POSITIONAL_OR_KEYWORD:
            return None
        is_meant = env_kwargs or parameter.default is parameter.empty or self.recognises(factory)
        config = env_kwargs["env_config"] if [*env_kwargs] == ["env_config"] else env_kwargs
        return (EnvContext(config, env_index),) if is_meant else None


KIND = RLlibKind()


def _agent_ids(env: Any) -> list[Any]:
    """All agents of an env, in an order that is the same in every process.

    Raises:
        ConfigError: the env does not name them.
    """
    named = [getattr(env, "possible_agents", None), getattr(env, "agents", None)]
    asked = getattr(env, "get_agent_ids", None)
    found = next((ids for ids in named if ids), None) or (asked() if callable(asked) else None)
    if not found:
        listed = getattr(env, "action_spaces", None) or getattr(env, "action_space", None)
        found = list(listed) if isinstance(listed, (Mapping, spaces.Dict)) else []
    if not found:
        words = f"{type(env).__name__} names no agents; accepted: possible_agents, a list of agent ids, set in __init__"
        raise ConfigError(words, key="env")
    is_ordered = not isinstance(found, (set, frozenset))
    return list(found) if is_ordered else sorted(found, key=lambda agent: (type(agent).__name__, agent))


def _space(env: Any, kind: str, agent: Any) -> Any:
    """The space of an agent: by its method, as an entry of `action_spaces`, or that of all agents."""
    method, by_agent, shared = (getattr(env, name, None) for name in (f"get_{kind}", f"{kind}s", kind))
    found = method(agent) if callable(method) else None
    if found is None and isinstance(by_agent, Mapping):
        found = by_agent.get(agent)
    if found is None:
        found = shared[agent] if isinstance(shared, spaces.Dict) and agent in shared.spaces else shared
    return found


def _by_name(what: str, values: Any) -> dict[AgentID, Any]:
    if not isinstance(values, Mapping):
        raise TypeError(f"{what} are {type(values).__name__}; accepted: a dictionary by agent")
    return {str(agent): value for agent, value in values.items()}


def _infos(values: Any) -> dict[AgentID, Any]:
    infos = _by_name("infos", {} if values is None else values)
    infos.pop(_NOBODY, None)
    return infos
