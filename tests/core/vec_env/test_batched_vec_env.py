"""What only the batched vec env does; what it has in common with the others is in `test_vectorizers.py`."""

from __future__ import annotations

from copy import deepcopy
from typing import Any, ClassVar

import numpy as np
import pytest
from gymnasium import spaces
from toy_envs import ScriptedEnv

from marl_sb3 import ConfigError, EnvError, make_vec_env
from marl_sb3.core.envs.batched import BatchedEnv, BatchedStep
from marl_sb3.core.state.state import StateReader
from marl_sb3.core.vec_env.batched_vec_env import BatchedVecEnv
from marl_sb3.core.vec_env.separate_envs import SyncVecEnv
from marl_sb3.envs.compiled.twins import require_same
from marl_sb3.errors import CheckpointError


def test_auto_takes_the_batched_twin_where_there_is_one() -> None:
    assert isinstance(make_vec_env("arena"), BatchedVecEnv)
    assert isinstance(make_vec_env(ScriptedEnv), SyncVecEnv)
    with pytest.raises(ConfigError, match="no batched version"):
        make_vec_env(ScriptedEnv, vectorizer="batched")


def test_wrong_arguments_are_refused_as_by_the_env_itself() -> None:
    for arguments, message in (
        ({"height": 0}, "height must be an integer >= 1"),
        ({"hieght": 2}, "unknown env argument"),
    ):
        with pytest.raises(ConfigError, match=message):
            make_vec_env("arena", n_envs=2, **arguments)


@pytest.mark.parametrize("vectorizer", ["batched", "sync"])
def test_a_state_stays_what_it_is_while_the_envs_go_on(vectorizer: str) -> None:
    env = make_vec_env("arena", n_envs=2, seed=1, vectorizer=vectorizer, max_timesteps=3)
    env.reset()
    env.configure([0], max_timesteps=3)
    env.step([np.zeros((2, 2), dtype=np.int64)])
    state = env.get_state()
    before = deepcopy(state)
    env.configure([1], max_timesteps=4)
    for _ in range(4):
        env.step([np.ones((2, 2), dtype=np.int64)])
    np.testing.assert_equal(state, before)


@pytest.mark.parametrize("vectorizer", ["batched", "sync"])
def test_a_setting_that_cannot_be_taken_back_makes_a_state_inexact(vectorizer: str) -> None:
    env = make_vec_env("arena", n_envs=2, seed=1, vectorizer=vectorizer, max_timesteps=3)
    env.reset()
    state = env.get_state()
    env.configure([1], max_timesteps=9)
    env.reset()
    inexact = env.set_state(StateReader(state))
    words = "configure() has changed max_timesteps since then, and the earlier value is not known"
    assert inexact == dict.fromkeys([1] if vectorizer == "sync" else [0, 1], words)
    state = env.get_state()
    env.configure([1], max_timesteps=5)
    env.reset()
    assert env.set_state(StateReader(state)) == {}
    assert env.call("max_timesteps", [1]) == [9]


@pytest.mark.parametrize("action", [-1, 4])
def test_an_action_out_of_range_names_env_step_and_agent(action: int) -> None:
    env = make_vec_env("arena", n_envs=3)
    env.reset()
    env.step([np.zeros((3, 2), dtype=np.int64)])
    actions = np.zeros((3, 2), dtype=np.int64)
    actions[2, 1] = action
    with pytest.raises(EnvError, match=rf"env 2, step 1: agent2 must act with an integer in 0\.\.3; received {action}"):
        env.step([actions])


def test_single_envs_render_and_share_attributes() -> None:
    env = make_vec_env("arena", n_envs=2, render_mode="rgb_array", height=3, width=4)
    env.reset()
    images = env.call("render", [0, 1])
    np.testing.assert_array_equal(images[0], images[1])
    env.step([np.array([[1, 0], [2, 0]])])
    images = env.call("render", [0, 1])
    assert (images[0] != images[1]).any()
    assert env.call("height", [0, 1]) == [3, 3]
    with pytest.raises(AttributeError, match="no method 'state' for single envs; use vectorizer='sync'"):
        env.call("state", [0])
    env.close()


