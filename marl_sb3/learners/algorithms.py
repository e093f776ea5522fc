"""Names of the algorithms on the command line, in files and in checkpoints. The library takes the classes too."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, cast

from stable_baselines3.common.base_class import BaseAlgorithm

from marl_sb3.errors import ConfigError

# Where the class of each name is: `module:class`. `algorithm_class` imports it.
ALGORITHMS: Mapping[str, str] = {
    "ppo": "marl_sb3.learners.ppo.ppo:PPO",
    "a2c": "marl_sb3.learners.a2c.a2c:A2C",
    "trpo": "marl_sb3.learners.trpo.trpo:TRPO",
    "maskable_ppo": "marl_sb3.learners.ppo.maskable_ppo:MaskablePPO",
    "recurrent_ppo": "marl_sb3.learners.ppo.recurrent_ppo:RecurrentPPO",
    "dqn": "marl_sb3.learners.replay.dqn:DQN",
    "qrdqn": "marl_sb3.learners.replay.qrdqn:QRDQN",
    "sac": "marl_sb3.learners.replay.sac:SAC",
    "td3": "marl_sb3.learners.replay.td3:TD3",
    "ddpg": "marl_sb3.learners.replay.td3:DDPG",
    "tqc": "marl_sb3.learners.replay.tqc:TQC",
    "crossq": "sb3_contrib.crossq.crossq:CrossQ",
}
# SB3's classes where marl_sb3 has a subclass of its own. They have names in checkpoints only.
STOCK: Mapping[str, str] = {
    "stable_baselines3.PPO": "stable_baselines3.ppo.ppo:PPO",
    "stable_baselines3.A2C": "stable_baselines3.a2c.a2c:A2C",
    "sb3_contrib.TRPO": "sb3_contrib.trpo.trpo:TRPO",
    "sb3_contrib.MaskablePPO": "sb3_contrib.ppo_mask.ppo_mask:MaskablePPO",
    "sb3_contrib.RecurrentPPO": "sb3_contrib.ppo_recurrent.ppo_recurrent:RecurrentPPO",
    "stable_baselines3.DQN": "stable_baselines3.dqn.dqn:DQN",
    "sb3_contrib.QRDQN": "sb3_contrib.qrdqn.qrdqn:QRDQN",
    "stable_baselines3.SAC": "stable_baselines3.sac.sac:SAC",
    "stable_baselines3.TD3": "stable_baselines3.td3.td3:TD3",
    "stable_baselines3.DDPG": "stable_baselines3.ddpg.ddpg:DDPG",
    "sb3_contrib.TQC": "sb3_contrib.tqc.tqc:TQC",
}
_SAVED: Mapping[str, str] = {**ALGORITHMS, **STOCK}


def place_of(cls: type[Any]) -> str:
    """Where a class is: `module:class`."""
    return f"{cls.__module__}:{cls.__qualname__}"


def class_at(place: str) -> type[Any]:
    """Import the class at a place: `module:class`."""
    module, _, cls = place.partition(":")
    return cast("type[Any]", getattr(importlib.import_module(module), cls))


def algorithm_class(name: str) -> type[BaseAlgorithm]:
    """Return the class of an algorithm."""
    if name not in ALGORITHMS:
        raise ConfigError(f"unknown algorithm {name!r}; accepted: {', '.join(ALGORITHMS)}", key="algo")
    return class_at(ALGORITHMS[name])


def is_maskable(algorithm: type[BaseAlgorithm]) -> bool:
    """Whether a class is MaskablePPO or a subclass of it."""
    return STOCK["sb3_contrib.MaskablePPO"] in map(place_of, algorithm.__mro__)


def is_recurrent(algorithm: type[BaseAlgorithm]) -> bool:
    """Whether a class is RecurrentPPO or a subclass of it."""
    return STOCK["sb3_contrib.RecurrentPPO"] in map(place_of, algorithm.__mro__)


def algorithm_name(algorithm: type[BaseAlgorithm]) -> str | None:
    """Return the name of a class in checkpoints; None for a class without a name, such as a user's own subclass."""
    return next((name for name, place in _SAVED.items() if place == place_of(algorithm)), None)


def saved_algorithm_class(name: str) -> type[BaseAlgorithm]:
    """Return the class of a name in a checkpoint."""
    return class_at(STOCK[name]) if name in STOCK else algorithm_class(name)


def require_algorithm(algorithm: object) -> None:
    """Refuse anything but a class of a supported algorithm."""
    supported = dict.fromkeys(_SAVED.values())
    if not (isinstance(algorithm, type) and any(place_of(base) in supported for base in algorithm.__mro__)):
        names = ", ".join(dict.fromkeys(place.partition(":")[2] for place in supported))
        raise ConfigError(f"algorithm is {algorithm!r}; accepted: {names} and subclasses", key="algo")
