"""E envs as (E, A, ...) arrays: every number against the env's own, however its agents come and go."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from toy_envs import NoisyEnv, SampledEnv, ScriptedEnv

from marl_sb3 import make_vec_env
from marl_sb3.core.vec_env.interface import MultiAgentVecEnv
from marl_sb3.errors import ConfigError, EnvError, EnvRaisedError

pytestmark = pytest.mark.usefixtures("each_vectorizer")
KINDS = ("terminated", "truncated", "both")
STAGGERED = {"a": (1, "terminated"), "b": (3, "truncated"), "c": (2, "both")}


def step(vec: MultiAgentVecEnv, action: Any = 0):
    """Let all agents of all envs take the same action, or a whole array of them."""
    return vec.step((np.broadcast_to(np.asarray(action), (vec.num_envs, len(vec.agents))),))


def started(n_envs: int = 1, **kwargs: Any) -> MultiAgentVecEnv:
    vec = make_vec_env(ScriptedEnv, n_envs=n_envs, seed=0, **kwargs)
    vec.reset()
    return vec


def noisy_plans(n_envs: int):
    return [[({"a": (4, "truncated"), "b": (4, "truncated")}, {})] for _ in range(n_envs)]


# What a step returns


def test_agents_end_one_after_another_and_then_the_env_resets():
    vec = started(script=STAGGERED)
    steps = [step(vec) for _ in range(4)]
    shown = [taken.observations[0][0].tolist() for taken in steps]
    assert shown == [
        [[0, 0, 0], [2, 1, 1], [3, 1, 1]],
        [[0, 0, 0], [2, 1, 2], [0, 0, 0]],
        [[1, 2, 0], [2, 2, 0], [3, 2, 0]],
        [[0, 0, 0], [2, 2, 1], [3, 2, 1]],
    ]
    assert [taken.rewards[0].tolist() for taken in steps] == [[1, 2, 3], [0, 2, 3], [0, 2, 0], [1, 2, 3]]
    assert [taken.acted[0].tolist() for taken in steps] == [[1, 1, 1], [0, 1, 1], [0, 1, 0], [1, 1, 1]]
    assert [taken.terminated[0].tolist() for taken in steps] == [[1, 0, 0], [0, 0, 1], [0, 0, 0], [1, 0, 0]]
    assert [taken.truncated[0].tolist() for taken in steps] == [[0, 0, 0], [0, 0, 1], [0, 1, 0], [0, 0, 0]]
    assert [taken.episode_done.tolist() for taken in steps] == [[False], [False], [True], [False]]
    final = [{place: seen.tolist() for place, seen in taken.final_observations.items()} for taken in steps]
    assert final == [{(0, 0): [1, 1, 1]}, {(0, 2): [3, 1, 2]}, {(0, 1): [2, 1, 3]}, {(0, 0): [1, 2, 1]}]


def test_ended_agents_get_no_action():
    vec = started(script=STAGGERED)
    for _ in range(4):
        step(vec, [[0, 1, 2]])
    (received,) = vec.call("received", [0])
    assert received == [{"a": 0, "b": 1, "c": 2}, {"b": 1, "c": 2}, {"b": 1}, {"a": 0, "b": 1, "c": 2}]


@pytest.mark.parametrize("kind_a", KINDS)
@pytest.mark.parametrize("kind_b", KINDS)
@pytest.mark.parametrize("step_of_b", [1, 2, 3])
def test_env_resets_exactly_when_its_last_agent_ends_in_whatever_way(kind_a, kind_b, step_of_b):
    vec = started(script={"a": (2, kind_a), "b": (step_of_b, kind_b)})
    last = max(2, step_of_b)
    for index in range(1, 3 * last + 1):
        taken = step(vec)
        in_episode = (index - 1) % last + 1
        assert taken.episode_done.tolist() == [in_episode == last]
        assert vec.call("episode", [0]) == [1 + index // last]
        assert taken.terminated[0].tolist() == [
            in_episode == 2 and kind_a != "truncated",
            in_episode == step_of_b and kind_b != "truncated",
        ]
        assert taken.truncated[0].tolist() == [
            in_episode == 2 and kind_a != "terminated",
            in_episode == step_of_b and kind_b != "terminated",
        ]
        if in_episode == last:
            assert vec.latest.to_act.all()
            assert taken.observations[0][0].tolist() == [[1, 1 + index // last, 0], [2, 1 + index // last, 0]]


def test_an_array_that_the_env_reuses_does_not_change_what_a_step_returned():
    class OneArray(ScriptedEnv):
        array, info = np.zeros(3, np.float32), {"a": {}}

        def observation(self, agent):
            self.array[:] = super().observation(agent)
            return self.array

        def reset(self, seed=None, options=None):
            observations, _ = super().reset(seed, options)
            self.info["a"] = {"reset": self.episode}
            return observations, self.info

        def step(self, actions):
            *returned, _ = super().step(actions)
            self.info["a"]["step"] = self.step_count
            return *returned, self.info

    vec = make_vec_env(OneArray, script={"a": (2, "truncated")})
    (first,) = vec.reset().observations
    taken = [step(vec), step(vec)]
    step(vec)
    assert first.tolist() == [[[1, 1, 0]]]
    assert taken[0].observations[0].tolist() == [[[1, 1, 1]]]
    assert taken[1].observations[0].tolist() == [[[1, 2, 0]]]
    assert taken[1].final_observations[0, 0].tolist() == [1, 1, 2]
    assert taken[1].infos[0] == {"a": {"reset": 1, "step": 2}}


# Infos


def test_infos_are_the_envs_own_with_every_key_and_apart_from_those_of_the_reset():
    vec = started(n_envs=2, script={"a": (2, "terminated"), "b": (1, "truncated")})
    assert vec.latest.reset_infos == {env: {"a": {"reset": 1}, "b": {"reset": 1}} for env in (0, 1)}
    taken = step(vec)
    assert taken.infos[1] == {"a": {"step": 1}, "b": {"step": 1}, "common": {"episode": 1}}
    assert taken.reset_infos == {}
    taken = step(vec)
    assert taken.infos[1] == {"a": {"step": 2}, "common": {"episode": 1}}
    assert taken.reset_infos == {env: {"a": {"reset": 2}, "b": {"reset": 2}} for env in (0, 1)}
    assert taken.infos.values("a", "step").tolist() == [2, 2]
    assert np.isnan(taken.infos.values("b", "step")).all()


def test_an_env_without_infos_plays_on():
    vec = started(infos=False)
    steps = [step(vec) for _ in range(4)]
    assert [taken.infos[0] for taken in steps] == [{}] * 4
    assert steps[2].reset_infos == {0: {}}


# Envs, seeds and options


@pytest.mark.parametrize("each_vectorizer", ["sync", "supersuit"], indirect=True)  # it looks at the envs
def test_each_env_is_made_by_the_factory_and_owns_what_it_owns():
    made = []

    def factory(env_index):
        made.append(NoisyEnv(noisy_plans(3), env_index))
        return made[-1]

    vec = make_vec_env(factory, n_envs=3, seed=0)
    (observations,) = vec.reset().observations
    assert [env.env_index for env in made] == [0, 1, 2]
    assert vec.call("unpicklable", range(3)) == [env.unpicklable for env in made]
    assert len({noise for env in observations[:, :, 1].tolist() for noise in env}) == 6


@pytest.mark.parametrize("each_vectorizer", ["sync", "supersuit"], indirect=True)  # it looks at the envs
def test_the_same_env_twice_is_refused():
    env = ScriptedEnv()
    with pytest.raises(ConfigError, match="returned the same env twice"):
        make_vec_env(lambda: env, n_envs=2)


def test_options_reach_each_env_in_that_reset_alone():
    vec = make_vec_env(ScriptedEnv, n_envs=2, script={"a": (1, "truncated")})
    vec.reset(options=[{"level": 1}, {"level": 2}])
    step(vec)
    vec.reset()
    assert vec.call("options", [0, 1]) == [[{"level": 1}, None, None], [{"level": 2}, None, None]]


def test_attributes_methods_and_wrappers_are_those_of_the_env_asked_for():
    vec = started(n_envs=3)
    assert vec.call("env_index", [2, 0, 2]) == [2, 0, 2]
    vec.call("set_wrapper_attr", [1], "step_count", 9)
    assert vec.call("step_count", range(3)) == [0, 9, 0]
    assert [seen.tolist() for seen in vec.call("observation", [1, 2], agent="b")] == [[2, 1, 9], [2, 1, 0]]
    (method,) = vec.call("get_wrapper_attr", [0], "observation")
    assert method("b").tolist() == [2, 1, 0]
    assert vec.call("has_wrapper", [0, 1], ScriptedEnv) == [True, True]
    assert vec.call("has_wrapper", [0], SampledEnv) == [False]
    with pytest.raises(AttributeError, match="no_such_name"):
        vec.call("no_such_name", [0])


def test_attributes_of_a_wrapped_gymnasium_env_are_found_and_set_where_they_are():
    vec = make_vec_env("CartPole-v1", n_envs=2)
    assert vec.call("gravity", [0, 1]) == [9.8, 9.8]
    vec.call("set_wrapper_attr", [1], "gravity", 1.5)
    assert [env.env.unwrapped.gravity for env in vec.call("unwrapped", [0, 1])] == [9.8, 1.5]


@pytest.mark.parametrize("each_vectorizer", ["sync", "supersuit"], indirect=True)  # it looks at the envs
def test_close_closes_each_env_once():
    vec = started(n_envs=3)
    vec.close()
    vec.close()
    assert vec.call("closed", range(3)) == [1, 1, 1]


# Agents that come and go


def test_an_agent_that_joins_late_is_filler_until_it_is_there():
    script = {"late": (3, "truncated"), "early": (2, "terminated")}
    vec = make_vec_env(ScriptedEnv, script=script, joins={"late": 1})
    (observations,) = vec.reset().observations
    assert observations.tolist() == [[[0, 0, 0], [2, 1, 0]]]
    assert vec.latest.to_act.tolist() == [[False, True]]
    steps = [step(vec, [[1, 2]]) for _ in range(3)]
    assert [taken.acted[0].tolist() for taken in steps] == [[0, 1], [1, 1], [1, 0]]
    assert [taken.rewards[0].tolist() for taken in steps] == [[0, 2], [1, 2], [1, 0]]
    assert steps[0].observations[0].tolist() == [[[1, 1, 1], [2, 1, 1]]]
    assert [taken.episode_done.tolist() for taken in steps] == [[False], [False], [True]]
    assert vec.latest.to_act.tolist() == [[False, True]]
    assert vec.call("received", [0]) == [[{"early": 2}, {"late": 1, "early": 2}, {"late": 1}]]


def test_an_agent_that_vanishes_without_a_flag_is_refused_when_the_others_have_ended():
    class Vanishing(ScriptedEnv):
        def __init__(self, env_index):
            script = {"a": (2, "truncated"), "b": (9 if env_index else 2, "truncated")}
            super().__init__(script, env_index=env_index, skips={"b": range(1, 9)} if env_index else None)

    vec = make_vec_env(Vanishing, n_envs=2)
    vec.reset()
    step(vec)
    with pytest.raises(EnvError, match=r"env 1, episode 0, step 2, agent 'b': is neither terminated nor"):
        step(vec)


class Levels(ScriptedEnv):
    level = 1

    def configure(self, level):
        if level > 5:
            raise ValueError("there are five levels")
        self.level = level


def test_settings_reach_the_envs_own_configure_at_its_next_reset():
    vec = make_vec_env(Levels, n_envs=2)
    vec.reset()
    vec.configure([1], level=3)
    assert vec.call("level", [0, 1]) == [1, 1]
    vec.reset()
    assert vec.call("level", [0, 1]) == [1, 3]
    vec.configure([1], level=9)
    words = r"env 1, .*configure\(\) of a curriculum or a callback raised ValueError: there are five levels"
    with pytest.raises(EnvRaisedError, match=words):
        vec.reset()


def test_an_env_without_configure_refuses_settings():
    with pytest.raises(
        ConfigError, match=r"ScriptedEnv has neither configure\(\*\*settings\) nor set_task: its level cannot"
    ):
        make_vec_env(ScriptedEnv).configure([0], level=1)
