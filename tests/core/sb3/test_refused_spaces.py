"""Spaces in which SB3 would fail later on, or learn from something else, are refused at once."""

from __future__ import annotations

import re

import numpy as np
import pytest
from gymnasium import spaces
from toy_envs import SampledEnv

from marl_sb3 import ConfigError, MultiAgentAlgorithm, PolicySpec, make_vec_env

BOX = spaces.Box(-1, 1, (2,))
SQUARE = spaces.MultiDiscrete([[2, 2], [2, 2]])


@pytest.mark.parametrize(
    ("observation_space", "action_space", "message"),
    [
        (spaces.Box(-1, 1, ()), BOX, "observation space is Box(-1.0, 1.0, (), float32); accepted: a Box of one axis"),
        (spaces.Box(-1, 1, (3, 0)), BOX, "observation space is Box([], [], (3, 0), float32); accepted: a Box of one"),
        (spaces.Dict(x=BOX, y=spaces.Box(-1, 1, ())), BOX, "observation space of 'y' is Box(-1.0, 1.0, (), float32)"),
        (SQUARE, BOX, "observation space is MultiDiscrete([[2 2]\n [2 2]]); accepted: MultiDiscrete of one axis"),
        (BOX, SQUARE, "action space is MultiDiscrete([[2 2]\n [2 2]]); accepted: MultiDiscrete of one axis"),
        (BOX, spaces.MultiDiscrete([]), "action space is MultiDiscrete([]); accepted: MultiDiscrete of one axis"),
        (BOX, spaces.MultiBinary((2, 2)), "action space is MultiBinary((2, 2)); accepted: MultiBinary of one axis"),
        (BOX, spaces.Box(-1, 1, (0,)), "action space is Box([], [], (0,), float32); accepted: a Box of one number"),
        (BOX, spaces.Box(0, 3, (2,), np.int64), "action space is Box(0, 3, (2,), int64); accepted: a Box of floats"),
        (BOX, spaces.Tuple([spaces.Text(2)]), "action space is Tuple(Text(1, 2, charset="),
    ],
)
def test_spaces_that_sb3_cannot_handle_are_refused(
    observation_space: spaces.Space, action_space: spaces.Space, message: str
) -> None:
    env = make_vec_env(SampledEnv, observation_space=observation_space, action_space=action_space)
    policy = "MultiInputPolicy" if isinstance(observation_space, spaces.Dict) else "MlpPolicy"
    with pytest.raises(ConfigError, match=re.escape(f"policy 'p', agents a, b: the {message}")):
        MultiAgentAlgorithm(env, {"p": PolicySpec(policy=policy, batch_size=2)}, n_steps=2, device="cpu")