class Staggered(BatchedEnv):
    """Agent a ends after 2 steps, b after 3; what is seen is the number of the step, from 1 to 4."""

    def __init__(self, num_envs: int, fault: str = "") -> None:
        self.num_envs, self.fault = num_envs, fault
        self.possible_agents = ("a", "b")
        self.metadata, self.render_mode = {}, None
        self.observation_space = spaces.Box(-10, 10, (1,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.steps = np.zeros(num_envs, dtype=np.int64)
        self.seeds: list[tuple[int, int]] = []

    @classmethod
    def make_batched(cls, num_envs: int, **env_kwargs: Any) -> Staggered:
        return cls(num_envs, **env_kwargs)

    def reset(self, env_indices: Any, seeds: Any) -> None:
        self.seeds += list(zip(env_indices, seeds, strict=True))
        self.steps[env_indices] = 0

    def step(self, actions: np.ndarray) -> BatchedStep:
        self.steps += 1
        nothing = np.zeros((self.num_envs, 2), dtype=bool)
        terminated, truncated = nothing.copy(), nothing.copy()
        terminated[:, 0] = self.steps >= 2  # goes on saying so: it is masked
        truncated[:, 1] = self.steps == 3
        rewards = np.ones((self.num_envs, 2))
        if self.fault == "reward":
            rewards[1, 1] = np.nan
        return BatchedStep(rewards, terminated, truncated, {})

    def observations(self) -> np.ndarray:
        seen = np.broadcast_to((self.steps + 1)[:, None, None], (self.num_envs, 2, 1)).astype(np.float32)
        if self.fault == "observation" and self.steps[0] == 2:
            seen[1, 0, 0] = np.inf
        if self.fault == "wide observation" and self.steps[0] == 2:
            seen = seen.astype(np.float64)
            seen[1, 0, 0] = 1e300
        return seen


def test_an_agent_that_ended_is_inactive_until_its_env_resets() -> None:
    batched = Staggered(2)
    env = BatchedVecEnv(batched, seed=3)
    assert env.reset().observations[0].tolist() == [[[1], [1]]] * 2
    steps = [env.step([np.zeros((2, 2), dtype=np.int64)]) for _ in range(4)]
    assert [s.acted[0].tolist() for s in steps] == [[True, True], [True, True], [False, True], [True, True]]
    assert [s.rewards[0].tolist() for s in steps] == [[1, 1], [1, 1], [0, 1], [1, 1]]
    assert [s.observations[0][0].tolist() for s in steps] == [[[2], [2]], [[0], [3]], [[1], [1]], [[2], [2]]]
    assert [s.terminated[0].tolist() for s in steps] == [[False, False], [True, False], [False, False], [False, False]]
    assert [s.truncated[0].tolist() for s in steps] == [[False, False], [False, False], [False, True], [False, False]]
    assert [s.episode_done.all() for s in steps] == [False, False, True, False]
    assert {place: obs.tolist() for place, obs in steps[1].final_observations.items()} == {(0, 0): [3], (1, 0): [3]}
    assert {place: obs.tolist() for place, obs in steps[2].final_observations.items()} == {(0, 1): [4], (1, 1): [4]}
    assert len(set(batched.seeds)) == 4


class OfParts(Staggered):
    """Keeps the actions of several parts that it gets."""

    def __init__(self, num_envs: int) -> None:
        super().__init__(num_envs)
        self.action_space = spaces.Dict(  # type: ignore[assignment]
            {"move": spaces.Discrete(2, start=1), "aim": spaces.Tuple([spaces.Box(-1, 1, (2,))])}
        )
        self.received: list[Any] = []

    def step(self, actions: Any) -> BatchedStep:
        self.received.append(actions)
        return super().step(actions)


def test_actions_of_several_parts_are_arrays_of_each_part() -> None:
    batched = OfParts(3)
    env = BatchedVecEnv(batched, seed=3)
    env.reset()
    env.step([np.tile(np.array([0.5, -0.5, 1], np.float32), (3, 2, 1))])
    (received,) = batched.received
    assert received["move"].tolist() == [[2, 2]] * 3
    assert received["aim"][0].tolist() == [[[0.5, -0.5]] * 2] * 3


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("reward", "env 1, episode 0, step 1, agent 'b': reward is nan, not a finite number"),
        ("observation", r"env 1, episode 0, step 2, agent 'a': observation is inf at index \(0,\)"),
        (
            "wide observation",
            r"env 1, episode 0, step 2, agent 'a': observation is 1e\+300 \(too large for float32, .*\)",
        ),
    ],
)
def test_a_value_that_is_not_finite_names_env_episode_step_and_agent(fault: str, message: str) -> None:
    env = BatchedVecEnv(Staggered(2, fault), seed=0)
    env.reset()

    def take_two_steps() -> None:
        for _ in range(2):
            env.step([np.zeros((2, 2), dtype=np.int64)])

    with pytest.raises(EnvError, match=message):
        take_two_steps()


