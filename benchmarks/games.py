"""Games of a trained policy against a player that takes any legal move."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import closing

import numpy as np

from marl_sb3 import make_vec_env
from marl_sb3.evaluation.preserve import preserve_training_state
from marl_sb3.learners.bundle import PolicyBundle
from marl_sb3.types import AgentID, Array
from marl_sb3.vec_env import MultiAgentVecEnv
from marl_sb3.vec_env.step import VecStep

SIDES = ("first", "second")
OUTCOMES: Mapping[str, int] = {"won": 1, "drawn": 0, "lost": -1}  # and the sign of the return
MOST_ENVS = 50

Shares = dict[str, float]  # by outcome


def against_random(bundle: PolicyBundle, env_id: str, games: int, seed: int) -> dict[str, Shares]:
    """Play games of two players against a random player; the policy takes its most probable move.

    Args:
        bundle: the policies, which take action masks. The agents of the env move in their order.
        env_id: of a game in which two agents of the same spaces take turns, and the winner's return is positive.
        games: on each side, at least; a multiple of the number of envs is played.
        seed: of the random player.

    Returns:
        Side -> outcome -> share of the games.
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
    """The agent's returns in the first `quota` games of each env: counting the first to end would favour short ones."""
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
    """A random legal move of each agent in each env, (E, A)."""
    (masks,) = step.action_masks
    assert masks is not None, "the env gives action masks"
    return np.where(masks, rng.random(masks.shape), -1.0).argmax(axis=-1)


def _put_moves(bundle: PolicyBundle, agent: AgentID, column: int, step: VecStep, actions: Array) -> None:
    """Replace the agent's random moves with those of its policy, in the envs in which it is its turn."""
    turn = step.to_act[:, column]
    if turn.any():
        (observations,), (masks,) = step.observations, step.action_masks
        seen = {agent: observations[turn, column]}  # type: ignore[index]  # an array
        chosen = bundle.predict(seen, deterministic=True, action_masks={agent: masks[turn, column]})
        actions[turn, column] = chosen[agent]
