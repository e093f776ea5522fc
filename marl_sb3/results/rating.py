"""Ratings of players from the games that they have played against each other.

By Bradley and Terry, "Rank analysis of incomplete block designs", Biometrika 39, 1952: i wins against j with the
probability 1 / (1 + exp(s_j - s_i)). The library choix fits the strengths s to all games at once, since players that
do not learn have one strength each: the order of the games plays no role. In Elo's updates and OpenSkill's, which
follow players that change, it does.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from marl_sb3.errors import ConfigError, refuse
from marl_sb3.types import Array

# On Elo's scale a player with 400 more wins ten times as often as it loses.
_ELO = 400 / math.log(10)
_Z = 1.959963984540054  # the normal distribution has 95 % between -_Z and _Z
_MOST_ITERATIONS = 100_000  # 1,000 are enough for 20 players of which each has won 1,000 games against all below it


@dataclass(frozen=True)
class Rating:
    """How strong a player is, on Elo's scale."""

    rating: float  # 0 is the mean of all players, or the player that was named
    ci95: tuple[float, float]  # the bounds of its 95 % confidence interval


def ratings(points: Array, at: int | None = None, prior_games: float = 1.0) -> list[Rating | None]:
    """Rate players by the points that they have won against each other.

    So that a player who has won, or lost, everything has a finite rating, each has in addition drawn `prior_games`
    games against one imagined player. They count less the more games there are. The intervals follow from the curvature
    of the likelihood at its maximum, and not from a bootstrap, which finds the same result in all resamples where a
    player has won every game. Draws make them wider than they need to be. Sets of games, such as those of one seed,
    make them wider where the results in a set are correlated: the variance is then that
    of the sets (White, "Maximum likelihood estimation of misspecified models", Econometrica 50, 1982; Liang and Zeger,
    Biometrika 73, 1986).

    Args:
        points: (n, n), what i has won against j: 1 for each win, 0.5 for each draw; the diagonal does not count. Or
            (m, n, n), that of each set of games.
        at: index of the player whose rating is 0; None: the mean of all is 0.
        prior_games: more than 0.

    Returns:
        One for each player; None for those without a game.

    Raises:
        ConfigError: the points are no square of finite numbers from 0 on, there are no prior games, or the player at
            0 has no game.
    """
    try:
        sets = np.array(points, dtype=np.float64)
    except (TypeError, ValueError):  # text, or a ragged list
        sets = np.array(np.nan)
    if sets.ndim not in (2, 3) or sets.shape[-2] != sets.shape[-1] or not (np.isfinite(sets) & (sets >= 0)).all():
        words = "accepted: (n, n) or (m, n, n), finite numbers from 0 on"
        raise ConfigError(f"points are {points!r:.200}; {words}", key="points")
    if not 0 < prior_games < math.inf:
        refuse("prior_games", prior_games, "a number above 0")
    sets = sets if sets.ndim == 3 else sets[None]
    sets[:, range(sets.shape[-1]), range(sets.shape[-1])] = 0.0
    points = sets.sum(axis=0)
    met = np.flatnonzero((points + points.T).any(axis=1))
    if at is not None and at not in met:
        raise ConfigError(f"player {at} has played no game; accepted as the one at 0: {met.tolist()}", key="at")
    found: list[Rating | None] = [None] * len(points)
    if len(met):
        strengths, covariance = _fitted(points[np.ix_(met, met)], prior_games)
        # Of each strength the mean is subtracted, or the one of the player at 0.
        weights = np.full(len(met), 1 / len(met)) if at is None else (met == at).astype(np.float64)
        shift = np.eye(len(met)) - weights
        centers = shift @ strengths * _ELO
        margins = _Z * np.sqrt(np.diag(shift @ covariance @ shift.T).clip(0.0))
        if len(sets) > 1:
            margins = np.maximum(margins, _margins_of_sets(sets[:, met][:, :, met], strengths, covariance @ shift.T))
        margins *= _ELO
        for player, center, margin in zip(met.tolist(), centers.tolist(), margins.tolist(), strict=True):
            found[player] = Rating(center, (center - margin, center + margin))
    return found


def _fitted(points: Array, prior_games: float) -> tuple[Array, Array]:
    """Return the strengths (n,) at the maximum of the likelihood, and their covariance (n, n)."""
    import choix  # not at the top: SciPy's optimizers take a tenth of a second

    with_prior = np.pad(points, (0, 1), constant_values=prior_games / 2)
    with_prior[-1, -1] = 0.0
    strengths = choix.ilsr_pairwise_dense(with_prior, max_iter=_MOST_ITERATIONS)
    strengths -= strengths[-1]  # the imagined player is at 0
    apart = np.clip(np.subtract.outer(strengths, strengths), -700.0, 700.0)
    information = -(with_prior + with_prior.T) / (2 + np.exp(apart) + np.exp(-apart))
    np.fill_diagonal(information, -information.sum(axis=1))
    return strengths[:-1], np.linalg.inv(information[:-1, :-1])


def _margins_of_sets(sets: Array, strengths: Array, influence: Array) -> Array:
    """Return half of the intervals (n,) if the games in a set may go together, and those of different sets do not.

    Args:
        sets: (m, n, n), the points.
        strengths: (n,).
        influence: (n, n), by how much column j moves with the derivative of the likelihood by strength i.
    """
    from scipy.special import expit, stdtrit

    chances = expit(np.subtract.outer(strengths, strengths))
    moved = (sets - (sets + sets.transpose(0, 2, 1)) * chances).sum(axis=2) @ influence  # (m, n), by each set
    m = len(sets)
    margins: Array = stdtrit(m - 1, 0.975) * np.sqrt(m * moved.var(axis=0, ddof=1))
    return margins
