"""sb3-contrib's policies that take masks or remember, over a few rows, for tests of what acts by them."""

from __future__ import annotations

from typing import Any

import sb3_contrib
import stable_baselines3
import torch as th
from gymnasium import spaces
from toy_envs import SampledEnv

from marl_sb3 import make_vec_env
from marl_sb3.core.acting.by_agent import PolicyBundle, PolicySpaces
from marl_sb3.core.config.settings import ProcessingSettings
from marl_sb3.core.learners.building import processing_of
from marl_sb3.core.mapping import PolicyRows, rows_of_policy
from marl_sb3.core.sb3.spaces import SpacesOnlyVecEnv

SEEN = spaces.Box(-1, 1, (3,))
CHOICES = spaces.MultiDiscrete([3, 2])  # masks of 5
FORCES = spaces.Box(-1, 1, (2,))
SMALL: dict[str, Any] = {"n_steps": 2, "batch_size": 2, "n_epochs": 1, "device": "cpu", "seed": 0}


def only_spaces(rows: PolicyRows) -> SpacesOnlyVecEnv:
    return SpacesOnlyVecEnv(rows.num_rows, rows.zero_based_observations.space, rows.zero_based_actions.space)


def rows_of(action_space: spaces.Space[Any], policy_id: str, n_envs: int = 2) -> PolicyRows:
    """Row `2 * e + i` is agent i of env e."""
    env = make_vec_env(SampledEnv, n_envs=n_envs, observation_space=SEEN, action_space=action_space)
    return rows_of_policy(env, policy_id, dict.fromkeys("ab", policy_id))


def masked() -> Any:
    """A policy that takes masks."""
    rows, network = rows_of(CHOICES, "masked"), {"net_arch": [4]}
    return sb3_contrib.MaskablePPO(
        "MlpPolicy",
        only_spaces(rows),
        policy_kwargs=network,
        **SMALL,
    )


def recurrent() -> Any:
    """A policy that remembers, and whose actions show it."""
    rows, network = rows_of(FORCES, "recurrent"), {"net_arch": [], "lstm_hidden_size": 4, "n_lstm_layers": 2}
    algorithm = sb3_contrib.RecurrentPPO(
        "MlpLstmPolicy",
        only_spaces(rows),
        policy_kwargs=network,
        **SMALL,
    )
    with th.no_grad():
        for parameter in algorithm.policy.lstm_actor.parameters():
            parameter.mul_(3)
        algorithm.policy.action_net.weight.mul_(100)
    return algorithm


def plain() -> Any:
    """A policy that does neither."""
    rows = rows_of(FORCES, "plain")
    return stable_baselines3.PPO(
        "MlpPolicy",
        only_spaces(rows),
        policy_kwargs={"net_arch": [4]},
        **SMALL,
    )


def bundle() -> PolicyBundle:
    """Agent m acts by the masked policy, r by the recurrent one, p by the plain one."""
    policies = {"masked": masked(), "recurrent": recurrent(), "plain": plain()}
    its_spaces = {policy_id: PolicySpaces(SEEN, policy.action_space) for policy_id, policy in policies.items()}
    raw = {
        name: processing_of(rows_of(each.action_space, name), ProcessingSettings()) for name, each in policies.items()
    }
    return PolicyBundle(policies, {"m": "masked", "r": "recurrent", "p": "plain"}, its_spaces, raw)
