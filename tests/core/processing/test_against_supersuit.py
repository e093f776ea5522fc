"""Our processing beside SuperSuit's wrappers: equal where both mean the same, and what differs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import supersuit
from gymnasium import spaces
from toy_envs import SampledEnv, ScriptedEnv

from marl_sb3.core.config.settings import ProcessingSettings
from marl_sb3.core.mapping import rows_of_policy
from marl_sb3.core.processing.processing import Processing
from marl_sb3.core.processing.processors import ProcessedPolicy
from marl_sb3.core.processing.rows import process_rows
from marl_sb3.core.vec_env.make import make_vec_env

IMAGE = spaces.Box(0, 255, (8, 12, 3), "uint8")


def images() -> Any:
    return SampledEnv(IMAGE, spaces.Discrete(3), {"a": (4, "truncated"), "b": (4, "truncated")})


def seen(factory: Callable[[], Any], steps: int = 9, **settings: Any) -> np.ndarray:
    """What a shared policy sees of an env in some steps: (steps, agents, ...)."""
    env = make_vec_env(factory, seed=3)
    rows = rows_of_policy(env, "p", dict.fromkeys(env.agents, "p"))
    group = rows.group
    policy = ProcessedPolicy("p", rows.agents, group.action_space)
    processing = Processing(ProcessingSettings(**settings), policy, group.observation_space)
    processed = process_rows(processing, rows, 0.99, learns=False)
    step, found = env.reset(), []
    for _ in range(steps):
        found.append(np.array(processed.processed_observations(step)))
        processed.acted(np.zeros(rows.num_rows, dtype=np.int64), rows.of_agents(step.to_act))
        step = env.step([np.zeros((1, 2), dtype=np.int64)])
        processed.observe(step)
    return np.stack(found)


CASES: dict[str, tuple[Callable[[], Any], dict[str, Any], Callable[[Any], Any]]] = {
    "frames of vectors": (ScriptedEnv, {"frame_stack": 3}, lambda env: supersuit.frame_stack_v1(env, 3)),
    "frames of images": (images, {"frame_stack": 2}, lambda env: supersuit.frame_stack_v1(env, 2)),
    "agent indicator, images": (images, {"agent_indicator": True}, supersuit.agent_indicator_v0),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_policies_see_what_supersuits_wrappers_show(case: Any) -> None:
    """Where all agents act in every step."""
    make, settings, wrap = case
    np.testing.assert_array_equal(seen(make, **settings), seen(lambda: wrap(make())))


def test_the_indicator_is_1_where_supersuits_is_the_largest_bound_of_the_observation() -> None:
    ours = seen(ScriptedEnv, agent_indicator=True)
    theirs = seen(lambda: supersuit.agent_indicator_v0(ScriptedEnv()))
    np.testing.assert_array_equal(ours[..., :3], theirs[..., :3])
    np.testing.assert_array_equal(1000 * ours[..., 3:], theirs[..., 3:])


def test_images_are_averaged_where_supersuit_picks_pixels() -> None:
    raw = seen(images).astype(int)
    blocks = raw.reshape(9, 2, 4, 2, 6, 2, 3).mean(axis=(3, 5))
    np.testing.assert_array_equal(seen(images, resize=[4, 6]), np.rint(blocks))
    theirs = seen(lambda: supersuit.resize_v1(images(), x_size=6, y_size=4, linear_interp=False))
    assert np.abs(blocks - theirs).max() > 50


def test_gray_is_gymnasiums_and_not_supersuits() -> None:
    """Gymnasium weighs red, green and blue as ITU-R BT.709 says, SuperSuit as BT.601 does."""
    gray = seen(images, grayscale=True)[..., 0]
    raw = seen(images)
    np.testing.assert_array_equal(gray, (raw @ np.array([0.2125, 0.7154, 0.0721])).astype(np.uint8))
    theirs = seen(lambda: supersuit.color_reduction_v0(images(), mode="full"))
    np.testing.assert_allclose(theirs, raw @ np.array([0.299, 0.587, 0.114]), atol=1.5)
