"""Players of tic-tac-toe and connect four that look ahead, beside a plain minimax, by hand, and beside OpenSpiel."""

from __future__ import annotations

import numpy as np
import pettingzoo
import pytest

from marl_sb3 import ConfigError, make_vec_env
from marl_sb3.evaluation.board_players import MCTS10, rules_of, values_of_moves
from marl_sb3.evaluation.opponents import OPPONENTS, opponents_of
from marl_sb3.types import Array

ALL = np.ones(7, bool)


def board(text: str) -> Array:
    """What connect four shows the player `x`, who is to move; rows from the top, those that are left out are empty."""
    rows = text.split()
    shown = np.zeros((6, 7, 2), np.int8)
    shown[-len(rows) :] = np.array([[[cell == who for who in "xo"] for cell in row] for row in rows])
    return shown


def moves(name: str, seen: Array, mask: Array = ALL, draws: int = 9) -> set[int]:
    """The moves that a player chooses, of several draws."""
    return {OPPONENTS[name]().act(seen, mask, np.random.default_rng(n)) for n in range(draws)}


# --- Minimax ---------------------------------------------------------------------------------------------------------


def plain_values(position: Array, depth: int, counts: bool) -> dict[int, float]:
    """Minimax as a textbook has it: without pruning, and all lines are counted anew at its leaves."""
    rows, columns = position.shape
    lines = rules_of((rows, columns)).lines
    free = [(y, x) for y, x in np.argwhere(position == 0) if rows == 3 or y == rows - 1 or position[y + 1, x]]
    values = {}
    for y, x in free:
        after = position.copy()
        after[y, x] = 1
        of_lines = after.reshape(-1)[lines]
        if (of_lines == 1).all(axis=1).any():
            value = 1.0
        elif depth == 1:
            mine, others = (of_lines == 1).sum(axis=1), (of_lines == -1).sum(axis=1)
            worth = np.array([0, 1, 10, 100])
            value = float((worth[mine][others == 0]).sum() - (worth[others][mine == 0]).sum()) / 10_000 * counts
        else:
            value = -0.9 * max(plain_values(-after, depth - 1, counts).values(), default=0.0)
        values[int(x) if rows == 6 else int(y * columns + x)] = value
    return values


@pytest.mark.parametrize("shape", [(3, 3), (6, 7)])
@pytest.mark.parametrize("counts", [False, True])
def test_values_are_those_of_a_plain_minimax(shape: tuple[int, int], counts: bool) -> None:
    rng, seen = np.random.default_rng(0), set[float]()
    for _ in range(12):
        position = np.zeros(shape, np.int8)
        for _ in range(rng.integers(6 if shape == (3, 3) else 24)):
            values = plain_values(position, 1, False)
            if 1.0 in values.values():
                break
            move = int(rng.choice(list(values)))
            row = move // 3 if shape == (3, 3) else int((position[:, move] == 0).sum()) - 1
            position[row, move % shape[1]] = 1
            position *= -1
        expected = plain_values(position, 3, counts)
        found = values_of_moves(position, 3, counts=counts)
        assert {int(move): found[move] for move in np.flatnonzero(found > -np.inf)} == pytest.approx(expected)
        seen |= set(expected.values())
    assert len(seen) > 3  # wins, losses, and more


def test_players_that_count_lines_prefer_cells_of_many_lines() -> None:
    # In the lowest row, 7 lines lead through the middle: 4 in the row, and one in the column and each diagonal.
    assert [round(value * 10_000) for value in values_of_moves(np.zeros((6, 7), np.int8), 1, counts=True)] == [
        *(3, 4, 5, 7, 5, 4, 3)
    ]
    assert len(moves("lines2", board("o..xo.."))) == 1  # what is counted decides, and not the draw
    assert len(moves("lines2", board("......."))) > 1


def test_players_win_and_block() -> None:
    assert moves("greedy", board("ooo.... xxx....")) == {3}
    assert len(moves("greedy", board("xooo.x."))) > 1
    assert moves("minimax2", board("xooo.x.")) == {4}
    assert 1 in moves("minimax4", board("..oo... ..xx.x.")) or 4 in moves("minimax4", board("..oo... ..xx.x."))


def test_a_sparring_partner_plays_well_nine_times_in_ten() -> None:
    partner, seen = OPPONENTS["sparring"](), board("ooo.... xxx....")
    assert 80 < [partner.act(seen, ALL, np.random.default_rng(n)) for n in range(99)].count(3) < 99


def test_boards_of_other_games_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"a board of \(8, 8\); accepted: those of tic-tac-toe \(3, 3\) and connect"):
        values_of_moves(np.zeros((8, 8), np.int8), 2)


def test_an_unknown_player_is_refused_with_those_there_are() -> None:
    env = make_vec_env("classic/rps-v2")
    with pytest.raises(ConfigError, match=r"'minimax3'; accepted: random, greedy, minimax2, .*, or MODULE:CLASS"):
        opponents_of("minimax3", env, env.agents)
    env.close()


# --- Tree search -----------------------------------------------------------------------------------------------------


def test_players_of_tree_search_see_the_board_of_the_env() -> None:
    pytest.importorskip("pyspiel")
    player, rng = MCTS10(), np.random.default_rng(0)
    env, outcomes = pettingzoo.make("aec", "classic/connect_four-v3"), []
    for _ in range(30):
        env.reset()
        state = player.game.new_initial_state()
        while not state.is_terminal():
            observation, *_ = env.last()
            rebuilt = player.state(observation["observation"])
            assert str(rebuilt) == str(state)
            assert rebuilt.current_player() == state.current_player()
            assert rebuilt.legal_actions() == np.flatnonzero(observation["action_mask"]).tolist()
            action = int(rng.choice(rebuilt.legal_actions()))
            env.step(action)
            state.apply_action(action)
            rebuilt.apply_action(action)
            assert rebuilt.is_terminal() == state.is_terminal()
        outcomes.append([env.rewards[agent] for agent in env.possible_agents])
        assert outcomes[-1] == state.returns() == rebuilt.returns()
    assert [1, -1] in outcomes
    assert [-1, 1] in outcomes


def test_players_of_tree_search_win_and_block() -> None:
    pytest.importorskip("pyspiel")
    for text, column in (("ooo.... xxx....", 3), ("xooo.x.", 4)):
        assert moves("mcts100", board(text), draws=1) == {column}
