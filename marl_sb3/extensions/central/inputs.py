"""What a central critic sees: the state of each env, or the observations of all its agents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from marl_sb3.core.mapping import PolicyRows
from marl_sb3.core.vec_env.interface import MultiAgentVecEnv
from marl_sb3.core.vec_env.step import VecStep
from marl_sb3.types import Array, BoolArray, FloatArray


class CentralInputs:
    """Makes the inputs of a critic for the rows of a policy from steps of the envs.

    They are the env's state if the steps have one; else the observations of all agents, zeros for those that do not act
    next, and who acts next. If a policy plays several agents, a one-hot code says for which of them a value is.

    Args:
        env: the envs.
        rows: of the policy.
    """

    def __init__(self, env: MultiAgentVecEnv, rows: PolicyRows) -> None:
        self._env, self._rows = env, rows
        several = len(rows.agents) > 1
        self._who = np.tile(np.eye(len(rows.agents), dtype=np.float32), (rows.num_envs, 1)) if several else None

    def of_rows(self, step: VecStep) -> FloatArray:
        """Return (rows, inputs) float32: what the critic sees before the actions that follow a step."""
        if step.env_state is not None:
            of_envs = step.env_state.reshape(len(step.env_state), -1).astype(np.float32)
        else:
            acting = step.to_act.astype(np.float32)
            parts = [
                (flat(group.observation_space, seen) * acting[:, list(group.columns), None]).reshape(len(acting), -1)
                for group, seen in zip(self._env.groups, step.observations, strict=True)
            ]
            of_envs = np.concatenate([*parts, acting], axis=1)
        rows: FloatArray = of_envs.repeat(len(self._rows.agents), axis=0)
        return rows if self._who is None else np.concatenate([rows, self._who], axis=1)

    def of_final(self, step: VecStep, rows: BoolArray) -> FloatArray:
        """Return (n, inputs) for rows, (rows,) bool, whose agents were truncated: what the critic sees at their end."""
        of_envs = self.of_rows(step)
        for env_index in np.unique(np.flatnonzero(rows) // len(self._rows.agents)).tolist():
            places = slice(env_index * len(self._rows.agents), (env_index + 1) * len(self._rows.agents))
            own = self._final_state(step, env_index)
            of_envs[places, : len(own)] = own
        return of_envs[rows]

    def _final_state(self, step: VecStep, env_index: int) -> FloatArray:
        if step.env_state is not None:
            state = step.final_env_states.get(env_index, step.env_state[env_index])
            return np.asarray(state, np.float32).reshape(-1)
        cut = step.truncated[env_index] & ~step.terminated[env_index]  # who is terminated is not there any more
        is_over = step.episode_done[env_index]  # then the step shows the first observations of the next episode
        there = np.zeros(len(self._env.agents), np.float32) if is_over else step.to_act[env_index].astype(np.float32)
        parts = []
        for group, seen in zip(self._env.groups, step.observations, strict=True):
            of_group = flat(group.observation_space, _at(seen, env_index))  # (A_group, inputs)
            of_group *= there[list(group.columns), None]
            for place, column in enumerate(group.columns):
                if cut[column] and (final := step.final_observations.get((env_index, column))) is not None:
                    of_group[place], there[column] = flat(group.observation_space, _batch(final))[0], 1.0
            parts.append(of_group.reshape(-1))
        return np.concatenate([*parts, there])


def _at(seen: Any, index: int) -> Any:
    return {key: array[index] for key, array in seen.items()} if isinstance(seen, Mapping) else seen[index]


def _batch(seen: Any) -> Any:
    if isinstance(seen, Mapping):
        return {key: np.asarray(value)[None] for key, value in seen.items()}
    return np.asarray(seen)[None]


def flat(space: spaces.Space[Any], seen: Any) -> FloatArray:
    """Return observations, (..., *shape of the space), as (..., numbers) float32; choices as one-hot codes."""
    if isinstance(space, spaces.Dict):
        return np.concatenate([flat(part, seen[key]) for key, part in space.spaces.items()], axis=-1)
    array: Array = np.asarray(seen)
    if isinstance(space, spaces.Discrete):
        codes: FloatArray = np.eye(int(space.n), dtype=np.float32)[array - int(space.start)]
        return codes
    if isinstance(space, spaces.MultiDiscrete):
        counts, first = space.nvec.reshape(-1), np.asarray(space.start).reshape(-1)
        chosen = array.reshape(*array.shape[: array.ndim - space.nvec.ndim], -1) - first
        parts = [np.eye(int(count), dtype=np.float32)[chosen[..., place]] for place, count in enumerate(counts)]
        return np.concatenate(parts, axis=-1)
    shape = space.shape or ()
    numbers: FloatArray = array.reshape(*array.shape[: array.ndim - len(shape)], -1).astype(np.float32)
    return numbers / np.float32(255) if array.dtype == np.uint8 and len(shape) > 1 else numbers
