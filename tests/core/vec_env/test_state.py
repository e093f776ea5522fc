"""A vec env that is brought back goes on as if nothing had happened, or says which of its envs do not."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from state_envs import Forgetful, Plain, Secretive, Stateful
from toy_envs import NoisyEnv, ScriptedEnv
from turn_plans import env_plans

from marl_sb3 import make_vec_env
from marl_sb3.core.state.state import StateReader
from marl_sb3.core.vec_env import slot_states
from marl_sb3.core.vec_env.interface import MultiAgentVecEnv
from marl_sb3.errors import CheckpointError
from marl_sb3.extensions.store.checkpoint_format import read_checkpoint, write_checkpoint

TOO_LONG = "the checkpoint does not hold its episode, which is too long, or was stepped in a batch"
pytestmark = pytest.mark.usefixtures("each_vectorizer")


def through_a_file(state: dict[str, Any], folder: Path) -> StateReader:
    write_checkpoint(folder / "checkpoint", state, {}, {})
    return StateReader(read_checkpoint(folder / "checkpoint").state)


def actions_for(vec: MultiAgentVecEnv, rng: np.random.Generator) -> list[np.ndarray]:
    return [rng.integers(0, group.action_space.n, (vec.num_envs, len(group.agents))) for group in vec.groups]


def trace(vec: MultiAgentVecEnv, rng: np.random.Generator, steps: int) -> list[Any]:
    """Everything that the next steps bring, as plain data."""
    seen = []
    for _ in range(steps):
        step = vec.step(actions_for(vec, rng))
        arrays = [*step.observations, step.rewards, step.terminated, step.truncated, step.acted, step.to_act]
        arrays.append(step.episode_done)
        final = {place: np.asarray(value).tolist() for place, value in step.final_observations.items()}
        # Not the number of the episode: the toy envs count those that they have played in this process.
        infos = [{agent: step.infos[index].get(agent) for agent in vec.agents} for index in range(vec.num_envs)]
        assert vec.latest is step
        seen.append(([array.tolist() for array in arrays], final, infos, sorted(step.reset_infos)))
    return seen


def brought_back(make: Any, steps: int, folder: Path, **options: Any) -> tuple[Any, Any, dict[int, str]]:
    """A vec env that has taken some steps, another one that got its state, and which of its envs are not the same."""
    vec, again = make_vec_env(make, seed=0, **options), make_vec_env(make, **options)
    vec.reset()
    trace(vec, np.random.default_rng(0), steps)
    return vec, again, again.set_state(through_a_file(vec.get_state(), folder))


@settings(max_examples=6, deadline=None, derandomize=True, database=None)
@given(plans=env_plans(max_agents=3, max_episodes=1), seed=st.integers(0, 2**32 - 1), before=st.integers(0, 20))
def test_any_script_goes_on_as_without_the_break(plans, seed, before, tmp_path_factory):
    vec = make_vec_env(NoisyEnv, n_envs=len(plans), seed=seed, plans=plans)
    vec.reset()
    trace(vec, np.random.default_rng(1), before)
    state = through_a_file(vec.get_state(), tmp_path_factory.mktemp("state"))
    again = make_vec_env(NoisyEnv, n_envs=len(plans), plans=plans)
    assert again.set_state(state) == {}
    assert np.array_equal(again.latest.to_act, vec.latest.to_act)
    assert np.array_equal(again.latest.observations[0], vec.latest.observations[0])
    following = trace(vec, np.random.default_rng(2), 12)
    state = through_a_file(again.get_state(), tmp_path_factory.mktemp("state"))  # a second break at the same place
    third = make_vec_env(NoisyEnv, n_envs=len(plans), plans=plans)
    assert third.set_state(state) == {}
    assert trace(again, np.random.default_rng(2), 12) == following
    assert trace(third, np.random.default_rng(2), 12) == following


def test_a_gymnasium_env_with_a_time_limit_goes_on(tmp_path):
    vec, again, inexact = brought_back("CartPole-v1", 30, tmp_path, n_envs=3)
    assert inexact == {}
    assert trace(again, np.random.default_rng(1), 60) == trace(vec, np.random.default_rng(1), 60)


def test_a_vec_env_that_has_played_on_goes_back_to_another_turn():
    vec = make_vec_env("classic/tictactoe-v3", n_envs=2, seed=0)
    vec.reset()
    state, centre = StateReader(vec.get_state()), [np.full((2, 2), 4)]
    after = vec.step(centre).to_act.tolist()
    assert vec.set_state(state) == {}
    assert vec.step(centre).to_act.tolist() == after == [[False, True], [False, True]]


def test_an_env_that_does_not_repeat_itself_begins_anew_and_is_named(tmp_path):
    def make(env_index):
        return Forgetful() if env_index == 1 else ScriptedEnv()

    _, again, inexact = brought_back(make, 2, tmp_path, n_envs=3)
    assert inexact == {1: "the same seed and actions led to a different state"}
    assert again.call("step_count", range(3)) == [2, 0, 2]
    steps = again.step([np.zeros((3, len(again.agents)), dtype=np.int64)])
    assert steps.acted[1].all()


def test_an_env_whose_get_state_raises_is_played_again(tmp_path, caplog):
    vec, again, inexact = brought_back(Secretive, 2, tmp_path)
    assert inexact == {}
    assert again.latest.observations[0].tolist() == vec.latest.observations[0].tolist()
    assert re.match(r"env 0, episode 0, step 2, seed \d+: get_state\(\) raised KeyError: 'goal' \(", caplog.messages[0])


class Raising(ScriptedEnv):
    """Can be played once."""

    games = 0

    def reset(self, seed=None, options=None):
        type(self).games += 1
        if type(self).games == 2:
            raise OSError("the simulator is busy")
        return super().reset(seed, options)


@pytest.mark.parametrize("each_vectorizer", ["sync", "supersuit"], indirect=True)  # it looks at the envs
def test_an_env_that_fails_in_the_replay_begins_anew(tmp_path):
    Raising.games = 0
    _, again, inexact = brought_back(Raising, 0, tmp_path)
    assert list(inexact) == [0]
    assert re.fullmatch(
        r"env 0, episode 0, step 0, seed \d+: reset\(\) raised OSError: the simulator is busy "
        r"\(.*test_state\.py, line \d+, in reset\)",
        inexact[0],
    )
    assert again.latest.to_act.all()


@pytest.mark.parametrize("before", [0, 1, 2, 5])
def test_an_env_that_knows_its_state_is_asked_for_it(before, tmp_path):
    script = {"a": (2, "terminated"), "b": (4, "truncated"), "c": (3, "terminated")}
    vec, again, inexact = brought_back(Stateful, before, tmp_path, n_envs=2, script=script, skips={"c": [1, 2]})
    assert inexact == {}
    assert trace(again, np.random.default_rng(1), 9) == trace(vec, np.random.default_rng(1), 9)


def test_a_state_that_is_not_taken_over_is_noticed(tmp_path):
    class Deaf(Stateful):
        def set_state(self, state):
            super().set_state({**state, "step": 0})

    *_, inexact = brought_back(Deaf, 2, tmp_path)
    assert inexact == {0: "after set_state(), its get_state() returns another state"}


LONG = {"a": (150, "truncated"), "b": (150, "truncated")}


@pytest.mark.parametrize(("max_bytes", "exact"), [(None, True), (1000, False)])
def test_a_long_episode_is_brought_back_if_its_actions_fit(max_bytes, exact, tmp_path, monkeypatch):
    if max_bytes is not None:
        monkeypatch.setattr(slot_states, "MAX_BYTES", max_bytes)
    _, again, inexact = brought_back(ScriptedEnv, 140, tmp_path, script=LONG)
    assert inexact == ({} if exact else {0: TOO_LONG})
    assert again.call("step_count", [0]) == [140 if exact else 0]


def test_the_shortest_logs_are_kept_if_not_all_fit(tmp_path, monkeypatch):
    def make(env_index):
        return Plain(LONG if env_index == 1 else {"a": (5, "truncated"), "b": (5, "truncated")})

    monkeypatch.setattr(slot_states, "MAX_BYTES", 2 * 2 * 2 * 8)  # two envs, two steps, two agents, int64
    _, again, inexact = brought_back(make, 7, tmp_path, n_envs=3)
    assert inexact == {1: TOO_LONG}
    assert again.call("step_count", range(3)) == [2, 0, 2]


def test_the_log_holds_no_more_than_the_running_episodes():
    vec = make_vec_env("CartPole-v1", n_envs=2, seed=0)
    vec.reset()
    lengths = np.zeros(2, dtype=int)
    for _ in range(100):
        step = vec.step([np.zeros((2, 1), dtype=np.int64)])
        lengths = np.where(step.episode_done, 0, lengths + 1)
        log = vec.get_state()["log"]
        assert log["lengths"].tolist() == lengths.tolist()
        assert len(log["actions"][0]) == lengths.sum()


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (["episodes"], np.array([-1]), "episodes is an array"),
        (["to_act"], np.zeros((1, 9), dtype=bool), r"to_act is an array of bool \(1, 9\)"),
        (["observations"], [], "observations is a list of 0; accepted: a list of 1"),
        (["own"], [None, None], "own is a list of 2; accepted: a list of 1"),
        (["run_seed"], -1, "run_seed is -1"),
        (["log", "lengths"], np.array([7]), "lengths is"),
        (["log", "actions"], [np.zeros((1, 2))], "actions/0 is an array of float64"),
    ],
)
def test_a_state_of_something_else_is_refused(path, value, message):
    vec = make_vec_env(ScriptedEnv, seed=0)
    vec.reset()
    state = vec.get_state()
    place = state
    for name in path[:-1]:
        place = place[name]
    place[path[-1]] = value
    with pytest.raises(CheckpointError, match=message):
        make_vec_env(ScriptedEnv).set_state(StateReader(state))
