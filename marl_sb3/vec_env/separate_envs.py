"""What vec envs have in common that are made of E separate `ParallelEnv`s in this process."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv

from marl_sb3.envs.faults import ask_for_state
from marl_sb3.errors import CheckpointError, EnvRaisedError
from marl_sb3.storage.state import MAX_SEED, State, StateReader
from marl_sb3.types import AgentID, Array, BoolArray, Observations
from marl_sb3.vec_env.action_log import ActionLog, require_possible
from marl_sb3.vec_env.groups import agent_groups, require_same_agents, require_separate
from marl_sb3.vec_env.interface import InProcessVecEnv
from marl_sb3.vec_env.masks import MaskReader, read_masks
from marl_sb3.vec_env.observations import copy_env, put, read_observations, same_in_env, zero_observations
from marl_sb3.vec_env.slot import EnvSlot
from marl_sb3.vec_env.step import ActionMasks, VecStep, first_step
from marl_sb3.wrappers.layers import call_or_read

EnvFactory = Callable[[int], ParallelEnv]  # env index -> a new env


@dataclass(frozen=True)
class _Saved:
    """A vec env's state, read and checked."""

    run_seed: int
    episodes: list[int]
    to_act: BoolArray
    in_play: BoolArray
    ended: BoolArray
    observations: tuple[Observations, ...]
    action_masks: ActionMasks
    own: list[Any]
    has_log: bool


@dataclass(frozen=True)
class _Place:
    """Where an agent stands in the arrays."""

    column: int  # on the agent axis
    group: int
    group_column: int  # on the agent axis of its group


