"""Waterworld as a ParallelEnv: PettingZoo's contract, parameters, episodes, seeds and error messages."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

import marl_sb3
from marl_sb3.envs.waterworld import WaterworldEnv
from marl_sb3.errors import ConfigError, EnvError

SMALL: dict[str, Any] = {"n_evaders": 2, "n_poisons": 2, "n_sensors": 4, "max_cycles": 5}


def small(**parameters: Any) -> WaterworldEnv:
    return WaterworldEnv(**{**SMALL, **parameters})


def resting(env: WaterworldEnv) -> dict[str, Any]:
    return {agent: np.zeros(2, dtype=np.float32) for agent in env.possible_agents}


def played(env: WaterworldEnv, seed: int | None) -> list[Any]:
    """An episode with the same actions every time, as lists."""
    rng = np.random.default_rng(0)
    steps: list[Any] = [env.reset(seed=seed)]
    while env.agents:
        steps.append(env.step({agent: rng.uniform(-1, 1, 2).astype(np.float32) for agent in env.agents}))
    return [[{agent: seen.tolist() for agent, seen in observations.items()}, *rest] for observations, *rest in steps]


@pytest.mark.filterwarnings("ignore:The old environment creation API has been deprecated:DeprecationWarning")
def test_passes_pettingzoos_api_tests(capsys: pytest.CaptureFixture[str]) -> None:
    import pettingzoo.test

    pettingzoo.test.parallel_api_test(small(), num_cycles=50)
    pettingzoo.test.parallel_seed_test(small, num_cycles=20)
    assert "Passed Parallel API test" in capsys.readouterr().out


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


@pytest.mark.parametrize(
    ("name", "value", "accepted"),
    [
        ("n_pursuers", 0, "an integer from 1 to 1000"),
        ("n_pursuers", 2.0, "an integer from 1 to 1000"),
        ("n_evaders", True, "an integer from 0 to 1000"),
        ("max_cycles", "500", "an integer from 1 to 1000000000"),
        ("radius", 0, "a number from 0.0001 to 0.1"),
        ("local_ratio", 1.5, "a number from 0 to 1"),
        ("food_reward", float("nan"), "a number from -1e+06 to 1e+06"),
        ("speed_features", 1, "a boolean"),
        ("obstacle_coord", [[0.5, 0.5], [0.1, 0.1]], "as many centres as n_obstacles (1), or null for random ones"),
        ("obstacle_coord", [0.5, 0.5], "a list of [x, y] with numbers from 0 to 1, or null"),
        ("obstacle_coord", [[0.5, 1.5]], "a list of [x, y] with numbers from 0 to 1, or null"),
        ("obstacle_coord", "half", "a list of [x, y] with numbers from 0 to 1, or null"),
    ],
)
def test_a_parameter_that_is_not_accepted_is_named(name: str, value: Any, accepted: str) -> None:
    with pytest.raises(ConfigError) as caught:
        WaterworldEnv(**{name: value})
    assert str(caught.value) == f"{name} must be {accepted}; received {value!r}"
    assert caught.value.key == f"env.{name}"


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


def test_all_agents_are_truncated_after_max_cycles_and_leave() -> None:
    env = small(max_cycles=3)
    env.reset(seed=0)
    flags = []
    for _ in range(3):
        assert env.agents == ["pursuer_0", "pursuer_1"]
        _, _, terminated, truncated, _ = env.step(resting(env))
        flags.append((set(terminated.values()), set(truncated.values())))
    assert flags == [({False}, {False}), ({False}, {False}), ({False}, {True})]
    assert env.agents == []
    with pytest.raises(EnvError, match=r"step\(\) after the end of the episode; call reset\(\) first"):
        env.step(resting(env))


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


def test_a_seed_determines_the_episode() -> None:
    env = small(max_cycles=40, n_evaders=20, n_poisons=20, obstacle_coord=None)
    first = played(env, seed=3)
    assert played(env, seed=4) != first
    assert played(env, seed=3) == first
    assert played(env, seed=None) != first


def test_episodes_without_a_seed_go_on_from_it() -> None:
    def three_episodes() -> list[Any]:
        env = small()
        return [played(env, seed) for seed in (5, None, None)]

    assert three_episodes() == three_episodes()


def test_an_episode_without_a_seed_begins_with_what_the_generator_draws_after_the_steps() -> None:
    env = WaterworldEnv(n_evaders=300, n_poisons=300, max_cycles=1)
    env.reset(seed=0)
    words = env.batch.rngs.tolist()
    env.step(resting(env))
    assert env.batch.rngs.tolist() != words  # poisons were touched, and put somewhere else
    expected = env.batch.generator(0).random((2, 2, 602))[0]
    env.reset()
    assert env.batch.states.positions[0].tolist() == expected.tolist()


# Errors


@pytest.mark.parametrize(
    ("action", "received"),
    [
        ([1.5, 0.0], "[1.5, 0.0]"),
        ([np.nan, 0.0], "[nan, 0.0]"),
        ([0.0], "[0.0]"),
        (3, "3"),
        ("left", "'left'"),
        (None, "None"),
    ],
)
def test_an_action_that_is_not_accepted_names_step_and_agent(action: Any, received: str) -> None:
    env = small()
    env.reset(seed=0)
    env.step(resting(env))
    with pytest.raises(EnvError) as caught:
        env.step({**resting(env), "pursuer_1": action})
    words = f"pursuer_1 must act with two numbers in -1..1; received {received}"
    assert str(caught.value) == f"waterworld, step 1: {words}"


def test_a_missing_or_unknown_agent_is_named() -> None:
    env = small()
    with pytest.raises(EnvError, match=r"waterworld: step\(\) before the first reset\(\)"):
        env.step(resting(env))
    env.reset(seed=0)
    with pytest.raises(EnvError, match=r"pursuer_0 must act with two numbers in -1\.\.1; received no action"):
        env.step({"pursuer_1": np.zeros(2)})
    with pytest.raises(EnvError, match="no such agent: pursuer_7; agents: pursuer_0, pursuer_1"):
        env.step({**resting(env), "pursuer_7": np.zeros(2)})
