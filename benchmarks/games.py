"""Let a trained policy play games against a player that takes random legal moves."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import closing

import numpy as np

from marl_sb3 import make_vec_env
from marl_sb3.acting.bundle import PolicyBundle
from marl_sb3.evaluation import preserve_training_state
from marl_sb3.types import AgentID, Array
from marl_sb3.vec_env import MultiAgentVecEnv
from marl_sb3.vec_env.step import VecStep

SIDES = ("first", "second")
OUTCOMES: Mapping[str, int] = {"won": 1, "drawn": 0, "lost": -1}  # and the sign of the return
MOST_ENVS = 50

Shares = dict[str, float]  # by outcome


def against_random(bundle: PolicyBundle, env_id: str, games: int, seed: int) -> dict[str, Shares]:
    """Play a game of two players against a random player; the policy takes its most probable moves.

    Args:
        bundle: the policies; they accept action masks.
        env_id: a game in which two agents with the same spaces take turns, in the order of `possible_agents`, and the
            winner's return is positive.
        games: number of games on each side, rounded up to a multiple of the number of envs.
        seed: seed of the envs and of the random player.

    Returns:
        Side -> outcome -> share of the games on this side.
    """
    n_envs = min(games, MOST_ENVS)
    with closing(make_vec_env(env_id, n_envs=n_envs, seed=seed)) as env, preserve_training_state(bundle, seed):
        rng = np.random.default_rng(seed)
        return {
            side: _shares(_returns(bundle, env, agent, math.ceil(games / n_envs), rng))
            for side, agent in zip(SIDES, env.agents, strict=True)
        }


def _shares(returns: Sequence[float]) -> Shares:
    return {outcome: float(np.mean(np.sign(returns) == sign)) for outcome, sign in OUTCOMES.items()}


def _returns(
    bundle: PolicyBundle, env: MultiAgentVecEnv, agent: AgentID, quota: int, rng: np.random.Generator
) -> list[float]:
    """Return the agent's returns in the first `quota` games of each env, so that short games are not favoured."""
    column = env.agents.index(agent)
    played, running, returns = np.zeros(env.num_envs, dtype=np.int64), np.zeros(env.num_envs), []
    step = env.reset()
    while (played < quota).any():
        actions = random_moves(step, rng)
        _put_moves(bundle, agent, column, step, actions)
        step = env.step([actions])
        running += step.rewards[:, column]
        returns += running[step.episode_done & (played < quota)].tolist()
        played += step.episode_done
        running[step.episode_done] = 0.0
    return returns


def random_moves(step: VecStep, rng: np.random.Generator) -> Array:
    """Draw a legal move for each agent in each env: (E, A)."""
    (masks,) = step.action_masks
    assert masks is not None, "the env gives action masks"
    return np.where(masks, rng.random(masks.shape), -1.0).argmax(axis=-1)


def _put_moves(bundle: PolicyBundle, agent: AgentID, column: int, step: VecStep, actions: Array) -> None:
    """Replace the agent's random moves with those of its policy, in the envs where it is its turn."""
    turn = step.to_act[:, column]
    if turn.any():
        (observations,), (masks,) = step.observations, step.action_masks
        seen = {agent: observations[turn, column]}  # type: ignore[index]  # an array
        chosen = bundle.predict(seen, deterministic=True, action_masks={agent: masks[turn, column]})
        actions[turn, column] = chosen[agent]
