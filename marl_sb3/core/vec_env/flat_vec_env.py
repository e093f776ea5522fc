"""A `MultiAgentVecEnv` seen as a plain SB3 `VecEnv`: one row per agent. The only place where `dones` are made."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import TYPE_CHECKING, Any

import numpy as np
from stable_baselines3.common.vec_env import VecEnv
from stable_baselines3.common.vec_env.base_vec_env import VecEnvIndices, VecEnvObs, VecEnvStepReturn

from marl_sb3.core.vec_env.observations import ZeroBased, map_arrays
from marl_sb3.core.vec_env.seeding import fresh_seed
from marl_sb3.core.vec_env.step import VecStep
from marl_sb3.errors import ConfigError
from marl_sb3.types import Array, BoolArray

if TYPE_CHECKING:
    from marl_sb3.core.vec_env.interface import MultiAgentVecEnv

_MASKS = "action_masks"


class FlatVecEnv(VecEnv):
    """Row `e * A + a` is agent `a` of env `e`.

    A row is done in the step in which its agent is terminated or truncated, with `terminal_observation` and
    `TimeLimit.truncated` in its info. If other agents of the env continue, the row idles until the env resets: zero
    observations, zero rewards, not done, `info["active"]` False. The row of an agent that waits for its turn idles too,
    with the rewards that the agent gets meanwhile. SB3's algorithms train on such steps, `MultiAgentAlgorithm` does
    not. Weights therefore equal those of `MultiAgentAlgorithm` only if no row ever idles: see
    `MultiAgentVecEnv.as_sb3_vec_env`.
    """

    def __init__(self, env: MultiAgentVecEnv) -> None:
        if len(env.groups) != 1:
            groups = "; ".join(f"{group.agents}: {group.observation_space}" for group in env.groups)
            raise ConfigError(f"an SB3 VecEnv needs the same spaces for all agents, got {groups}")
        self.env = env  # the vec env
        self._agents_per_env = len(env.agents)
        group = env.groups[0]
        self._observed, self._chosen = ZeroBased(group.observation_space), ZeroBased(group.action_space)
        super().__init__(env.num_envs * self._agents_per_env, self._observed.space, self._chosen.space)
        self.metadata = {**env.metadata, **self.metadata}
        self.last_step: VecStep | None = None  # the latest step, with data that rows do not have; None before the first
        self._actions: Array | None = None

    def reset(self) -> VecEnvObs:
        """Begin a new episode in every env; seeds and options set before are used once."""
        options = self._options[:: self._agents_per_env]
        step = self.env.reset(options if any(options) else None)
        self._reset_seeds()
        self._reset_options()
        self._keep_reset_infos(step)
        return self._rows(step)

    def step_async(self, actions: Array) -> None:
        """Keep the actions, shape (E * A, ...), for `step_wait`."""
        self._actions = actions

    def step_wait(self) -> VecEnvStepReturn:
        """Step every env; the infos are new dictionaries, one per row."""
        assert self._actions is not None, "step_async() comes first"
        # SB3 passes MultiBinary actions as floats.
        actions = np.asarray(self._actions, dtype=self.action_space.dtype)
        actions = self._chosen.to_env(actions)
        step = self.env.step((actions.reshape(self.env.num_envs, self._agents_per_env, *actions.shape[1:]),))
        self.last_step = step
        self._keep_reset_infos(step)
        dones = (step.terminated | step.truncated).reshape(-1)
        return self._rows(step), step.rewards.reshape(-1).copy(), dones, self._row_infos(step)

    def _rows(self, step: VecStep) -> VecEnvObs:
        # Copies: SB3 may write into them.
        rows = map_arrays(lambda array: array.reshape(-1, *array.shape[2:]).copy(), step.observations[0])
        return self._observed.from_rows(rows)

    def _keep_reset_infos(self, step: VecStep) -> None:
        for env_index, infos in step.reset_infos.items():
            for column, agent in enumerate(self.env.agents):
                self.reset_infos[env_index * self._agents_per_env + column] = dict(infos.get(agent, {}))

    def _row_infos(self, step: VecStep) -> list[dict[str, Any]]:
        rows = []
        timeouts = (step.truncated & ~step.terminated).tolist()
        for env_index, acted in enumerate(step.acted.tolist()):
            infos = step.infos[env_index]
            for column, agent in enumerate(self.env.agents):
                info = {**infos.get(agent, {}), "TimeLimit.truncated": timeouts[env_index][column]}
                if not acted[column]:
                    info["active"] = False
                rows.append(info)
        for (env_index, column), observation in step.final_observations.items():
            row = rows[env_index * self._agents_per_env + column]
            row["terminal_observation"] = self._observed.from_env(deepcopy(observation))
        return rows

    def seed(self, seed: int | None = None) -> Sequence[int | None]:
        """Set the seed from which the seeds of all episodes are derived. Takes effect at the next `reset`."""
        run_seed = fresh_seed() if seed is None else seed
        self.env.seed(run_seed)
        self._seeds = [run_seed] * self.num_envs
        return self._seeds

    def close(self) -> None:
        """Close all envs."""
        self.env.close()

    def get_images(self) -> Sequence[Array | None]:
        """Return one image per env (not per row: the agents of an env share an image)."""
        return self.env.call("render", range(self.env.num_envs))

    def get_attr(self, attr_name: str, indices: VecEnvIndices = None) -> list[Any]:
        """Return the attribute of each row's env; `action_masks`, which sb3-contrib asks for, where there are masks."""
        if attr_name == _MASKS and self._masks() is not None:
            return [self.env_method] * len(self._env_indices(indices))
        return self.env.call("get_wrapper_attr", self._env_indices(indices), attr_name)

    def set_attr(self, attr_name: str, value: Any, indices: VecEnvIndices = None) -> None:
        """Set an attribute of each row's env."""
        self.env.call("set_wrapper_attr", sorted(set(self._env_indices(indices))), attr_name, value)

    def env_method(
        self, method_name: str, *method_args: Any, indices: VecEnvIndices = None, **method_kwargs: Any
    ) -> list[Any]:
        """Call a method of each named row's env; of each env once if no rows are named.

        `action_masks`, which sb3-contrib calls, returns the (n,) mask of each row's agent.
        """
        masks = self._masks() if method_name == _MASKS else None
        if masks is not None:
            return [masks[row] for row in self._get_indices(indices)]
        if indices is None:
            by_env = self.env.call(method_name, range(self.env.num_envs), *method_args, **method_kwargs)
            return [result for result in by_env for _ in range(self._agents_per_env)]
        return self.env.call(method_name, self._env_indices(indices), *method_args, **method_kwargs)

    def _masks(self) -> BoolArray | None:
        """Return the (E * A, n) action masks of the latest step; None without masks."""
        of_group = self.env.latest.action_masks[0]
        return None if of_group is None else of_group.reshape(self.num_envs, -1).copy()

    def env_is_wrapped(self, wrapper_class: type, indices: VecEnvIndices = None) -> list[bool]:
        """Whether each row's env has this wrapper."""
        return self.env.call("has_wrapper", self._env_indices(indices), wrapper_class)

    def _env_indices(self, indices: VecEnvIndices) -> list[int]:
        return [row // self._agents_per_env for row in self._get_indices(indices)]
