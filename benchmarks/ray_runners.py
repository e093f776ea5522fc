"""Measure how fast runners on Ray collect experience, with an env that waits instead of computing.

    python benchmarks/ray_runners.py --runners 1 4 16 64

A step of one env waits 2 ms; a shard waits for its 64 envs one after the other. Waiting needs no CPU, so that two cores
can stand for many. Efficiency is the time of the waits alone divided by the time of collecting. "beyond_the_waits_s" is
the difference of the two: sending weights, receiving rollouts, and Ray's own work.
"""

from __future__ import annotations

import argparse
import json
import pickle
import time
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv

from marl_sb3 import MultiAgentAlgorithm
from marl_sb3.core.envs.batched import BatchedEnv, BatchedStep
from marl_sb3.core.state.state import StateReader
from marl_sb3.extensions.remote.ray import RaySettings
from marl_sb3.extensions.remote.sharded_vec_env import make_sharded_vec_env

WAIT_S, ENVS_PER_SHARD, HORIZON = 0.002, 64, 200
SPACE = spaces.Box(-1, 1, (8,), np.float32)


class WaitingEnv(ParallelEnv):
    """An env with two agents, whose steps wait."""

    metadata: ClassVar[dict[str, Any]] = {"name": "waiting_v0"}

    def __init__(self, wait_s: float = WAIT_S) -> None:
        self.possible_agents = ["a", "b"]
        self.agents: list[str] = []
        self.render_mode = None

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        """Return the observation space, the same for both agents."""
        return SPACE

    def action_space(self, agent: str) -> spaces.Space[Any]:
        """Return the action space, the same for both agents."""
        return spaces.Discrete(4)

    @staticmethod
    def make_batched(num_envs: int, wait_s: float = WAIT_S) -> BatchedWaiting:
        """Make the batched env, which is the one that is measured."""
        return BatchedWaiting(num_envs, wait_s)


class BatchedWaiting(BatchedEnv):
    """`num_envs` envs that wait one after the other in each step."""

    def __init__(self, num_envs: int, wait_s: float) -> None:
        self.num_envs, self._wait_s = num_envs, wait_s
        self.possible_agents = ["a", "b"]
        self.metadata, self.render_mode = WaitingEnv.metadata, None
        self.observation_space, self.action_space = SPACE, spaces.Discrete(4)
        self._steps = np.zeros(num_envs, dtype=np.int64)

    def reset(self, env_indices: Sequence[int], seeds: Sequence[int]) -> None:
        """See `BatchedEnv.reset`."""
        self._steps[list(env_indices)] = 0

    def step(self, actions: Any) -> BatchedStep:
        """See `BatchedEnv.step`."""
        time.sleep(self._wait_s * self.num_envs)
        self._steps += 1
        over = np.repeat((self._steps >= HORIZON)[:, None], 2, axis=1)
        return BatchedStep(np.ones((self.num_envs, 2)), np.zeros_like(over), over, {"a": {}, "b": {}})

    def observations(self) -> Any:
        """See `BatchedEnv.observations`."""
        return np.full((self.num_envs, 2, 8), 0.5, dtype=np.float32)

    def get_state(self) -> Mapping[str, Any]:
        """See `BatchedEnv.get_state`."""
        return {"steps": self._steps.copy()}

    def set_state(self, state: StateReader) -> None:
        """See `BatchedEnv.set_state`."""
        self._steps = state.counts("steps", (self.num_envs,))


def measure(runners: int, shards: int, n_steps: int, iterations: int, address: str) -> dict[str, Any]:
    """Measure with a number of runners; return the figures."""
    ray = RaySettings(address, runners, num_cpus=0.01, start_timeout_s=900.0)
    envs = shards * ENVS_PER_SHARD
    env = make_sharded_vec_env(WaitingEnv, envs, shards, seed=0, ray=ray)
    settings: dict[str, Any] = {"n_epochs": 1, "batch_size": n_steps * envs // 2, "device": "cpu"}
    algorithm = MultiAgentAlgorithm(env, n_steps=n_steps, seed=0, **settings)
    try:
        started_s = time.perf_counter()
        algorithm.start_runners()
        start_s = time.perf_counter() - started_s
        algorithm.train_iteration()  # compiles the kernels
        timers = [algorithm.train_iteration()["timers"] for _ in range(iterations)]
        state_bytes = sum(len(pickle.dumps(saved)) for saved in algorithm.parts.runner._runners.saved.values())
    finally:
        env.close()
    ideal_s = n_steps * ENVS_PER_SHARD * WAIT_S * -(-shards // runners)
    sampling_s = float(np.median([timer["env_runner_sampling_timer"] for timer in timers]))
    return {
        "runners": runners,
        "ideal_s": round(ideal_s, 3),
        "sampling_s": round(sampling_s, 3),
        "efficiency": round(ideal_s / sampling_s, 3),
        "beyond_the_waits_s": round(sampling_s - ideal_s, 3),
        "update_s": round(float(np.median([timer["learner_update_timer"] for timer in timers])), 3),
        "env_steps_per_s": round(n_steps * envs / sampling_s),
        "state_bytes_per_shard": state_bytes // shards,
        "start_s": round(start_s, 1),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a JSON object for each number of runners."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runners", type=int, nargs="+", default=[1, 4, 16, 64])
    parser.add_argument("--shards", type=int, default=64, help="default: 64")
    parser.add_argument("--n-steps", type=int, default=32, help="steps of each env in a round; default: 32")
    parser.add_argument("--iterations", type=int, default=3, help="default: 3, after one to warm up")
    parser.add_argument("--ray", default="local", help="address of the cluster; default: a Ray of its own")
    given = parser.parse_args(arguments)
    for runners in given.runners:
        n_steps = max(1, given.n_steps * min(runners, 32) // 32)  # a few runners alone would wait for minutes
        print(json.dumps(measure(runners, given.shards, n_steps, given.iterations, given.ray)), flush=True)


if __name__ == "__main__":
    main()
