"""Vectorised multi-agent envs: E envs as (E, A, ...) arrays, whatever steps them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from marl_sb3.envs.registry import EnvFactory, env_factory, make_env
from marl_sb3.errors import ConfigError
from marl_sb3.vec_env.base import AgentGroup, EnvStep, MultiAgentVecEnv
from marl_sb3.vec_env.supersuit_vec_env import SuperSuitVecEnv

__all__ = ["AgentGroup", "EnvStep", "MultiAgentVecEnv", "SuperSuitVecEnv", "make_vec_env"]

VECTORIZERS: Mapping[str, type[SuperSuitVecEnv]] = {"auto": SuperSuitVecEnv, "supersuit": SuperSuitVecEnv}


def make_vec_env(
    env: str | EnvFactory,
    n_envs: int = 1,
    seed: int | None = None,
    vectorizer: str = "auto",
    **env_kwargs: Any,
) -> MultiAgentVecEnv:
    """Make `n_envs` envs that step together.

    Args:
        env: an env id as on the command line, or a factory of a PettingZoo `ParallelEnv` (its class, say).
        n_envs: how many, at least 1.
        seed: run seed, from which the seed of every episode of every env follows; None draws one.
        vectorizer: `supersuit`, or `auto`, which picks the fastest that can run the env.
        env_kwargs: passed to the factory. A factory with a parameter `env_index` is told the env's index.

    Raises:
        ConfigError: one of the arguments is wrong; the message says which values are accepted.
    """
    if isinstance(n_envs, bool) or not isinstance(n_envs, int) or n_envs < 1:
        raise ConfigError(f"n_envs is {n_envs!r}; accepted: a whole number of at least 1", key="n_envs")
    if vectorizer not in VECTORIZERS:
        raise ConfigError(f"unknown vectorizer {vectorizer!r}; accepted: {', '.join(VECTORIZERS)}", key="vectorizer")
    factory = env_factory(env)
    return VECTORIZERS[vectorizer](lambda index: make_env(factory, index, env_kwargs), n_envs, seed)
