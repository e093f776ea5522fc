"""Wrappers of Gymnasium envs come from a fixed table, and nothing is imported by a name in a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import marl_sb3
from marl_sb3 import ConfigError, make_vec_env
from marl_sb3.envs.gymnasium_wrappers import WRAPPERS, named_wrappers, wrapping_factory
from marl_sb3.runs.building import make_envs
from marl_sb3.runs.settings import load_config


class Camera(gymnasium.Env[Any, Any]):
    """Shows an image whose left half is black and whose right half is white; ends after 5 steps."""

    observation_space = spaces.Box(0, 255, (8, 8, 3), np.uint8)
    action_space = spaces.Discrete(2)

    def _image(self) -> np.ndarray:
        return np.repeat(np.array([0, 255], np.uint8), 4)[None, :, None].repeat(8, 0).repeat(3, 2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.steps = 0
        return self._image(), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        return self._image(), 1.0, self.steps == 5, False, {}


ZOO = [
    {"rl_zoo3.wrappers.FrameSkip": {"skip": 2}},
    {"rl_zoo3.wrappers.YAMLCompatResizeObservation": {"shape": [4, 4]}},
    {"gymnasium.wrappers.transform_observation.GrayscaleObservation": {"keep_dim": True}},
]


def test_wrappers_of_the_zoo_wrap_from_the_inside_out() -> None:
    vec_env = make_vec_env(wrapping_factory(Camera, named_wrappers(ZOO)))
    step = vec_env.reset()
    assert vec_env.groups[0].observation_space == spaces.Box(0, 255, (4, 4, 1), np.uint8)
    np.testing.assert_array_equal(step.observations[0][0, 0, 0, :, 0], [0, 0, 255, 255])
    rewards = [vec_env.step([np.zeros((1, 1), np.int64)]).rewards.item() for _ in range(3)]
    assert rewards == [2.0, 2.0, 1.0]


def test_a_run_with_wrappers_trains_resumes_and_evaluates(in_tmp: Path) -> None:
    settings = {
        "env_wrapper": [{"sb3_contrib.common.wrappers.TimeFeatureWrapper": {"max_steps": 200}}],
        "normalize": True,
        "frame_stack": 2,
        "n_steps": 8,
        "batch_size": 16,
        "n_epochs": 1,
    }
    run = marl_sb3.train("Pendulum-v1", timesteps=32, n_envs=2, seed=1, settings=settings)
    assert run.algorithm.policies["shared"].observation_space.shape == (8,)
    assert run.evaluate(2)["num_episodes"] == 2
    marl_sb3.train(resume=run.folder, timesteps=16)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("os.system", "env_wrapper is 'os.system'; accepted: a name, .name: arguments. or a list"),
        ([{"rl_zoo3.wrappers.FrameSkip": 3}], "env_wrapper is .'rl_zoo3.wrappers.FrameSkip': 3."),
        ("gymnasium.wrappers.NormalizeObservation", "accepted: a name"),
        ("gymnasium.wrappers.RescaleAction", "gymnasium.wrappers.RescaleAction raised: TypeError"),
        ("rl_zoo3.wrappers.YAMLCompatResizeObservation", "raised: TypeError"),
        ("minigrid.wrappers.FlatObsWrapper", "needs a package that is missing"),
    ],
)
def test_what_does_not_fit_is_refused_in_words(given: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make_envs(load_config("CartPole-v1", settings={"env_wrapper": given}))


def test_envs_of_several_agents_are_not_wrapped() -> None:
    with pytest.raises(ConfigError, match="accepted: a Gymnasium env; processing has settings"):
        make_envs(load_config("arena", settings={"env_wrapper": "gymnasium.wrappers.FlattenObservation"}))


def test_the_table_names_what_there_is() -> None:
    """Of packages that are installed with marl_sb3."""
    import importlib

    for name, wrapper in WRAPPERS.items():
        if isinstance(wrapper, str) and not name.startswith("minigrid"):
            module, _, attribute = wrapper.partition(":")
            assert isinstance(getattr(importlib.import_module(module), attribute), type)
