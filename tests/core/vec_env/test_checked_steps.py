"""Whatever an env may not return is refused in the step in which it returns it, and named in full."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from toy_envs import ScriptedEnv

from marl_sb3.core.vec_env.observations import AgentLayout, agent_groups
from marl_sb3.core.vec_env.slot import EnvSlot, SlotStep
from marl_sb3.errors import EnvError
from marl_sb3.wrappers.observations import EnvView

INF, NAN = float("inf"), float("nan")
SCRIPT = {"a": (4, "truncated"), "b": (4, "terminated")}
OBSERVATIONS, REWARDS, TERMINATED, TRUNCATED, INFOS = range(5)


class SpoiledEnv(ScriptedEnv):
    """`spoil` changes what step 2 of the second episode returns, in place or by returning something else."""

    def __init__(
        self,
        spoil: Callable[[Any], Any] = lambda returned: None,
        script: Mapping[str, tuple[int, str]] = SCRIPT,
        **others: Any,
    ) -> None:
        super().__init__(script, **others)
        self.spoil = spoil

    def step(self, actions):
        returned = super().step(actions)
        if (self.episode, self.step_count) != (2, 2):
            return returned
        spoiled = self.spoil(returned)
        return returned if spoiled is None else spoiled


class SpoiledResetEnv(SpoiledEnv):
    """`spoil` changes what the second reset returns; `agents_after` are the live agents after it."""

    agents_after: list[Any] | None = None

    def reset(self, seed=None, options=None):
        returned = super().reset(seed, options)
        if self.episode == 1:
            return returned
        self.agents = self.agents if self.agents_after is None else self.agents_after
        spoiled = self.spoil(returned)
        return returned if spoiled is None else spoiled


def slot_of(env: ScriptedEnv, index: int = 0) -> EnvSlot:
    view = EnvView(env)
    agents = view.possible_agents
    groups = agent_groups({agent: (view.observation_space(agent), view.action_space(agent)) for agent in agents})
    return EnvSlot(env, view, index, 0, AgentLayout(agents, groups), index)


def play_to_the_fault(env: ScriptedEnv) -> SlotStep:
    """One step of a first episode, two of a second."""
    slot, actions = slot_of(env, 3), [np.zeros(2, dtype=np.int64)]
    slot.reset()
    slot.step(actions)
    slot.reset()
    slot.step(actions)
    return slot.step(actions)


def message_of(env: ScriptedEnv) -> str:
    with pytest.raises(EnvError) as caught:
        play_to_the_fault(env)
    return str(caught.value)


def saying(value: Any, part: int) -> Callable[[Any], None]:
    return lambda returned: returned[part].update({"b": value})


def without(part: int) -> Callable[[Any], None]:
    return lambda returned: returned[part].__delitem__("b")


# Steps


BROKEN_STEPS = {
    "no observation": (without(OBSERVATIONS), "observation is missing (there is one for ['a'])"),
    "no reward": (without(REWARDS), "reward is missing (there is one for ['a'])"),
    "no terminated": (without(TERMINATED), "terminated flag is missing (there is one for ['a'])"),
    "no truncated": (without(TRUNCATED), "truncated flag is missing (there is one for ['a'])"),
    "shape": (saying(np.zeros(2, np.float32), OBSERVATIONS), "observation has shape (2,), its space says (3,)"),
    "None": (saying(None, OBSERVATIONS), "observation has shape (), its space says (3,)"),
    "ragged": (saying([[1], [2, 3]], OBSERVATIONS), "observation is [[1], [2, 3]], not an array"),
    "dtype": (saying(np.zeros(3, complex), OBSERVATIONS), "observation has dtype complex128, its space says float32"),
    "nan": (saying(np.array([0, NAN, 0]), OBSERVATIONS), "observation is nan at index (1,)"),
    "inf": (saying(np.array([0, 0, -INF]), OBSERVATIONS), "observation is -inf at index (2,)"),
    "nan reward": (saying(NAN, REWARDS), "reward is nan, not a finite number"),
    "inf reward": (saying(-INF, REWARDS), "reward is -inf, not a finite number"),
    "large reward": (saying(-1e300, REWARDS), "reward is -1e+300, too large for float32, in which rewards are kept"),
    "NumPy's large reward": (
        saying(np.float64(1e39), REWARDS),
        "reward is np.float64(1e+39), too large for float32, in which rewards are kept",
    ),
    "None reward": (saying(None, REWARDS), "reward is None, not a finite number"),
    "text reward": (saying("1", REWARDS), "reward is '1', not a finite number"),
    "complex reward": (saying(1 + 2j, REWARDS), "reward is (1+2j), not a finite number"),
    "list reward": (saying([1, [2, 3]], REWARDS), "reward is [1, [2, 3]], not a finite number"),
    "array reward": (
        saying(np.zeros(1), REWARDS),
        "reward is array([0.]), not a finite number; reward_weights=[NUMBER, ...] makes one reward of several",
    ),
    "None info": (saying(None, INFOS), "info is None, not a dictionary"),
}


@pytest.mark.parametrize("name", BROKEN_STEPS)
def test_error_names_env_episode_step_agent_quantity_and_value(name):
    spoil, problem = BROKEN_STEPS[name]
    assert message_of(SpoiledEnv(spoil)) == f"env 3, episode 1, step 2, agent 'b': {problem}"


@pytest.mark.parametrize("part", [TERMINATED, TRUNCATED])
def test_flag_that_is_missing_beside_a_true_one_is_refused(part):
    env = SpoiledEnv(without(part), script={"a": (2, "both"), "b": (2, "both")})
    assert "agent 'b': t" in message_of(env)


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        (lambda returned: returned[:4], "step() returned a tuple of 4, not a tuple of 5 dictionaries"),
        (list, "step() returned list, not a tuple of 5 dictionaries"),
        (lambda returned: (*returned[:4], [{}, {}]), "infos are list, not a dictionary by agent"),
    ],
)
def test_step_that_returns_something_else_is_refused(spoil, problem):
    assert message_of(SpoiledEnv(spoil)) == f"env 3, episode 1, step 2: {problem}"


@pytest.mark.parametrize("part", [OBSERVATIONS, REWARDS, TERMINATED, TRUNCATED])
def test_list_in_place_of_a_dictionary_is_refused(part):
    message = message_of(SpoiledEnv(lambda returned: (*returned[:part], [0, 0], *returned[part + 1 :])))
    assert message.startswith("env 3, episode 1, step 2, agent 'a': ")
    assert message.endswith(" is missing (there is one for list)")


def test_agent_that_waits_while_nobody_is_left_to_act_is_refused():
    env = SpoiledEnv(script={"a": (2, "truncated"), "b": (4, "truncated")})
    env.spoil = lambda returned: env.agents.remove("b")
    problem = "is neither terminated nor truncated, but no agent is left to act"
    assert message_of(env) == f"env 3, episode 1, step 2, agent 'b': {problem}"


def test_what_is_said_of_an_agent_that_waits_is_checked():
    env = SpoiledEnv(script={"a": (3, "truncated"), "b": (2, "truncated")}, skips={"b": [1]})
    env.spoil = lambda returned: returned[REWARDS].update(b=np.nan)
    assert message_of(env) == "env 3, episode 1, step 2, agent 'b': reward is nan, not a finite number"
    env = SpoiledEnv(without(OBSERVATIONS), script={"a": (3, "truncated"), "b": (2, "truncated")}, skips={"b": [1]})
    assert message_of(env).startswith("env 3, episode 1, step 2, agent 'b': observation is missing")


def test_stranger_that_joins_is_refused():
    env = SpoiledEnv()
    env.spoil = lambda returned: env.agents.append(0)
    problem = "is live but not in possible_agents ['a', 'b']"
    assert message_of(env) == f"env 3, episode 1, step 2, agent 0: {problem}"


def test_agent_that_joins_has_to_be_shown():
    env = SpoiledEnv(without(OBSERVATIONS), script={"a": (4, "truncated"), "b": (4, "truncated")})
    env.joins = {"b": 2}
    assert message_of(env) == ("env 3, episode 1, step 2, agent 'b': observation is missing (there is one for ['a'])")


# Resets


BROKEN_RESETS = {
    "dict": (lambda returned: returned[0], ": reset() returned dict, not (observations, infos)"),
    "length": (lambda returned: (*returned, {}), ": reset() returned a tuple of 3, not (observations, infos)"),
    "missing": (without(OBSERVATIONS), ", agent 'b': observation is missing (there is one for ['a'])"),
    "nan": (saying([0, 0, NAN], OBSERVATIONS), ", agent 'b': observation is nan at index (2,)"),
    "infos": (lambda returned: (returned[0], None), ": infos are NoneType, not a dictionary by agent"),
    "info": (saying(1, 1), ", agent 'b': info is 1, not a dictionary"),
}


@pytest.mark.parametrize("name", BROKEN_RESETS)
def test_reset_is_checked_as_step_0(name):
    spoil, problem = BROKEN_RESETS[name]
    assert message_of(SpoiledResetEnv(spoil)) == f"env 3, episode 1, step 0{problem}"


@pytest.mark.parametrize(
    ("agents", "problem"),
    [
        ([], ": no agent is live after reset()"),
        (["a", "zoe"], ", agent 'zoe': is live but not in possible_agents ['a', 'b']"),
    ],
)
def test_reset_leaves_known_agents_alive(agents, problem):
    env = SpoiledResetEnv()
    env.agents_after = agents
    assert message_of(env) == f"env 3, episode 1, step 0{problem}"


# Spaces


DICT = spaces.Dict({"vector": spaces.Box(-1, 1, (2,)), "mode": spaces.Discrete(3)})
TOO_LARGE = "too large for float32, in which networks compute"
PAIR = spaces.Tuple([spaces.Discrete(2), spaces.Discrete(2)])


@pytest.mark.parametrize(
    ("space", "value", "problem"),
    [
        (spaces.Discrete(3), 3, "is 3, which is not in Discrete(3)"),
        (spaces.Discrete(3, start=5), 4, "is 4, which is not in Discrete(3, start=5)"),
        (spaces.Discrete(3), 1.0, "is 1.0, which is not in Discrete(3)"),
        (spaces.MultiDiscrete([3, 2]), [0, 2], "is [0, 2], which is not in MultiDiscrete([3 2])"),
        (spaces.MultiDiscrete([3, 2]), [-1, 0], "is [-1, 0], which is not in MultiDiscrete([3 2])"),
        (spaces.MultiDiscrete([3, 2]), [0], "has shape (1,) and dtype int64, its space is MultiDiscrete([3 2])"),
        (spaces.MultiDiscrete([3]), [0.5], "has shape (1,) and dtype float64, its space is MultiDiscrete([3])"),
        (spaces.MultiBinary(2), [0, 1, 0], "has shape (3,), its space says (2,)"),
        (spaces.MultiBinary(2), [0.0, 1.0], "has dtype float64, its space says int8"),
        (spaces.Box(0, 255, (1,), np.uint8), [0.5], "has dtype float64, its space says uint8"),
        (spaces.Box(-INF, INF, (2,), np.float64), [0, 1e300], f"is 1e+300 ({TOO_LARGE}) at index (1,)"),
        (spaces.Box(-INF, INF, (2,), np.float32), [0, -1e300], f"is -1e+300 ({TOO_LARGE}) at index (1,)"),
        (
            spaces.Box(-INF, INF, (1,), np.float16),
            [7e4],
            "is 70000.0 (too large for float16, its space's dtype) at index (0,)",
        ),
        (
            spaces.Box(-9, 9, (1,), np.int32),
            [2**40],
            "is 1099511627776 (too large for int32, its space's dtype) at index (0,)",
        ),
        (spaces.MultiBinary(2), [0, 256], "is 256 (too large for int8, its space's dtype) at index (1,)"),
        (DICT, {"vector": [0, NAN], "mode": 0}, "is nan at index (1,) (key 'vector')"),
        (DICT, {"vector": [INF, 0], "mode": 0}, "is inf at index (0,) (key 'vector')"),
        (DICT, {"vector": [0, 0], "mode": 3}, "is 3, which is not in Discrete(3) (key 'mode')"),
        (DICT, {"vector": [0, 0]}, "has keys ['vector'], its space says ['mode', 'vector']"),
        (DICT, [0, 0], "has keys list, its space says ['mode', 'vector']"),
        (PAIR, (0, 2), "is (0, 2), which is not in Tuple(Discrete(2), Discrete(2))"),
    ],
)
def test_observation_outside_its_space_is_refused(space, value, problem):
    env = ScriptedEnv()
    env._observation_space = space
    env.observation = lambda agent: value
    with pytest.raises(EnvError) as caught:
        slot_of(env).reset()
    assert str(caught.value) == f"env 0, episode 0, step 0, agent 'a': observation {problem}"


@pytest.mark.parametrize(
    ("space", "value"),
    [
        (spaces.Box(0, 1, (2,)), np.array([-5.0, 5.0])),  # the bounds are the env's own business
        (spaces.Box(0, 1, (2,)), [0, 1]),
        (spaces.Box(-9, 9, (1,), np.int32), np.array([7])),
        (spaces.Box(-INF, INF, (1,), np.float64), [3e38]),
        (spaces.Box(0, 255, (1,), np.uint8), np.array([7], np.uint8)),
        (spaces.Discrete(3, start=5), np.int64(7)),
        (spaces.MultiDiscrete([3, 2], start=[1, 1]), [3, 1]),
        (spaces.MultiBinary(2), np.array([0, 1], np.int8)),
        (DICT, {"vector": [0, 0], "mode": 2}),
        (PAIR, (0, 1)),
    ],
)
def test_observation_of_its_space_passes_unchanged(space, value):
    env = ScriptedEnv()
    env._observation_space = space
    env.observation = lambda agent: value
    shown = slot_of(env).reset()
    assert shown["a"] == {"0": 0, "1": 1} if space is PAIR else shown["a"] is value


# What passes


def test_step_of_a_sound_env_passes_unchanged():
    env = SpoiledEnv()
    returned = []
    env.spoil = returned.append
    step = play_to_the_fault(env)
    assert step.observations is returned[0][OBSERVATIONS]
    assert step.rewards is returned[0][REWARDS]
    assert step.infos is returned[0][INFOS]


@pytest.mark.parametrize("reward", [1, True, np.float32(0.5), np.array(2.0), np.int64(3)])
def test_reward_may_be_any_finite_number(reward):
    assert play_to_the_fault(SpoiledEnv(saying(reward, REWARDS))).rewards["b"] is reward


def test_nothing_is_asked_about_agents_that_ended():
    env = SpoiledEnv(script={"a": (3, "truncated"), "b": (1, "terminated")})
    assert set(play_to_the_fault(env).observations) == {"a"}
