"""Envs in all runners on Ray share a counter, and a callback ends the run when it is high enough.

The counter is an actor with a name, which any process of the cluster can find. It counts what happens: if a runner
dies, the episodes that its envs begin again are counted again.
"""

import argparse
from typing import Any

import ray

from marl_sb3 import MultiAgentAlgorithm, MultiAgentCallback, RaySettings, make_sharded_vec_env
from marl_sb3.envs.arena import ArenaEnv


@ray.remote(num_cpus=0)
class Counter:
    """Counts episodes."""

    def __init__(self) -> None:
        self.count = 0

    def add(self) -> None:
        """Count one more."""
        self.count += 1

    def value(self) -> int:
        """Return the count."""
        return self.count


class CountedArena(ArenaEnv):
    """The arena; every episode is counted, in whatever process it begins."""

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        """Begin an episode."""
        ray.get_actor("episodes").add.remote()
        return super().reset(seed=seed, options=options)


class StopAtCount(MultiAgentCallback):
    """Logs the counter, and ends the run when it has reached a target."""

    def __init__(self, target: int) -> None:
        super().__init__()
        self.target = target

    def on_iteration_end(self, result: dict[str, Any]) -> bool:
        """Called after each iteration, in the process of the learners."""
        count = ray.get(ray.get_actor("episodes").value.remote())
        self.logger.record("arena/episodes_begun", count)
        print(f"{self.num_timesteps} env steps: {count} episodes begun by {result['fault_tolerance']}")
        return count < self.target


def main(target: int, runners: int) -> None:
    """Train until `target` episodes have begun."""
    ray.init("local", num_cpus=runners, include_dashboard=False, log_to_driver=False)
    counter = Counter.options(name="episodes").remote()
    env = make_sharded_vec_env(
        CountedArena, n_envs=8, n_shards=4, seed=0, max_timesteps=50, ray=RaySettings("auto", runners)
    )
    algo = MultiAgentAlgorithm(env, "shared", n_steps=100, batch_size=200, seed=0)
    algo.learn(1_000_000, callback=StopAtCount(target))
    env.close()
    print(f"{ray.get(counter.value.remote())} episodes begun in all runners")
    ray.shutdown()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", type=int, default=500, help="episodes; default: 500")
    parser.add_argument("--runners", type=int, default=2, help="default: 2")
    arguments = parser.parse_args()
    main(arguments.target, arguments.runners)
