"""Recommend how to train in an env: vectorizer, algorithm, policy class, one policy or several."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.preprocessing import is_image_space

from marl_sb3.checkup.evidence import Evidence, Seen
from marl_sb3.config.algorithms import ALGORITHMS
from marl_sb3.errors import ConfigError
from marl_sb3.learners.building import build_for_acting
from marl_sb3.learners.spec import PolicySpec
from marl_sb3.learners.threads import start_without_dynamo
from marl_sb3.policies.placement import rows_of_policy
from marl_sb3.types import Array
from marl_sb3.vec_env import AgentGroup, BatchedVecEnv, MultiAgentVecEnv, VecStep

MASKED = "maskable_ppo"  # the algorithm for envs with action masks
_FINITE = 10.0  # unbounded actions are drawn from -10 to 10


def fitting(vec_env: MultiAgentVecEnv, evidence: Evidence) -> dict[str, Any]:
    """Return the recommendations by name; a space that no algorithm can learn in becomes a finding."""
    start_without_dynamo()
    groups = [_group(vec_env, number, evidence) for number in range(len(vec_env.groups))]
    masked = any(mask is not None for mask in vec_env.reset().action_masks)
    algorithm = MASKED if masked and MASKED in ALGORITHMS else "ppo"
    return {
        "vectorizer": "batched" if isinstance(vec_env, BatchedVecEnv) else "sync",
        "algorithm": algorithm,
        "algorithm_class": ALGORITHMS[algorithm].class_name,
        "action_masks": masked,
        "policies": "shared" if len(groups) == 1 else "per_agent",
        "groups": groups,
    }


def _group(vec_env: MultiAgentVecEnv, number: int, evidence: Evidence) -> dict[str, Any]:
    group = vec_env.groups[number]
    policy = policy_class(group.observation_space)
    policy_of = {agent: str(n) for n, each in enumerate(vec_env.groups) for agent in each.agents}
    spec = PolicySpec(policy=policy, policy_kwargs={"ortho_init": False})  # which takes long for large images
    try:
        build_for_acting(rows_of_policy(vec_env, str(number), policy_of), spec, "cpu")
    except ConfigError as error:
        words = str(error).partition(": ")[2]
        evidence.stop("no-algorithm", Seen(words, ", ".join(map(str, group.agents))))
    return {
        "agents": [str(agent) for agent in group.agents],
        "observation_space": str(group.observation_space),
        "action_space": str(group.action_space),
        "policy": policy,
    }


def policy_class(space: spaces.Space[Any]) -> str:
    """SB3's policy class for an observation space."""
    if isinstance(space, spaces.Dict):
        return "MultiInputPolicy"
    return "CnnPolicy" if is_image_space(space) else "MlpPolicy"


class RandomRows:
    """Draws random actions for all rows of a vec env; masks are respected.

    Args:
        vec_env: the envs.
        seed: seed of the random actions.
    """

    def __init__(self, vec_env: MultiAgentVecEnv, seed: int) -> None:
        self._groups = vec_env.groups
        self._num_envs = vec_env.num_envs
        self._rng = np.random.default_rng(seed)

    def draw(self, step: VecStep) -> list[Array]:
        """Per group, (E, A_group, *action shape)."""
        masks = step.action_masks or (None,) * len(self._groups)
        return [self._of_group(group, mask) for group, mask in zip(self._groups, masks, strict=True)]

    def _of_group(self, group: AgentGroup, mask: Array | None) -> Array:
        space, rng, rows = group.action_space, self._rng, (self._num_envs, len(group.agents))
        shape = (*rows, *(space.shape or ()))
        if mask is not None and isinstance(space, spaces.Discrete):
            drawn = (rng.random(mask.shape) * mask).argmax(axis=2) + space.start
        elif isinstance(space, spaces.Discrete):
            drawn = rng.integers(space.start, space.start + space.n, shape)
        elif isinstance(space, spaces.MultiDiscrete):
            drawn = rng.integers(space.start, space.start + space.nvec, shape)
        elif isinstance(space, spaces.MultiBinary):
            drawn = rng.integers(0, 2, shape)
        else:
            low, high = (np.clip(bound, -_FINITE, _FINITE) for bound in (space.low, space.high))  # type: ignore[attr-defined]
            drawn = rng.uniform(low, high, shape)
        actions: Array = drawn.astype(space.dtype)
        return actions
