"""Waterworld as a ParallelEnv: parameters, spaces and episodes; `test_built_in_envs.py` has more."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

import marl_sb3
from marl_sb3.envs.waterworld import WaterworldEnv
from marl_sb3.errors import ConfigError

SMALL: dict[str, Any] = {"n_evaders": 2, "n_poisons": 2, "n_sensors": 4, "max_cycles": 5}


def small(**parameters: Any) -> WaterworldEnv:
    return WaterworldEnv(**{**SMALL, **parameters})


def resting(env: WaterworldEnv) -> dict[str, Any]:
    return {agent: np.zeros(2, dtype=np.float32) for agent in env.possible_agents}


# Parameters


def test_arguments_and_their_defaults_are_seen() -> None:
    signature = inspect.signature(WaterworldEnv)
    assert {name: parameter.default for name, parameter in signature.parameters.items()} == {
        "n_pursuers": 2,
        "n_evaders": 5,
        "n_poisons": 10,
        "n_obstacles": 1,
        "n_coop": 1,
        "n_sensors": 30,
        "sensor_range": 0.2,
        "radius": 0.015,
        "obstacle_radius": 0.1,
        "obstacle_coord": ((0.5, 0.5),),
        "pursuer_max_accel": 0.01,
        "pursuer_speed": 0.2,
        "evader_speed": 0.1,
        "poison_speed": 0.1,
        "poison_reward": -1.0,
        "food_reward": 10.0,
        "encounter_reward": 0.01,
        "thrust_penalty": -0.5,
        "local_ratio": 1.0,
        "speed_features": True,
        "max_cycles": 500,
        "render_mode": None,
    }


def test_a_subclass_has_its_own_arguments() -> None:
    class Crowded(WaterworldEnv):
        def __init__(self, crowd: int = 7) -> None:
            super().__init__(n_pursuers=crowd)

    assert list(inspect.signature(Crowded).parameters) == ["crowd"]
    assert len(Crowded().possible_agents) == 7


def test_an_unknown_argument_is_answered_with_those_there_are() -> None:
    with pytest.raises(ConfigError, match=r"unknown env argument 'n_preys'; the env takes: n_pursuers, n_evaders, "):
        marl_sb3.make_vec_env("waterworld", n_preys=3)


@pytest.mark.parametrize(("speed_features", "size"), [(True, 242), (False, 152)])
def test_spaces(speed_features: bool, size: int) -> None:
    env = WaterworldEnv(n_pursuers=3, speed_features=speed_features)
    assert env.possible_agents == ["pursuer_0", "pursuer_1", "pursuer_2"]
    for agent in env.possible_agents:
        assert env.observation_space(agent) is env.observation_space(agent)
        assert env.action_space(agent) is env.action_space(agent)
        seen, act = env.observation_space(agent), env.action_space(agent)
        assert (seen.shape, seen.dtype, seen.low.min(), seen.high.max()) == (
            (size,),
            np.float32,
            -np.float32(np.sqrt(2)),
            np.float32(np.sqrt(2)),
        )
        assert (act.shape, act.dtype, act.low.tolist(), act.high.tolist()) == ((2,), np.float32, [-1, -1], [1, 1])


@pytest.mark.parametrize("parameters", [{"radius": 0.05}, {"n_evaders": 0, "n_poisons": 0, "n_pursuers": 1}])
def test_observations_are_in_their_space(parameters: dict[str, Any]) -> None:
    env = WaterworldEnv(**{"pursuer_max_accel": 0.5, "max_cycles": 60, **parameters})
    env.reset(seed=0)
    while env.agents:
        actions = {agent: env.action_space(agent).sample() for agent in env.agents}
        observations = env.step(actions)[0]
        assert all(env.observation_space(agent).contains(seen) for agent, seen in observations.items())


# Episodes


def test_reset_shows_every_agent_something() -> None:
    observations, infos = small(n_pursuers=3).reset(seed=0)
    assert {agent: seen.shape for agent, seen in observations.items()} == dict.fromkeys(infos, (34,))
    assert infos == {"pursuer_0": {}, "pursuer_1": {}, "pursuer_2": {}}


def test_a_step_says_what_happened() -> None:
    env = WaterworldEnv(n_evaders=300, n_poisons=300, n_coop=1, max_cycles=9)
    env.reset(seed=0)
    _, rewards, _, _, infos = env.step(resting(env))
    for agent, info in infos.items():
        assert {name: type(value) for name, value in info.items()} == {
            "food_encounters": int,
            "fed": bool,
            "captures": int,
            "poison_hits": int,
        }
        assert info["food_encounters"] > 0
        expected = 10 * info["fed"] + 0.01 * info["food_encounters"] - info["poison_hits"]
        assert rewards[agent] == pytest.approx(expected)
        assert type(rewards[agent]) is float


# Seeds


def test_an_episode_without_a_seed_begins_with_what_the_generator_draws_after_the_steps() -> None:
    env = WaterworldEnv(n_evaders=300, n_poisons=300, max_cycles=1)
    env.reset(seed=0)
    words = env.batch.rngs.tolist()
    env.step(resting(env))
    assert env.batch.rngs.tolist() != words  # poisons were touched, and put somewhere else
    expected = env.batch.generator(0).random((2, 2, 602))[0]
    env.reset()
    assert env.batch.states.positions[0].tolist() == expected.tolist()
