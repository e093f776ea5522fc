"""A league: a policy learns Nim against three of its earlier selves, which are replaced one after the other.

Two players take one, two or three of 21 sticks in turn; whoever takes the last one wins. Perfect play leaves a multiple
of four.
"""

import argparse
from typing import Any

import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv

from marl_sb3 import MaskablePPO, MultiAgentAlgorithm, MultiAgentCallback, PolicySpec, make_vec_env

STICKS, MOST = 21, 3
LEARNER, OLD = "learner", ("old_0", "old_1", "old_2")


class Nim(ParallelEnv):
    """In each episode, `learner` plays against one of the others; who plays, and who begins, is drawn.

    An agent that is not drawn is not in `agents` in the whole episode: it takes no part, and its policy does nothing.
    """

    possible_agents = (LEARNER, *OLD)

    def __init__(self) -> None:
        # The share of the learner's moves that are perfect, of those where a perfect one exists.
        perfect = {"key": "perfect", "agent": LEARNER, "reduce": "mean"}
        self.metadata = {"name": "nim_v0", "custom_metrics": {"perfect": perfect}}
        self.observation_spaces = dict.fromkeys(self.possible_agents, spaces.Discrete(STICKS + 1))
        self.action_spaces = dict.fromkeys(self.possible_agents, spaces.Discrete(MOST))

    def observation_space(self, agent: str) -> spaces.Space:
        """Every agent sees the number of sticks."""
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> spaces.Space:
        """Action 0 takes one stick."""
        return self.action_spaces[agent]

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, int], dict[str, Any]]:
        """Draw the players."""
        rng = np.random.default_rng(seed)
        self.players = [LEARNER, str(rng.choice(OLD))]
        rng.shuffle(self.players)
        self.sticks = STICKS
        self.agents = [self.players[0]]  # an agent that waits for its turn is not in `agents`
        return self._seen()

    def _seen(self) -> tuple[dict[str, int], dict[str, Any]]:
        mask = np.arange(1, MOST + 1) <= self.sticks
        return dict.fromkeys(self.agents, self.sticks), {agent: {"action_mask": mask} for agent in self.agents}

    def step(self, actions: dict[str, int]) -> tuple[dict[str, Any], ...]:
        """One player takes sticks; the winner is paid 1, the loser -1."""
        (player,), (action,) = actions.keys(), actions.values()
        (other,) = (each for each in self.players if each != player)
        exists = self.sticks % (MOST + 1) != 0
        self.sticks -= int(action) + 1
        is_over = self.sticks == 0
        self.agents = self.players if is_over else [other]
        observations, infos = self._seen()
        if player == LEARNER and exists:
            infos[LEARNER] = {**infos.get(LEARNER, {}), "perfect": float(self.sticks % (MOST + 1) == 0)}
        rewards = {player: float(is_over), other: -float(is_over)}
        terminated, truncated = dict.fromkeys(self.players, is_over), dict.fromkeys(self.players, False)
        if is_over:
            self.agents = []
        return observations, rewards, terminated, truncated, infos


class League(MultiAgentCallback):
    """After every so many iterations, the learner takes the place of the oldest of its earlier selves."""

    def __init__(self, every: int) -> None:
        super().__init__()
        self.every = every

    def on_iteration_end(self, result: dict) -> bool:
        """Called after each iteration; the iteration number alone decides, so that a resumed run continues alike."""
        number, rest = divmod(self.algorithm.iteration, self.every)
        if rest == 0:
            self.algorithm.copy_policy(LEARNER, OLD[number % len(OLD)])
            won = (1 + result["env_runners"]["agent_episode_returns_mean"][LEARNER]) / 2
            perfect = result["env_runners"]["custom_metrics"]["perfect_mean"]
            print(f"{self.num_timesteps} env steps: {won:.0%} of the games won, {perfect:.0%} of the moves perfect")
        return True


def main(env_steps: int, every: int) -> None:
    """Train, and print how the learner plays."""
    env = make_vec_env(Nim, n_envs=16, seed=0)
    spec = PolicySpec(MaskablePPO, ent_coef=0.02, learning_rate=1e-3)
    algo = MultiAgentAlgorithm(
        env, dict.fromkeys((LEARNER, *OLD), spec), policies_to_train=[LEARNER], n_steps=128, batch_size=256, seed=0
    )
    algo.learn(env_steps, callback=League(every))
    moves = {}
    for sticks in (21, 18, 11, 7):
        masks = {LEARNER: np.ones(MOST, dtype=bool)}  # enough sticks lie there for any move
        moves[sticks] = algo.predict({LEARNER: sticks}, deterministic=True, action_masks=masks)[LEARNER] + 1
    print("takes", ", ".join(f"{taken} of {sticks}" for sticks, taken in moves.items()))
    env.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--env-steps", type=int, default=200_000, help="default: 200000")
    parser.add_argument("--every", type=int, default=8, help="iterations between two changes of the league; default: 8")
    arguments = parser.parse_args()
    main(arguments.env_steps, arguments.every)
