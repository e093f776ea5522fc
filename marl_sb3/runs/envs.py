"""Make the envs of a run."""

from __future__ import annotations

from typing import Any

from marl_sb3.config.schema import TrainConfig
from marl_sb3.envs.gymnasium_wrappers import named_wrappers, wrapping_factory
from marl_sb3.envs.registry import EnvFactory, env_factory
from marl_sb3.errors import ConfigError
from marl_sb3.vec_env import MultiAgentVecEnv, make_vec_env


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


def env_settings(config: TrainConfig, n_envs: int | None = None) -> dict[str, Any]:
    """Return the arguments of `make_vec_env` that make envs like those of a run.

    Args:
        n_envs: number of envs; there are no more workers than envs. None: as in the run.

    Raises:
        ConfigError: an argument of the env has the name of an argument of `make_vec_env`.
    """
    settings = {
        "episode_horizon": config.episode_horizon,
        "n_workers": _fitting(config.n_workers, config.n_envs, n_envs),
        "worker_timeout_s": config.worker_timeout_s,
        "max_worker_restarts": config.max_worker_restarts,
    }
    for name in settings:
        if name in config.env_kwargs:
            raise ConfigError(
                f"env.{name}: the argument of the env has the name of a setting; accepted: other names, as a "
                "factory around the env can give it",
                key=f"env.{name}",
            )
    return {**settings, **config.env_kwargs}


def make_envs(
    config: TrainConfig, factory: EnvFactory | None = None, n_envs: int | None = None, seed: int | None = None
) -> MultiAgentVecEnv:
    """Make envs like those of a run; the caller closes them.

    Args:
        config: of the run.
        factory: makes the env, if the id in the configuration is only its name.
        n_envs: number of envs; None: as in the run.
        seed: run seed of the envs; None draws one.
    """
    number = config.n_envs if n_envs is None else n_envs
    return make_vec_env(env_of(config, factory), number, seed, config.vectorizer, **env_settings(config, number))


def _fitting(n_workers: int | str, of_run: int, n_envs: int | None) -> int | str:
    """The number of workers for envs that may be fewer than those of the run."""
    if isinstance(n_workers, str) or n_envs is None or n_envs >= of_run:
        return n_workers
    return min(n_workers, n_envs)
