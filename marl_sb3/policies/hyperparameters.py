"""Check hyperparameters and convert them to SB3's arguments: schedules, classes of activation functions."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Mapping
from typing import Any

from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.noise import ActionNoise
from stable_baselines3.common.utils import LinearSchedule

from marl_sb3.config.algorithms import Line, info_of
from marl_sb3.config.compat.rllib import explanation, is_of_rllib, no_counterpart
from marl_sb3.config.compat.rllib_names import NO_COUNTERPART
from marl_sb3.config.schema import ACCEPTED, PROCESSING
from marl_sb3.config.settings import canonical_name
from marl_sb3.config.values import PositiveFloat, accepts, alternatives_of, refusal, require, shown
from marl_sb3.errors import ConfigError
from marl_sb3.policies.networks import resolve_policy_kwargs

# `MultiAgentAlgorithm` sets these itself: they belong to the run, not to a policy.
_RESERVED = frozenset(
    {
        "policy",
        "env",
        "seed",
        "device",
        "verbose",
        "tensorboard_log",
        "stats_window_size",
        "rollout_buffer_class",
        "rollout_buffer_kwargs",
        "monitor_wrapper",
        "_init_setup_model",
    }
)


def hyperparameter_defaults(algorithm_class: type[BaseAlgorithm]) -> dict[str, Any]:
    """Return the hyperparameters of an algorithm with SB3's defaults."""
    parameters = inspect.signature(algorithm_class).parameters
    return {name: p.default for name, p in parameters.items() if name not in _RESERVED and p.default is not p.empty}


def resolve_hyperparameters(algorithm_class: type[BaseAlgorithm], values: Mapping[str, Any]) -> dict[str, Any]:
    """Check hyperparameters and convert text to the objects that SB3 takes.

    `lin_3e-4` becomes a schedule from 3e-4 down to 0; `policy_kwargs: {activation_fn: relu}` the class.

    Raises:
        ConfigError: an unknown name, or a value out of range.
    """
    known, info = hyperparameter_defaults(algorithm_class), info_of(algorithm_class)
    kinds = {} if info is None else info.kinds
    for name in values:
        if name not in known:
            raise ConfigError(_unknown_name(algorithm_class, name, known), key=name)
    # A subclass of the user's own may take arguments that no table has: they are not checked.
    return {name: _resolve(name, value, kinds.get(name, Any)) for name, value in values.items()}


def _unknown_name(algorithm_class: type[BaseAlgorithm], name: str, known: Mapping[str, Any]) -> str:
    if name in _RESERVED:
        return f"{name!r} is set by marl_sb3 for all policies; it is not a hyperparameter"
    if name in NO_COUNTERPART:
        return no_counterpart(name)
    if is_of_rllib(name) or canonical_name(name) != name:
        means = f"means {canonical_name(name)}" if canonical_name(name) != name else "is a name of RLlib"
        return f"{name!r} {means}; its names are for files, --set and MultiAgentAlgorithm; accepted here: SB3's"
    if name in ACCEPTED:
        return f"{name!r} is a setting of the whole run, which policies share; accepted: {name} without a policy"
    close = difflib.get_close_matches(name, [*known, *PROCESSING, *ACCEPTED], n=3)
    hint = f"did you mean {', '.join(close)}?" if close else f"accepted: {', '.join(known)}"
    return f"unknown hyperparameter {shown(name)}{explanation(name)} of {algorithm_class.__name__}; {hint}"


def _resolve(name: str, value: Any, kind: Any) -> Any:
    if name == "action_noise" and isinstance(value, ActionNoise):
        return value
    if name == "replay_buffer_class" and isinstance(value, type) and value.__module__.startswith("stable_baselines3."):
        value = value.__name__
    takes_schedules = Line in alternatives_of(kind)
    if takes_schedules and callable(value):
        return value
    require(name, value, kind)
    if takes_schedules and isinstance(value, str):
        return _linear_schedule(name, value, kind)
    return resolve_policy_kwargs(value) if name == "policy_kwargs" and value is not None else value


def _linear_schedule(name: str, text: str, kind: Any) -> LinearSchedule:
    start = float(text.removeprefix("lin_"))
    if not accepts(PositiveFloat, start):
        raise refusal(name, text, kind)
    return LinearSchedule(start, 0.0, 1.0)
