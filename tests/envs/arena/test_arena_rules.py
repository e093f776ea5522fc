"""The array rules against moves worked by hand, a scalar oracle, and figures measured elsewhere."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from marl_sb3.envs.arena import rules

UP, RIGHT, DOWN, LEFT = 0, 1, 2, 3
AGENT1_FIRST, AGENT2_FIRST = True, False

NOTHING_PAYS = [-0.5, -0.1]
NEW_FIELD_PAYS = [1.0, -0.1]
COLLISION_PAYS = [-1.0, 1.0]


def one_arena(height: int, width: int, cells: tuple[int, int], visited: tuple[int, ...] = ()):
    state = rules.initial_state(1, height, width)
    state.cells[0] = cells
    state.visited[0, list(visited)] = True
    return state


def play(state, height: int, width: int, actions: tuple[int, int], agent1_first: bool = True):
    table = rules.destination_table(height, width)
    return rules.step(state, table, np.array([actions]), np.array([agent1_first]))


def visited_cells(state) -> list[int]:
    return np.flatnonzero(state.visited[0]).tolist()


def events(outcome) -> tuple[bool, bool, bool]:
    return outcome.collision[0], outcome.new_field[0], outcome.new_field_rewarded[0]


# The start, and the four moves


def test_start_is_in_opposite_corners_with_nothing_visited():
    state = rules.initial_state(2, 3, 4)
    assert state.cells.tolist() == [[0, 11], [0, 11]]
    assert state.visited.shape == (2, 12)
    assert not state.visited.any()
    assert state.timesteps.tolist() == [0, 0]
    assert [array.dtype for array in (state.cells, state.visited, state.timesteps)] == [
        np.int64,
        np.bool_,
        np.int64,
    ]


def test_destination_table_of_a_2x3_grid():
    # cells 0 1 2   order: up, right, down, left
    #       3 4 5
    assert rules.destination_table(2, 3).reshape(6, 4).tolist() == [
        [0, 1, 3, 0],
        [1, 2, 4, 0],
        [2, 2, 5, 1],
        [0, 4, 3, 3],
        [1, 5, 4, 3],
        [2, 5, 5, 4],
    ]


@pytest.mark.parametrize(("action", "destination"), [(UP, 1), (RIGHT, 6), (DOWN, 9), (LEFT, 4)])
def test_both_agents_move_by_one_cell(action, destination):
    state = one_arena(3, 4, cells=(5, 11))
    play(state, 3, 4, (action, DOWN))
    assert state.cells.tolist() == [[destination, 11]]

    state = one_arena(3, 4, cells=(11, 5))
    play(state, 3, 4, (DOWN, action))
    assert state.cells.tolist() == [[11, destination]]


def test_every_step_counts():
    state = rules.initial_state(2, 3, 3)
    for _ in range(3):
        rules.step(state, rules.destination_table(3, 3), np.zeros((2, 2), int), np.ones(2, bool))
    assert state.timesteps.tolist() == [3, 3]


def test_observation_is_own_cell_then_the_others():
    state = rules.initial_state(2, 3, 4)
    state.cells[1] = (5, 6)
    assert rules.observations(state).tolist() == [[[0, 11], [11, 0]], [[5, 6], [6, 5]]]
    assert rules.observations(state, width=4)[1].tolist() == [[1, 1, 1, 2], [1, 2, 1, 1]]


# StateReader


def test_new_field_pays_agent1():
    state = one_arena(3, 4, cells=(0, 11))
    outcome = play(state, 3, 4, (RIGHT, UP))
    assert outcome.rewards.tolist() == [NEW_FIELD_PAYS]
    assert events(outcome) == (False, True, True)
    assert visited_cells(state) == [1]


def test_known_field_costs_agent1():
    state = one_arena(3, 4, cells=(0, 11), visited=(1,))
    outcome = play(state, 3, 4, (RIGHT, UP))
    assert outcome.rewards.tolist() == [NOTHING_PAYS]
    assert events(outcome) == (
        False,
        False,
        False,
    )
    assert visited_cells(state) == [1]


def test_start_cell_is_a_new_field_when_agent1_comes_back_to_it():
    state = one_arena(3, 4, cells=(0, 11))
    play(state, 3, 4, (RIGHT, UP))
    outcome = play(state, 3, 4, (LEFT, DOWN))
    assert outcome.rewards.tolist() == [NEW_FIELD_PAYS]
    assert visited_cells(state) == [0, 1]


def test_push_against_a_wall_marks_the_own_cell_once():
    state = one_arena(3, 4, cells=(0, 11))
    first = play(state, 3, 4, (UP, DOWN))
    assert (first.rewards.tolist(), visited_cells(state)) == ([NEW_FIELD_PAYS], [0])
    second = play(state, 3, 4, (LEFT, DOWN))
    assert (second.rewards.tolist(), visited_cells(state)) == ([NOTHING_PAYS], [0])
    assert state.cells.tolist() == [[0, 11]]


def test_agent2_marks_nothing():
    state = one_arena(3, 4, cells=(0, 11), visited=(0,))
    play(state, 3, 4, (UP, UP))
    assert visited_cells(state) == [0]


# Collisions: on a row of three cells, 0 1 2


@pytest.mark.parametrize("first", [AGENT1_FIRST, AGENT2_FIRST])
def test_agent1_running_into_agent2_stays_and_marks_nothing(first):
    state = one_arena(1, 3, cells=(0, 1))
    outcome = play(state, 1, 3, (RIGHT, UP), first)
    assert state.cells.tolist() == [[0, 1]]
    assert outcome.rewards.tolist() == [COLLISION_PAYS]
    assert events(outcome) == (True, False, False)
    assert visited_cells(state) == []


@pytest.mark.parametrize("first", [AGENT1_FIRST, AGENT2_FIRST])
def test_agent2_running_into_agent1_decides_the_rewards_but_the_new_field_stays_marked(first):
    state = one_arena(1, 3, cells=(0, 1))
    outcome = play(state, 1, 3, (UP, LEFT), first)
    assert state.cells.tolist() == [[0, 1]]
    assert outcome.rewards.tolist() == [COLLISION_PAYS]
    assert events(outcome) == (True, True, False)
    assert visited_cells(state) == [0]


@pytest.mark.parametrize(("first", "cells", "marked"), [(AGENT1_FIRST, [1, 2], [1]), (AGENT2_FIRST, [0, 1], [])])
def test_who_comes_second_runs_into_the_firsts_new_position(first, cells, marked):
    state = one_arena(1, 3, cells=(0, 2))
    outcome = play(state, 1, 3, (RIGHT, LEFT), first)
    assert state.cells.tolist() == [cells]
    assert outcome.rewards.tolist() == [COLLISION_PAYS]
    assert (outcome.new_field[0], outcome.new_field_rewarded[0]) == (bool(marked), False)
    assert visited_cells(state) == marked


@pytest.mark.parametrize(
    ("first", "cells", "rewards"),
    [(AGENT1_FIRST, [0, 2], COLLISION_PAYS), (AGENT2_FIRST, [1, 2], NEW_FIELD_PAYS)],
)
def test_agent1_can_follow_agent2_only_if_agent2_moves_first(first, cells, rewards):
    state = one_arena(1, 3, cells=(0, 1))
    outcome = play(state, 1, 3, (RIGHT, RIGHT), first)
    assert (state.cells.tolist(), outcome.rewards.tolist()) == ([cells], [rewards])


@pytest.mark.parametrize(
    ("first", "cells", "rewards"),
    [(AGENT1_FIRST, [0, 1], NEW_FIELD_PAYS), (AGENT2_FIRST, [0, 2], COLLISION_PAYS)],
)
def test_agent2_can_follow_agent1_only_if_agent1_moves_first(first, cells, rewards):
    state = one_arena(1, 3, cells=(1, 2))
    outcome = play(state, 1, 3, (LEFT, LEFT), first)
    assert (state.cells.tolist(), outcome.rewards.tolist()) == ([cells], [rewards])


@pytest.mark.parametrize("first", [AGENT1_FIRST, AGENT2_FIRST])
def test_agents_can_not_swap(first):
    state = one_arena(1, 3, cells=(0, 1))
    outcome = play(state, 1, 3, (RIGHT, LEFT), first)
    assert (state.cells.tolist(), visited_cells(state)) == ([[0, 1]], [])
    assert outcome.rewards.tolist() == [COLLISION_PAYS]


# Walls: on 3 rows of 4 cells, a neighbour by number need not be a neighbour on the grid


@pytest.mark.parametrize("first", [AGENT1_FIRST, AGENT2_FIRST])
@pytest.mark.parametrize(
    ("mover", "action", "other"),
    [
        pytest.param(4, LEFT, 3, id="left of (1, 0) is not (0, 3)"),
        pytest.param(3, RIGHT, 4, id="right of (0, 3) is not (1, 0)"),
        pytest.param(0, LEFT, 11, id="left of (0, 0) is not the last cell"),
        pytest.param(1, UP, 9, id="up from row 0 is not row 2"),
        pytest.param(9, DOWN, 1, id="down from row 2 is not row 0"),
        pytest.param(11, RIGHT, 0, id="right of the last cell is not (0, 0)"),
    ],
)
def test_a_move_off_the_grid_can_not_collide(first, mover, action, other):
    other_pushes = {3: UP, 4: LEFT, 11: DOWN, 9: DOWN, 1: UP, 0: LEFT}[other]
    state = one_arena(3, 4, cells=(mover, other))
    outcome = play(state, 3, 4, (action, other_pushes), first)
    assert state.cells.tolist() == [[mover, other]]
    assert outcome.rewards.tolist() == [NEW_FIELD_PAYS]

    state = one_arena(3, 4, cells=(other, mover))
    outcome = play(state, 3, 4, (other_pushes, action), first)
    assert state.cells.tolist() == [[other, mover]]
    assert outcome.rewards.tolist() == [NEW_FIELD_PAYS]


# The scalar oracle: plain Python, row and column, one arena; it shares nothing with the array rules.


@dataclass
class Oracle:
    height: int
    width: int
    positions: list[tuple[int, int]]
    fields: set[tuple[int, int]] = field(default_factory=set)

    @classmethod
    def at_start(cls, height: int, width: int) -> Oracle:
        return cls(height, width, [(0, 0), (height - 1, width - 1)])

    def step(self, actions, agent1_first: bool) -> tuple[float, float, bool, bool]:
        """Return (reward of agent1, reward of agent2, collision, new field)."""
        collision = new_field = False
        for mover in (0, 1) if agent1_first else (1, 0):
            row, column = self.positions[mover]
            neighbours = [(row - 1, column), (row, column + 1), (row + 1, column), (row, column - 1)]
            target = neighbours[actions[mover]]
            if target == self.positions[1 - mover]:
                collision = True
                continue
            landed = (min(max(target[0], 0), self.height - 1), min(max(target[1], 0), self.width - 1))
            self.positions[mover] = landed
            if mover == 0 and landed not in self.fields:
                self.fields.add(landed)
                new_field = True
        if collision:
            return -1.0, 1.0, collision, new_field
        return (1.0 if new_field else -0.5), -0.1, collision, new_field

    def cells(self) -> list[int]:
        return [row * self.width + column for row, column in self.positions]

    def visited(self) -> list[bool]:
        grid = itertools.product(range(self.height), range(self.width))
        return [position in self.fields for position in grid]


def assert_same_step(state, outcome, oracles, expected) -> None:
    reward1, reward2, collision, new_field = zip(*expected, strict=True)
    assert outcome.rewards.tolist() == [list(pair) for pair in zip(reward1, reward2, strict=True)]
    assert outcome.collision.tolist() == list(collision)
    assert outcome.new_field.tolist() == list(new_field)
    assert outcome.new_field_rewarded.tolist() == [reward == 1.0 for reward in reward1]
    assert state.cells.tolist() == [oracle.cells() for oracle in oracles]
    assert state.visited.tolist() == [oracle.visited() for oracle in oracles]


@st.composite
def games(draw):
    height, width = draw(st.tuples(st.integers(1, 5), st.integers(1, 5)).filter(lambda size: size != (1, 1)))
    num_steps, num_envs = draw(st.integers(1, 25)), draw(st.integers(1, 4))
    actions = draw(arrays(np.int64, (num_steps, num_envs, 2), elements=st.integers(0, 3)))
    agent1_first = draw(arrays(np.bool_, (num_steps, num_envs)))
    return height, width, actions, agent1_first


@settings(deadline=None, max_examples=60)
@given(games())
def test_whole_games_agree_with_the_oracle(game):
    height, width, actions, agent1_first = game
    num_envs = actions.shape[1]
    state, table = rules.initial_state(num_envs, height, width), rules.destination_table(height, width)
    oracles = [Oracle.at_start(height, width) for _ in range(num_envs)]
    for step_actions, coins in zip(actions, agent1_first, strict=True):
        outcome = rules.step(state, table, step_actions, coins)
        moves = zip(oracles, step_actions.tolist(), coins.tolist(), strict=True)
        expected = [oracle.step(chosen, coin) for oracle, chosen, coin in moves]
        assert_same_step(state, outcome, oracles, expected)


@pytest.mark.parametrize(("height", "width"), [(1, 2), (2, 1), (1, 4), (4, 1), (2, 2), (2, 3), (3, 3)])
def test_every_single_step_agrees_with_the_oracle(height, width):
    positions = list(itertools.product(range(height), range(width)))
    situations = [
        (Oracle(height, width, [first, second], set(fields)), actions, coin)
        for first, second in itertools.permutations(positions, 2)
        for actions in itertools.product(range(4), repeat=2)
        for coin in (AGENT1_FIRST, AGENT2_FIRST)
        for fields in ((), positions)
    ]
    oracles, actions, coins = zip(*situations, strict=True)
    state = rules.initial_state(len(oracles), height, width)
    state.cells[:] = [oracle.cells() for oracle in oracles]
    state.visited[:] = [oracle.visited() for oracle in oracles]

    outcome = rules.step(state, rules.destination_table(height, width), np.array(actions), np.array(coins))
    expected = [oracle.step(chosen, coin) for oracle, chosen, coin in situations]
    assert_same_step(state, outcome, oracles, expected)


# Many arenas at once


def random_games(num_envs: int, num_steps: int, seed: int):
    rng = np.random.default_rng(seed)
    actions = rng.integers(0, 4, size=(num_steps, num_envs, 2))
    return actions, rng.integers(0, 2, size=(num_steps, num_envs), dtype=np.bool_)


def test_a_row_of_a_batch_equals_the_same_arena_alone():
    actions, coins = random_games(num_envs=7, num_steps=60, seed=0)
    table = rules.destination_table(3, 4)
    batch = rules.initial_state(7, 3, 4)
    alone = [rules.initial_state(1, 3, 4) for _ in range(7)]
    for t in range(60):
        together = rules.step(batch, table, actions[t], coins[t])
        for e, state in enumerate(alone):
            single = rules.step(state, table, actions[t, e : e + 1], coins[t, e : e + 1])
            for whole, part in zip(together, single, strict=True):
                np.testing.assert_array_equal(whole[e : e + 1], part)
            np.testing.assert_array_equal(batch.cells[e], state.cells[0])
            np.testing.assert_array_equal(batch.visited[e], state.visited[0])
    assert batch.visited.any(axis=0).sum() > 6  # The games went somewhere.


def test_outcome_of_a_step_is_not_touched_by_the_next():
    actions, coins = random_games(num_envs=5, num_steps=20, seed=1)
    state, table = rules.initial_state(5, 2, 2), rules.destination_table(2, 2)
    first = rules.step(state, table, actions[0], coins[0])
    seen = rules.observations(state)
    kept = [array.copy() for array in (*first, seen)]
    for t in range(1, 20):
        rules.step(state, table, actions[t], coins[t])
    for array, copy in zip((*first, seen), kept, strict=True):
        np.testing.assert_array_equal(array, copy)


def test_reset_envs_restarts_only_the_marked_arenas():
    state = rules.initial_state(3, 2, 3)
    state.cells[:] = (2, 3)
    state.visited[:] = True
    state.timesteps[:] = 9
    rules.reset_envs(state, np.array([False, True, False]))
    assert state.cells.tolist() == [[2, 3], [0, 5], [2, 3]]
    assert state.visited.sum(axis=1).tolist() == [6, 0, 6]
    assert state.timesteps.tolist() == [9, 0, 9]


def test_shared_destination_table_is_read_only():
    with pytest.raises(ValueError, match="read-only"):
        rules.destination_table(2, 2)[0] = 1


def test_rewards_are_float64_in_the_agents_order():
    outcome = play(one_arena(3, 3, cells=(0, 8)), 3, 3, (RIGHT, LEFT))
    assert outcome.rewards.dtype == np.float64
    assert outcome.rewards.shape == (1, 2)
    assert {array.dtype for array in outcome[1:]} == {np.dtype(np.bool_)}


def test_random_agents_earn_what_the_reference_measured():
    num_episodes, num_reference_episodes = 2000, 10_000
    actions, coins = random_games(num_episodes, num_steps=100, seed=0)
    state, table = rules.initial_state(num_episodes, 10, 10), rules.destination_table(10, 10)
    outcomes = [rules.step(state, table, *inputs) for inputs in zip(actions, coins, strict=True)]

    returns = np.sum([outcome.rewards for outcome in outcomes], axis=0)
    new_fields = np.sum([outcome.new_field_rewarded for outcome in outcomes], axis=0)
    collisions = np.sum([outcome.collision for outcome in outcomes], axis=0)
    measured = {
        "sum": (returns.sum(axis=1), -8.27),
        "agent1": (returns[:, 0], 0.71),
        "agent2": (returns[:, 1], -8.98),
        "new fields": (new_fields, 34.1),
        "collisions": (collisions, 0.93),
    }
    for name, (per_episode, reference) in measured.items():
        # Both means are samples. Four standard errors of their difference: the seed is fixed, so no flakes.
        error = per_episode.std() * np.sqrt(1 / num_episodes + 1 / num_reference_episodes)
        assert per_episode.mean() == pytest.approx(reference, abs=4 * error), name
    assert returns.sum(axis=1).std() == pytest.approx(12.3, rel=0.1)
