"""One row per agent, and every row just as SB3's own DummyVecEnv would give it."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.wrappers import TimeLimit
from stable_baselines3.common.vec_env import DummyVecEnv
from toy_envs import SampledEnv, ScriptedEnv

from marl_sb3 import make_vec_env
from marl_sb3.core.vec_env.flat_vec_env import FlatVecEnv
from marl_sb3.core.vec_env.seeding import episode_seed
from marl_sb3.errors import ConfigError

STAGGERED = {"a": (1, "terminated"), "b": (3, "truncated"), "c": (2, "both")}


class CountingEnv(ScriptedEnv):
    """Sees its own index as the third number; counts what is asked of it."""

    count = 0
    said: Any = None

    def step(self, actions):
        *returned, self.said = super().step(actions)
        return *returned, self.said

    def observation(self, agent: str) -> np.ndarray:
        seen = super().observation(agent)
        seen[1] = self.env_index
        return seen

    def add(self, number: int) -> int:
        self.count += number
        return self.count


def rows_of(n_envs: int = 2, **kwargs: Any) -> FlatVecEnv:
    rows = make_vec_env(CountingEnv, n_envs=n_envs, seed=0, **kwargs).as_sb3_vec_env()
    rows.reset()
    return rows


def step(rows: FlatVecEnv, action: int = 0):
    return rows.step(np.full(rows.num_envs, action))


# Rows


def test_row_is_env_times_agents_plus_agent():
    rows = make_vec_env(CountingEnv, n_envs=3).as_sb3_vec_env()
    assert rows.num_envs == 6
    assert rows.reset().tolist() == [[1, 0, 0], [2, 0, 0], [1, 1, 0], [2, 1, 0], [1, 2, 0], [2, 2, 0]]
    observations, rewards, _, _ = rows.step(np.array([0, 1, 2, 0, 1, 2]))
    assert observations.tolist() == [[1, 0, 1], [2, 0, 1], [1, 1, 1], [2, 1, 1], [1, 2, 1], [2, 2, 1]]
    assert rewards.tolist() == [1, 2, 1, 2, 1, 2]
    assert rows.get_attr("received")[::2] == [[{"a": 0, "b": 1}], [{"a": 2, "b": 0}], [{"a": 1, "b": 2}]]


def test_row_is_done_once_with_its_terminal_observation_and_then_idles_until_the_env_resets():
    rows = rows_of(n_envs=1, script=STAGGERED)
    steps = [step(rows) for _ in range(4)]
    assert [dones.tolist() for _, _, dones, _ in steps] == [[1, 0, 0], [0, 0, 1], [0, 1, 0], [1, 0, 0]]
    assert [rewards.tolist() for _, rewards, _, _ in steps] == [[1, 2, 3], [0, 2, 3], [0, 2, 0], [1, 2, 3]]
    assert [observations[0].tolist() for observations, *_ in steps] == [[0] * 3, [0] * 3, [1, 0, 0], [0] * 3]
    active = [[info.get("active", True) for info in infos] for *_, infos in steps]
    assert active == [[1, 1, 1], [0, 1, 1], [0, 1, 0], [1, 1, 1]]
    terminal = [
        {row: info["terminal_observation"].tolist() for row, info in enumerate(infos) if "terminal_observation" in info}
        for *_, infos in steps
    ]
    assert terminal == [{0: [1, 0, 1]}, {2: [3, 0, 2]}, {1: [2, 0, 3]}, {0: [1, 0, 1]}]


def test_rows_of_envs_that_end_in_different_steps_are_done_on_their_own():
    def script_of_env(env_index):
        return ScriptedEnv({"a": (1 + env_index, "truncated"), "b": (3, "terminated")})

    rows = make_vec_env(script_of_env, n_envs=3).as_sb3_vec_env()
    rows.reset()
    dones = [step(rows)[2].tolist() for _ in range(3)]
    assert dones == [[1, 0, 0, 0, 0, 0], [0, 0, 1, 0, 0, 0], [0, 1, 0, 1, 1, 1]]


def test_time_limit_is_truncation_without_termination():
    rows = rows_of(n_envs=1, script=STAGGERED)
    flags = [[info["TimeLimit.truncated"] for info in step(rows)[-1]] for _ in range(3)]
    assert flags == [[False, False, False], [False, False, False], [False, True, False]]
    assert all(type(flag) is bool for row in flags for flag in row)


def test_infos_of_a_row_are_those_of_its_agent_in_a_dictionary_of_its_own():
    rows = rows_of(n_envs=2, script={"a": (1, "truncated"), "b": (2, "terminated")})
    *_, infos = step(rows)
    assert infos[1] == {"step": 1, "TimeLimit.truncated": False}
    assert set(infos[0]) == {"step", "TimeLimit.truncated", "terminal_observation"}
    infos[1]["mine"] = True
    assert rows.get_attr("said")[1] == {"a": {"step": 1}, "b": {"step": 1}, "common": {"episode": 1}}
    *_, infos = step(rows)
    assert infos[0] == {"TimeLimit.truncated": False, "active": False}
    assert len({id(info) for info in infos}) == 4


def test_reset_infos_are_kept_per_row():
    rows = rows_of(n_envs=2, script={"a": (1, "truncated"), "b": (2, "terminated")})
    assert rows.reset_infos == [{"reset": 1}] * 4
    step(rows)
    assert rows.reset_infos == [{"reset": 1}] * 4
    step(rows)
    assert rows.reset_infos == [{"reset": 2}] * 4


def test_agents_with_different_spaces_are_refused():
    class TwoGroups:
        groups = make_vec_env(ScriptedEnv).groups * 2

    with pytest.raises(ConfigError, match=r"needs the same spaces for all agents, got \('a', 'b'\): Box"):
        FlatVecEnv(TwoGroups())


# Seeds, options, attributes


def test_seed_counts_from_the_next_reset_on_and_is_returned_per_row():
    rows = rows_of()
    assert rows.seed(11) == [11] * 4
    rows.reset()
    rows.reset()
    assert rows.get_attr("seeds")[2][-2:] == [episode_seed(11, 1, 0), episode_seed(11, 1, 1)]
    assert rows.seed()[0] != rows.seed()[0]


@pytest.mark.parametrize("options", [{"level": 3}, [{"level": 3}] * 4])
def test_options_reach_the_next_reset_alone(options):
    rows = rows_of()
    rows.set_options(options)
    rows.reset()
    rows.reset()
    assert rows.get_attr("options") == [[None, {"level": 3}, None]] * 4


def test_options_may_differ_between_envs():
    rows = rows_of()
    rows.set_options([{"level": 1}, {"level": 1}, {"level": 2}, {"level": 2}])
    rows.reset()
    assert rows.get_attr("options", [0, 2]) == [[None, {"level": 1}], [None, {"level": 2}]]


@pytest.mark.parametrize(("indices", "envs"), [(None, [0, 0, 1, 1]), (3, [1]), ([2, 0], [1, 0]), (range(1, 3), [0, 1])])
def test_attributes_and_wrappers_are_asked_for_by_row(indices, envs):
    rows = rows_of()
    assert rows.get_attr("env_index", indices) == envs
    assert rows.env_is_wrapped(ScriptedEnv, indices) == [True] * len(envs)
    assert rows.env_is_wrapped(TimeLimit, indices) == [False] * len(envs)


def test_attribute_is_set_in_the_env_of_the_row():
    rows = rows_of()
    rows.set_attr("step_count", 7, indices=[3])
    assert rows.get_attr("step_count") == [0, 0, 7, 7]
    assert rows.has_attr("step_count")
    assert not rows.has_attr("no_such_name")


def test_method_is_called_once_per_env_or_once_per_named_row():
    rows = rows_of()
    assert rows.env_method("add", 2) == [2, 2, 2, 2]
    assert rows.env_method("add", number=1, indices=[0, 1, 3]) == [3, 4, 3]


def test_render_tiles_one_image_per_env():
    rows = rows_of(n_envs=3, render_mode="rgb_array")
    step(rows)
    assert [image.shape for image in rows.get_images()] == [(8, 8, 3)] * 3
    picture = rows.render()
    assert picture.shape == (16, 16, 3)
    assert (picture[8:, 8:] == 0).all()
    assert (picture[:8] == 1).all()
    assert rows.render_mode == "rgb_array"
    assert rows.metadata["render_fps"] == 5


def test_close_closes_each_env_once():
    rows = rows_of()
    rows.close()
    rows.close()
    assert rows.get_attr("closed") == [1] * 4


# Against SB3's own DummyVecEnv


class SeededEpisodes(gymnasium.Wrapper):
    """Begins each episode with the seed that ours has."""

    def __init__(self, env: gymnasium.Env, run_seed: int, env_index: int) -> None:
        super().__init__(env)
        self.seeds = (episode_seed(run_seed, env_index, episode) for episode in range(1000))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        return super().reset(seed=next(self.seeds), options=options)


def assert_same(ours: Any, theirs: Any) -> None:
    """Equal, of the same type, dtype and shape, however deeply nested."""
    assert type(ours) is type(theirs)
    if isinstance(ours, np.ndarray):
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        np.testing.assert_array_equal(ours, theirs)
    elif isinstance(ours, dict):
        assert set(ours) == set(theirs)
        for key, value in ours.items():
            assert_same(value, theirs[key])
    elif isinstance(ours, list | tuple):
        assert len(ours) == len(theirs)
        for our, their in zip(ours, theirs, strict=True):
            assert_same(our, their)
    else:
        assert ours == theirs


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1", "FrozenLake-v1"])
def test_gymnasium_env_gives_exactly_what_dummy_vec_env_gives(env_id):
    # In batches, numbers are NumPy's, and not Python's.
    ours = make_vec_env(env_id, n_envs=2, seed=3, vectorizer="sync", max_episode_steps=12).as_sb3_vec_env()
    theirs = DummyVecEnv(
        [lambda i=i: SeededEpisodes(gymnasium.make(env_id, max_episode_steps=12), 3, i) for i in range(2)]
    )
    assert (ours.observation_space, ours.action_space) == (theirs.observation_space, theirs.action_space)
    assert_same(ours.reset(), theirs.reset())
    assert_same(ours.reset_infos, theirs.reset_infos)
    theirs.action_space.seed(0)
    kinds = set()
    for _ in range(100):
        actions = np.array([theirs.action_space.sample() for _ in range(2)])
        stepped = ours.step(actions)
        assert_same(stepped, theirs.step(actions))
        assert_same(ours.reset_infos, theirs.reset_infos)
        kinds |= {info["TimeLimit.truncated"] for info, done in zip(stepped[3], stepped[2], strict=True) if done}
    assert kinds == ({True} if env_id == "Pendulum-v1" else {True, False})


def test_rows_of_a_dict_space_are_dictionaries_of_rows():
    spaces = gymnasium.spaces
    space = spaces.Dict({"image": spaces.Box(0, 255, (4, 4, 1), np.uint8), "vector": spaces.Box(-1, 1, (2,))})
    vec = make_vec_env(SampledEnv, n_envs=2, observation_space=space, action_space=spaces.Discrete(2), seed=0)
    rows = vec.as_sb3_vec_env()
    rows.reset()
    observations = step(rows)[0]
    shown = [env_shown[1][agent] for env_shown in vec.call("shown", [0, 1]) for agent in "ab"]
    for key, part in space.items():
        assert observations[key].dtype == part.dtype
        np.testing.assert_array_equal(observations[key], [seen[key] for seen in shown])
