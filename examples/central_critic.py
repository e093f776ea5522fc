"""A critic that sees what the other agent saw and did, while the actor does not: by rewriting trajectories.

Each agent observes a Dict: `own` is what it sees, and `other` is zeros while it acts. A hook fills `other` in before
returns are computed, and estimates the values anew. The actor's network leaves it out.
"""

import argparse
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.spaces.utils import flatdim
from pettingzoo.utils import BaseParallelWrapper
from stable_baselines3.common.policies import MultiInputActorCriticPolicy
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor

from marl_sb3 import MultiAgentAlgorithm, MultiAgentCallback, PolicySpec, Trajectory, make_vec_env
from marl_sb3.envs.arena.env import ArenaEnv

NOBODY = np.zeros(3, np.float32)  # two fields and an action of the other agent


class WithOther(BaseParallelWrapper):
    """The arena with room for the other agent in each observation."""

    def observation_space(self, agent: str) -> gymnasium.Space[Any]:
        """`own` is the arena's, `other` three numbers from 0 to 1."""
        own = self.env.observation_space(agent)
        return gymnasium.spaces.Dict(own=own, other=gymnasium.spaces.Box(0, 1, NOBODY.shape))

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        """Begin an episode."""
        observations, infos = self.env.reset(seed, options)
        return {agent: {"own": seen, "other": NOBODY} for agent, seen in observations.items()}, infos

    def step(self, actions: Any) -> Any:
        """Take a step."""
        observations, *rest = self.env.step(actions)
        return {agent: {"own": seen, "other": NOBODY} for agent, seen in observations.items()}, *rest


class FillIn(MultiAgentCallback):
    """Shows what the other agent saw and did in the same env steps."""

    def on_trajectory(self, trajectory: Trajectory) -> None:
        """Rewrite the observations, and estimate the values anew."""
        for other in trajectory.others.values():
            _, mine, theirs = np.intersect1d(trajectory.steps, other.steps, return_indices=True)
            trajectory.observations["other"][mine, :2] = other.observations["own"][theirs] / 100
            trajectory.observations["other"][mine, 2] = other.actions[theirs] / 3
        trajectory.values = trajectory.values_of(trajectory.observations)


class Seen(BaseFeaturesExtractor):
    """Joins both parts of an observation; the actor's has zeros for the other agent."""

    def __init__(self, space: gymnasium.spaces.Dict, shows_other: bool) -> None:
        super().__init__(space, flatdim(space))
        self.shows_other = shows_other

    def forward(self, observations: dict[str, torch.Tensor]) -> torch.Tensor:
        """Join them."""
        return torch.cat([observations["own"], self.shows_other * observations["other"]], dim=1)


class CentralPolicy(MultiInputActorCriticPolicy):
    """SB3's policy with a features extractor for the actor and another one for the critic."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **{**settings, "share_features_extractor": False})

    def _build(self, lr_schedule: Any) -> None:
        self.features_extractor = self.pi_features_extractor = Seen(self.observation_space, False)
        self.vf_features_extractor = Seen(self.observation_space, True)
        self.features_dim = self.features_extractor.features_dim
        super()._build(lr_schedule)


def main(env_steps: int) -> None:
    """Train with the central critic."""
    env = make_vec_env(lambda: WithOther(ArenaEnv()), n_envs=20, seed=0)
    spec = PolicySpec("ppo", CentralPolicy, batch_size=100, n_epochs=5, learning_rate=1e-3, gamma=0.9)
    algo = MultiAgentAlgorithm(env, {"shared": spec}, n_steps=100, seed=0)
    algo.learn(env_steps, callback=FillIn())
    print(f"return {algo.tracker.summary()['episode_return_mean']:.1f} after {algo.num_timesteps} env steps")
    env.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--env-steps", type=int, default=60_000, help="default: 60000")
    main(parser.parse_args().env_steps)
