"""marl_sb3's side of the throughput in `arena_vs_rllib.py`: PPO in the arena, one policy per agent.

It runs in a process of its own and prints JSON lines as `rllib_side.py` does: versions first, then one per iteration.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import time
from collections.abc import Mapping
from typing import Any

import torch

from marl_sb3 import MultiAgentAlgorithm, make_vec_env

PACKAGES = ("marl_sb3", "stable-baselines3", "torch", "numpy", "gymnasium", "pettingzoo")
NOT_SB3 = ("n_envs", "n_timesteps", "net_arch")  # not arguments of SB3's PPO


def algorithm(hyperparameters: Mapping[str, Any], seed: int) -> MultiAgentAlgorithm:
    """Make the algorithm with these hyperparameters."""
    return MultiAgentAlgorithm(
        make_vec_env("arena", n_envs=hyperparameters["n_envs"]),
        "per_agent",
        seed=seed,
        device="cpu",
        policy_kwargs={"net_arch": hyperparameters["net_arch"]},
        **{name: value for name, value in hyperparameters.items() if name not in NOT_SB3},
    )


def main() -> None:
    """Train and print a line for each iteration."""
    started_s = time.perf_counter()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("hyperparameters", type=json.loads, help="JSON object with SB3's names")
    parser.add_argument("--iterations", type=int, default=2, help="number of iterations; default: 2")
    parser.add_argument("--seed", type=int, default=0, help="default: 0")
    arguments = parser.parse_args()
    print(json.dumps({"versions": {name: importlib.metadata.version(name) for name in PACKAGES}}), flush=True)
    torch.set_num_threads(1)
    trained, agent_steps_trained = algorithm(arguments.hyperparameters, arguments.seed), 0
    for _ in range(arguments.iterations):
        result = trained.train_iteration()
        agent_steps_trained += sum(learner["num_module_steps_trained"] for learner in result["learners"].values())
        line = {
            "env_steps": result["num_env_steps_sampled_lifetime"],
            "agent_steps_trained": agent_steps_trained,
            "episode_return_mean": result["env_runners"]["episode_return_mean"],
            "seconds": time.perf_counter() - started_s,
        }
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
