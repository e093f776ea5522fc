"""Which spaces and agents can be vectorised, and that observations and actions pass unchanged."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from toy_envs import NoisyEnv, SampledEnv, ScriptedEnv

from marl_sb3 import make_vec_env
from marl_sb3.errors import ConfigError

pytestmark = pytest.mark.usefixtures("each_vectorizer")


class DifferentSpaces(ScriptedEnv):
    """Agent b, or else env 1, has another space."""

    def __init__(self, kind: str, in_env: int | None = None, env_index: int = 0) -> None:
        super().__init__(env_index=env_index)
        self.kind, self.in_env = kind, in_env

    def _space(self, kind: str, agent: str, usual: spaces.Space) -> spaces.Space:
        odd = agent == "b" if self.in_env is None else self.env_index == self.in_env
        return spaces.Discrete(7) if kind == self.kind and odd else usual

    def observation_space(self, agent):
        return self._space("observation", agent, self._observation_space)

    def action_space(self, agent):
        return self._space("action", agent, self._action_space)


@pytest.mark.parametrize(("kind", "usual"), [("observation", r"Box\(.*"), ("action", r"Discrete\(3\)")])
def test_different_spaces_of_agents_are_refused_by_name_and_those_of_envs_by_index(kind, usual):
    message = rf"agents 'a' and 'b' have different {kind}_spaces: {usual} and Discrete\(7\); the supersuit vectorizer"
    with pytest.raises(ConfigError, match=message):
        make_vec_env(DifferentSpaces, vectorizer="supersuit", kind=kind)
    message = rf"env 2 has the {kind}_space Discrete\(7\) for agent 'a'; those before it: {usual}"
    with pytest.raises(ConfigError, match=message):
        make_vec_env(DifferentSpaces, n_envs=3, kind=kind, in_env=2)


def test_envs_with_different_agents_are_refused():
    plans = [[(dict.fromkeys(agents, (1, "truncated")), {})] for agents in ("a", "ab")]
    with pytest.raises(ConfigError, match=r"env 1 has agents \['a', 'b'\]; those before it: \['a'\]"):
        make_vec_env(NoisyEnv, n_envs=2, plans=plans)


IMAGE = spaces.Box(0, 255, (6, 5, 3), np.uint8)
OBSERVATION_SPACES = {
    "Box": spaces.Box(-1, 1, (2, 3), np.float64),
    "image": IMAGE,
    "Discrete": spaces.Discrete(5, start=-2),
    "MultiDiscrete": spaces.MultiDiscrete([3, 100]),
    "MultiBinary": spaces.MultiBinary(4),
    "Dict": spaces.Dict({"image": IMAGE, "mode": spaces.Discrete(4), "vector": spaces.Box(-1, 1, (3,))}),
}


@pytest.mark.parametrize("name", OBSERVATION_SPACES)
def test_observations_of_every_space_pass_exactly(name):
    space, script = OBSERVATION_SPACES[name], {"a": (2, "truncated"), "b": (3, "terminated")}
    vec = make_vec_env(
        SampledEnv, n_envs=2, observation_space=space, action_space=spaces.Discrete(2), script=script, seed=0
    )
    returned, finals = [vec.reset().observations[0]], []
    for _ in range(3):
        taken = vec.step((np.zeros((2, 2), int),))
        returned.append(taken.observations[0])
        finals.append(taken.final_observations)
    for env_index, shown in enumerate(vec.call("shown", [0, 1])):
        afterwards = [*shown[:2], {"b": shown[2]["b"]}, shown[4]]  # shown[3] was the episode's end
        for observations, expected in zip(returned, afterwards, strict=True):
            for column, agent in enumerate("ab"):
                _assert_equal(space, observations, (env_index, column), expected.get(agent))
        assert space.contains(finals[1][env_index, 0])
        np.testing.assert_equal(finals[1][env_index, 0], shown[2]["a"])
        np.testing.assert_equal(finals[2][env_index, 1], shown[3]["b"])


def _assert_equal(space: spaces.Space, batch: Any, place: tuple[int, int], expected: Any) -> None:
    """Exactly the expected observation, dtype included; zeros where none is."""
    for key, part in space.items() if isinstance(space, spaces.Dict) else [(None, space)]:
        array = batch if key is None else batch[key]
        value = np.zeros(part.shape) if expected is None else expected if key is None else expected[key]
        assert array.dtype == part.dtype
        np.testing.assert_array_equal(array[place], value)


@pytest.mark.parametrize(
    "space",
    [spaces.Box(-1, 1, (3,), np.float32), spaces.MultiDiscrete([3, 9]), spaces.MultiBinary(4), spaces.Discrete(4)],
    ids=lambda space: type(space).__name__,
)
def test_actions_of_every_space_reach_the_env_exactly(space):
    vec = make_vec_env(SampledEnv, n_envs=2, observation_space=spaces.Discrete(2), action_space=space)
    vec.reset()
    actions = np.array([[space.sample() for _ in "ab"] for _ in range(2)])
    vec.step((actions,))
    for env_index, received in enumerate(vec.call("received", [0, 1])):
        for column, agent in enumerate("ab"):
            assert space.contains(received[0][agent])
            np.testing.assert_array_equal(received[0][agent], actions[env_index, column])


PARTS = spaces.Tuple([spaces.Discrete(3, start=1), spaces.Dict(aim=spaces.Box(-1, 1, (2,)))])


def test_actions_of_several_parts_reach_the_env_part_by_part():
    vec = make_vec_env(SampledEnv, n_envs=3, observation_space=spaces.Discrete(2), action_space=PARTS)
    vec.reset()
    vec.step((np.tile(np.array([2, 0.5, -1], np.float32), (3, 2, 1)),))
    for received in vec.call("received", range(3)):
        for action in received[0].values():
            assert PARTS.contains(action)
            assert (action[0], action[1]["aim"].tolist()) == (3, [0.5, -1])
