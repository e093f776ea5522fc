"""A callback of one's own: log the best episode, and stop when agent1 has discovered half of the arena."""

import argparse

from marl_sb3 import Episode, MultiAgentAlgorithm, MultiAgentCallback, make_vec_env


class DiscoveryCallback(MultiAgentCallback):
    """Follows `new_fields_discovered`, a custom metric that the arena announces."""

    def __init__(self, target: float) -> None:
        super().__init__()
        self.target = target
        self.best = 0.0

    def on_episode_end(self, episode: Episode) -> None:
        """Called for each finished episode of each env."""
        self.best = max(self.best, episode.custom["new_fields_discovered"])

    def on_iteration_end(self, result: dict) -> bool:
        """Called after each iteration; what is recorded goes to every log of the run."""
        self.logger.record("arena/best_discovery", self.best)
        mean = result["env_runners"]["custom_metrics"]["new_fields_discovered_mean"]
        print(f"{self.num_timesteps} env steps: {mean:.1f} new fields on average, {self.best:.0f} at best")
        return mean < self.target


def main(env_steps: int, target: float) -> None:
    """Train until the target or `env_steps`."""
    env = make_vec_env("arena", n_envs=20, seed=0)
    algo = MultiAgentAlgorithm(env, "shared", n_steps=100, batch_size=128, learning_rate=1e-3, seed=0)
    algo.learn(env_steps, callback=DiscoveryCallback(target))
    env.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--env-steps", type=int, default=100_000, help="default: 100000")
    parser.add_argument("--target", type=float, default=50, help="mean number of new fields; default: 50")
    arguments = parser.parse_args()
    main(arguments.env_steps, arguments.target)
