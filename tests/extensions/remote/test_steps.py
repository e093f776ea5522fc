"""The steps of shards, put together for callbacks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from marl_sb3.core.vec_env.step import ArrayInfos, DictInfos, VecStep
from marl_sb3.extensions.remote.shard import RecordedSteps, StepRecorder, side_by_side

ARRAYS = ("rewards", "terminated", "truncated", "acted", "to_act", "in_play")


def recorded(infos: list[Any]) -> RecordedSteps:
    """Steps of 2 envs with one agent; all arrays hold the number of the step."""
    recorder = StepRecorder(SimpleNamespace(played=None))  # type: ignore[arg-type]
    for number, each in enumerate(infos):
        arrays = {name: np.full((2, 1), number) for name in ARRAYS}
        more: dict[str, Any] = {"observations": (), "action_masks": (), "final_observations": {}, "reset_infos": {}}
        recorder.on_step(
            VecStep(infos=each, stepped=np.full(2, number), episode_done=np.full(2, number), **arrays, **more), []
        )
    return recorder.recorded()


def columns(key: str, first: float) -> ArrayInfos:
    return ArrayInfos({"a": {key: np.array([first, first + 1])}}, 2)


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ([columns("x", 0), columns("x", 5)], [columns("x", 2), columns("x", 7)],
         [{"a": {"x": value}} for value in (5, 6, 7, 8)]),
        ([columns("x", 0), columns("y", 5)], [columns("x", 2), columns("x", 7)],
         [{"a": {"y": 5}}, {"a": {"y": 6}}, {"a": {"x": 7}}, {"a": {"x": 8}}]),
        ([columns("x", 0), columns("x", 5)], [DictInfos([{}, {}])] * 2, [{"a": {"x": 5}}, {"a": {"x": 6}}, {}, {}]),
        ([DictInfos([{"a": {}}, {}])] * 2, [DictInfos([{}, {}])] * 2, [{}] * 4),
        ([DictInfos([{"a": {"x": [1]}}, {}])] * 2, [DictInfos([{}, {}])] * 2, [{"a": {"x": [1]}}, {}, {}, {}]),
    ],
)  # fmt: skip
def test_infos_of_all_shards_stand_side_by_side(one: Any, other: Any, expected: Any) -> None:
    steps = side_by_side([recorded(one), recorded(other)])
    assert len(steps) == 2
    step = steps.step(1)
    assert [step.infos[index] for index in range(4)] == expected
    np.testing.assert_array_equal(step.rewards, np.ones((4, 1)))
