"""PettingZoo's pairs of an observation and a mask: policies see the observation, the mask goes to the infos."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from toy_envs import ScriptedEnv

from marl_sb3 import MultiAgentAlgorithm, make_vec_env
from marl_sb3.errors import EnvError
from marl_sb3.wrappers.observations import EnvView, is_masked

INNER = spaces.Box(-1000, 1000, (3,), np.float32)


def pair(mask: spaces.Space[Any], **more: spaces.Space[Any]) -> spaces.Dict:
    return spaces.Dict({"observation": INNER, "action_mask": mask, **more})


@pytest.mark.parametrize(
    ("observation_space", "action_space", "expected"),
    [
        (pair(spaces.Box(0, 1, (3,), np.int8)), spaces.Discrete(3, start=4), True),
        (pair(spaces.MultiBinary(5)), spaces.MultiDiscrete([3, 2]), True),
        (pair(spaces.MultiBinary(4)), spaces.MultiBinary(2), True),
        (pair(spaces.MultiBinary(4)), spaces.Discrete(3), False),
        (pair(spaces.MultiBinary(3)), spaces.Box(0, 1, (3,)), False),
        (pair(spaces.MultiBinary(3), more=INNER), spaces.Discrete(3), False),
        (INNER, spaces.Discrete(3), False),
    ],
)
def test_which_observations_hold_masks(observation_space, action_space, expected):
    assert is_masked(observation_space, action_space) is expected


class MaskedEnv(ScriptedEnv):
    """Agent a gives masks that depend on the step; `wrong` is what it says of them in step 2."""

    def __init__(self, wrong: Any = None) -> None:
        super().__init__({"a": (3, "truncated"), "b": (3, "truncated")})
        self.wrong = wrong

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return pair(spaces.Box(0, 1, (3,), np.int8)) if agent == "a" else INNER

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Discrete(3 if agent == "a" else 4)

    def observation(self, agent: str) -> Any:
        inner = super().observation(agent)
        if agent == "b":
            return inner
        mask = np.arange(3) != self.step_count
        wrong = self.step_count == 2 and self.wrong is not None
        return {"observation": inner, "action_mask": self.wrong if wrong else mask.astype(np.int8)}


def test_the_policy_sees_the_inner_observation_and_the_step_has_the_mask():
    assert EnvView(MaskedEnv()).differs
    assert not EnvView(ScriptedEnv()).differs
    vec = make_vec_env(MaskedEnv, n_envs=2, seed=0)
    assert [group.observation_space for group in vec.groups] == [INNER, INNER]
    seen = vec.reset()
    for step in range(3):
        assert seen.observations[0][:, 0].tolist() == [[1, 1, step]] * 2
        assert seen.infos[0].get("b", {}) == ({"step": step} if step else {})
        masks, none = seen.action_masks
        assert none is None
        assert masks[:, 0].tolist() == [[step != 0, step != 1, step != 2]] * 2
        seen = vec.step((np.zeros((2, 1), int), np.zeros((2, 1), int)))
    assert seen.final_observations[1, 0].tolist() == [1, 1, 3]
    assert seen.observations[0][:, 0].tolist() == [[1, 2, 0]] * 2


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (np.zeros(2, np.int8), r"agent 'a': observation has shape \(2,\), its space says \(3,\) \(key 'action_mask'\)"),
        (np.zeros(3, np.int8), "agent 'a': action_mask forbids every action; an agent that acts needs one"),
    ],
)
def test_a_wrong_mask_is_refused_in_its_step(wrong, words):
    vec = make_vec_env(MaskedEnv, seed=0, wrong=wrong)
    vec.reset()
    vec.step((np.zeros((1, 1), int), np.zeros((1, 1), int)))
    with pytest.raises(EnvError, match=f"^env 0, episode 0, step 2, {words}"):
        vec.step((np.zeros((1, 1), int), np.zeros((1, 1), int)))


def test_predict_takes_what_the_env_itself_shows():
    env = make_vec_env(MaskedEnv, seed=0)
    algorithm = MultiAgentAlgorithm(env, "per_agent", n_steps=4, seed=0)
    inner = np.ones(3, np.float32)
    shown = {"a": {"observation": inner, "action_mask": np.ones(3, np.int8)}}
    assert algorithm.predict(shown, deterministic=True) == algorithm.predict({"a": inner}, deterministic=True)
