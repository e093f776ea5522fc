"""What compiled rules refuse."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from compiled_toys import RULES
from gymnasium import spaces

from marl_sb3.errors import ConfigError


def within() -> Any:
    scale = 2.0

    def observe(state: Any, observations: Any) -> None:
        observations[0, 0] = scale

    return observe


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"observation_space": spaces.Dict({})}, "the space is Dict.*; accepted: a Box, Discrete or MultiDiscrete"),
        ({"observation_space": spaces.Box(0, 1, (2,), np.float64)}, "are float64; accepted: float32 in a Box"),
        ({"action_space": spaces.MultiDiscrete([2, 3], dtype=np.int32)}, "are int32; accepted: .*int64"),
        ({"observe": within()}, "within.<locals>.observe uses variables of a function around it; accepted: a function"),
        ({"observe": None}, "accepted: `step` and `observe`, or `run`"),
        ({"run": within()}, "accepted: `step` and `observe`, or `run`"),
    ],
)
def test_rules_that_cannot_be_compiled_are_refused(changed: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=f"compiled rules: .*{words}"):
        replace(RULES, **changed)
