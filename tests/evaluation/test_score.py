"""Who has won an episode, and the score of several."""

from __future__ import annotations

from typing import Any

import pytest

from marl_sb3.evaluation.played import Scoreboard

A, B, C = "abc"


@pytest.mark.parametrize(
    ("returns", "takes_turns", "words"),
    [
        ({A: 1.0, B: -1.0}, True, "a won"),
        ({A: 2.5, B: -2.5}, False, "a won"),
        ({A: 1.0, B: 1.0, C: -2.0}, True, "a and b won"),
        ({A: 0.0, B: 0.0}, True, "A draw"),
        ({A: 0.0, B: 0.0}, False, ""),
        ({A: 0.0, B: -1.0}, True, "b lost"),  # by a move that is not allowed
        ({A: 7.0, B: 7.0}, True, ""),
        ({A: 12.0, B: -3.0}, False, ""),
        ({A: 0.0}, False, ""),
    ],
)
def test_the_result_of_an_episode(returns: Any, takes_turns: bool, words: str) -> None:
    score = Scoreboard(takes_turns=takes_turns)
    score.add(returns, {agent: agent for agent in returns})
    assert score.result() == words


def test_the_score_counts_wins_draws_and_moves_that_are_not_allowed() -> None:
    score = Scoreboard(takes_turns=True)
    games = [((1.0, -1.0), "xy"), ((1.0, -1.0), "yx"), ((0.0, 0.0), "xy"), ((0.0, -1.0), "yx"), ((1.0, -1.0), "zx")]
    found = []
    for returns, sides in games:
        score.add(dict(zip("ab", returns, strict=True)), dict(zip("ab", sides, strict=True)))
        found.append((score.result(), score.tally()))
    assert found == [
        ("x won", "x 1 : 0 y"),
        ("y won", "x 1 : 1 y"),
        ("A draw", "x 1 : 1 y, 1 draw"),
        ("x lost", "x 1 : 2 y, 1 draw"),
        ("z won", "x 0 : 1 z"),
    ]


@pytest.mark.parametrize(
    ("episodes", "opposed", "tally"),
    [
        ([(7.0, 3.0), (2.0, 8.0)], False, "x 1 : 1 y"),  # the sum is always 10
        ([(7.0, 3.0)], False, ""),  # nobody knows yet
        ([(1.0, -1.0), (52.5, -4.0)], False, ""),  # the sum is not always 0
        ([(30.0, -4.0), (52.5, -9.0)], True, "x 2 : 0 y"),  # but the training has found that they oppose each other
    ],
)
def test_where_returns_do_not_oppose_each_other_nobody_wins(episodes: Any, opposed: bool, tally: str) -> None:
    score = Scoreboard(takes_turns=False, opposed=opposed)
    for returns in episodes:
        score.add(dict(zip("ab", returns, strict=True)), {"a": "x", "b": "y"})
    assert score.tally() == tally


def test_the_side_with_the_higher_mean_wins() -> None:
    score = Scoreboard(takes_turns=False)
    score.add({"a": 2.0, "b": 2.0, "c": 3.0, "d": -7.0}, {"a": "x", "b": "x", "c": "y", "d": "y"})
    assert (score.result(), score.tally()) == ("x won", "x 1 : 0 y")
