"""How large a processed observation may be."""

from __future__ import annotations

import math
from collections.abc import Sequence

from marl_sb3.errors import ConfigError

MOST_NUMBERS = 2**24  # of one observation; a description from a stranger could ask for any


def require_size(setting: str, shape: Sequence[int]) -> None:
    """Refuse observations that are too large, before they take memory.

    Raises:
        ConfigError: names the setting.
    """
    if math.prod(shape) > MOST_NUMBERS:
        words = f"{setting}: observations would have shape {tuple(shape)}; accepted: up to {MOST_NUMBERS:,} numbers"
        raise ConfigError(words, key=setting)
