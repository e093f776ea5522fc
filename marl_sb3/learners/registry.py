"""The algorithms: their names on the command line, in files and in checkpoints, their classes and their learners."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, NamedTuple, cast

from stable_baselines3.common.base_class import BaseAlgorithm

from marl_sb3.errors import ConfigError


class Algorithm(NamedTuple):
    """The places of an algorithm's classes, `module:class` each; they are imported on demand.

    Attributes:
        own: the class that the algorithm's name stands for.
        stock: the class of SB3 or sb3-contrib; the same one if marl_sb3 has no subclass of it.
        learner: trains the policies of both classes and of their subclasses.
    """

    own: str
    stock: str
    learner: str


def _algorithm(stock: str, learner: str, own: str | None = None) -> Algorithm:
    """Make an entry; the places of marl_sb3's own classes are relative to this package."""
    here = f"{__package__}.algorithms"
    return Algorithm(stock if own is None else f"{here}.{own}", stock, f"{here}.{learner}")


ALGORITHMS: Mapping[str, Algorithm] = {
    "ppo": _algorithm("stable_baselines3.ppo.ppo:PPO", "ppo:PPOLearner", "ppo:PPO"),
    "a2c": _algorithm("stable_baselines3.a2c.a2c:A2C", "ppo:A2CLearner", "ppo:A2C"),
    "trpo": _algorithm("sb3_contrib.trpo.trpo:TRPO", "contrib:TRPOLearner", "contrib:TRPO"),
    "maskable_ppo": _algorithm(
        "sb3_contrib.ppo_mask.ppo_mask:MaskablePPO",
        "contrib:MaskablePPOLearner",
        "contrib:MaskablePPO",
    ),
    "recurrent_ppo": _algorithm(
        "sb3_contrib.ppo_recurrent.ppo_recurrent:RecurrentPPO",
        "contrib:RecurrentPPOLearner",
        "contrib:RecurrentPPO",
    ),
    "dqn": _algorithm("stable_baselines3.dqn.dqn:DQN", "replay:QLearner", "replay:DQN"),
    "qrdqn": _algorithm("sb3_contrib.qrdqn.qrdqn:QRDQN", "replay:QLearner", "contrib:QRDQN"),
    "sac": _algorithm("stable_baselines3.sac.sac:SAC", "replay:EntropyLearner", "replay:SAC"),
    "td3": _algorithm("stable_baselines3.td3.td3:TD3", "replay:ActorCriticLearner", "replay:TD3"),
    "ddpg": _algorithm("stable_baselines3.ddpg.ddpg:DDPG", "replay:ActorCriticLearner", "replay:DDPG"),
    "tqc": _algorithm("sb3_contrib.tqc.tqc:TQC", "replay:EntropyLearner", "contrib:TQC"),
    "crossq": _algorithm("sb3_contrib.crossq.crossq:CrossQ", "replay:EntropyLearner"),
}


def _name_of_stock(place: str) -> str:
    """The name of a class of SB3 in checkpoints: `stable_baselines3.PPO`."""
    module, _, cls = place.partition(":")
    return f"{module.partition('.')[0]}.{cls}"


# Name in checkpoints -> place of the class.
_SAVED: Mapping[str, str] = {
    **{name: each.own for name, each in ALGORITHMS.items()},
    **{_name_of_stock(each.stock): each.stock for each in ALGORITHMS.values() if each.stock != each.own},
}


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
    return class_at(ALGORITHMS[name].own)


def learner_class(algorithm: type[BaseAlgorithm]) -> Any:
    """Import the learner class of an algorithm; a subclass has that of its base class."""
    learners = {each.stock: each.learner for each in ALGORITHMS.values()}
    return class_at(next(learners[base] for base in map(place_of, algorithm.__mro__) if base in learners))


def is_maskable(algorithm: type[BaseAlgorithm]) -> bool:
    """Whether a class is MaskablePPO or a subclass of it."""
    return ALGORITHMS["maskable_ppo"].stock in map(place_of, algorithm.__mro__)


def is_recurrent(algorithm: type[BaseAlgorithm]) -> bool:
    """Whether a class is RecurrentPPO or a subclass of it."""
    return ALGORITHMS["recurrent_ppo"].stock in map(place_of, algorithm.__mro__)


def algorithm_name(algorithm: type[BaseAlgorithm]) -> str | None:
    """Return the name of a class in checkpoints; None for a class without a name, such as a user's own subclass."""
    return next((name for name, place in _SAVED.items() if place == place_of(algorithm)), None)


def saved_algorithm_class(name: str) -> type[BaseAlgorithm]:
    """Return the class of a name in a checkpoint."""
    return class_at(_SAVED[name]) if name in _SAVED else algorithm_class(name)


def require_algorithm(algorithm: object) -> None:
    """Refuse anything but a class of a supported algorithm."""
    supported = dict.fromkeys(_SAVED.values())
    if not (isinstance(algorithm, type) and any(place_of(base) in supported for base in algorithm.__mro__)):
        names = ", ".join(dict.fromkeys(place.partition(":")[2] for place in supported))
        raise ConfigError(f"algorithm is {algorithm!r}; accepted: {names} and subclasses", key="algo")
