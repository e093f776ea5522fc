"""The result of one step of E envs: `VecStep` and the containers in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
from typing_extensions import override

from marl_sb3.core.vec_env.observations import AgentGroup, map_arrays
from marl_sb3.types import AgentID, Array, BoolArray, FloatArray, Observations

ActionMasks = tuple[BoolArray | None, ...]  # per group


class StepInfos(Protocol):
    """The infos of one step of E envs, as the envs returned them."""

    def __getitem__(self, env_index: int) -> Mapping[str, Any]:
        """Return the info dictionary of one env: agent id -> info, and any other keys of the env."""

    def values(self, agent: AgentID, key: str) -> Array:
        """Return `infos[agent][key]` of each env, (E,) float64; NaN where it is absent."""


class DictInfos:
    """`StepInfos` from one dictionary per env."""

    def __init__(self, infos: Sequence[Mapping[str, Any]]) -> None:
        self._infos = infos

    def __getitem__(self, env_index: int) -> Mapping[str, Any]:
        return self._infos[env_index]

    def values(self, agent: AgentID, key: str) -> Array:
        """See `StepInfos.values`."""
        values: Array = np.full(len(self._infos), np.nan)
        for env_index, infos in enumerate(self._infos):
            values[env_index] = infos.get(agent, {}).get(key, np.nan)
        return values


class ArrayInfos:
    """`StepInfos` from arrays; the dictionary of an env is made when it is accessed."""

    def __init__(self, infos: Mapping[AgentID, Mapping[str, Array]], num_envs: int) -> None:
        self.columns = infos  # agent -> key -> (E,) values
        self._num_envs = num_envs

    def __getitem__(self, env_index: int) -> dict[str, Any]:
        return {agent: {k: v[env_index].tolist() for k, v in info.items()} for agent, info in self.columns.items()}

    def values(self, agent: AgentID, key: str) -> Array:
        """See `StepInfos.values`."""
        found = self.columns.get(agent, {}).get(key)
        return np.full(self._num_envs, np.nan) if found is None else found.astype(np.float64)


class FinalObservations(Mapping[tuple[int, int], Any]):
    """{(env index, agent column): the observation that the agent ended on}."""

    def __init__(self, by_place: Mapping[tuple[int, int], Any]) -> None:
        self._by_place = by_place

    def __getitem__(self, place: tuple[int, int]) -> Any:
        return map_arrays(_read_only, self._by_place[place])

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(self._by_place)

    def __len__(self) -> int:
        return len(self._by_place)

    def among(self, agents: BoolArray) -> BoolArray:
        """Which of these agents, (E, A) bool, have one."""
        known = np.zeros_like(agents)
        known[tuple(np.array(list(self), dtype=np.int64).reshape(-1, 2).T)] = True
        return known & agents

    def stacked(self, wanted: BoolArray) -> Observations:
        """Return a batch of the observations marked in `wanted`, (E, A), of one group, ordered as by `np.argwhere`."""
        chosen = [self[env_index, column] for env_index, column in np.argwhere(wanted).tolist()]
        if isinstance(chosen[0], Mapping):
            return {key: np.stack([observation[key] for observation in chosen]) for key in chosen[0]}
        return np.stack(chosen)


class StackedFinalObservations(FinalObservations):
    """Final observations in batches, for envs that are stepped as arrays.

    Args:
        ended: (E, A) bool; the agents that ended.
        groups: the agents by their spaces.
        observations: per group, (E, A_group, ...); the latest observation of every agent.
    """

    def __init__(self, ended: BoolArray, groups: Sequence[AgentGroup], observations: Sequence[Observations]) -> None:
        batches = zip(groups, [map_arrays(_read_only, seen) for seen in observations], strict=True)
        self._batch_of = {column: (group.columns, seen) for group, seen in batches for column in group.columns}
        env_indices, columns = np.nonzero(ended)
        super().__init__(dict.fromkeys(zip(env_indices.tolist(), columns.tolist(), strict=True)))

    def __getitem__(self, place: tuple[int, int]) -> Any:
        if place not in self._by_place:
            raise KeyError(place)
        columns, observations = self._batch_of[place[1]]
        return map_arrays(lambda array: array[place[0], columns.index(place[1])], observations)

    @override
    def stacked(self, wanted: BoolArray) -> Observations:
        columns, observations = self._batch_of[int(wanted.any(axis=0).argmax())]
        return map_arrays(lambda array: array[wanted[:, columns]], observations)


NO_FINAL_OBSERVATIONS = FinalObservations({})


class ChosenAction(NamedTuple):
    """An action that a client has chosen for its agent, instead of the policy in this process."""

    action: Any  # what the env takes
    log_prob: float | None = None  # its log-probability under the policy that the client chose it with; None: not known


@dataclass(frozen=True)
class VecStep:
    """One step of E envs with A agents; or a reset, which is a first step without actions and rewards.

    Rewards and ends belong to an agent whether or not it acted: an agent that waits for its turn may get a reward, and
    may end, by another agent's action. Rewards before an agent's first action count in its return, but are part of no
    transition; those after its end are set to 0.

    The arrays are read-only: writing into one raises NumPy's error. The vec env may reuse their memory: they are valid
    until the next `send`, `step` or `reset`. `copy` makes a step to keep, whose arrays can be written to.
    """

    # per group, (E, A_group, ...). Where an episode is over, the first observation of the next one; zeros where the
    # agent does not act next.
    observations: tuple[Observations, ...]
    # per group, (E, A_group, n) bool, True where the agent's next action is allowed; all True where the agent does not
    # act next. None for a group whose envs give no masks. n is laid out as sb3-contrib does it: `nvec` for
    # MultiDiscrete, 2 k for MultiBinary(k).
    action_masks: ActionMasks
    rewards: FloatArray  # (E, A) float32; also of agents that are not in play, as long as they have not ended
    terminated: BoolArray  # (E, A) bool; True in the one step in which the agent was terminated
    truncated: BoolArray  # (E, A) bool; True in the one step in which the agent was truncated
    acted: BoolArray  # (E, A) bool; the agents that acted in this step
    to_act: BoolArray  # (E, A) bool; the agents that act in the next step
    # (E, A) bool; the agents whose transitions the rewards and ends of this step belong to. They have acted in the
    # episode, in this step or in an earlier one, and had not ended before this step. It is `acted` itself, the same
    # array, only if nobody else has rewards.
    in_play: BoolArray
    stepped: BoolArray  # (E,) bool; the envs that took this step. Env steps are counted by it.
    # (E,) bool; the envs in which the last agents ended in this step, and which have been reset
    episode_done: BoolArray
    final_observations: FinalObservations  # {(env index, agent column): the observation that the agent ended on}
    infos: StepInfos  # the infos that the envs returned from this step
    reset_infos: Mapping[int, Mapping[str, Any]]  # {env index: the infos of its reset}, for the envs that were reset
    # (E, ...) what the envs' `state()` returns, for critics that see everything; where an episode is over, the first
    # state of the next one. None unless the vec env was made with `env_state=True`.
    env_state: Array | None = None
    # {env index: the state in which the episode ended}, for the envs that were reset
    final_env_states: Mapping[int, Array] = field(default_factory=dict)
    # the envs whose episode was given up before its end, because the client that stepped them is gone
    given_up: Sequence[int] = ()
    # {(env index, agent column): its next action}, for agents whose actions clients choose themselves
    chosen: Mapping[tuple[int, int], ChosenAction] = field(default_factory=dict)

    def __post_init__(self) -> None:
        arrays = [self.rewards, self.terminated, self.truncated, self.acted, self.to_act, self.in_play, self.stepped]
        arrays += [self.episode_done, *self.final_env_states.values()]
        for group in (*self.observations, *self.action_masks, self.env_state):
            if isinstance(group, dict):
                arrays.extend(group.values())
            elif group is not None:
                arrays.append(group)
        for array in arrays:
            array.setflags(False)  # type: ignore[call-arg]  # `write`; by name it takes longer

    def copy(self) -> VecStep:
        """Return a deep copy, which later steps do not change."""
        return deepcopy(self)


def _read_only(value: Any) -> Any:
    """Return a view of an array that cannot be written to; a number as it is."""
    if not isinstance(value, np.ndarray):
        return value
    view = value.view()
    view.setflags(write=False)
    return view


def first_step(
    observations: tuple[Observations, ...],
    action_masks: ActionMasks,
    to_act: BoolArray,
    reset_infos: Mapping[int, Mapping[str, Any]],
    env_state: Array | None = None,
    in_play: BoolArray | None = None,
) -> VecStep:
    """Make the step that a reset returns: no actions, no rewards, no ends, empty infos; no env has stepped.

    Args:
        observations: per group, (E, A_group, ...).
        action_masks: per group, (E, A_group, n) bool, or None.
        to_act: (E, A) bool.
        reset_infos: {env index: the infos of its reset}.
        env_state: see `VecStep.env_state`.
        in_play: (E, A) bool; the agents that have acted and not ended, where an episode goes on; None: nobody.
    """
    nobody, no_env = np.zeros(to_act.shape, dtype=np.bool_), np.zeros(len(to_act), dtype=np.bool_)
    return VecStep(
        observations=observations,
        action_masks=action_masks,
        rewards=np.zeros(to_act.shape, dtype=np.float32),
        terminated=nobody,
        truncated=nobody,
        acted=nobody,
        to_act=to_act,
        in_play=nobody if in_play is None else in_play,
        stepped=no_env,
        episode_done=no_env,
        final_observations=NO_FINAL_OBSERVATIONS,
        infos=DictInfos([{} for _ in to_act]),
        reset_infos=reset_infos,
        env_state=env_state,
    )
