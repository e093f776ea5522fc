"""Replay buffers in which the transitions of a row follow one another, for agents that wait and that break off."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import stable_baselines3
from gymnasium import spaces
from toy_envs import SampledEnv, ScriptedEnv

from marl_sb3 import MultiAgentAlgorithm, MultiAgentVecEnv, PolicySpec, make_vec_env
from marl_sb3.core.off_policy.per_row_replay import CompactBuffer, GoalEnv, HindsightBuffer, NStepBuffer, PerRowReplay
from marl_sb3.core.off_policy.replay import Transitions
from marl_sb3.errors import ConfigError

SPACES = spaces.Box(0, 99, (1,)), spaces.Discrete(2)
SMALL = {"buffer_size": 100, "learning_starts": 4, "batch_size": 4, "train_freq": 2, "policy_kwargs": {"net_arch": [4]}}
NO_TIMEOUTS = {"handle_timeout_termination": False}


def add(buffer: PerRowReplay, of_rows: Mapping[int, float], done: bool = False, truncated: bool = False) -> None:
    """Add a transition from each number to the next one, paid the number itself."""
    values = np.array([*of_rows.values()], dtype=np.float32)
    ends = np.full(len(values), done), np.full(len(values), truncated)
    buffer.add_transitions(Transitions(values, values + 1, np.zeros(len(values)), values, *ends, np.array([*of_rows])))


def drawn(buffer: Any, *names: str, number: int = 300) -> set[tuple[float, ...]]:
    np.random.seed(0)  # noqa: NPY002 - SB3's generator
    samples = buffer.sample(number)
    return {tuple(map(float, each)) for each in zip(*(getattr(samples, name) for name in names), strict=True)}


def test_n_step_returns_end_with_the_episode_and_where_a_row_has_no_more_transitions() -> None:
    buffer = NStepBuffer(12, *SPACES, n_envs=2, n_steps=3, gamma=0.5)
    for number in (10, 20, 30):
        add(buffer, {0: number})
    add(buffer, {0: 40, 1: 60}, done=True)
    add(buffer, {0: 50})
    assert (buffer.num_transitions, buffer.counts.tolist()) == (6, [5, 1])
    assert drawn(buffer, "observations", "rewards", "next_observations", "dones", "discounts") == {
        (10, 10 + 10 + 7.5, 31, 0, 0.125),
        (20, 20 + 15 + 10, 41, 1, 0.125),
        (30, 30 + 20, 41, 1, 0.25),
        (40, 40, 41, 1, 0.5),
        (50, 50, 51, 0, 0.5),
        (60, 60, 61, 1, 0.5),
    }


def test_nothing_is_added_up_beyond_a_rollout_that_was_broken_off_or_the_end_of_the_ring() -> None:
    buffer = NStepBuffer(3, *SPACES, n_envs=1, n_steps=2, gamma=1.0)
    add(buffer, {0: 1})
    add(buffer, {0: 2})
    buffer.break_off(np.array([True]))
    add(buffer, {0: 3})
    add(buffer, {0: 4})
    assert drawn(buffer, "observations", "rewards", "next_observations", "dones") == {
        (2, 2, 3, 0),
        (3, 7, 5, 0),
        (4, 4, 5, 0),
    }


def test_each_transition_is_drawn_equally_often() -> None:
    buffer = NStepBuffer(20, *SPACES, n_envs=2, n_steps=1, gamma=1.0)
    for number in range(9):
        add(buffer, {0: number, 1: 50} if number == 0 else {0: number})
    np.random.seed(0)  # noqa: NPY002
    seen = buffer.sample(10_000).observations.flatten().tolist()
    assert all(900 < seen.count(number) < 1100 for number in {*range(9), 50})


def test_an_observation_is_stored_once_and_a_row_that_broke_off_leaves_a_gap() -> None:
    buffer = CompactBuffer(5, *SPACES, n_envs=1, optimize_memory_usage=True, **NO_TIMEOUTS)
    for number in (1, 2):
        add(buffer, {0: number})
    buffer.break_off(np.array([True]))
    buffer.break_off(np.array([True]))  # a second time, nothing happens
    add(buffer, {0: 7})
    expected = {(1, 2), (2, 3), (7, 8)}
    assert drawn(buffer, "observations", "next_observations") == expected
    add(buffer, {0: 8})
    add(buffer, {0: 9})
    assert drawn(buffer, "observations", "next_observations") == {(7, 8), (8, 9), (9, 10)}


class Walk(ScriptedEnv):
    """Agent `a` moves by 1, `b` by 10, and each is to get to a place of its own; only `b` is paid twice."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__({"a": (4, "truncated"), "b": (4, "terminated")}, skips={"b": [1, 2]}, **kwargs)
        place = spaces.Box(-1000, 1000, (1,))
        parts = {"observation": spaces.Box(-1000, 1000, (3,)), "achieved_goal": place, "desired_goal": place}
        self._seen = spaces.Dict(parts)

    def observation_space(self, agent: str) -> spaces.Dict:
        return self._seen

    def observation(self, agent: str) -> Any:
        step = {"a": 1, "b": 10}[agent]
        place, goal = (np.array([number], np.float32) for number in (step * self.step_count, step * 100))
        seen = np.array([step, 0, self.step_count], np.float32)
        return {"observation": seen, "achieved_goal": place, "desired_goal": goal}

    def compute_reward(self, agent: str, achieved: Any, desired: Any, infos: Any) -> Any:
        assert achieved.shape == desired.shape == (len(infos), 1)
        return (achieved == desired)[:, 0] * {"a": 1.0, "b": 2.0}[agent]


