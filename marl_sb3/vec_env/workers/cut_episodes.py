"""The end of episodes that were cut off: their envs could not be brought back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from marl_sb3.types import Array, BoolArray, Observations
from marl_sb3.vec_env.groups import AgentGroup
from marl_sb3.vec_env.observations import map_arrays, taken
from marl_sb3.vec_env.step import FinalObservations, VecStep


class RunningEpisodes:
    """Which agents are in play, and what they saw last; agents that wait are not shown anything.

    Args:
        groups: the agents by their spaces.
    """

    def __init__(self, groups: Sequence[AgentGroup]) -> None:
        self._groups = groups
        self._places = {
            column: (number, place) for number, group in enumerate(groups) for place, column in enumerate(group.columns)
        }

    def begin(self, step: VecStep) -> None:
        """Begin with the first step after a reset, or after `set_state`."""
        self._everybody = np.ones_like(step.to_act).tobytes()
        self._in_play: BoolArray = np.zeros_like(step.to_act)  # not kept up to date while all agents act
        self._latest = step
        self._seen: list[Observations] | None = None

    def add(self, step: VecStep) -> None:
        """Note a step."""
        if step.to_act.tobytes() == self._everybody:  # faster than `all`
            self._in_play, self._seen, self._latest = step.to_act, None, step
            return
        in_play = self._in_play | step.acted
        in_play &= ~(step.terminated | step.truncated)
        in_play[step.episode_done] = False
        self._in_play = in_play
        if (in_play & ~step.to_act).any():
            self._note_seen(step)
        else:
            self._seen = None
        self._latest = step

    def _note_seen(self, step: VecStep) -> None:
        if self._seen is None:
            self._seen = [map_arrays(np.copy, group) for group in self._latest.observations]
        self._seen = [
            _where(step.to_act[:, group.columns], new, old)
            for group, new, old in zip(self._groups, step.observations, self._seen, strict=True)
        ]

    def cut(self, step: VecStep, env_indices: Iterable[int]) -> VecStep:
        """Return a step in which the agents in play of these envs are truncated, on what they saw last.

        Args:
            step: the envs stood still in it, and have been reset.
            env_indices: the envs.
        """
        rows = list(env_indices)
        truncated = step.truncated.copy()
        truncated[rows] = self._in_play[rows] | self._latest.to_act[rows]
        seen = self._latest.observations if self._seen is None else self._seen
        finals = dict(step.final_observations.items())
        for row, column in np.argwhere(truncated).tolist():
            if row in rows:
                group, place = self._places[column]
                finals[row, column] = map_arrays(np.copy, taken(seen[group], (row, place)))
        return replace(step, truncated=truncated, final_observations=FinalObservations(finals))


def _where(shown: BoolArray, new: Observations, old: Observations) -> Observations:
    """Return the new observations where the agents are shown something, the old ones elsewhere."""

    def chosen(one: Array, other: Array) -> Array:
        return np.where(shown.reshape(*shown.shape, *(1 for _ in one.shape[2:])), one, other)

    if isinstance(new, dict):
        assert isinstance(old, dict)
        return {key: chosen(new[key], old[key]) for key in new}
    assert not isinstance(old, dict)
    return chosen(new, old)
