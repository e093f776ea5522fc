"""SB3's hyperparameters: which names an algorithm takes, which values make sense, and how text becomes a value."""

from __future__ import annotations

import difflib
import inspect
import math
from collections.abc import Mapping
from typing import Any

from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.utils import LinearSchedule

from marl_sb3.config.names import NO_COUNTERPART
from marl_sb3.config.values import BOOLEAN, Accepted, integer, number, shown
from marl_sb3.errors import ConfigError

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

_SCHEDULES = frozenset({"learning_rate", "clip_range", "clip_range_vf"})
_OPTIONAL = frozenset({"clip_range_vf", "target_kl", "policy_kwargs"})
_ACTIVATIONS = ("tanh", "relu", "elu", "gelu", "silu", "leaky_relu")


_POSITIVE = number("a number above 0", lambda value: value > 0)
_NOT_NEGATIVE = number("a number of at least 0", lambda value: value >= 0)
_FRACTION = number("a number from 0 to 1", lambda value: 0 <= value <= 1)
_MAPPING = Accepted("a mapping such as {net_arch: [64, 64]}", lambda value: isinstance(value, Mapping))

_ACCEPTED: Mapping[str, Accepted] = {
    "learning_rate": _POSITIVE,
    "n_steps": integer(1),
    "batch_size": integer(2),
    "n_epochs": integer(1),
    "gamma": _FRACTION,
    "gae_lambda": _FRACTION,
    "clip_range": _POSITIVE,
    "clip_range_vf": _POSITIVE,
    "normalize_advantage": BOOLEAN,
    "ent_coef": _NOT_NEGATIVE,
    "vf_coef": _NOT_NEGATIVE,
    "max_grad_norm": _POSITIVE,
    "use_sde": BOOLEAN,
    "sde_sample_freq": integer(-1),
    "target_kl": _POSITIVE,
    "rms_prop_eps": _POSITIVE,
    "use_rms_prop": BOOLEAN,
    "policy_kwargs": _MAPPING,
}


def hyperparameter_defaults(algorithm_class: type[BaseAlgorithm]) -> dict[str, Any]:
    """The hyperparameters that an algorithm takes, with SB3's defaults."""
    parameters = inspect.signature(algorithm_class).parameters
    return {name: p.default for name, p in parameters.items() if name not in _RESERVED and p.default is not p.empty}


def resolve_hyperparameters(algorithm_class: type[BaseAlgorithm], values: Mapping[str, Any]) -> dict[str, Any]:
    """Check hyperparameters and turn text into what SB3 takes.

    `lin_3e-4` becomes a schedule from 3e-4 down to 0; `policy_kwargs: {activation_fn: relu}` the class.

    Args:
        algorithm_class: whose hyperparameters they are.
        values: by SB3's argument names.

    Raises:
        ConfigError: an unknown name, or a value out of range.
    """
    known = hyperparameter_defaults(algorithm_class)
    for name in values:
        if name not in known:
            raise ConfigError(_unknown_name(algorithm_class, name, known), key=name)
    return {name: _resolve(name, value) for name, value in values.items()}


def _unknown_name(algorithm_class: type[BaseAlgorithm], name: str, known: Mapping[str, Any]) -> str:
    if name in _RESERVED:
        return f"{name!r} is set by marl_sb3 for all policies; it is not a hyperparameter"
    if name in NO_COUNTERPART:
        return f"{name!r} is RLlib's and has no counterpart here: {NO_COUNTERPART[name]}"
    close = difflib.get_close_matches(name, known, n=3)
    hint = f"did you mean {', '.join(close)}?" if close else f"accepted: {', '.join(known)}"
    return f"unknown hyperparameter {name!r} of {algorithm_class.__name__}; {hint}"


def _resolve(name: str, value: Any) -> Any:
    if value is None and name in _OPTIONAL:
        return None
    if name in _SCHEDULES and isinstance(value, str):
        return _linear_schedule(name, value)
    if name in _SCHEDULES and callable(value):
        return value
    accepted = _ACCEPTED.get(name)
    if accepted and not accepted.test(value):
        raise ConfigError(f"{name} is {shown(value)}; accepted: {_words(name, accepted)}", key=name)
    return _resolve_policy_kwargs(value) if name == "policy_kwargs" else value


def _words(name: str, accepted: Accepted) -> str:
    schedule = ", or lin_X for a line from X down to 0" if name in _SCHEDULES else ""
    return f"{accepted.words}{schedule}" + (", or null" if name in _OPTIONAL else "")


def _linear_schedule(name: str, text: str) -> LinearSchedule:
    kind, _, start = text.partition("_")
    try:
        value = float(start)
    except ValueError:
        value = math.nan
    if kind != "lin" or not _ACCEPTED[name].test(value):
        raise ConfigError(f"{name} is {text!r}; accepted: {_words(name, _ACCEPTED[name])}", key=name)
    return LinearSchedule(value, 0.0, 1.0)


def _resolve_policy_kwargs(policy_kwargs: Mapping[str, Any]) -> dict[str, Any]:
    resolved = dict(policy_kwargs)
    if not _are_networks(resolved.get("net_arch")):
        words = "a list of layer widths such as [64, 64], or {pi: [64, 64], vf: [64, 64]}, or null"
        raise ConfigError(f"net_arch is {resolved['net_arch']!r}; accepted: {words}", key="policy_kwargs")
    activation = resolved.get("activation_fn")
    if isinstance(activation, str):
        resolved["activation_fn"] = _activation_class(activation)
    return resolved


def _are_networks(value: Any) -> bool:
    """Whether it may describe layers; a policy class of somebody's own may take other objects."""
    if isinstance(value, Mapping):
        return all(_are_networks(widths) for widths in value.values())
    if isinstance(value, (list, tuple)):
        return all(isinstance(width, Mapping) or integer(1).test(width) for width in value)
    return not isinstance(value, (str, int, float))


def _activation_class(name: str) -> Any:
    from torch import nn

    if name not in _ACTIVATIONS:
        raise ConfigError(f"activation_fn is {name!r}; accepted: {', '.join(_ACTIVATIONS)}", key="policy_kwargs")
    by_name = {cls.__name__.lower(): cls for cls in (nn.Tanh, nn.ReLU, nn.ELU, nn.GELU, nn.SiLU, nn.LeakyReLU)}
    return by_name[name.replace("_", "")]
