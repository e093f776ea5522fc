"""rl-baselines3-zoo's two keys of action noise, `noise_type` and `noise_std`, as one setting `action_noise`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from marl_sb3.errors import ConfigError

_TYPE, _STD = "noise_type", "noise_std"
_NAMES = {"normal": "normal", "ornstein-uhlenbeck": "ornstein_uhlenbeck", "ornstein_uhlenbeck": "ornstein_uhlenbeck"}


def with_action_noise(given: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """Yield the name that the source uses, the name and the value of each setting; the two keys become one setting.

    Raises:
        ConfigError: one of the two keys is missing, or the noise is unknown.
    """
    for written, value in given.items():
        prefix, dot, own = written.rpartition(".")
        is_noise = own in (_TYPE, _STD) and prefix.partition(".")[0] != "env"
        if is_noise and own == _TYPE:
            yield written, f"{prefix}{dot}action_noise", _noise(written, value, given.get(f"{prefix}{dot}{_STD}"))
        elif not is_noise:
            yield written, written, value
        elif f"{prefix}{dot}{_TYPE}" not in given:
            words = "noise_std is given without noise_type; accepted: both, or action_noise={normal: 0.1}"
            raise ConfigError(words, key=written)


def _noise(written: str, kind: Any, scale: Any) -> Any:
    if kind is None:
        return None
    if not isinstance(kind, str) or kind.strip() not in _NAMES or scale is None:
        words = f"noise_type is {kind!r}, noise_std is {scale!r}; accepted: {', '.join(_NAMES)}, and a number"
        raise ConfigError(words, key=written)
    return {_NAMES[kind.strip()]: scale}