def test_reset_options_are_refused_rather_than_dropped() -> None:
    env = BatchedVecEnv(Staggered(2))
    env.reset([{}, {}])
    with pytest.raises(ConfigError, match="the batched env Staggered takes none; use vectorizer='sync'"):
        env.reset([{}, {"level": 3}])


def test_batched_envs_without_a_state_begin_anew_and_say_so() -> None:
    env = BatchedVecEnv(Staggered(2), seed=3)
    env.reset()
    env.step([np.zeros((2, 2), dtype=np.int64)])
    again = BatchedVecEnv(Staggered(2))
    assert again.set_state(StateReader(env.get_state())) == dict.fromkeys(
        (0, 1), "Staggered has no get_state() that a checkpoint can hold"
    )
    assert again.latest.observations[0].tolist() == [[[1], [1]]] * 2
    assert again.get_state()["episodes"].tolist() == [1, 1]


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("cells", np.array([[3, 3]]), "two different numbers from 0 to 99"),
        ("cells", np.array([[0, 100]]), "two different numbers from 0 to 99"),
        ("timesteps", np.array([100]), "numbers from 0 to 99"),
        ("coins", np.zeros((1, 2), dtype=np.uint8), r"an array of uint8 \(1, 13\)"),
    ],
)
def test_impossible_states_of_the_arena_are_refused(name: str, value: Any, message: str) -> None:
    env = make_vec_env("arena", seed=0)
    env.reset()
    state = env.get_state()
    state["own"] = {**state["own"], name: value}
    with pytest.raises(CheckpointError, match=message):
        make_vec_env("arena").set_state(StateReader(state))


def test_a_state_with_other_observations_is_not_taken_for_exact() -> None:
    env = make_vec_env("arena", seed=0)
    env.reset()
    state = env.get_state()
    state["own"] = {**state["own"], "cells": state["own"]["cells"][:, ::-1].copy()}
    again = make_vec_env("arena")
    assert again.set_state(StateReader(state)) == {0: "its set_state() led to other observations"}


# Agents with different spaces


class TwoKinds(ScriptedEnv):
    """Agents a and c count, and may not choose 1 in odd steps; b, which leaves after 2 steps, sees two things."""

    fault: ClassVar[float] = 0.0

    def __init__(self) -> None:
        super().__init__({"a": (4, "truncated"), "b": (2, "terminated"), "c": (4, "truncated")})

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        own = spaces.Box(-9, 9, (1,), np.float32)
        return spaces.Dict({"own": own, "level": spaces.Discrete(9)}) if agent == "b" else own

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Box(-1, 1, (2,), np.float32) if agent == "b" else spaces.Discrete(3)

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.count = float((seed or 0) % 5)
        return super().reset(seed, options)

    def observation(self, agent: str) -> Any:
        own = np.array([self.count], np.float32)
        return {"own": own + 1, "level": self.step_count} if agent == "b" else own + self.fault

    def step(self, actions: Any) -> Any:
        self.count += float(actions["b"][1]) if "b" in actions else 0.25
        return super().step(actions)

    def _reward(self, agent: str) -> float:
        return self.count

    def _with_masks(self, infos: dict[str, Any]) -> dict[str, Any]:
        masks = {agent: np.array([True, self.step_count % 2 == 0, agent == "a"]) for agent in "ac"}
        return {"b": {}, **{agent: {"action_mask": mask} for agent, mask in masks.items()}}

    @classmethod
    def make_batched(cls, num_envs: int) -> BatchedEnv:
        return KindsTogether([cls() for _ in range(num_envs)])


