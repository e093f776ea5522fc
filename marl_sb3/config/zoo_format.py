"""The sections of rl-baselines3-zoo's files, and those keys of its files that are not settings of marl_sb3."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from marl_sb3.config.literal_call import parse_literal
from marl_sb3.config.provenance import Source
from marl_sb3.config.values import shown
from marl_sb3.errors import ConfigError

# Sections for envs without a section.
DEFAULT, ATARI = "default", "atari"
_ATARI_ID = re.compile(r"^(ALE|atari)/|NoFrameskip-v\d+$|Deterministic-v\d+$")


@dataclass(frozen=True)
class _Key:
    """A key of the zoo that is not supported.

    Attributes:
        what: what it switches on, for messages.
        off: the values that switch it off; messages advise the first.
    """

    what: str
    off: tuple[Any, ...]


_NONE: tuple[Any, ...] = (None, "", [], {}, False)
_KEYS: Mapping[str, _Key] = {
    "vec_env_wrapper": _Key("wrappers around the vectorized env, named by their Python classes", _NONE),
    "callback": _Key("callbacks named by their Python classes; pass marl_sb3.train(callback=[...])", _NONE),
    "monitor_kwargs": _Key("arguments of SB3's Monitor", _NONE),
}
KEYS = frozenset(_KEYS)


# VecNormalize's arguments -> settings.
_NORMALIZE: Mapping[str, str] = {
    "norm_obs": "processing.normalize_observations",
    "norm_reward": "processing.normalize_rewards",
    "norm_obs_keys": "processing.normalize_keys",
    "clip_obs": "processing.clip_observations",
    "clip_reward": "processing.clip_normalized_rewards",
    "epsilon": "processing.normalize_epsilon",
}
_SHOWN = 80  # characters of a value in a message
_ALWAYS_SO = {"training": True}  # arguments that have one value here


def translated_key(key: str, value: Any) -> dict[str, Any]:
    """Return the settings that a key of a file means, by name; most keys mean themselves.

    `normalize` is true, false, or arguments of `VecNormalize`: a mapping, or its text. `normalize_kwargs` has such
    arguments, too. The discount of rewards is always the policy's `gamma`.

    Raises:
        ConfigError: an argument that `VecNormalize` does not have, or that has no counterpart.
    """
    if key in ("normalize", "normalize_kwargs"):
        return _normalize(key, parse_literal(key, value) if isinstance(value, str) and value else value)
    if key == "processing.frame_stack" and value in (None, 0):
        return {key: 1}
    return {key: None} if key == "env_wrapper" and not value else {key: value}


def _normalize(key: str, value: Any) -> dict[str, Any]:
    on = ("norm_obs", "norm_reward")
    if isinstance(value, Mapping):
        arguments = {**(dict.fromkeys(on, True) if key == "normalize" and value else {}), **value}
    elif key == "normalize" and (value is None or isinstance(value, bool)):
        arguments = dict.fromkeys(on, bool(value))
    else:
        raise ConfigError(f"{key} is {shown(value, _SHOWN)}; accepted: {_NORMALIZE_WORDS}", key=key)
    for name, argument in arguments.items():
        if name == "gamma":
            raise ConfigError(f"{key} has gamma {argument!r}; rewards are discounted by the policy's gamma", key=key)
        if name not in _NORMALIZE and _ALWAYS_SO.get(name) != argument:
            raise ConfigError(f"{key} has {name}={shown(argument, _SHOWN)}; accepted: {_NORMALIZE_WORDS}", key=key)
    return {_NORMALIZE[name]: argument for name, argument in arguments.items() if name in _NORMALIZE}


_NORMALIZE_WORDS = f"true, false or a mapping with {', '.join(_NORMALIZE)}"


def section_for(env: str, sections: Mapping[Any, Any]) -> str | None:
    """Return the section that the zoo uses for an env without a section; None if the file does not have it."""
    if _ATARI_ID.search(env) and ATARI in sections:
        return ATARI
    return DEFAULT if DEFAULT in sections else None


def unsupported(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys that switch on something unsupported, each with a value that switches it off."""
    return {key: _KEYS[key].off[0] for key, value in given.items() if key in KEYS and value not in _KEYS[key].off}


def refuse_unsupported(given: Mapping[str, Any], sources: Mapping[str, Source]) -> None:
    """Refuse keys that switch on something unsupported."""
    wanted = unsupported(given)
    if not wanted:
        return
    first = next(iter(wanted))
    asked = "; ".join(f"{key} is {shown(given[key], _SHOWN)} ({_KEYS[key].what})" for key in wanted)
    without = " ".join(f"--set {key}={_text(off)}" for key, off in wanted.items())
    words = f"not supported yet: {asked}; to train without: {without}"
    raise ConfigError(f"{sources[first]}: {words}" if first in sources else words, key=first)


def _text(value: Any) -> str:
    return {False: "false", None: "null"}.get(value, str(value))
