"""Wrappers of one `ParallelEnv`, one per file; `wrap` alone decides their order."""

from __future__ import annotations

from pettingzoo import ParallelEnv

from marl_sb3.wrappers.checked_env import CheckedEnv
from marl_sb3.wrappers.checks import require_interface
from marl_sb3.wrappers.observations import ActionMaskEnv, FlatObservationsEnv, masked_agents, nested_agents

__all__ = ["CheckedEnv", "wrap"]


def wrap(env: ParallelEnv, env_index: int) -> ParallelEnv:
    """Apply the wrappers that an env needs, innermost first. New wrappers are added here.

    Raises:
        ConfigError: the env lacks a part of the `ParallelEnv` interface, or its observations cannot be made flat.
    """
    require_interface(env, env_index)
    wrapped: ParallelEnv = CheckedEnv(env, env_index)
    if masked_agents(wrapped):
        wrapped = ActionMaskEnv(wrapped)
    return FlatObservationsEnv(wrapped) if nested_agents(wrapped) else wrapped