class KindsTogether(BatchedEnv):
    """Plain envs whose results are put into arrays."""

    def __init__(self, envs: list[TwoKinds]) -> None:
        self.envs, self.num_envs, self.possible_agents = envs, len(envs), ("a", "b", "c")
        self.metadata, self.render_mode = envs[0].metadata, None
        self.masks = np.zeros((self.num_envs, 3, 3), np.bool_)
        self.of_a_and_c = np.zeros((self.num_envs, 2, 1), np.float32)
        self.of_b = {"own": np.zeros((self.num_envs, 1, 1), np.float32), "level": np.zeros((self.num_envs, 1), int)}

    def spaces_of(self, agent: str) -> tuple[Any, Any]:
        return self.envs[0].observation_space(agent), self.envs[0].action_space(agent)

    def keep(self, index: int, seen: Any, infos: Any) -> None:
        for place, agent in enumerate(("a", "c")):
            self.masks[index, place] = infos[agent]["action_mask"]
            self.of_a_and_c[index, place] = seen[agent]
        if "b" in seen:
            self.of_b["own"][index, 0], self.of_b["level"][index, 0] = seen["b"]["own"], seen["b"]["level"]

    def reset(self, env_indices: Any, seeds: Any) -> None:
        for index, seed in zip(env_indices, seeds, strict=True):
            self.keep(index, *self.envs[index].reset(seed))

    def step(self, actions: Any) -> BatchedStep:
        made = BatchedStep(np.zeros((self.num_envs, 3)), *np.zeros((2, self.num_envs, 3), np.bool_), {})
        for index, env in enumerate(self.envs):
            own = {"a": actions[0][index, 0], "b": actions[1][index, 0], "c": actions[0][index, 1]}
            agents = list(env.agents)
            seen, *results, infos = env.step({agent: own[agent] for agent in agents})
            self.keep(index, seen, infos)
            for array, result in zip(made, results, strict=False):
                array[index, [env.possible_agents.index(agent) for agent in result]] = [*result.values()]
        return made

    def observations(self) -> Any:
        return self.of_a_and_c.copy(), {key: array.copy() for key, array in self.of_b.items()}

    def action_masks(self) -> Any:
        return self.masks[:, :2], None


def test_agents_with_different_spaces_are_those_of_separate_envs() -> None:
    require_same(TwoKinds, 40)


def test_final_observations_of_agents_with_the_same_spaces_are_a_batch() -> None:
    env = make_vec_env(TwoKinds, 2, 0)
    env.reset()
    actions = [np.zeros((2, 2), np.int64), np.ones((2, 1, 2), np.float32)]
    steps = [env.step(actions) for _ in range(4)]
    final = steps[3].final_observations
    assert final.stacked(steps[3].truncated & [True, False, False]).tolist() == [
        final[0, 0].tolist(),
        final[1, 0].tolist(),
    ]
    of_b = steps[1].final_observations.stacked(steps[1].terminated)
    assert isinstance(of_b, dict)
    assert (of_b["level"].tolist(), of_b["own"].shape) == ([2, 2], (2, 1))


def test_a_fault_of_an_agent_among_others_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    env = make_vec_env(TwoKinds, 2, 0)
    env.reset()
    batch: Any = env.batch  # type: ignore[attr-defined]
    batch.envs[1].fault = np.nan
    with pytest.raises(EnvError, match="env 1, episode 0, step 1, agent 'a': observation is nan at index"):
        env.step([np.zeros((2, 2), np.int64), np.ones((2, 1, 2), np.float32)])
    monkeypatch.setattr(batch, "action_masks", lambda: (batch.masks[:, :2] & [[True], [False]], None))
    batch.envs[1].fault = 0.0
    with pytest.raises(EnvError, match="agent 'c': action_mask forbids every action"):
        env.reset()
