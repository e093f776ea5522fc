"""What vec envs have in common that are made of E separate `ParallelEnv`s in this process."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv

from marl_sb3.errors import CheckpointError, ConfigError, EnvRaisedError
from marl_sb3.state import MAX_SEED, Fields, State, is_plain
from marl_sb3.types import AgentID, Array, BoolArray, Observations
from marl_sb3.vec_env.action_log import ActionLog, require_possible
from marl_sb3.vec_env.base import AgentGroup, MultiAgentVecEnv
from marl_sb3.vec_env.observations import copy_env, read_observations, same_in_env, zero_observations
from marl_sb3.wrappers.env_interface import innermost_env

EnvFactory = Callable[[int], ParallelEnv]  # env index -> a new env

_SPACES = ("observation_space", "action_space")
_LOOK_EVERY = 100  # steps of a replay, from one look at whether it still makes sense to the next


@dataclass(frozen=True)
class _Saved:
    """A vec env's state, read and checked."""

    run_seed: int
    episodes: list[int]
    active: BoolArray
    ended: BoolArray
    observations: tuple[Observations, ...]
    own: list[Any]
    has_log: bool


class SeparateEnvs(MultiAgentVecEnv):
    """A `MultiAgentVecEnv` whose single envs can be asked and told things.

    In a checkpoint an env is the seed of its running episode and the actions since; it is brought back by playing them
    again. An env whose own class has `get_state() -> tree of plain data and arrays` and `set_state(tree)` is asked
    instead.
    """

    _closed = False
    _log: ActionLog

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

    # --- State -------------------------------------------------------------------------------------------------------

    @abstractmethod
    def _progress(self) -> tuple[int, list[int], BoolArray]:
        """Run seed, index of each env's running episode, and (E, A) which agents have ended in it."""

    @abstractmethod
    def _count_from(self, index: int, run_seed: int, episode: int) -> None:
        """The next episode of this env is this one."""

    @abstractmethod
    def _restart(self, index: int) -> tuple[Observations, ...]:
        """Begin the next episode in one env; its observations in their places."""

    @abstractmethod
    def _replay_step(self, index: int, actions: Sequence[Array]) -> tuple[Observations, ...]:
        """Step one env, whose actions are (A_group, ...); its observations in their places."""

    @abstractmethod
    def _live_agents(self, index: int) -> BoolArray:
        """(A,); who acts next."""

    @abstractmethod
    def _adopt(self, index: int, live: Sequence[AgentID], ended: set[AgentID]) -> None:
        """The env has been put into the middle of its next episode by its own `set_state`."""

    def get_state(self) -> State:
        """See `MultiAgentVecEnv.get_state`."""
        run_seed, episodes, ended = self._progress()
        own = [_own_state(env) for env in self.envs]
        return {
            "run_seed": run_seed,
            "episodes": np.array(episodes, dtype=np.int64),
            "active": self.active,
            "ended": ended,
            "observations": list(self.observations),
            "own": own,
            "log": self._log.get_state() if None in own else None,
        }

    def set_state(self, state: Fields) -> Mapping[int, str]:
        """See `MultiAgentVecEnv.set_state`."""
        saved = self._read(state)
        inexact: dict[int, str] = {}
        for index in range(self.num_envs):
            why = self._restore(index, saved)
            if why:
                inexact[index] = why
                self._count_from(index, saved.run_seed, saved.episodes[index] + 1)
                copy_env(self._restart(index), saved.observations, index)
                saved.active[index] = self._live_agents(index)
        self._log.begin(inexact)
        self.active, self.observations = saved.active, saved.observations
        return inexact

    def _read(self, state: Fields) -> _Saved:
        shape = (self.num_envs, len(self.agents))
        active, ended = (state.array(name, np.bool_, shape) for name in ("active", "ended"))
        if not active.any(axis=1).all() or (active & ended).any():
            raise state.error("active", active, "an active agent in every env, and none that has ended")
        saved = _Saved(
            state.whole("run_seed", 0, MAX_SEED),
            state.counts("episodes", (self.num_envs,)).tolist(),
            active,
            ended,
            read_observations(state, zero_observations(self.groups, self.num_envs)),
            state.items("own", self.num_envs),
            state.value("log") is not None,
        )
        self._require_possible(saved.observations, f"{state.where}/observations")
        if not all(own is None or isinstance(own, dict) for own in saved.own):
            raise state.error("own", saved.own, "mappings, or null")
        self._log = ActionLog(self.num_envs, self.groups)
        if saved.has_log:
            self._log.set_state(state.fields("log"))
        return saved

    def _require_possible(self, observations: tuple[Observations, ...], where: str) -> None:
        """Those that are numbers of categories; bounds of a Box are the env's own business."""
        for group, seen in zip(self.groups, observations, strict=True):
            space = group.observation_space
            parts = space.spaces.items() if isinstance(space, spaces.Dict) else [("", space)]
            for key, part in parts:
                if not isinstance(part, spaces.Box):
                    require_possible(seen[key] if isinstance(seen, dict) else seen, part, where)

    def _restore(self, index: int, saved: _Saved) -> str | None:
        """Bring one env back; what is in the way of it, if anything is."""
        if saved.own[index] is None and not saved.has_log:
            return "its episode is too long to be kept in a checkpoint"
        self._count_from(index, saved.run_seed, saved.episodes[index])
        try:
            return self._set_own(index, saved) if saved.own[index] is not None else self._replay(index, saved)
        except CheckpointError:
            raise
        except EnvRaisedError as error:
            return str(error)
        except Exception as error:  # an env may raise anything if it does not repeat itself
            return f"{type(error).__name__}: {error}"

    def _replay(self, index: int, saved: _Saved) -> str | None:
        shown = self._restart(index)
        for number, actions in enumerate(self._log.of_env(index)):
            if number % _LOOK_EVERY == 0 and not self._is_in(index, saved.episodes[index]):
                break  # there may be much more of it
            shown = self._replay_step(index, actions)
        same_agents = np.array_equal(self._live_agents(index), saved.active[index])
        if self._is_in(index, saved.episodes[index]) and same_agents and same_in_env(shown, saved.observations, index):
            return None
        return "the same seed and actions led to something else"

    def _is_in(self, index: int, episode: int) -> bool:
        return self._progress()[1][index] == episode

    def _set_own(self, index: int, saved: _Saved) -> str | None:
        env = _innermost_checked(self.envs[index])
        env.set_state(saved.own[index])
        if not _same_tree(env.get_state(), saved.own[index]):
            return "its get_state() returns something else than its set_state() was given"
        live, ended = (
            [agent for agent, flag in zip(self.agents, flags[index], strict=True) if flag]
            for flags in (saved.active, saved.ended)
        )
        if set(env.agents) - set(ended) != set(live):
            return "its agents are others than those that were live"
        self._adopt(index, live, set(ended))
        return None

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
    if len({id(innermost_env(env)) for env in envs}) < len(envs):
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


# --- Envs that know their own state ----------------------------------------------------------------------------------


def _innermost_checked(env: Any) -> Any:
    """What the factory returned: the env below the wrappers that every env wears."""
    return env.env


def _own_state(env: Any) -> State | None:
    """What the env says of itself, where it can be stored and put back."""
    inner = _innermost_checked(env)
    if not all(callable(getattr(type(inner), name, None)) for name in ("get_state", "set_state")):
        return None  # asked of the class: PettingZoo's wrappers pass questions on to envs that know less than they
    state = inner.get_state()
    return state if isinstance(state, dict) and is_plain(state) else None


def _same_tree(one: Any, other: Any) -> bool:
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return set(one) == set(other) and all(_same_tree(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(_same_tree, one, other))
    if isinstance(one, np.ndarray) or isinstance(other, np.ndarray):
        return np.array_equal(one, other)
    return bool(one == other)
