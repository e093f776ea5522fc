"""A VecEnv that has only spaces, for SB3 algorithms whose experience comes from the joint loop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

from gymnasium import spaces
from stable_baselines3.common.vec_env import VecEnv
from stable_baselines3.common.vec_env.base_vec_env import VecEnvIndices

from marl_sb3.policies.placement import PolicyRows


class SpacesOnlyVecEnv(VecEnv):
    """Spaces and number of rows of one policy. Only the joint loop steps the envs, in which all policies act."""

    def __init__(self, rows: PolicyRows) -> None:
        super().__init__(rows.num_rows, rows.zero_based_observations.space, rows.zero_based_actions.space)

    def seed(self, seed: int | None = None) -> Sequence[int | None]:
        """Do nothing: the joint env has its own seed."""
        return [None] * self.num_envs

    def get_attr(self, attr_name: str, indices: VecEnvIndices = None) -> list[Any]:
        """Rows have no attribute except the render mode, which SB3 reads."""
        if attr_name != "render_mode":
            raise AttributeError(attr_name)
        return [None] * self.num_envs

    def env_is_wrapped(self, wrapper_class: type, indices: VecEnvIndices = None) -> list[bool]:
        """Return False for every row."""
        return [False] * self.num_envs

    def close(self) -> None:
        """Do nothing."""

    def _joint_only(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise RuntimeError("one policy cannot step the env alone: use MultiAgentAlgorithm.learn() or train_iteration()")

    reset = step_async = step_wait = set_attr = env_method = _joint_only


class OneRow(SpacesOnlyVecEnv):
    """The same with one row, of these spaces."""

    def __init__(self, observation_space: spaces.Space[Any], action_space: spaces.Space[Any]) -> None:
        VecEnv.__init__(self, 1, observation_space, action_space)
