"""Names of the algorithms on the command line, in files and in checkpoints. The library takes the classes too."""

from __future__ import annotations

from collections.abc import Mapping

import stable_baselines3
from stable_baselines3.common.base_class import BaseAlgorithm

from marl_sb3.errors import ConfigError
from marl_sb3.learners.ppo.ppo import PPO

ALGORITHMS: Mapping[str, type[BaseAlgorithm]] = {"ppo": PPO, "a2c": stable_baselines3.A2C}
_SUPPORTED = (stable_baselines3.PPO, stable_baselines3.A2C)


def algorithm_class(name: str) -> type[BaseAlgorithm]:
    """Return the class of an algorithm."""
    if name not in ALGORITHMS:
        raise ConfigError(f"unknown algorithm {name!r}; accepted: {', '.join(ALGORITHMS)}", key="algo")
    return ALGORITHMS[name]


def algorithm_name(algorithm: type[BaseAlgorithm]) -> str | None:
    """Return the name of an algorithm's class; None for a class without a name, such as a user's own subclass."""
    return next((name for name, cls in ALGORITHMS.items() if cls is algorithm), None)


def require_algorithm(algorithm: object) -> None:
    """Refuse anything but a class of a supported algorithm."""
    if not (isinstance(algorithm, type) and issubclass(algorithm, _SUPPORTED)):
        names = ", ".join(cls.__name__ for cls in _SUPPORTED)
        raise ConfigError(f"algorithm is {algorithm!r}; accepted: {names} and subclasses", key="algo")
