"""Episodes that a horizon ends: all agents are truncated, on what they see then."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_trainings import assert_goes_on_exactly
from toy_envs import NoisyEnv, ScriptedEnv

import marl_sb3
from marl_sb3 import ConfigError, MultiAgentAlgorithm, make_vec_env

SCRIPT = {"a": (9, "terminated"), "b": (2, "terminated")}


def ends(vec_env: Any, steps: int) -> list[Any]:
    """Of each step that ended an agent: terminated, truncated, and the observations that agents ended on."""
    step, found = vec_env.reset(), []
    actions = [np.zeros((vec_env.num_envs, len(vec_env.agents)), np.int64)]
    for number in range(steps):
        step = vec_env.step(actions)
        if (step.terminated | step.truncated).any():
            final = {place: np.array(seen).tolist() for place, seen in step.final_observations.items()}
            found.append((number + 1, step.terminated.tolist(), step.truncated.tolist(), final))
    return found


@pytest.mark.parametrize("vectorizer", ["sync", "supersuit"])
def test_agents_that_are_left_are_truncated_and_a_new_episode_begins(vectorizer: str) -> None:
    found = ends(make_vec_env(ScriptedEnv, script=SCRIPT, vectorizer=vectorizer, episode_horizon=3), 6)
    assert found == [
        (2, [[False, True]], [[False, False]], {(0, 1): [2, 1, 2]}),
        (3, [[False, False]], [[True, False]], {(0, 0): [1, 1, 3]}),
        (5, [[False, True]], [[False, False]], {(0, 1): [2, 2, 2]}),
        (6, [[False, False]], [[True, False]], {(0, 0): [1, 2, 3]}),
    ]


def test_an_agent_that_waits_is_truncated_on_what_it_saw_last() -> None:
    script = {"a": (9, "terminated"), "b": (9, "terminated")}
    vec_env = make_vec_env(ScriptedEnv, script=script, skips={"b": [2, 3, 4]}, episode_horizon=3)
    ((_, _, truncated, final),) = ends(vec_env, 3)
    assert truncated == [[True, True]]
    assert final[0, 0] == [1, 1, 3]
    assert final[0, 1] in ([2, 1, 1], [2, 1, 3])  # an env may show waiting agents what they do not act on


def test_an_end_of_the_envs_own_comes_first() -> None:
    same = {"a": (3, "terminated"), "b": (3, "terminated")}
    for horizon in (3, 4):
        ((_, terminated, truncated, _),) = ends(make_vec_env(ScriptedEnv, script=same, episode_horizon=horizon), 3)
        assert (terminated, truncated) == ([[True, True]], [[False, False]])


def test_batched_and_single_envs_end_alike() -> None:
    found = [
        ends(make_vec_env("arena", n_envs=3, seed=2, vectorizer=vectorizer, episode_horizon=5), 12)
        for vectorizer in ("batched", "sync")
    ]
    assert found[0] == found[1]
    assert [number for number, *_ in found[0]] == [5, 10]


LONG = {"a": (50, "terminated"), "b": (50, "terminated")}


@pytest.mark.parametrize("env", ["arena", NoisyEnv])
def test_a_resumed_training_goes_on_as_an_undisturbed_one(env: Any, tmp_path: Path) -> None:
    def begun() -> MultiAgentAlgorithm:
        more = {} if env == "arena" else {"plans": [[(LONG, {})]] * 2}
        envs = make_vec_env(env, n_envs=2, episode_horizon=5, **more)
        return MultiAgentAlgorithm(envs, n_steps=8, batch_size=16, n_epochs=1, seed=3, device="cpu")

    _, resumed = assert_goes_on_exactly(begun, tmp_path, 16, 32)  # from 3 steps of an episode on
    assert {episode.length for episode in resumed.tracker.episodes} == {5}


def test_a_run_has_it_as_a_setting(in_tmp: Path) -> None:
    settings = {"n_steps": 8, "batch_size": 16, "n_epochs": 1, "episode_horizon": 4}
    run = marl_sb3.train("Pendulum-v1", timesteps=16, n_envs=2, seed=1, settings=settings)
    assert run.results[-1]["env_runners"]["episode_len_mean"] == 4
    assert run.evaluate(2)["episode_len_mean"] == 4


def test_a_wrong_horizon_is_refused() -> None:
    with pytest.raises(ConfigError, match="episode_horizon is 0; accepted: an integer of at least 1"):
        make_vec_env("arena", episode_horizon=0)
