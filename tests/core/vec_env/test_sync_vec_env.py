"""What the sync vectorizer alone does: agents with unequal spaces, and a refusal of spaces without arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from toy_envs import SampledEnv

from marl_sb3 import MultiAgentAlgorithm, PolicySpec, make_vec_env
from marl_sb3.errors import ConfigError

SPACES = {  # two groups whose agents alternate, and one agent alone
    "runner_0": (spaces.Box(-1, 1, (3,), np.float32), spaces.Discrete(2)),
    "hunter_0": (spaces.Discrete(9), spaces.MultiDiscrete([3, 2])),
    "runner_1": (spaces.Box(-1, 1, (3,), np.float32), spaces.Discrete(2)),
    "hunter_1": (spaces.Discrete(9), spaces.MultiDiscrete([3, 2])),
    "judge": (spaces.Dict({"a": spaces.MultiBinary(2), "b": spaces.Box(0, 1, (2, 2), np.float64)}), spaces.Discrete(3)),
}


class Mixed(SampledEnv):
    """Shows samples of the agents' spaces; hunters end first."""

    def __init__(self) -> None:
        script = {agent: (2 if agent.startswith("hunter") else 4, "terminated") for agent in SPACES}
        super().__init__(spaces.Discrete(2), spaces.Discrete(2), script)  # which are nobody's

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return SPACES[agent][0]

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return SPACES[agent][1]

    def observation(self, agent: str) -> Any:
        return SPACES[agent][0].sample()


def test_agents_are_grouped_by_their_spaces() -> None:
    groups = make_vec_env(Mixed).groups
    assert [group.agents for group in groups] == [("runner_0", "runner_1"), ("hunter_0", "hunter_1"), ("judge",)]
    assert [group.columns for group in groups] == [(0, 2), (1, 3), (4,)]
    assert [(group.observation_space, group.action_space) for group in groups] == [
        SPACES[agent] for agent in ("runner_0", "hunter_0", "judge")
    ]


def test_every_agent_shows_and_is_told_what_is_its_own() -> None:
    vec = make_vec_env(Mixed, n_envs=2)
    envs = [env.unwrapped for env in vec.envs]  # type: ignore[attr-defined]
    vec.reset()
    rng = np.random.default_rng(0)
    for clock in range(1, 10):
        actions = [
            rng.integers(0, 2, (2, len(group.agents), *(group.action_space.shape or ()))) for group in vec.groups
        ]
        acted = vec.latest.to_act
        step = vec.step(actions)
        for index, env in enumerate(envs):
            for number, group in enumerate(vec.groups):
                for place, (agent, column) in enumerate(zip(group.agents, group.columns, strict=True)):
                    assert (agent in env.received[-1]) == acted[index, column]
                    if acted[index, column]:
                        np.testing.assert_array_equal(env.received[-1][agent], actions[number][index, place])
                    shown = env.shown[-1].get(agent) if vec.latest.to_act[index, column] else None
                    _require_shown(step.observations[number], (index, place), shown, group.observation_space)
        assert bool(step.episode_done[0]) == (clock % 4 == 0)


def _require_shown(array: Any, place: tuple[int, int], shown: Any, space: spaces.Space[Any]) -> None:
    if isinstance(space, spaces.Dict):
        for key in space:
            _require_shown(array[key], place, None if shown is None else shown[key], space[key])
    else:
        assert array.dtype == space.dtype
        np.testing.assert_array_equal(array[place], np.zeros(space.shape or ()) if shown is None else shown)


def test_policies_of_unequal_spaces_train_in_the_same_episodes() -> None:
    vec = make_vec_env(Mixed, n_envs=3, seed=0)
    of_kind = {agent: agent.partition("_")[0] for agent in SPACES}
    specs = {
        "runner": PolicySpec(learning_rate=1e-3),
        "hunter": PolicySpec(),
        "judge": PolicySpec(policy="MultiInputPolicy"),
    }
    algorithm = MultiAgentAlgorithm(vec, specs, of_kind, n_steps=8, batch_size=8, n_epochs=2, seed=0, device="cpu")
    result = algorithm.train_iteration()
    trained = {policy: metrics["num_module_steps_trained"] for policy, metrics in result["learners"].items()}
    assert trained == {"runner": 2 * 3 * 8 * 2, "hunter": 2 * 3 * 4 * 2, "judge": 3 * 8 * 2}  # hunters: half the steps


def test_one_policy_for_unequal_spaces_is_refused() -> None:
    with pytest.raises(ConfigError, match="spaces"):
        MultiAgentAlgorithm(make_vec_env(Mixed), "shared", n_steps=8, device="cpu")


def test_a_space_that_no_array_holds_is_refused() -> None:
    class Texts(Mixed):
        def observation_space(self, agent: str) -> spaces.Space[Any]:
            return spaces.Dict(mission=spaces.Text(5))

    words = r"runner_1: the observation space of 'mission' is a Text; accepted: Box, .*FilterObservation as env_wrapper"
    with pytest.raises(ConfigError, match=words):
        make_vec_env(Texts)
