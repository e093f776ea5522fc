"""Ratings from the points of games."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_sb3.errors import ConfigError
from marl_sb3.results.rating import Rating, ratings


def rated(points: object, at: int | None = None, prior_games: float = 1.0) -> list[Rating]:
    found = ratings(np.asarray(points, dtype=float), at, prior_games)
    assert None not in found
    return [each for each in found if each is not None]


def test_two_players_are_as_far_apart_as_the_odds_say() -> None:
    """Without prior games it is Elo's formula, 400 log10(p / (1 - p)), and the interval the one of log odds."""
    won, lost = rated([[0, 75], [25, 0]], prior_games=1e-9)
    apart = 400 * math.log10(75 / 25)
    assert (won.rating, lost.rating) == pytest.approx((apart / 2, -apart / 2), abs=0.01)
    first, second = rated([[0, 75], [25, 0]], at=1, prior_games=1e-9)
    assert (second.rating, second.ci95) == (0.0, (0.0, 0.0))
    # The variance of log odds is 1 / (n p (1 - p)).
    margin = 1.96 * math.sqrt(1 / (100 * 0.75 * 0.25)) * 400 / math.log(10)
    assert (first.ci95[0], first.ci95[1]) == pytest.approx((apart - margin, apart + margin), rel=1e-3)


def test_a_prior_game_solves_its_equation() -> None:
    """10 of 10 won: with s and -s as strengths, 10 (1 - p(2 s)) = p(s) - 0.5, of which s = 1.6708 is the solution."""
    won, lost = rated([[0, 10], [0, 0]])
    s = won.rating * math.log(10) / 400
    assert 10 * (1 - 1 / (1 + math.exp(-2 * s))) == pytest.approx(1 / (1 + math.exp(-s)) - 0.5, abs=1e-6)
    assert lost.rating == pytest.approx(-won.rating, abs=1e-3)


def test_who_won_more_often_is_rated_higher_and_more_games_are_more_certain() -> None:
    few, many = [rated(games * np.triu(np.ones((5, 5)), 1)) for games in (10, 1000)]
    for found in (few, many):
        assert [each.rating for each in found] == sorted((each.rating for each in found), reverse=True)
        assert all(math.isfinite(bound) for each in found for bound in each.ci95)
    assert few[0].rating < many[0].rating
    drawn, drawn_often = (rated([[0, n], [n, 0]])[0] for n in (5, 500))
    assert drawn.rating == pytest.approx(0.0, abs=1e-6)
    assert drawn_often.ci95[1] < drawn.ci95[1] / 8


def test_a_player_that_met_nobody_has_no_rating() -> None:
    points = np.array([[0.0, 3, 0], [1, 0, 0], [0, 0, 9]])
    found = ratings(points)
    assert found[2] is None
    assert found[:2] == ratings(points[:2, :2])
    assert ratings(np.zeros((2, 2))) == [None, None]
    with pytest.raises(ConfigError, match=r"player 2 has played no game; accepted as the one at 0: \[0, 1\]"):
        ratings(points, at=2)


@settings(deadline=None, max_examples=15)
@given(st.integers(0, 2**32 - 1), st.integers(2, 6))
def test_ratings_follow_the_players_whatever_their_order(seed: int, n: int) -> None:
    random = np.random.default_rng(seed)
    points = random.integers(0, 40, size=(n, n)) / 2.0 + 0.5
    order = random.permutation(n)
    found, permuted = rated(points), rated(points[np.ix_(order, order)])
    assert sum(each.rating for each in found) == pytest.approx(0.0, abs=1e-6)
    assert [each.rating for each in permuted] == pytest.approx([found[player].rating for player in order], abs=1e-3)
    assert all(low < each.rating < high for each in found for low, high in [each.ci95])
    better = points.copy()
    better[0, 1:] += 5
    assert rated(better)[0].rating > found[0].rating


def test_intervals_hold_the_true_ratings() -> None:
    """Of 40 tournaments of five players, 200 intervals at 95 %."""
    random, true = np.random.default_rng(0), np.array([200.0, 100, 0, -100, -200])
    chance = 1 / (1 + 10 ** (np.subtract.outer(true, true).T / 400))
    held = 0
    for _ in range(40):
        wins = np.triu(random.binomial(50, chance), 1).astype(float)
        found = rated(wins + np.triu(50 - wins, 1).T)
        held += sum(each.ci95[0] <= value <= each.ci95[1] for each, value in zip(found, true, strict=True))
    assert held >= 180


def test_games_of_a_set_that_go_together_count_like_one() -> None:
    """Of 20 sets a player has won 12, in each of which it plays once, or five times with the same result."""
    won = (np.arange(20) < 12).astype(float)
    once = np.stack([[[0.0, x], [1 - x, 0.0]] for x in won])
    alone, often = (rated(sets, at=1, prior_games=1e-9)[0] for sets in (once, 5 * once))
    # The variance of log odds is 1 / (m p (1 - p)), with m - 1 for m, and the interval Student's: t is 2.0930 for 19.
    margin = 2.0930 * math.sqrt(1 / (19 * 0.6 * 0.4)) * 400 / math.log(10)
    assert often.ci95 == pytest.approx((alone.rating - margin, alone.rating + margin), rel=1e-4)
    assert alone.ci95 == pytest.approx(often.ci95, rel=1e-4)
    summed = rated(5 * once.sum(axis=0), at=1, prior_games=1e-9)[0]
    assert summed.rating == pytest.approx(often.rating)
    assert summed.ci95[1] - summed.ci95[0] < margin
    sets = np.zeros((20, 2, 2))
    sets[:, 0, 1] = 1.0  # everything is won: the sets do not differ
    assert rated(sets) == rated(sets.sum(axis=0))
    assert ratings(np.zeros((0, 0))) == []


@pytest.mark.parametrize("points", [[[0, 1]], [[0, -1], [0, 0]], [[0, math.nan], [0, 0]], [[0, 1], [0]], "points"])
def test_points_that_are_none_are_refused(points: Any) -> None:
    with pytest.raises(ConfigError, match=r"accepted: \(n, n\) or \(m, n, n\), finite numbers from 0 on"):
        ratings(points)
    with pytest.raises(ConfigError, match=r"prior_games is 0; accepted: a number above 0"):
        ratings(np.eye(2), prior_games=0)
