"""Spaces that SB3 can learn in, the VecEnv without envs that its algorithms are made with, and its `VecNormalize`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.vec_env import VecEnv, VecNormalize
from stable_baselines3.common.vec_env.base_vec_env import VecEnvIndices

from marl_sb3.core.mapping import PolicyRows
from marl_sb3.core.processing.processing import Processing
from marl_sb3.errors import ConfigError

Space = spaces.Space[Any]

_ACTION_SPACES = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
_VECTOR = "of one axis, with one integer or more"


def check_spaces(rows: PolicyRows, algorithm: type[BaseAlgorithm]) -> None:
    """Refuse spaces in which SB3 cannot act, or an algorithm of it.

    Args:
        rows: those of a policy, in the spaces in which it observes and acts.

    Raises:
        ConfigError: names the policy, its agents, the space, and what is accepted.
    """
    group = rows.group
    where = f"policy {rows.policy_id!r}, agents {', '.join(rows.agents)}"
    observed = group.observation_space
    named = observed.spaces.items() if isinstance(observed, spaces.Dict) else ()
    parts = {f" of {key!r}": part for key, part in named} or {"": observed}
    for part, space in parts.items():
        if accepted := _accepted_observations(space):
            raise ConfigError(f"{where}: the observation space{part} is {space}; accepted: {accepted}")
    if accepted := _accepted_actions(group.action_space, algorithm):
        raise ConfigError(f"{where}: the action space is {group.action_space}; accepted: {accepted}")


def _accepted_observations(space: Space) -> str | None:
    """What is accepted in place of an observation space; None if it is accepted."""
    if isinstance(space, spaces.MultiDiscrete) and (space.nvec.ndim != 1 or not space.nvec.size):
        return f"MultiDiscrete {_VECTOR}"
    if isinstance(space, spaces.Box) and (not space.shape or not math.prod(space.shape)):
        return "a Box of one axis or more, with one number or more, such as shape (1,)"
    return None


def _accepted_actions(space: Space, algorithm: type[BaseAlgorithm]) -> str | None:
    """What is accepted in place of an action space; None if it is accepted."""
    if hasattr(space, "refusal_of"):
        return space.refusal_of(algorithm)  # type: ignore[no-any-return]
    if not isinstance(space, _ACTION_SPACES):
        return f"{', '.join(kind.__name__ for kind in _ACTION_SPACES)}, Tuple or Dict of these, with Boxes of floats"
    if isinstance(space, spaces.MultiDiscrete) and (space.nvec.ndim != 1 or not space.nvec.size):
        return f"MultiDiscrete {_VECTOR}"
    if isinstance(space, spaces.MultiBinary) and len(space.shape) != 1:
        return f"MultiBinary {_VECTOR}"
    if isinstance(space, spaces.Box) and not math.prod(space.shape):
        return "a Box of one number or more"
    is_whole = isinstance(space, spaces.Box) and np.dtype(space.dtype).kind != "f"
    return "a Box of floats, Discrete or MultiDiscrete: SB3 draws real numbers for a Box" if is_whole else None


class SpacesOnlyVecEnv(VecEnv):
    """Number of rows and spaces of one policy. Only the joint loop steps the envs, in which all policies act."""

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


def normalize_minibatches(algorithm: BaseAlgorithm, processing: Processing) -> None:
    """Let an algorithm normalise what it draws from its replay buffer, by the present statistics of its policy."""
    if processing.statistics:
        gamma: float = algorithm.gamma  # type: ignore[attr-defined]
        algorithm._vec_normalize_env = vec_normalize(processing, gamma, lambda own: own)


def vec_normalize(processing: Processing, gamma: float, kept: Callable[[Any], Any]) -> VecNormalize:
    """Make a `VecNormalize` with what `kept` makes of the statistics of a policy; it does not change them."""
    settings, normalize = processing.settings, processing.normalizer
    before: spaces.Space[Any] = processing.env_observation_space if normalize is None else normalize.before
    made = VecNormalize(
        SpacesOnlyVecEnv(1, before, processing.action_space),
        training=False,
        norm_obs=normalize is not None,
        norm_reward=settings.normalize_rewards,
        clip_obs=settings.clip_observations,
        clip_reward=settings.clip_normalized_rewards,
        gamma=gamma,
        epsilon=settings.normalize_epsilon,
        norm_obs_keys=list(normalize.statistics) if normalize and isinstance(before, spaces.Dict) else None,
    )
    if normalize is not None:
        statistics = {key: kept(own) for key, own in normalize.statistics.items()}
        made.obs_rms = statistics if isinstance(before, spaces.Dict) else next(iter(statistics.values()))
    if settings.normalize_rewards:
        made.ret_rms = kept(processing.statistics["returns"])
    return made
