"""Wrappers of one `ParallelEnv`, one per file; `wrap` alone decides their order."""

from __future__ import annotations

from pettingzoo import ParallelEnv

from marl_sb3.wrappers.checked_env import CheckedEnv
from marl_sb3.wrappers.env_interface import require_interface

__all__ = ["CheckedEnv", "wrap"]


def wrap(env: ParallelEnv, env_index: int) -> ParallelEnv:
    """Apply the wrappers that every env gets, innermost first. New wrappers are added here.

    Raises:
        ConfigError: the env lacks a part of the `ParallelEnv` interface.
    """
    require_interface(env, env_index)
    return CheckedEnv(env, env_index)
