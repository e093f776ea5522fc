"""The state of one env; the states of E envs as arrays for a checkpoint, and back with checks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces

from marl_sb3.errors import CheckpointError
from marl_sb3.storage.state import MAX_SEED, State, StateReader
from marl_sb3.types import Array, BoolArray, Observations
from marl_sb3.vec_env import action_log
from marl_sb3.vec_env.action_log import require_possible
from marl_sb3.vec_env.groups import AgentGroup, AgentLayout
from marl_sb3.vec_env.observations import stacked, taken, zero_observations
from marl_sb3.vec_env.settings import EnvSettings, read_settings

_FLAGS = ("to_act", "in_play", "ended")
_LEFT_OUT = -1  # stands for the length of a log that is left out of the checkpoint


@dataclass(frozen=True)
class SlotState:
    """The state of one env in the middle of an episode.

    Attributes:
        run_seed: the seed from which the seeds of its episodes are derived.
        episode: index of the running episode.
        to_act: (A,) bool; the agents that act next.
        in_play: (A,) bool; the agents that have acted and have not ended.
        ended: (A,) bool; the agents that have ended.
        observations: per group, (A_group, ...); the observations of the agents that act next.
        own: the state from the env's own `get_state`; None if it has none.
        actions: per group, (steps, A_group, ...); the actions since the start of the episode. None if there is `own`,
            or if there are too many actions.
        settings: the settings from `configure`.
        steps: env steps of the running episode.
    """

    run_seed: int
    episode: int
    to_act: BoolArray
    in_play: BoolArray
    ended: BoolArray
    observations: tuple[Observations, ...]
    own: Mapping[str, Any] | None
    actions: tuple[Array, ...] | None
    settings: EnvSettings
    steps: int


def pack(states: Sequence[SlotState], groups: Sequence[AgentGroup]) -> State:
    """Return the states as plain data; the arrays of all envs are joined."""
    return {
        "run_seed": states[0].run_seed,
        "episodes": np.array([state.episode for state in states], dtype=np.int64),
        **{name: np.stack([getattr(state, name) for state in states]) for name in _FLAGS},
        "observations": [stacked([state.observations[number] for state in states]) for number in range(len(groups))],
        "own": [state.own for state in states],
        "steps": np.array([state.steps for state in states], dtype=np.int64),
        "settings": [state.settings.get_state() for state in states],
        "log": _pack_logs([state.actions for state in states], groups),
    }


def _pack_logs(logs: Sequence[tuple[Array, ...] | None], groups: Sequence[AgentGroup]) -> State:
    """Concatenate the logs; if not all of them fit, only the shortest ones."""
    sizes = [None if log is None else sum(actions.nbytes for actions in log) for log in logs]
    kept, total = set(), 0
    for size, index in sorted((size, index) for index, size in enumerate(sizes) if size is not None):
        total += size
        if total <= action_log.MAX_BYTES:
            kept.add(index)
    joined = [log for index, log in enumerate(logs) if log is not None and index in kept]
    lengths = [len(log[0]) if log is not None and index in kept else _LEFT_OUT for index, log in enumerate(logs)]
    return {
        "lengths": np.array(lengths, dtype=np.int64),
        "actions": [
            np.concatenate([np.zeros((0, *_shape(group)), group.action_space.dtype), *(log[number] for log in joined)])
            for number, group in enumerate(groups)
        ],
    }


def _shape(group: AgentGroup) -> tuple[int, ...]:
    return (len(group.agents), *(group.action_space.shape or ()))


def unpack(state: StateReader, layout: AgentLayout, num_envs: int) -> list[SlotState]:
    """Return the states from what `pack` returned; a stranger may have written it."""
    shape = (num_envs, len(layout.agents))
    to_act, in_play, ended = (state.array(name, np.bool_, shape) for name in _FLAGS)
    if not to_act.any(axis=1).all() or (to_act & ended).any():
        raise state.error("to_act", to_act, "an agent that acts in every env, and none that has ended")
    if (in_play & ended).any():
        raise state.error("in_play", in_play, "no agent that has ended")
    run_seed = state.integer("run_seed", 0, MAX_SEED)
    episodes, steps = (state.counts(name, (num_envs,)).tolist() for name in ("episodes", "steps"))
    observations = state.arrays_like("observations", zero_observations(layout.groups, num_envs))
    _require_possible(observations, layout.groups, f"{state.where}/observations")
    own = state.items("own", num_envs)
    if not all(one is None or isinstance(one, dict) for one in own):
        raise state.error("own", own, "mappings, or null")
    settings = read_settings(state, num_envs)
    logs = _unpack_logs(state.fields("log"), layout.groups, num_envs)
    return [
        SlotState(
            run_seed,
            episodes[index],
            to_act[index],
            in_play[index],
            ended[index],
            tuple(taken(group, index) for group in observations),
            own[index],
            logs[index],
            settings[index],
            steps[index],
        )
        for index in range(num_envs)
    ]


def _require_possible(observations: Sequence[Observations], groups: Sequence[AgentGroup], where: str) -> None:
    """Refuse categories out of range; the bounds of a Box are not checked."""
    for group, seen in zip(groups, observations, strict=True):
        space = group.observation_space
        parts = space.spaces.items() if isinstance(space, spaces.Dict) else [("", space)]
        for key, part in parts:
            if not isinstance(part, spaces.Box):
                require_possible(seen[key] if isinstance(seen, dict) else seen, part, where)


def _unpack_logs(state: StateReader, groups: Sequence[AgentGroup], num_envs: int) -> list[tuple[Array, ...] | None]:
    lengths = state.array("lengths", np.int64, (num_envs,))
    actions = _read_actions(state, groups)
    total = int(np.maximum(lengths, 0).sum())
    if (lengths < _LEFT_OUT).any() or any(len(group) != total for group in actions):
        raise state.error("lengths", lengths, f"-1 or more, together the number of actions, {len(actions[0])}")
    ends = np.cumsum(np.maximum(lengths, 0)).tolist()
    return [
        None if length == _LEFT_OUT else tuple(group[end - length : end] for group in actions)
        for length, end in zip(lengths.tolist(), ends, strict=True)
    ]


def _read_actions(state: StateReader, groups: Sequence[AgentGroup]) -> list[Array]:
    listed = state.items("actions", len(groups))
    by_group = StateReader({str(number): array for number, array in enumerate(listed)}, f"{state.where}/actions")
    actions = []
    for number, group in enumerate(groups):
        array = by_group.array(str(number), group.action_space.dtype, (None, *_shape(group)))  # type: ignore[arg-type]
        require_possible(array, group.action_space, by_group.where)
        actions.append(array)
    if sum(array.nbytes for array in actions) > action_log.MAX_BYTES:
        raise CheckpointError(f"{by_group.where} has more than {action_log.MAX_BYTES} bytes")
    return actions
