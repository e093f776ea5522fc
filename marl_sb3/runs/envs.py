"""What makes the envs of a run."""

from __future__ import annotations

from typing import Any

from marl_sb3.config.schema import TrainConfig
from marl_sb3.envs.gymnasium_wrappers import named_wrappers, wrapping_factory
from marl_sb3.envs.registry import EnvFactory, env_factory


def env_of(config: TrainConfig, factory: EnvFactory | None = None) -> str | EnvFactory:
    """Return what `make_vec_env` makes the envs of: the run's env, in the wrappers that its settings name.

    Args:
        config: of the run.
        factory: makes the env, if the id in the configuration is only its name.

    Raises:
        ConfigError: `env_wrapper` names a wrapper that is not in the table, or there is no such env.
    """
    wrappers = named_wrappers(config.env_wrapper)
    return wrapping_factory(env_factory(factory or config.env), wrappers) if wrappers else factory or config.env


def env_settings(config: TrainConfig) -> dict[str, Any]:
    """Return the arguments of `make_vec_env` that make envs like those of a run."""
    return {"episode_horizon": config.episode_horizon, **config.env_kwargs}
