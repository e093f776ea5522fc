"""The arena as a ParallelEnv: spaces, episodes and coins; `test_built_in_envs.py` has more."""

from __future__ import annotations

import numpy as np
import pytest

from marl_sb3.envs.arena import ArenaEnv, rules
from marl_sb3.envs.compiled.rules import Outcome
from marl_sb3.errors import ConfigError, EnvError

UP, RIGHT, DOWN, LEFT = 0, 1, 2, 3
AGENTS = ["agent1", "agent2"]


def act(action1: int, action2: int) -> dict[str, int]:
    return {"agent1": action1, "agent2": action2}


def play_episode(env: ArenaEnv) -> list:
    """Play to the end of the episode, always with the same actions; return what the steps returned."""
    rng = np.random.default_rng(0)
    played = []
    while env.agents:
        observations, *rest = env.step(act(*rng.choice([RIGHT, LEFT], size=2).tolist()))
        played.append(({agent: seen.tolist() for agent, seen in observations.items()}, *rest))
    return played


def crowded_arena() -> ArenaEnv:
    """Return an arena so small that the coins matter in every other step to the left or right."""
    return ArenaEnv(height=1, width=3, max_timesteps=40)


@pytest.mark.filterwarnings("ignore:The old environment creation API has been deprecated:DeprecationWarning")
def test_state_is_in_its_space_and_says_where_agent1_has_been():
    from pettingzoo.test.state_test import test_parallel_env as check_state

    env = ArenaEnv(height=2, width=2)
    check_state(env)
    env.reset(seed=0)
    env.step(act(RIGHT, DOWN))
    assert env.state().tolist() == [1, 3, 0, 1, 0, 0]
    assert env.state_space.contains(env.state())


def test_spaces_are_the_same_object_at_each_call_and_hold_cells_and_four_actions():
    env = ArenaEnv(height=3, width=4)
    for agent in AGENTS:
        assert env.observation_space(agent) is env.observation_space(agent)
        assert env.action_space(agent) is env.action_space(agent)
        assert env.observation_space(agent).nvec.tolist() == [12, 12]
        assert env.action_space(agent).n == 4


def test_coordinates_are_own_row_and_column_then_the_others():
    env = ArenaEnv(height=2, width=3, observe="coordinates")
    assert env.observation_space("agent1").nvec.tolist() == [2, 3, 2, 3]
    observations, _ = env.reset(seed=0)
    assert {agent: seen.tolist() for agent, seen in observations.items()} == {
        "agent1": [0, 0, 1, 2],
        "agent2": [1, 2, 0, 0],
    }
    observations, *_ = env.step(act(RIGHT, UP))
    assert observations["agent1"].tolist() == [0, 1, 0, 2]
    assert observations["agent2"].dtype == np.int64


def test_metadata_names_the_arenas_metrics():
    assert ArenaEnv.metadata == {
        "name": "arena_v0",
        "render_modes": ["human", "rgb_array", "ansi"],
        "render_fps": 10,
        "reset_options": (),
        "is_parallelizable": True,
        "custom_metrics": {
            "new_fields_discovered": {"agent": "agent1", "key": "new_field_rewarded"},
            "num_collisions": {"agent": "agent2", "key": "collision"},
        },
        "action_names": ("up", "right", "down", "left"),
        "legend": {"agent1": (29, 91, 214), "agent2": (230, 96, 18), "visited by agent1": (196, 220, 252)},
    }
    assert str(ArenaEnv()) == "arena_v0"


# Episodes


def test_reset_puts_the_agents_in_opposite_corners():
    observations, infos = ArenaEnv().reset(seed=0)
    assert {agent: seen.tolist() for agent, seen in observations.items()} == {
        "agent1": [0, 99],
        "agent2": [99, 0],
    }
    assert {seen.dtype for seen in observations.values()} == {np.dtype(np.int64)}
    assert infos == {"agent1": {}, "agent2": {}}


