"""The state of one env in a slot: settings, log of actions, its own state; and the states of E envs as arrays."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

from marl_sb3.core.state.state import MAX_SEED, State, StateReader, is_plain
from marl_sb3.core.vec_env.observations import AgentGroup, AgentLayout, stacked, taken, zero_observations
from marl_sb3.errors import CheckpointError, ConfigError, refuse, shown
from marl_sb3.types import Array, BoolArray, Observations

CONFIGURE = "configure() of a curriculum or a callback"  # what raised an error, for messages
OTHER_SPACES = "the new settings have changed a space; accepted: settings that keep all spaces"


class EnvSettings:
    """The settings that `configure` has set for one env.

    Args:
        configure: the env's own method; None if it has none.
        kind: the class of the env, for messages.
        first: arguments of the method before the settings.
        set_task: the env's own method, which takes the setting `task`; None if it has none.
    """

    def __init__(
        self, configure: Callable[..., Any] | None, kind: str, *first: Any, set_task: Callable[..., Any] | None = None
    ) -> None:
        self._configure, self._kind, self._first = configure, kind, first
        self._set_task = set_task
        self.in_force: dict[str, Any] = {}  # settings of its running episode
        self.coming: dict[str, Any] = {}  # settings that its next episode begins with

    def require(self, settings: Mapping[str, Any]) -> None:
        """Refuse settings that the env cannot take, or that a checkpoint cannot hold.

        Raises:
            ConfigError: the env has no `configure`, the method does not take such settings, or a value is not plain
                data.
        """
        of_configure = self._of_configure(settings)
        if self._configure is None and of_configure:
            has = "set_task(task) alone" if self._set_task is not None else "neither configure(**settings) nor set_task"
            raise ConfigError(f"configure: {self._kind} has {has}: its {', '.join(of_configure)} cannot change")
        for name, value in settings.items():
            if not is_plain(value) or isinstance(value, tuple):
                refuse(
                    f"configure: {name}",
                    value,
                    "numbers, strings, booleans, None, arrays, and lists and mappings of these",
                    name,
                )
        if self._configure is None or not of_configure:
            return
        signature = inspect.signature(self._configure)
        try:
            signature.bind(*self._first, **of_configure)
        except TypeError as error:
            taken = ", ".join(list(signature.parameters)[len(self._first) :])
            raise ConfigError(f"configure of {self._kind}: {error}; it takes: {taken}") from error

    def change(self, settings: Mapping[str, Any]) -> None:
        """Keep settings for the next episode."""
        self.coming.update(deepcopy(dict(settings)))

    def begin_episode(self) -> None:
        """Put the coming settings in force, by the env's `configure`."""
        if self.coming:
            new, self.coming = self.coming, {}
            self.in_force.update(new)
            try:
                self._put_in_force(new)
            except ConfigError as error:
                named = ", ".join(f"{name}={shown(value)}" for name, value in new.items())
                raise ConfigError(
                    f"configure({named}) of a curriculum or a callback: {error}", key=error.key
                ) from error

    def _put_in_force(self, settings: Mapping[str, Any]) -> None:
        of_configure = self._of_configure(settings)
        if of_configure:
            assert self._configure is not None, "settings are refused for envs without configure()"
            self._configure(*self._first, **of_configure)
        if len(of_configure) < len(settings):
            assert self._set_task is not None, "then configure() takes all settings"
            self._set_task(*self._first, settings["task"])

    def _of_configure(self, settings: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the settings without the task, if the env has a method of its own for that."""
        if self._set_task is None:
            return settings
        return {name: value for name, value in settings.items() if name != "task"}

    def get_state(self) -> State:
        """Return plain data."""
        return {"in_force": dict(self.in_force), "coming": dict(self.coming)}

    def restore(self, saved: State, env_index: int) -> str | None:
        """Give the env the settings that were in force when it was saved; those that were to come are left out.

        Args:
            saved: its settings then, checked; see `EnvStates`.
            env_index: for messages.

        Returns:
            None, or a reason: settings were changed since then that had not been changed before. The env keeps these.

        Raises:
            CheckpointError: the env does not take them.
        """
        then = saved["in_force"]
        try:
            for settings in filter(None, saved.values()):
                self.require(settings)
            if then:
                self._put_in_force(then)
        except Exception as error:
            raise CheckpointError(f"settings of env {env_index}: {error}") from error
        kept = {name: value for name, value in self.in_force.items() if name not in then}
        self.in_force, self.coming = {**then, **kept}, {}
        names = ", ".join(kept)
        return f"configure() has changed {names} since then, and the earlier value is not known" if kept else None


# The most that all logs in a checkpoint take; logs that do not fit are left out, and their envs begin new episodes.
MAX_BYTES = 2**26


class ActionLog:
    """The actions of all agents of one env since the start of its episode."""

    def __init__(self, groups: Sequence[AgentGroup]) -> None:
        self._forms = [(_shape(group), group.action_space.dtype) for group in groups]
        sizes = [math.prod(shape) * np.dtype(dtype).itemsize for shape, dtype in self._forms]
        self._most = MAX_BYTES * sizes[0] // max(sum(sizes), 1)  # bytes of the first log; actions may be empty
        self.begin()

    def begin(self) -> None:
        """Begin an episode with an empty log."""
        self._logs = [bytearray() for _ in self._forms]
        self._complete = True

    def drop(self) -> None:
        """Mark the actions of the running episode as unknown."""
        self.begin()
        self._complete = False

    def record(self, actions: Sequence[Array]) -> None:
        """Append the actions of one step: per group, (A_group, ...); more than a checkpoint may hold are dropped."""
        if self._complete:
            for log, of_group, (_, dtype) in zip(self._logs, actions, self._forms, strict=True):
                log.extend(np.asarray(of_group, dtype).tobytes())
            if len(self._logs[0]) > self._most:
                self.drop()

    def actions(self) -> tuple[Array, ...] | None:
        """Return copies of the actions per group, (steps, A_group, ...); None if they are unknown."""
        if not self._complete:
            return None
        return tuple(
            np.frombuffer(log.copy(), dtype).reshape(-1, *shape)
            for log, (shape, dtype) in zip(self._logs, self._forms, strict=True)
        )


def _shape(group: AgentGroup) -> tuple[int, ...]:
    return (len(group.agents), *(group.action_space.shape or ()))


def require_possible(array: Array, space: spaces.Space[Any], where: str) -> None:
    """Refuse numbers that are not in a space, (..., *space.shape): envs and one-hot inputs do not check them.

    Zeros, which fill the places of inactive agents, are accepted. Bounds of a Box are checked up to rounding.
    """
    low: Any = 0
    high: Any = 1  # that of a MultiBinary
    if isinstance(space, spaces.Box):
        low, high = space.low, space.high
    elif isinstance(space, spaces.Discrete):
        low, high = int(space.start), int(space.start) + int(space.n) - 1
    elif isinstance(space, spaces.MultiDiscrete):
        low, high = space.start, space.start + space.nvec - 1
    low, high = np.minimum(low, 0), np.maximum(high, 0)
    slack = 1e-6 * np.maximum(np.abs(low), np.abs(high)) if isinstance(space, spaces.Box) else 0
    if (array < low - slack).any() or (array > high + slack).any():
        raise CheckpointError(f"{where} holds numbers that are not in {space}")


def require_categories(array: Array, space: spaces.Space[Any], where: str) -> None:
    """Refuse numbers outside a space of categories: they are indices into arrays. A Box may hold any numbers.

    Args:
        array: (..., *space.shape), or with all axes of the space in one.
        space: in which the numbers are.
        where: the place of the array in a checkpoint, for the message.

    Raises:
        CheckpointError: a number is not in the space.
    """
    # Actions of several parts have categories although their space is a box.
    own = getattr(space, "categories", None if isinstance(space, spaces.Box) else space)
    if own is not None:
        require_possible(array.reshape(-1, *(space.shape or ())), own, where)


def require_observed(seen: Observations, space: spaces.Space[Any], where: str) -> None:
    """Refuse observations with numbers outside the categories of a space; see `require_categories`."""
    parts = space.spaces if isinstance(space, spaces.Dict) else {"": space}
    for key, part in parts.items():
        require_categories(seen[key] if isinstance(seen, dict) else seen, part, f"{where}/{key}" if key else where)


def same_tree(one: Any, other: Any) -> bool:
    """Whether two states of an env are equal."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return set(one) == set(other) and all(same_tree(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(same_tree, one, other))
    if isinstance(one, np.ndarray) or isinstance(other, np.ndarray):
        return np.array_equal(one, other)
    return bool(one == other)


class EnvStates(NamedTuple):
    """The states of E envs, as far as batches and separate envs save the same."""

    run_seed: int  # the seed from which the seeds of their episodes are derived
    episodes: Array  # (E,) int64; index of the running episode
    steps: Array  # (E,) int64; env steps of the running episode
    to_act: BoolArray  # (E, A) bool; the agents that act next
    observations: tuple[Observations, ...]  # per group, (E, A_group, ...)
    settings: Sequence[State]  # of each env, from `EnvSettings.get_state`
    apart: bool  # whether they were stepped one by one, not in a batch, which has one state of its own for all


def read_envs(state: StateReader, groups: Sequence[AgentGroup], num_envs: int) -> EnvStates:
    """Read the states of envs, whichever vectorizer saved them.

    Raises:
        CheckpointError: they are not those of such envs.
    """
    apart = isinstance(state.value("own"), list)
    episodes = state.counts("episodes", (num_envs,))
    steps = state.counts("steps" if apart else "episode_steps", (num_envs,))
    to_act = state.array("to_act", np.bool_, (num_envs, sum(len(group.agents) for group in groups)))
    if not to_act.any(axis=1).all():
        raise state.error("to_act", to_act, "an agent that acts in every env")
    observations = state.like("observations", zero_observations(groups, num_envs))
    listed = state.listed("settings", num_envs)
    settings = [{part: listed.fields(name).fields(part).values() for part in ("in_force", "coming")} for name in listed]
    return EnvStates(state.integer("run_seed", 0, MAX_SEED), episodes, steps, to_act, observations, settings, apart)


_LEFT_OUT = -1  # stands for the length of a log that is left out of the checkpoint


class SlotState(NamedTuple):
    """The state of one env in the middle of an episode."""

    run_seed: int  # the seed from which the seeds of its episodes are derived
    episode: int  # index of the running episode
    to_act: BoolArray  # (A,) bool; the agents that act next
    in_play: BoolArray  # (A,) bool; the agents that have acted and have not ended
    ended: BoolArray  # (A,) bool; the agents that have ended
    observations: tuple[Observations, ...]  # per group, (A_group, ...); the observations of the agents that act next
    own: Mapping[str, Any] | None  # the state from the env's own `get_state`; None if it has none
    # per group, (steps, A_group, ...); the actions since the start of the episode. None if there is `own`, or if there
    # are too many actions.
    actions: tuple[Array, ...] | None
    settings: State  # from `EnvSettings.get_state`
    steps: int  # env steps of the running episode


def pack(states: Sequence[SlotState], groups: Sequence[AgentGroup]) -> State:
    """Return the states as plain data; the arrays of all envs are joined."""
    run_seeds, episodes, to_act, in_play, ended, seen, own, logs, settings, steps = zip(*states, strict=True)
    return {
        "run_seed": run_seeds[0],
        "episodes": np.array(episodes, dtype=np.int64),
        "to_act": np.stack(to_act),
        "in_play": np.stack(in_play),
        "ended": np.stack(ended),
        "observations": [stacked(of_group) for of_group in zip(*seen, strict=True)],
        "own": list(own),
        "steps": np.array(steps, dtype=np.int64),
        "settings": list(settings),
        "log": _pack_logs(logs, groups),
    }


def _pack_logs(logs: Sequence[tuple[Array, ...] | None], groups: Sequence[AgentGroup]) -> State:
    """Concatenate the logs; if not all of them fit, only the shortest ones."""
    lengths = np.array([_LEFT_OUT if log is None else len(log[0]) for log in logs], np.int64)
    joined = [np.zeros((1, *_shape(group)), group.action_space.dtype) for group in groups]  # one step
    order = np.argsort(lengths, kind="stable")
    sizes = np.maximum(lengths[order], 0).cumsum() * sum(step.nbytes for step in joined)
    lengths[order[sizes > MAX_BYTES]] = _LEFT_OUT
    kept = [log for log, length in zip(logs, lengths, strict=True) if log is not None and length != _LEFT_OUT]
    actions = [np.concatenate([step[:0], *(log[number] for log in kept)]) for number, step in enumerate(joined)]
    return {"lengths": lengths, "actions": actions}


def unpack(state: StateReader, layout: AgentLayout, num_envs: int) -> list[SlotState]:
    """Return the states from what `pack` returned, checked."""
    run_seed, episodes, steps, to_act, observations, settings, apart = read_envs(state, layout.groups, num_envs)
    for group, of_group in zip(layout.groups, observations, strict=True):
        require_observed(of_group, group.observation_space, f"{state.where}/observations")
    in_play, ended = np.zeros((2, *to_act.shape), np.bool_)
    own, logs = [None] * num_envs, list[tuple[Array, ...] | None]([None] * num_envs)  # not known to a batch
    if apart:
        in_play, ended = (state.array(name, np.bool_, to_act.shape) for name in ("in_play", "ended"))
        own, logs = state.items("own", num_envs), _unpack_logs(state.fields("log"), layout.groups, num_envs)
    for name, playing in (("to_act", to_act), ("in_play", in_play)):
        if (playing & ended).any():
            raise state.error(name, playing, "no agent that has ended")
    if not all(one is None or isinstance(one, dict) for one in own):
        raise state.error("own", own, "mappings, or null")
    seen = [tuple(taken(group, index) for group in observations) for index in range(num_envs)]
    by_env = zip(episodes.tolist(), to_act, in_play, ended, seen, own, logs, settings, steps.tolist(), strict=True)
    return [SlotState(run_seed, *of_env) for of_env in by_env]


def _unpack_logs(state: StateReader, groups: Sequence[AgentGroup], num_envs: int) -> list[tuple[Array, ...] | None]:
    lengths = state.array("lengths", np.int64, (num_envs,))
    by_group = state.listed("actions", len(groups))
    actions = []
    for number, group in enumerate(groups):
        array = by_group.array(str(number), group.action_space.dtype, (None, *_shape(group)))  # type: ignore[arg-type]
        require_possible(array, group.action_space, by_group.where)
        actions.append(array)
    if sum(array.nbytes for array in actions) > MAX_BYTES:
        raise CheckpointError(f"{by_group.where} has more than {MAX_BYTES} bytes")
    total = int(np.maximum(lengths, 0).sum())
    if (lengths < _LEFT_OUT).any() or any(len(array) != total for array in actions):
        raise state.error("lengths", lengths, f"-1 or more, together the number of actions, {len(actions[0])}")
    ends = np.cumsum(np.maximum(lengths, 0)).tolist()
    return [
        None if length == _LEFT_OUT else tuple(group[end - length : end] for group in actions)
        for length, end in zip(lengths.tolist(), ends, strict=True)
    ]
