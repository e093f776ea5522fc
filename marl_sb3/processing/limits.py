"""The limit of the size of a processed observation."""

from __future__ import annotations

import math
from collections.abc import Sequence

from marl_sb3.errors import ConfigError

MOST_NUMBERS = 2**24  # of one observation; a description from a stranger could ask for any


def require_size(setting: str, shape: Sequence[int]) -> None:
    """Refuse a space of observations that are too large, before memory is allocated.

    Raises:
        ConfigError: names the setting.
    """
    if math.prod(shape) > MOST_NUMBERS:
        words = f"{setting}: observations would have shape {tuple(shape)}; accepted: up to {MOST_NUMBERS:,} numbers"
        raise ConfigError(words, key=setting)