def test_step_pays_a_new_field_and_tells_both_agents_where_they_are():
    env = ArenaEnv(height=3, width=4)
    env.reset(seed=0)
    observations, rewards, terminations, truncations, infos = env.step(act(DOWN, LEFT))
    assert {agent: seen.tolist() for agent, seen in observations.items()} == {
        "agent1": [4, 10],
        "agent2": [10, 4],
    }
    assert all(env.observation_space(agent).contains(seen) for agent, seen in observations.items())
    assert rewards == {"agent1": 1.0, "agent2": -0.1}
    assert {type(reward) for reward in rewards.values()} == {float}
    assert terminations == truncations == {"agent1": False, "agent2": False}
    assert infos == {
        "agent1": {"collision": False, "new_field": True, "new_field_rewarded": True},
        "agent2": {"collision": False},
    }


def test_collision_shows_in_both_infos_and_takes_the_new_fields_reward():
    env = ArenaEnv(height=1, width=2)
    env.reset(seed=0)
    _, rewards, _, _, infos = env.step(act(LEFT, LEFT))
    assert rewards == {"agent1": -1.0, "agent2": 1.0}
    assert infos == {
        "agent1": {"collision": True, "new_field": True, "new_field_rewarded": False},
        "agent2": {"collision": True},
    }
    events = [event for info in infos.values() for event in info.values()]
    assert {type(event) for event in events} == {bool}


def test_reset_forgets_the_visited_fields():
    env = ArenaEnv(max_timesteps=2)
    for _ in range(2):
        env.reset()
        assert [env.step(act(UP, DOWN))[1]["agent1"] for _ in range(2)] == [1.0, -0.5]


def test_reset_in_the_middle_of_an_episode_starts_a_whole_one():
    env = ArenaEnv(max_timesteps=3)
    env.reset(seed=0)
    env.step(act(RIGHT, LEFT))
    env.reset()
    assert len(play_episode(env)) == 3


def test_writing_into_an_observation_does_not_move_an_agent():
    env = ArenaEnv()
    observations, _ = env.reset(seed=0)
    observations["agent1"][:] = 55
    assert env.step(act(UP, DOWN))[0]["agent1"].tolist() == [0, 99]


def test_numpy_integers_are_actions_too():
    env = ArenaEnv()
    env.reset(seed=0)
    observations, *_ = env.step({"agent1": np.int64(RIGHT), "agent2": np.array(LEFT, dtype=np.int8)})
    assert observations["agent1"].tolist() == [1, 98]


# Randomness


def test_an_episode_left_early_does_not_change_the_next_one():
    nexts = []
    for num_steps in (1, 30):
        env = crowded_arena()
        env.reset(seed=7)
        for _ in range(num_steps):
            env.step(act(RIGHT, LEFT))
        env.reset()
        nexts.append(play_episode(env))
    assert nexts[0] == nexts[1]


def test_coins_of_an_episode_come_from_one_draw():
    env = crowded_arena()
    env.reset(seed=7)
    twin_rng = np.random.default_rng(7)
    for episode in range(2):
        coins = rules.draw_coins(twin_rng, 40)
        state = rules.initial_state(1, 3, coins)
        assert (coins.shape, coins.dtype) == ((40,), np.bool_)
        assert 5 < coins.sum() < 35
        for t in range(40):
            observations, rewards, *_ = env.step(act(RIGHT, LEFT))
            outcome = Outcome([0.0] * 2, [False] * 2, [False] * 2, [False] * 4)
            rules.step(state, (RIGHT, LEFT), None, outcome)
            assert list(rewards.values()) == outcome.rewards, (episode, t)
            assert observations["agent1"].tolist() == state.cells, (episode, t)
        env.reset()


# Errors


def test_grid_needs_a_cell_for_each_agent():
    with pytest.raises(ConfigError, match=r"height \* width must be >= 2.*received 1 \* 1") as caught:
        ArenaEnv(height=1, width=1)
    assert caught.value.key == "env.height"


def test_state_and_render_need_a_reset():
    env = ArenaEnv(render_mode="ansi")
    for method in (env.state, env.render):
        with pytest.raises(EnvError, match=rf"{method.__name__}\(\) before the first reset\(\)"):
            method()
