"""Nested observations become one level of named parts, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces
from toy_envs import SampledEnv

from marl_sb3 import MultiAgentAlgorithm, make_vec_env
from marl_sb3.errors import ConfigError, EnvError
from marl_sb3.wrappers.observations import flat_observation, flat_space

BOX, MODE = spaces.Box(-1, 1, (2,), np.float32), spaces.Discrete(4)
NESTED = spaces.Dict({"b": spaces.Dict({"y": BOX, "x": spaces.Tuple([MODE, BOX])}), "a": spaces.MultiBinary(3)})


def test_parts_are_named_by_their_path_and_keep_their_spaces_and_order():
    flat = flat_space(NESTED)
    assert list(flat.spaces.items()) == [
        ("a", spaces.MultiBinary(3)),
        ("b/x/0", MODE),
        ("b/x/1", BOX),
        ("b/y", BOX),
    ]
    assert list(flat_space(spaces.Tuple([BOX, MODE])).spaces) == ["0", "1"]


@pytest.mark.parametrize("space", [NESTED, spaces.Tuple([BOX, spaces.Tuple([MODE, MODE])])])
def test_an_observation_keeps_all_its_parts(space):
    observation = space.sample()
    parts = flat_observation(space, observation)
    assert parts in flat_space(space)
    if space is NESTED:
        assert parts["b/x/1"] is observation["b"]["x"][1]


def test_parts_of_the_same_name_are_refused():
    space = spaces.Dict({"a": spaces.Dict({"b": BOX}), "a/b": MODE})
    with pytest.raises(ConfigError, match=r"two parts of the observation space would be called 'a/b': Dict"):
        flat_space(space)


def test_every_part_reaches_the_arrays_of_a_vec_env_unchanged():
    script = {"a": (2, "truncated"), "b": (2, "terminated")}
    vec = make_vec_env(
        SampledEnv, n_envs=2, observation_space=NESTED, action_space=spaces.Discrete(2), script=script, seed=0
    )
    steps = [vec.reset(), vec.step((np.zeros((2, 2), int),)), vec.step((np.zeros((2, 2), int),))]
    for index, shown in enumerate(vec.call("shown", [0, 1])):
        for step, observations in zip(steps, [shown[0], shown[1], shown[3]], strict=True):
            for column, agent in enumerate("ab"):
                for name, value in flat_observation(NESTED, observations[agent]).items():
                    assert step.observations[0][name].dtype == flat_space(NESTED)[name].dtype
                    assert np.array_equal(step.observations[0][name][index, column], value)
        final = steps[2].final_observations[index, 1]
        np.testing.assert_equal(final, flat_observation(NESTED, shown[2]["b"]))


def test_a_part_outside_its_space_is_told_by_the_envs_own_names():
    env = SampledEnv(NESTED, spaces.Discrete(2))
    env.observation = lambda agent: {"a": [0, 0, 1], "b": {"y": np.zeros(2), "x": (4, np.zeros(2))}}
    with pytest.raises(EnvError, match=r"agent 'a': observation is \(4, .* \(key 'x'\) \(key 'b'\)"):
        make_vec_env(lambda: env).reset()


def test_predict_takes_what_the_env_itself_shows():
    env = make_vec_env(SampledEnv, observation_space=NESTED, action_space=spaces.Discrete(9), seed=0)
    algorithm = MultiAgentAlgorithm(env, policy="MultiInputPolicy", n_steps=4, seed=0)
    for _ in range(5):
        observation = NESTED.sample()
        flat = flat_observation(NESTED, observation)
        one, other = (algorithm.predict({"a": seen}, deterministic=True) for seen in (observation, flat))
        assert one == other
