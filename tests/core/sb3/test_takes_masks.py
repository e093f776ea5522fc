"""Which algorithms take action masks: those whose `predict` has them, wherever it gets its arguments from."""

from __future__ import annotations

from typing import Any

import marl_sb3
from marl_sb3.core.sb3.inference import takes_masks
from marl_sb3.extensions.fast.builtin import ALGORITHMS


class Without(marl_sb3.MaskablePPO):
    """Its `predict` has none."""

    def predict(
        self, observation: Any, state: Any = None, episode_start: Any = None, deterministic: bool = False
    ) -> Any:
        return super().predict(observation, state, episode_start, deterministic)


def test_every_algorithm_takes_masks_as_its_table_says_also_where_predict_hands_arguments_on() -> None:
    for info in ALGORITHMS.values():
        algorithm: Any = info.algorithm_class
        assert takes_masks(algorithm.__new__(algorithm)) == info.takes_masks, info.name
    assert not takes_masks(Without.__new__(Without))
