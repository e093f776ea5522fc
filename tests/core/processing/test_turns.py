"""Agents that wait, by hand: memory and statistics stand still, and a transition is paid as one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from toy_envs import ScriptedEnv

from marl_sb3 import MultiAgentAlgorithm, PolicySpec, SampledAssignment
from marl_sb3.core.config.settings import ProcessingSettings
from marl_sb3.core.mapping import rows_of_policy
from marl_sb3.core.processing.processing import Processing
from marl_sb3.core.processing.processors import ProcessedPolicy
from marl_sb3.core.processing.rows import process_rows
from marl_sb3.core.vec_env.make import make_vec_env
from marl_sb3.errors import ConfigError

ENDS = {"a": (5, "truncated"), "b": (4, "terminated")}
PAID = {"a": [1.0] * 5, "b": [1.0, 2.0, 4.0, 8.0]}


def play(
    steps: int, factory: Any = ScriptedEnv, **settings: Any
) -> tuple[Processing, list[np.ndarray], list[list[float]]]:
    """Agent b acts in the steps 1 and 4, and waits in 2 and 3; it ends in 4."""
    env = make_vec_env(factory, script=ENDS, rewards=PAID, skips={"b": [1, 2]})
    rows = rows_of_policy(env, "p", dict.fromkeys(env.agents, "p"), team=env.agents)
    processing = Processing(
        ProcessingSettings(**settings),
        ProcessedPolicy("p", rows.agents, rows.group.action_space),
        rows.zero_based_observations.space,
    )
    processed = process_rows(processing, rows, 0.5, learns=True)
    step, seen, paid = env.reset(), [], []
    for _ in range(steps):
        acting = rows.of_agents(step.to_act)
        seen.append(np.array(processed.processed_observations(step))[acting])
        processed.acted(np.zeros(2, dtype=np.int64), acting)
        step = env.step([np.zeros((1, 2), dtype=np.int64)])
        paid.append(processed.observe(step).tolist())
    return processing, seen, paid


def test_frames_are_those_that_an_agent_acted_on() -> None:
    _, seen, _ = play(4, frame_stack=2)
    np.testing.assert_array_equal(seen[0], [[0, 0, 0, 1, 1, 0], [0, 0, 0, 2, 1, 0]])
    assert [len(rows) for rows in seen] == [2, 1, 1, 2]
    np.testing.assert_array_equal(seen[3], [[1, 1, 2, 1, 1, 3], [2, 1, 0, 2, 1, 3]])  # b saw the steps 0 and 3


SEEN = {  # agent's number from 0 and the step, as choices -> the space, and an observation
    "Discrete": (spaces.Discrete(9), lambda agent, step: np.int64(4 * agent + step)),
    "Discrete from 5": (spaces.Discrete(9, start=5), lambda agent, step: np.int64(5 + 4 * agent + step)),
    "MultiDiscrete": (spaces.MultiDiscrete([2, 5]), lambda agent, step: np.array([agent, step])),
    "MultiBinary": (spaces.MultiBinary(2), lambda agent, step: np.array([agent, step % 2], dtype=np.int8)),
    "small numbers": (spaces.MultiDiscrete([126, 127], dtype=np.int8), lambda agent, step: np.int8([agent, step])),
}
# The stack of a in the first step, of b in the first, of b in the fourth, which is its second; the choices.
STACKS: dict[str, tuple[list[int], list[int], list[int], list[int]]] = {
    "Discrete": ([9, 0], [9, 4], [4, 7], [10, 10]),
    "Discrete from 5": ([9, 0], [9, 4], [4, 7], [10, 10]),
    "MultiDiscrete": ([2, 5, 0, 0], [2, 5, 1, 0], [1, 0, 1, 3], [3, 6, 3, 6]),
    "MultiBinary": ([2, 2, 0, 0], [2, 2, 1, 0], [1, 0, 1, 1], [3, 3, 3, 3]),
    "small numbers": ([126, 127, 0, 0], [126, 127, 1, 0], [1, 0, 1, 3], [127, 128, 127, 128]),
}


@pytest.mark.parametrize("kind", SEEN)
def test_before_the_first_frame_of_choices_is_a_choice_that_no_observation_has(kind: str) -> None:
    space, observe = SEEN[kind]

    class Env(ScriptedEnv):
        def __init__(self, **arguments: Any) -> None:
            super().__init__(**arguments)
            self._observation_space = space

        def observation(self, agent: str) -> Any:
            return observe(self.possible_agents.index(agent), self.step_count)

    processing, seen, _ = play(4, Env, frame_stack=2)
    first, of_b, later, choices = STACKS[kind]
    assert seen[0].tolist() == [first, of_b]
    assert seen[3][1].tolist() == later
    assert processing.observation_space.nvec.tolist() == choices
    assert seen[0].dtype == processing.observation_space.dtype


def test_parts_of_a_dict_are_stacked_each_in_its_way() -> None:
    space = spaces.Dict({"mode": spaces.Discrete(3), "near": spaces.Box(1, 2, (1,))})
    processing = Processing(ProcessingSettings(frame_stack=2), ProcessedPolicy("p", ("a",), spaces.Discrete(2)), space)
    seen: Any = {"mode": np.array([1]), "near": np.array([[1.5]], np.float32)}
    first, memory = processing.observe(seen, processing.initial(1), np.zeros(1, np.int64))
    second, _ = processing.observe(seen, memory, np.zeros(1, np.int64))
    assert {key: array.tolist() for key, array in first.items()} == {"mode": [[3, 1]], "near": [[0, 1.5]]}
    assert {key: array.tolist() for key, array in second.items()} == {"mode": [[1, 1]], "near": [[1.5, 1.5]]}
    assert processing.observation_space["mode"] == spaces.MultiDiscrete([4, 4])


def test_a_transition_is_clipped_as_one_reward() -> None:
    _, _, paid = play(4, clip_rewards=6.0)
    assert paid == [[1, 0], [1, 0], [1, 6], [1, 6]]  # b: 1 + 2 + 4 for its first action, 8 for its second


@pytest.mark.parametrize(("how", "agents"), [("sum", 1), ("mean", 2)])
def test_a_team_is_paid_what_all_of_it_are_and_who_waits_what_it_was_since_it_acted(how: str, agents: int) -> None:
    _, _, paid = play(4, team_reward=how)  # all of it: 2, 3, 5, 9
    assert paid == [[2 / agents, 0], [3 / agents, 0], [5 / agents, 10 / agents], [9 / agents, 9 / agents]]


def test_an_agent_that_sees_its_own_reward_does_not_learn_from_that_of_its_team() -> None:
    with pytest.raises(ConfigError, match="team_reward is sum, and previous_reward shows each agent its own; accepted"):
        play(1, team_reward="sum", previous_reward=True)


def test_a_team_that_is_not_paid_the_same_is_refused_where_it_is_to_be_so() -> None:
    assert play(1, team_reward="shared")[2] == [[1, 0]]
    with pytest.raises(
        ConfigError, match="policy 'p': team_reward is shared, but env 0 paid it 1 and 2; accepted: sum"
    ):
        play(2, team_reward="shared")


def test_statistics_take_in_one_return_for_each_transition_and_no_waiting_agent() -> None:
    processing, _, _ = play(4, normalize_rewards=True, normalize_observations=True)
    returns = [1, 1.5, 1.75, 1.875, 7, 7 * 0.5 + 8]  # of a, and of b
    statistics = processing.statistics
    assert np.isclose(statistics["returns"].count, len(returns), atol=1e-3)
    np.testing.assert_allclose(statistics["returns"].mean, np.mean(returns), rtol=1e-3)
    np.testing.assert_allclose(statistics["returns"].var, np.var(returns), rtol=1e-3)
    looked_at = [[1, 1, 0], [2, 1, 0], [1, 1, 1], [1, 1, 2], [1, 1, 3], [2, 1, 3], [1, 1, 4]]
    np.testing.assert_allclose(statistics["observations"].mean, np.mean(looked_at, axis=0), rtol=1e-3)
    assert np.isclose(statistics["observations"].count, len(looked_at), atol=1e-3)


def test_the_previous_reward_is_all_that_the_previous_action_was_paid() -> None:
    _, seen, _ = play(5, previous_reward=True, agent_indicator=True)
    assert [rows[:, 3].tolist() for rows in seen] == [[0, 0], [1], [1], [1, 7], [1]]


@pytest.mark.parametrize(
    ("env", "policies", "mapping"),
    [
        ("CartPole-v1", "shared", None),
        (ScriptedEnv, {name: PolicySpec() for name in "pq"}, SampledAssignment({agent: ["p", "q"] for agent in "ab"})),
    ],
)
def test_an_agent_alone_and_policies_that_take_turns_have_no_team(env: Any, policies: Any, mapping: Any) -> None:
    words = "team_reward is mean, and it has no team; accepted: null, or agents whose policies take no turns"
    with pytest.raises(ConfigError, match=words):
        MultiAgentAlgorithm(make_vec_env(env, n_envs=2), policies, mapping, team_reward="mean", n_steps=8)