def goals_spec(**kwargs: Any) -> PolicySpec:
    hindsight = {"replay_buffer_class": "HerReplayBuffer", "replay_buffer_kwargs": kwargs}
    return PolicySpec(stable_baselines3.DQN, "MultiInputPolicy", **{**SMALL, **hindsight})


def test_new_goals_come_from_the_episode_of_the_same_agent_and_are_paid_by_its_own_measure() -> None:
    env = make_vec_env(Walk, n_envs=2)
    algorithm = MultiAgentAlgorithm(env, {"p": goals_spec(goal_selection_strategy="final")}, n_steps=10, seed=0)
    algorithm.train_iteration()
    buffer: Any = algorithm.policies["p"].replay_buffer
    assert buffer.counts.tolist() == [10, 4, 10, 4]  # b waits in two of the four steps of an episode
    assert buffer.ep_length[:10, 0].tolist() == [4] * 8 + [0] * 2
    assert buffer.ep_length[:5, 1].tolist() == [2] * 4 + [0]
    samples = buffer.sample(200)
    found = {
        (int(who), float(seen), float(reached), float(goal), float(reward), float(done))
        for who, seen, reached, goal, reward, done in zip(
            samples.observations["observation"][:, 0],
            samples.observations["achieved_goal"],
            samples.next_observations["achieved_goal"],
            samples.observations["desired_goal"],
            samples.rewards,
            samples.dones,
            strict=True,
        )
    }
    paid = {(1, i, i + 1, 100, 1, 0) for i in range(4)} | {(10, 0, 30, 1000, 6, 0), (10, 30, 40, 1000, 2, 1)}
    reached = {(1, i, i + 1, 4, i == 3, 0) for i in range(4)} | {(10, 0, 30, 40, 0, 0), (10, 30, 40, 40, 2, 1)}
    assert found == paid | reached


