"""The processing of a policy, and its rows as the policy sees them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gymnasium import spaces
from stable_baselines3.common.base_class import BaseAlgorithm

from marl_sb3.learners.spec import PolicySpec
from marl_sb3.policies.placement import PolicyRows
from marl_sb3.processing import Policy, Processing


def processing_of(rows: PolicyRows, spec: PolicySpec) -> Processing:
    """The processing that a spec describes.

    Raises:
        ConfigError: a setting does not fit the spaces.
    """
    policy = Policy(rows.policy_id, rows.agents, rows.zero_based_actions.space)
    return Processing(spec.processing, policy, rows.zero_based_observations.space)


def policy_rows(rows: PolicyRows, processing: Processing) -> PolicyRows:
    """The rows in the spaces in which the policy observes and acts."""
    group = replace(rows.group, observation_space=processing.observation_space, action_space=processing.action_space)
    return replace(rows, group=group)


def stored_rows(rows: PolicyRows, processing: Processing) -> PolicyRows:
    """The rows in the spaces in which a replay buffer keeps what they observe and do; see `stored_space`."""
    seen, normalizer = policy_rows(rows, processing), processing.normalizer
    return seen if normalizer is None else replace(seen, group=replace(seen.group, observation_space=normalizer.before))


def stored_space(processing: Processing, algorithm: BaseAlgorithm) -> spaces.Space[Any]:
    """Return the space of the observations that a replay buffer keeps: as the policy sees them, but not normalised."""
    space = algorithm.observation_space if processing.normalizer is None else processing.normalizer.before
    assert space is not None
    return space
