"""The rules against moves worked by hand, a scalar oracle, and figures measured elsewhere."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_sb3.envs.arena import rules
from marl_sb3.envs.compiled.rules import Outcome

UP, RIGHT, DOWN, LEFT = 0, 1, 2, 3
AGENT1_FIRST, AGENT2_FIRST = True, False

NOTHING_PAYS = [-0.5, -0.1]
NEW_FIELD_PAYS = [1.0, -0.1]
COLLISION_PAYS = [-1.0, 1.0]


def one_arena(height: int, width: int, cells: tuple[int, int], visited: tuple[int, ...] = ()):
    state = rules.initial_state(height, width, np.ones(100, np.bool_))
    state.cells = list(cells)
    state.visited[list(visited)] = True
    return state


def play(state, actions: tuple[int, int], agent1_first: bool = True):
    state.coins[state.timestep] = agent1_first
    outcome = Outcome([0.0] * 2, [False] * 2, [False] * 2, [False] * 4)
    rules.step(state, actions, None, outcome)
    return outcome


def visited_cells(state) -> list[int]:
    return np.flatnonzero(state.visited).tolist()


def events(outcome) -> tuple[bool, bool, bool]:
    """Collision, new field, rewarded new field."""
    return tuple(outcome.infos[:3])


# The start, and the four moves


def test_start_is_in_opposite_corners_with_nothing_visited():
    state = rules.initial_state(3, 4, np.ones(7, np.bool_))
    assert (state.cells, state.timestep, state.limit) == ([0, 11], 0, 7)
    assert state.visited.tolist() == [False] * 12


@pytest.mark.parametrize(("action", "destination"), [(UP, 1), (RIGHT, 6), (DOWN, 9), (LEFT, 4)])
def test_both_agents_move_by_one_cell(action, destination):
    state = one_arena(3, 4, cells=(5, 11))
    play(state, (action, DOWN))
    assert state.cells == [destination, 11]

    state = one_arena(3, 4, cells=(11, 5))
    play(state, (DOWN, action))
    assert state.cells == [11, destination]


def test_every_step_counts_and_the_last_one_truncates():
    state = rules.initial_state(3, 3, np.ones(3, np.bool_))
    assert [play(state, (UP, UP)).truncated for _ in range(3)] == [[False] * 2, [False] * 2, [True] * 2]
    assert state.timestep == 3


def test_observation_is_own_cell_then_the_others():
    state = one_arena(3, 4, cells=(5, 6))
    cells, coordinates = np.empty((2, 2), np.int64), np.empty((2, 4), np.int64)
    rules.observe_cells(state, cells)
    rules.observe_coordinates(state, coordinates)
    assert cells.tolist() == [[5, 6], [6, 5]]
    assert coordinates.tolist() == [[1, 1, 1, 2], [1, 2, 1, 1]]


def test_a_window_has_what_was_visited_around_oneself_and_walls_as_visited():
    state = one_arena(3, 4, cells=(0, 6))
    state.visited[[0, 1, 5, 10]] = True
    window = np.empty((2, 2 + 9), np.int64)
    rules.observe_window(state, window)
    assert window[0].tolist() == [0, 6, *(1, 1, 1), *(1, 1, 1), *(1, 0, 1)]  # a corner
    assert window[1].tolist() == [6, 0, *(1, 0, 0), *(1, 0, 0), *(0, 1, 0)]


# Rewards


def test_start_cell_is_a_new_field_when_agent1_comes_back_to_it():
    state = one_arena(3, 4, cells=(0, 11))
    play(state, (RIGHT, UP))
    outcome = play(state, (LEFT, DOWN))
    assert outcome.rewards == NEW_FIELD_PAYS
    assert visited_cells(state) == [0, 1]


def test_push_against_a_wall_marks_the_own_cell_once():
    state = one_arena(3, 4, cells=(0, 11))
    first = play(state, (UP, DOWN))
    assert (first.rewards, visited_cells(state)) == (NEW_FIELD_PAYS, [0])
    second = play(state, (LEFT, DOWN))
    assert (second.rewards, visited_cells(state)) == (NOTHING_PAYS, [0])
    assert state.cells == [0, 11]


# One step: height and width, cells, visited, actions, who moves first; the cells, rewards, events and visited after it.
EITHER = (AGENT1_FIRST, AGENT2_FIRST)
STEPS = {
    "a new field pays agent1": (
        (3, 4), (0, 11), [], (RIGHT, UP), EITHER, [1, 7], NEW_FIELD_PAYS, (False, True, True), [1]
    ),
    "a known field costs agent1": (
        (3, 4), (0, 11), [1], (RIGHT, UP), EITHER, [1, 7], NOTHING_PAYS, (False, False, False), [1]
    ),
    "agent2 marks nothing": ((3, 4), (0, 11), [0], (UP, UP), EITHER, [0, 7], NOTHING_PAYS, (False, False, False), [0]),
    # Collisions: on a row of three cells, 0 1 2
    "agent1 runs into agent2, stays and marks nothing": (
        (1, 3), (0, 1), [], (RIGHT, UP), EITHER, [0, 1], COLLISION_PAYS, (True, False, False), []
    ),
    "agent2 runs into agent1 and decides the rewards, but the new field stays marked": (
        (1, 3), (0, 1), [], (UP, LEFT), EITHER, [0, 1], COLLISION_PAYS, (True, True, False), [0]
    ),
    "agent2 comes second and runs into the new position of agent1": (
        (1, 3), (0, 2), [], (RIGHT, LEFT), [AGENT1_FIRST], [1, 2], COLLISION_PAYS, (True, True, False), [1]
    ),
    "agent1 comes second and runs into the new position of agent2": (
        (1, 3), (0, 2), [], (RIGHT, LEFT), [AGENT2_FIRST], [0, 1], COLLISION_PAYS, (True, False, False), []
    ),
    "agents cannot swap": (
        (1, 3), (0, 1), [], (RIGHT, LEFT), EITHER, [0, 1], COLLISION_PAYS, (True, False, False), []
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", STEPS)
def test_a_step_moves_pays_tells_and_marks(name):
    size, cells, visited, actions, firsts, *expected = STEPS[name]
    for first in firsts:
        state = one_arena(*size, cells=cells, visited=visited)
        outcome = play(state, actions, first)
        assert [state.cells, outcome.rewards, events(outcome), visited_cells(state)] == expected


@pytest.mark.parametrize(
    ("begin", "action", "first", "cells", "rewards"),
    [
        ((0, 1), RIGHT, AGENT1_FIRST, [0, 2], COLLISION_PAYS),  # agent1 is behind
        ((0, 1), RIGHT, AGENT2_FIRST, [1, 2], NEW_FIELD_PAYS),
        ((1, 2), LEFT, AGENT1_FIRST, [0, 1], NEW_FIELD_PAYS),  # agent2 is
        ((1, 2), LEFT, AGENT2_FIRST, [0, 2], COLLISION_PAYS),
    ],
)
def test_an_agent_can_follow_the_other_only_if_that_one_moves_first(begin, action, first, cells, rewards):
    state = one_arena(1, 3, cells=begin)
    outcome = play(state, (action, action), first)
    assert (state.cells, outcome.rewards) == (cells, rewards)


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
    outcome = play(state, (action, other_pushes), first)
    assert state.cells == [mover, other]
    assert outcome.rewards == NEW_FIELD_PAYS

    state = one_arena(3, 4, cells=(other, mover))
    outcome = play(state, (other_pushes, action), first)
    assert state.cells == [other, mover]
    assert outcome.rewards == NEW_FIELD_PAYS


# The scalar oracle: plain Python, row and column, one arena; it shares nothing with the rules.


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


def assert_same_step(state, oracle: Oracle, actions: tuple[int, int], agent1_first: bool) -> None:
    outcome, expected = play(state, actions, agent1_first), oracle.step(actions, agent1_first)
    reward1, reward2, collision, new_field = expected
    assert outcome.rewards == [reward1, reward2]
    assert outcome.infos == [collision, new_field, reward1 == 1.0, collision]
    assert (state.cells, state.visited.tolist()) == (oracle.cells(), oracle.visited())


@st.composite
def games(draw):
    height, width = draw(st.tuples(st.integers(1, 5), st.integers(1, 5)).filter(lambda size: size != (1, 1)))
    action = st.integers(0, 3)
    return height, width, draw(st.lists(st.tuples(action, action, st.booleans()), min_size=1, max_size=25))


@settings(deadline=None, max_examples=150)
@given(games())
def test_whole_games_agree_with_the_oracle(game):
    height, width, steps = game
    state, oracle = rules.initial_state(height, width, np.ones(25, np.bool_)), Oracle.at_start(height, width)
    for first, second, coin in steps:
        assert_same_step(state, oracle, (first, second), coin)


@pytest.mark.parametrize(("height", "width"), [(1, 2), (2, 1), (1, 4), (4, 1), (2, 2), (2, 3), (3, 3)])
def test_every_single_step_agrees_with_the_oracle(height, width):
    positions = list(itertools.product(range(height), range(width)))
    for first, second in itertools.permutations(positions, 2):
        for actions in itertools.product(range(4), repeat=2):
            for coin in (AGENT1_FIRST, AGENT2_FIRST):
                for fields in ((), positions):
                    oracle = Oracle(height, width, [first, second], set(fields))
                    state = one_arena(height, width, oracle.cells(), tuple(np.flatnonzero(oracle.visited())))
                    assert_same_step(state, oracle, actions, coin)


def test_random_agents_earn_what_the_reference_measured():
    num_episodes, num_reference_episodes = 1000, 10_000
    rng = np.random.default_rng(0)
    returns, happened = np.zeros((num_episodes, 2)), np.zeros((num_episodes, 4))
    for episode in range(num_episodes):
        state = rules.initial_state(10, 10, rules.draw_coins(rng, 100))
        for actions in rng.integers(0, 4, size=(100, 2)).tolist():
            outcome = Outcome([0.0] * 2, [False] * 2, [False] * 2, [False] * 4)
            rules.step(state, actions, None, outcome)
            returns[episode] += outcome.rewards
            happened[episode] += outcome.infos

    measured = {
        "sum": (returns.sum(axis=1), -8.27),
        "agent1": (returns[:, 0], 0.71),
        "agent2": (returns[:, 1], -8.98),
        "new fields": (happened[:, 2], 34.1),
        "collisions": (happened[:, 0], 0.93),
    }
    for name, (per_episode, reference) in measured.items():
        # Both means are samples. Four standard errors of their difference: the seed is fixed, so no flakes.
        error = per_episode.std() * np.sqrt(1 / num_episodes + 1 / num_reference_episodes)
        assert per_episode.mean() == pytest.approx(reference, abs=4 * error), name
    assert returns.sum(axis=1).std() == pytest.approx(12.3, rel=0.1)