class SeparateEnvs(InProcessVecEnv):
    """A `MultiAgentVecEnv` of E `EnvSlot`s.

    In a checkpoint an env is the seed of its running episode and the actions since; it is brought back by playing them
    again. An env whose own class has `get_state() -> tree of plain data and arrays` and `set_state(tree)` is asked
    instead.

    Args:
        slots: the envs, which are all of one kind.

    Raises:
        ConfigError: the envs differ in their agents or spaces, or are not separate envs, or there is no array for a
            kind of space.
    """

    def __init__(self, slots: Sequence[EnvSlot]) -> None:
        self._slots = slots
        self._closed = False
        first = slots[0].env
        require_separate(self.envs)
        for index, env in enumerate(self.envs):
            require_same_agents(env, index, first)
        self.num_envs = len(slots)
        self.agents = tuple(first.possible_agents)
        self.groups = agent_groups(first)
        self.metadata = dict(first.metadata)
        self.render_mode = getattr(first.unwrapped, "render_mode", None)
        self._places = {
            agent: _Place(column, number, place)
            for number, group in enumerate(self.groups)
            for place, (agent, column) in enumerate(zip(group.agents, group.columns, strict=True))
        }
        self._log = ActionLog(self.num_envs, self.groups)
        self._masks = MaskReader(self.groups, self.num_envs)
        zero_observations(self.groups, self.num_envs)  # refuses what no array can hold

    @property
    def envs(self) -> Sequence[Any]:
        """The E envs, wrappers included."""
        return [slot.env for slot in self._slots]

    def _seed(self, seed: int) -> None:
        for slot in self._slots:
            slot.seed(seed)

    def _reset_infos(self, env_indices: Iterable[int]) -> dict[int, Mapping[str, Any]]:
        return {index: self._slots[index].reset_infos for index in env_indices}

    def _first_step(self, observations: tuple[Observations, ...]) -> VecStep:
        """The step after a reset of all envs."""
        infos = self._reset_infos(range(self.num_envs))
        return first_step(observations, self._masks.read(self._slots, infos), self._turns(), infos)

    def _masks_after(
        self, infos: Sequence[Mapping[str, Any]], reset_infos: Mapping[int, Mapping[str, Any]]
    ) -> ActionMasks:
        """The masks after a step, from its infos, and from those of the resets that it brought."""
        if self._masks.idle:
            return self._masks.none
        return self._masks.read(self._slots, {**dict(enumerate(infos)), **reset_infos})

    def _flags(self, agents_of: Callable[[EnvSlot], Collection[AgentID]]) -> BoolArray:
        """(E, A); a new array."""
        return np.array([[agent in members for agent in self.agents] for members in map(agents_of, self._slots)])

    def _turns(self) -> BoolArray:
        """(E, A); the agents that act next, in a new array: `VecStep.acted` keeps the old one."""
        return self._flags(lambda slot: slot.to_act)

    def _show(self, slot: EnvSlot, shown: Mapping[AgentID, Any], observations: tuple[Observations, ...]) -> None:
        """Write what the agents see that act next into their places."""
        for agent in slot.to_act:
            place = self._places[agent]
            put(shown[agent], observations[place.group], (slot.index, place.group_column))

    def _given(self, slot: EnvSlot, actions: Sequence[Array]) -> dict[AgentID, Any]:
        """The actions of the agents that act, out of one env's, per group (A_group, ...)."""
        places = self._places
        return {agent: actions[places[agent].group][places[agent].group_column] for agent in slot.to_act}

    def _call(self, name: str, env_indices: Sequence[int], /, *args: Any, **kwargs: Any) -> list[Any]:
        return [call_or_read(self.envs[index], name, *args, **kwargs) for index in env_indices]

    # --- State -------------------------------------------------------------------------------------------------------

    def _get_state(self) -> State:
        own = [_own_state(env) for env in self.envs]
        return {
            "run_seed": self._slots[0].run_seed,
            "episodes": np.array([slot.episode for slot in self._slots], dtype=np.int64),
            "to_act": self.latest.to_act,
            "in_play": self._flags(lambda slot: slot.in_play),
            "ended": self._flags(lambda slot: slot.ended),
            "observations": list(self.latest.observations),
            "action_masks": list(self.latest.action_masks),
            "own": own,
            "log": self._log.get_state() if None in own else None,
        }

    def _set_state(self, state: StateReader) -> Mapping[int, str]:
        saved = self._read(state)
        inexact: dict[int, str] = {}
        for index in range(self.num_envs):
            why = self._restore(index, saved)
            if why:
                inexact[index] = why
                self._slots[index].continue_at(saved.run_seed, saved.episodes[index] + 1)
                copy_env(self._restart(index), saved.observations, index)
        self._log.begin(inexact)
        reset_infos = self._reset_infos(inexact)
        masks = self._restored_masks(saved.action_masks, reset_infos)
        self._latest = first_step(saved.observations, masks, self._turns(), reset_infos)
        return inexact

    def _restored_masks(self, masks: ActionMasks, reset_infos: Mapping[int, Mapping[str, Any]]) -> ActionMasks:
        """The masks of a state; those of the envs that have begun an episode instead are read from its start."""
        self._masks.adopt(masks)
        begun = self._masks.read([self._slots[index] for index in reset_infos], reset_infos)
        for ours, new in zip(masks, begun, strict=True):
            if ours is not None and new is not None:
                ours[list(reset_infos)] = new[list(reset_infos)]
        return masks

    def _read(self, state: StateReader) -> _Saved:
        shape = (self.num_envs, len(self.agents))
        to_act, in_play, ended = (state.array(name, np.bool_, shape) for name in ("to_act", "in_play", "ended"))
        if not to_act.any(axis=1).all() or (to_act & ended).any():
            raise state.error("to_act", to_act, "an agent that acts in every env, and none that has ended")
        if (in_play & ended).any():
            raise state.error("in_play", in_play, "no agent that has ended")
        saved = _Saved(
            state.integer("run_seed", 0, MAX_SEED),
            state.counts("episodes", (self.num_envs,)).tolist(),
            to_act,
            in_play,
            ended,
            read_observations(state, zero_observations(self.groups, self.num_envs)),
            read_masks(state, self.groups, to_act),
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
        self._slots[index].continue_at(saved.run_seed, saved.episodes[index])
        try:
            return self._set_own(index, saved) if saved.own[index] is not None else self._replay(index, saved)
        except CheckpointError:
            raise
        except EnvRaisedError as error:
            return str(error)
        except Exception as error:  # an env may raise anything if it does not repeat itself
            return f"{type(error).__name__}: {error}"

    def _restart(self, index: int) -> tuple[Observations, ...]:
        """Begin the next episode in one env; its observations in their places."""
        return self._in_place(self._slots[index], self._slots[index].reset())

    def _in_place(self, slot: EnvSlot, shown: Mapping[AgentID, Any]) -> tuple[Observations, ...]:
        observations = zero_observations(self.groups, self.num_envs)
        self._show(slot, shown, observations)
        return observations

    def _replay(self, index: int, saved: _Saved) -> str | None:
        slot = self._slots[index]
        shown = self._restart(index)
        for actions in self._log.of_env(index):
            if slot.episode != saved.episodes[index]:
                break  # it has ended too early
            shown = self._in_place(slot, slot.step(self._given(slot, actions)).observations)
        same_turns = slot.to_act == self._marked(saved.to_act[index]) and slot.in_play == set(
            self._marked(saved.in_play[index])
        )
        if slot.episode == saved.episodes[index] and same_turns and same_in_env(shown, saved.observations, index):
            return None
        return "the same seed and actions led to something else"

    def _marked(self, flags: BoolArray) -> list[AgentID]:
        return [agent for agent, flag in zip(self.agents, flags, strict=True) if flag]

    def _set_own(self, index: int, saved: _Saved) -> str | None:
        env = _innermost_checked(self.envs[index])
        env.set_state(saved.own[index])
        if not _same_tree(env.get_state(), saved.own[index]):
            return "its get_state() returns something else than its set_state() was given"
        to_act, in_play, ended = (self._marked(flags[index]) for flags in (saved.to_act, saved.in_play, saved.ended))
        if set(env.agents) - set(ended) != set(to_act):
            return "its agents are others than those that were to act"
        self._slots[index].adopt(to_act, set(in_play), set(ended))
        return None

    def close(self) -> None:
        """See `MultiAgentVecEnv.close`."""
        if not self._closed:
            self._closed = True
            for env in self.envs:
                env.close()


# --- Envs that know their own state ----------------------------------------------------------------------------------


def _innermost_checked(env: Any) -> Any:
    """What the factory returned: the env below the wrappers that every env wears."""
    return env.env


def _own_state(env: Any) -> State | None:
    """What the env says of itself, where it can be stored and put back."""
    inner = _innermost_checked(env)
    if not all(callable(getattr(type(inner), name, None)) for name in ("get_state", "set_state")):
        return None  # asked of the class: PettingZoo's wrappers pass questions on to envs that know less than they
    return ask_for_state(inner.get_state, env.where_and_seed())


def _same_tree(one: Any, other: Any) -> bool:
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return set(one) == set(other) and all(_same_tree(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(_same_tree, one, other))
    if isinstance(one, np.ndarray) or isinstance(other, np.ndarray):
        return np.array_equal(one, other)
    return bool(one == other)