def test_episodes_that_are_overwritten_or_broken_off_are_no_goals() -> None:
    space = spaces.Dict(dict.fromkeys(("observation", "achieved_goal", "desired_goal"), SPACES[0]))
    goals = GoalEnv(["a"], lambda agent, achieved, desired, infos: np.zeros(len(infos)))
    buffer = HindsightBuffer(5, space, SPACES[1], n_envs=1, goals=goals)

    def add_step(number: float, done: bool = False) -> None:
        seen = dict.fromkeys(space, np.array([number]))
        ends = np.array([done]), np.array([False])
        buffer.add_transitions(Transitions(seen, seen, np.zeros(1), np.zeros(1), *ends, np.array([0])))

    add_step(1)
    assert not buffer.can_sample
    add_step(2, done=True)
    add_step(3)
    buffer.break_off(np.array([True]))
    assert buffer.ep_length[:, 0].tolist() == [2, 2, 1, 0, 0]
    add_step(4)
    add_step(5, done=True)
    assert buffer.ep_length[:, 0].tolist() == [2, 2, 1, 2, 2]
    add_step(6)
    assert buffer.ep_length[:, 0].tolist() == [0, 0, 1, 2, 2]  # the rest of an episode goes with its first transition


def envs(with_goals: bool) -> MultiAgentVecEnv:
    if with_goals:
        return make_vec_env(Walk, n_envs=2)
    script = {"a": (3, "truncated"), "b": (4, "terminated")}
    return make_vec_env(SampledEnv, n_envs=2, observation_space=SPACES[0], action_space=SPACES[1], script=script)


SPECS = {
    "n-step returns": PolicySpec(stable_baselines3.DQN, n_steps=2, **SMALL),
    "each observation once": PolicySpec(
        stable_baselines3.DQN, optimize_memory_usage=True, replay_buffer_kwargs=NO_TIMEOUTS, **SMALL
    ),
    "goals": goals_spec(),
    "normalised": PolicySpec(stable_baselines3.DQN, normalize_observations=True, normalize_rewards=True, **SMALL),
}


@pytest.mark.parametrize("name", SPECS)
def test_a_loaded_training_goes_on_as_the_saved_one(name: str, tmp_path: Path) -> None:
    whole = MultiAgentAlgorithm(envs(name == "goals"), {"p": SPECS[name]}, n_steps=7, seed=0, device="cpu")
    whole.train_iteration()
    saved = whole.save(tmp_path / "saved")
    losses = [whole.train_iteration()["learners"]["p"]["qf_loss"] for _ in range(2)]
    loaded = MultiAgentAlgorithm.load(saved, envs(name == "goals"), device="cpu")
    assert [loaded.train_iteration()["learners"]["p"]["qf_loss"] for _ in range(2)] == losses
    both = [each.parts.learners["p"].get_tensors()["replay"] for each in (whole, loaded)]
    for column in both[0]:
        np.testing.assert_array_equal(both[0][column], both[1][column], err_msg=column)


@pytest.mark.parametrize(
    ("compute_reward", "words"),
    [
        (None, "no attribute 'compute_reward'"),
        (lambda self, achieved, desired, infos: 0.0, "takes 4 positional arguments but 5 were given"),
        (lambda self, *_: np.zeros((1, 1)), r"returned float64 of shape \(1, 1\); accepted: \(1,\) numbers"),
    ],
)
def test_an_env_without_rewards_for_goals_is_refused(
    compute_reward: Any, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if compute_reward is None:
        monkeypatch.delattr(Walk, "compute_reward")
    else:
        monkeypatch.setattr(Walk, "compute_reward", compute_reward)
    with pytest.raises(ConfigError, match=rf"policy 'p': replay_buffer_class is HerReplayBuffer, but .*{words}"):
        MultiAgentAlgorithm(make_vec_env(Walk), {"p": goals_spec()})


def test_goals_are_paid_to_single_agents() -> None:
    spec = goals_spec().with_defaults({"team_reward": "sum"})
    with pytest.raises(ConfigError, match="policy 'p': team_reward does not go with HerReplayBuffer; accepted: null"):
        MultiAgentAlgorithm(envs(with_goals=True), {"p": spec}, n_steps=7)
