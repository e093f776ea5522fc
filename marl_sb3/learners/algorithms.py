"""The algorithms by name: on the command line, in files and in checkpoints; in the library the classes are as good."""

from __future__ import annotations

from collections.abc import Mapping

import stable_baselines3
from stable_baselines3.common.base_class import BaseAlgorithm

from marl_sb3.errors import ConfigError
from marl_sb3.learners.ppo.ppo import PPO

ALGORITHMS: Mapping[str, type[BaseAlgorithm]] = {"ppo": PPO, "a2c": stable_baselines3.A2C}
_SUPPORTED = (stable_baselines3.PPO, stable_baselines3.A2C)


def algorithm_class(name: str) -> type[BaseAlgorithm]:
    """The class behind an algorithm's name.

    Raises:
        ConfigError: there is none.
    """
    if name not in ALGORITHMS:
        raise ConfigError(f"unknown algorithm {name!r}; accepted: {', '.join(ALGORITHMS)}", key="algo")
    return ALGORITHMS[name]


def algorithm_name(algorithm: type[BaseAlgorithm]) -> str | None:
    """The name of a class; None where it has none, such as a subclass of somebody's own."""
    return next((name for name, cls in ALGORITHMS.items() if cls is algorithm), None)


def require_algorithm(algorithm: object) -> None:
    """Refuse what is not a class of a supported algorithm.

    Raises:
        ConfigError: with what is accepted.
    """
    if not (isinstance(algorithm, type) and issubclass(algorithm, _SUPPORTED)):
        names = ", ".join(cls.__name__ for cls in _SUPPORTED)
        raise ConfigError(f"algorithm is {algorithm!r}; accepted: {names} and subclasses", key="algo")
