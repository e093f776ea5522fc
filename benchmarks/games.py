"""Let a trained policy play games against a random player, and against stronger ones."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing

from marl_sb3 import evaluate_policies, make_vec_env
from marl_sb3.core.acting import PolicyBundle

SIDES = ("first", "second")
OUTCOMES = ("won", "drawn", "lost")
MOST_ENVS = 50
STRONGER: Mapping[str, tuple[str, ...]] = {
    "classic/connect_four-v3": ("greedy", "minimax2", "minimax4"),
    "classic/tictactoe-v3": ("greedy", "minimax2", "perfect"),
}

Shares = dict[str, float]  # by outcome


def play(bundle: PolicyBundle, env_id: str, games: int, seed: int, against: str = "random") -> dict[str, Shares]:
    """Play a game of two players; the policy takes its most probable moves.

    Args:
        bundle: the policies.
        env_id: a game in which two agents take turns, in the order of `possible_agents`.
        games: number of games on each side.
        seed: seed of the envs and of the other player.
        against: `random`, or a player of the package.

    Returns:
        Side -> outcome -> share of the games on this side.
    """
    with closing(make_vec_env(env_id, n_envs=min(games, MOST_ENVS))) as env:
        seats = evaluate_policies(bundle, env, games, deterministic=True, seed=seed, against=against)
        return {
            side: {outcome: seats[agent][outcome] for outcome in OUTCOMES}
            for side, agent in zip(SIDES, env.agents, strict=True)
        }
