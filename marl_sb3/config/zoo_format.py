"""The sections of rl-baselines3-zoo's files, and the keys of these files that marl_sb3 does not support yet."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from marl_sb3.config.provenance import Source
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
    "normalize": _Key("VecNormalize: running normalisation of observations and rewards", (False, None, {})),
    "frame_stack": _Key("VecFrameStack: the latest observations stacked into one", (1, None, 0)),
    "env_wrapper": _Key("wrappers around each env, named by their Python classes", _NONE),
    "vec_env_wrapper": _Key("wrappers around the vectorized env, named by their Python classes", _NONE),
    "callback": _Key("callbacks named by their Python classes; pass marl_sb3.train(callback=[...])", _NONE),
    "monitor_kwargs": _Key("arguments of SB3's Monitor", _NONE),
}
KEYS = frozenset(_KEYS)


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
    asked = "; ".join(f"{key} is {_shown(given[key])} ({_KEYS[key].what})" for key in wanted)
    without = " ".join(f"--set {key}={_text(off)}" for key, off in wanted.items())
    words = f"not supported yet: {asked}; to train without: {without}"
    raise ConfigError(f"{sources[first]}: {words}" if first in sources else words, key=first)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}..."


def _text(value: Any) -> str:
    return {False: "false", None: "null"}.get(value, str(value))
