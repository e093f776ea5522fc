"""Spaces of any start: SB3 counts from 0, the env from its start, and training does not notice."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3 import PPO
from toy_envs import ScriptedEnv

from marl_sb3 import MultiAgentAlgorithm, make_vec_env
from marl_sb3.core.vec_env.observations import ZeroBased

BOX = spaces.Box(-1, 1, (2,))


@pytest.mark.parametrize(
    ("space", "from_zero"),
    [
        (spaces.Discrete(3, start=-2), spaces.Discrete(3)),
        (spaces.Discrete(3, start=5, dtype=np.int32), spaces.Discrete(3, dtype=np.int32)),
        (spaces.MultiDiscrete([3, 2], start=[0, 4]), spaces.MultiDiscrete([3, 2])),
        (
            spaces.Dict({"a": BOX, "b": spaces.Discrete(2, start=1)}),
            spaces.Dict({"a": BOX, "b": spaces.Discrete(2)}),
        ),
        (spaces.MultiBinary(3), spaces.MultiBinary(3)),
        (BOX, BOX),
    ],
)
def test_a_space_is_counted_from_0_and_back(space: spaces.Space, from_zero: spaces.Space) -> None:
    counted = ZeroBased(space)
    assert counted.space == from_zero
    point = space.sample()
    assert counted.from_env(point) in from_zero
    if not isinstance(space, spaces.Dict):
        np.testing.assert_equal(counted.to_env(counted.from_env(point)), point)


def test_places_of_rows_that_do_not_act_become_points_of_the_space() -> None:
    counted = ZeroBased(spaces.Discrete(3, start=5))
    assert counted.from_rows(np.array([5, 7, 0])).tolist() == [0, 2, 0]
    assert ZeroBased(spaces.Discrete(2, start=-4)).from_rows(np.array([-4, 0])).tolist() == [0, 1]


class StartsAt(ScriptedEnv):
    """Agents see the parity of the step and the latest action, and are paid for actions; all counted from `start`."""

    def __init__(self, start: int, nested: bool) -> None:
        super().__init__({"a": (5, "truncated"), "b": (3, "terminated")}, skips={"b": [1]})
        self.start, self.nested = start, nested
        self._action_space = spaces.MultiDiscrete([3, 2], start=[start, start])
        mode = spaces.Discrete(4, start=start)
        self._observation_space = spaces.Dict({"mode": mode, "box": BOX}) if nested else mode
        self.latest = np.zeros(2, np.int64)

    def observation(self, agent: str) -> Any:
        mode = self.start + (self.step_count + int(self.latest[0])) % 4
        return {"mode": mode, "box": np.full(2, mode - self.start, np.float32) / 4} if self.nested else mode

    def step(self, actions: Any) -> Any:
        assert all(self._action_space.contains(action) for action in actions.values())
        self.latest = next(iter(actions.values())) - self.start
        return super().step(actions)

    def _reward(self, agent: str) -> float:
        return float(self.latest.sum())


@pytest.mark.parametrize("nested", [False, True])
def test_training_does_not_notice_where_spaces_start(nested: bool) -> None:
    weights, actions = [], []
    for start in (0, 7, -2):
        env = make_vec_env(StartsAt, n_envs=2, seed=0, start=start, nested=nested)
        algorithm = MultiAgentAlgorithm(
            env, n_steps=8, batch_size=8, n_epochs=2, seed=0, policy="MultiInputPolicy" if nested else "MlpPolicy"
        )
        algorithm.learn(32)
        weights.append(th.cat([p.flatten() for p in algorithm.policies["shared"].policy.parameters()]))
        seen = {"mode": start + 3, "box": np.zeros(2, np.float32)} if nested else start + 3
        actions.append(algorithm.predict({"a": seen})["a"] - start)
    assert all(th.equal(other, weights[0]) for other in weights[1:])
    assert all(np.array_equal(other, actions[0]) for other in actions[1:])


def test_stock_sb3_trains_on_rows_of_any_start() -> None:
    vec = make_vec_env(StartsAt, n_envs=2, seed=0, start=7, nested=False).as_sb3_vec_env()
    assert (vec.observation_space, vec.action_space) == (spaces.Discrete(4), spaces.MultiDiscrete([3, 2]))
    PPO("MlpPolicy", vec, n_steps=8, batch_size=8, n_epochs=1, seed=0, device="cpu").learn(32)
