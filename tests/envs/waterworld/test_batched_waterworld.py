"""The batched version of Waterworld: equal to the single env bit for bit, and brought back exactly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_sb3 import make_vec_env
from marl_sb3.core.state.state import StateReader
from marl_sb3.core.vec_env.batched_vec_env import BatchedVecEnv
from marl_sb3.errors import CheckpointError, EnvError
from marl_sb3.extensions.store.checkpoint_format import read_checkpoint, write_checkpoint

SMALL: dict[str, Any] = {"n_sensors": 5, "n_evaders": 8, "n_poisons": 8, "radius": 0.04, "max_cycles": 7}


def plain(step: Any, num_envs: int) -> dict[str, Any]:
    """Everything in a step, as lists and dictionaries."""
    return {
        "observations": step.observations[0].tolist(),
        "rewards": step.rewards.tolist(),
        "flags": [step.terminated.tolist(), step.truncated.tolist(), step.episode_done.tolist()],
        "final": {place: seen.tolist() for place, seen in step.final_observations.items()},
        "infos": [step.infos[index] for index in range(num_envs)],
    }


def actions(env: Any, rng: np.random.Generator) -> list[np.ndarray]:
    return [rng.uniform(-1, 1, (env.num_envs, len(env.agents), 2)).astype(np.float32)]


@st.composite
def parameters(draw: st.DrawFn) -> dict[str, Any]:
    n_obstacles = draw(st.integers(0, 2))
    centres = st.lists(st.floats(0, 1), min_size=2, max_size=2)
    known = st.lists(centres, min_size=n_obstacles, max_size=n_obstacles)
    return {
        "n_pursuers": draw(st.integers(1, 9)),
        "n_evaders": draw(st.integers(0, 9)),
        "n_poisons": draw(st.integers(0, 9)),
        "n_obstacles": n_obstacles,
        "obstacle_coord": draw(st.none() | known),
        "n_coop": draw(st.integers(1, 3)),
        "n_sensors": draw(st.integers(1, 7)),
        "sensor_range": draw(st.floats(0.05, 1)),
        "radius": draw(st.floats(0.01, 0.1)),
        "pursuer_max_accel": draw(st.sampled_from([0.01, 0.5])),
        "local_ratio": draw(st.sampled_from([0.0, 0.3, 1.0])),
        "speed_features": draw(st.booleans()),
        "max_cycles": draw(st.integers(1, 9)),
    }


@settings(max_examples=12, deadline=None, derandomize=True, database=None)
@given(parameters=parameters(), num_envs=st.integers(1, 5), seed=st.integers(0, 2**31))
def test_rollouts_are_those_of_single_envs(parameters: dict[str, Any], num_envs: int, seed: int) -> None:
    batched, single = (
        make_vec_env("waterworld", n_envs=num_envs, seed=seed, vectorizer=name, **parameters)
        for name in ("batched", "sync")
    )
    rng = np.random.default_rng(seed)
    assert plain(batched.reset(), num_envs) == plain(single.reset(), num_envs)
    for _ in range(10):
        chosen = actions(batched, rng)
        assert plain(batched.step(chosen), num_envs) == plain(single.step(chosen), num_envs)


def test_it_is_what_make_vec_env_takes() -> None:
    assert isinstance(make_vec_env("waterworld", n_envs=2), BatchedVecEnv)


def test_an_action_out_of_range_names_env_step_and_agent() -> None:
    env = make_vec_env("waterworld", n_envs=3)
    env.reset()
    env.step([np.zeros((3, 2, 2), dtype=np.float32)])
    for value in (1.5, np.nan):
        wrong = np.zeros((3, 2, 2), dtype=np.float32)
        wrong[2, 1, 0] = value
        words = rf"env 2, step 1: pursuer_1 must act with two numbers in -1\.\.1; received \[{value}, 0\.0\]"
        with pytest.raises(EnvError, match=words):
            env.step([wrong])


def test_single_envs_are_drawn() -> None:
    env = make_vec_env("waterworld", n_envs=2, render_mode="rgb_array")
    env.reset()
    images = env.call("render", [0, 1])
    assert (images[0] != images[1]).any()
    env.close()


def test_envs_that_are_brought_back_go_on(tmp_path: Path) -> None:
    one, other = (make_vec_env("waterworld", n_envs=3, seed=seed, n_pursuers=3, **SMALL) for seed in (1, 2))
    rng = np.random.default_rng(0)
    one.reset()
    for _ in range(10):
        one.step(actions(one, rng))
    write_checkpoint(tmp_path / "c", one.get_state(), {}, {})
    assert other.set_state(StateReader(read_checkpoint(tmp_path / "c").state)) == {}
    assert plain(other.latest, 3)["observations"] == plain(one.latest, 3)["observations"]
    for _ in range(20):
        chosen = actions(one, rng)
        assert plain(one.step(chosen), 3) == plain(other.step(chosen), 3)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("positions", np.full((1, 2, 18), 11.0), "numbers from -10 to 10"),
        ("velocities", np.full((1, 2, 18), np.nan), "finite"),
        ("touching", np.zeros((1, 2, 14), dtype=bool), r"an array of bool \(1, 2, 16\)"),
        ("counters", np.zeros((1, 8)), "an array of int64"),
        ("timesteps", np.array([7]), "numbers from 0 to 6"),
        ("timesteps", np.array([-1]), "numbers from 0 to 6"),
        ("rngs", [], "a list of 1"),
        ("rngs", [{"bit_generator": "PCG64"}], "rngs/0/state is missing"),
    ],
)
def test_impossible_states_are_refused(name: str, value: Any, message: str) -> None:
    env = make_vec_env("waterworld", seed=0, **SMALL)
    env.reset()
    state = env.get_state()
    state["own"] = {**state["own"], name: value}
    with pytest.raises(CheckpointError, match=message):
        make_vec_env("waterworld", **SMALL).set_state(StateReader(state))
