"""Wrappers of one `ParallelEnv`, a file each; `wrap` is the one place that states their order."""

from __future__ import annotations

from pettingzoo import ParallelEnv

from marl_sb3.wrappers.checked_env import CheckedEnv
from marl_sb3.wrappers.env_interface import require_interface

__all__ = ["CheckedEnv", "wrap"]


def wrap(env: ParallelEnv, env_index: int) -> ParallelEnv:
    """Put on `env` what every env wears, innermost first. A new wrapper is added here.

    Raises:
        ConfigError: it lacks something that a `ParallelEnv` has.
    """
    require_interface(env, env_index)
    return CheckedEnv(env, env_index)
