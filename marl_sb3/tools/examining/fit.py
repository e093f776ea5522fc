"""Recommend how to train in an env: vectorizer, algorithm, policy class, one policy or several."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from gymnasium import spaces

from marl_sb3.core.extractors.images import fitting_policy
from marl_sb3.core.learners.building import build_for_acting
from marl_sb3.core.learners.spec import PolicySpec
from marl_sb3.core.mapping import rows_of_policy
from marl_sb3.core.vec_env.batched_vec_env import BatchedVecEnv
from marl_sb3.core.vec_env.interface import MultiAgentVecEnv
from marl_sb3.core.vec_env.step import VecStep
from marl_sb3.errors import ConfigError
from marl_sb3.extensions.fast.builtin import ALGORITHMS
from marl_sb3.startup import start_without_dynamo
from marl_sb3.tools.examining.finding import Evidence, Seen
from marl_sb3.tools.examining.player import random_action
from marl_sb3.types import Array

MASKED = "maskable_ppo"  # the algorithm for envs with action masks
# What else chooses among the actions that a mask allows -> when to take it.
_MASKED_TOO = {
    "maskable_recurrent_ppo": "where agents have to remember",
    "maskable_dqn": "with a replay buffer",
}
_WITH_MASKS = {spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary}


def fitting(vec_env: MultiAgentVecEnv, evidence: Evidence) -> dict[str, Any]:
    """Return the recommendations by name; a space that no algorithm can learn in becomes a finding."""
    start_without_dynamo()
    groups = [_group(vec_env, number, evidence) for number in range(len(vec_env.groups))]
    masked = any(mask is not None for mask in vec_env.reset().action_masks)
    algorithm = MASKED if masked and MASKED in ALGORITHMS else "ppo"
    kinds = {type(group.action_space) for group in vec_env.groups}
    # Those with a replay buffer take Discrete actions.
    takes = {name: {spaces.Discrete} if "buffer" in when else _WITH_MASKS for name, when in _MASKED_TOO.items()}
    too = {name: when for name, when in _MASKED_TOO.items() if name in ALGORITHMS and kinds <= takes[name]}
    return {
        "vectorizer": "batched" if isinstance(vec_env, BatchedVecEnv) else "sync",
        "algorithm": algorithm,
        "algorithm_class": ALGORITHMS[algorithm].class_name,
        "action_masks": masked,
        "masked_too": too if masked else {},
        "policies": "shared" if len(groups) == 1 else "per_agent",
        "groups": groups,
    }


def _group(vec_env: MultiAgentVecEnv, number: int, evidence: Evidence) -> dict[str, Any]:
    group = vec_env.groups[number]
    policy_of = {agent: str(n) for n, each in enumerate(vec_env.groups) for agent in each.agents}
    spec = PolicySpec(policy_kwargs={"ortho_init": False})  # which takes long for large images
    policy, network = fitting_policy(spec.algorithm, group.observation_space, None) or ("MlpPolicy", {})
    try:
        build_for_acting(rows_of_policy(vec_env, str(number), policy_of), spec, None, "cpu")
    except ConfigError as error:
        words = str(error).partition(": ")[2]
        evidence.report("no-algorithm", Seen(words, ", ".join(map(str, group.agents))))
    return {
        "agents": [str(agent) for agent in group.agents],
        "observation_space": str(group.observation_space),
        "action_space": str(group.action_space),
        "policy": " ".join([policy, *(f"({name}={value})" for name, value in network.items())]),
    }


def random_actions(vec_env: MultiAgentVecEnv, step: VecStep) -> list[Array]:
    """Draw random actions for all rows of a vec env; masks are respected.

    Returns:
        Per group, (E, A_group, *action shape).
    """
    masks = step.action_masks or (None,) * len(vec_env.groups)
    actions = []
    for group, mask in zip(vec_env.groups, masks, strict=True):
        space, rows = group.action_space, (vec_env.num_envs, len(group.agents))
        of_rows = [None] * math.prod(rows) if mask is None else mask.reshape(-1, mask.shape[-1])
        drawn = np.array([random_action(space, each) for each in of_rows], space.dtype)
        actions.append(drawn.reshape(*rows, *(space.shape or ())))
    return actions
