"""Gymnasium envs whose spaces are tuples of the agents' own."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from other_kinds import Pair

from marl_sb3 import ConfigError, make_vec_env
from marl_sb3.core.envs.registry import make_env
from marl_sb3.envs.gymnasium_wrappers import named_wrappers, wrapping_factory
from marl_sb3.envs.tuples import KIND, AsAgents, TupleEnv


class Alone(gymnasium.Env[Any, Any]):
    """One agent, whose observations and actions have two parts."""

    observation_space = action_space = spaces.Tuple([spaces.Discrete(2), spaces.Discrete(2)])


def test_parts_of_the_tuples_are_those_of_the_agents() -> None:
    env: Any = make_env(lambda: gymnasium.make("tuple-pair-v0"), 0, {})  # its checker takes no list of rewards
    assert isinstance(env, TupleEnv)
    shown, infos = env.reset(seed=1)
    first = env.env.unwrapped.shown
    assert shown == {"agent_0": first[0], "agent_1": first[1]}
    assert infos["agent_1"] == {"left": 3}
    _, rewards, terminated, truncated, _ = env.step({"agent_1": first[0], "agent_0": first[1] - 1})
    assert rewards == {"agent_0": 0.0, "agent_1": 1.0}
    assert env.agents == ["agent_0", "agent_1"]
    env.step({"agent_0": 0, "agent_1": 0})
    *_, terminated, truncated, _ = env.step({"agent_0": 0, "agent_1": 0})
    assert terminated == {"agent_0": True, "agent_1": True}
    assert truncated == {"agent_0": False, "agent_1": False}
    assert env.agents == []


def stepping(*returned: Any) -> Any:
    """What a step of two agents tells, whose env returns these rewards and ends."""
    env = TupleEnv(Pair())
    env.reset(seed=0)
    env.env.step = lambda actions: ((0, 0), *returned, {})  # type: ignore[method-assign]
    return [list(each.values()) for each in env.step({"agent_0": 0, "agent_1": 0})[1:4]]


def test_one_reward_is_that_of_each_agent_and_a_list_of_ends_is_one_if_all_agree() -> None:
    assert stepping(2.5, False, False) == [[2.5, 2.5], [False, False], [False, False]]
    assert stepping([1.0, 2.0], [True, True], np.array([False, False])) == [[1.0, 2.0], [True, True], [False, False]]
    with pytest.raises(ValueError, match=r"1 rewards; accepted: 2, one of each agent"):
        stepping([2.5], False, False)
    with pytest.raises(ValueError, match=r"terminated is \[True, False\]; accepted: one for all agents"):
        stepping(1.0, [True, False], False)


def test_tuples_alone_do_not_make_several_agents() -> None:
    assert KIND.recognises(Pair())
    assert not KIND.recognises(Alone())


def test_the_limit_of_steps_of_lbforaging_truncates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Pair, "__module__", "lbforaging.foraging.environment")
    for food_left in (False, True):
        env = TupleEnv(Pair())
        env.env.unwrapped.field = np.array([float(food_left)])  # type: ignore[attr-defined]
        env.reset(seed=0)
        for _ in range(3):
            *_, terminated, truncated, _ = env.step({"agent_0": 0, "agent_1": 0})
        assert (terminated["agent_0"], truncated["agent_0"]) == (not food_left, food_left)


class Crossing(gymnasium.Env[Any, Any]):
    """Two cars, of which nothing says that they are agents; each is paid what all are."""

    observation_space = spaces.Tuple([spaces.Box(0, 1, (2,), np.float32)] * 2)
    action_space = spaces.Tuple([spaces.Discrete(3)] * 2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.driven = 0
        return (np.zeros(2, np.float32),) * 2, {}

    def step(self, actions: Any) -> Any:
        self.driven += 1
        return (np.ones(2, np.float32),) * 2, float(sum(actions)), self.driven == 4, False, {}


def test_equal_tuples_of_one_agent_are_warned_of_once_and_made_agents(caplog: pytest.LogCaptureFixture) -> None:
    make_vec_env(Crossing, 2)
    (message,) = caplog.messages
    assert message.startswith("env Crossing: observations and actions are tuples of 2 equal parts")
    assert "env_wrapper=as_agents" in message
    made = wrapping_factory(Crossing, named_wrappers("as_agents"))
    for env in (make_vec_env(made, 2), make_vec_env(lambda: AsAgents(Crossing()), 2)):
        assert env.agents == ("agent_0", "agent_1")
        env.reset()
        step = env.step([np.array([[0, 2], [1, 2]])])
        assert step.rewards.tolist() == [[2.0, 2.0], [3.0, 3.0]]
    assert len(caplog.messages) == 1
    with pytest.raises(ConfigError, match=r"as_agents: the env observes Discrete\(4\).*; accepted: two Tuple spaces"):
        AsAgents(gymnasium.make("FrozenLake-v1", map_name=None, desc=["SF", "HG"]))
