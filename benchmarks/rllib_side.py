"""RLlib's side of `arena_vs_rllib.py`: its PPO on the arena, one policy per agent. Runs in RLlib's own environment.

Prints JSON lines: versions first, then one for each iteration, as `marl_sb3_side.py` does.

What RLlib counts. `train_batch_size_per_learner` is in env steps, also with several agents, because `count_steps_by` is
`env_steps` by default; it is set here once more. 2,000 of them in 20 envs are fragments of 100 steps, 2,000 rows for
each of the two policies. `minibatch_size` is in rows of one policy: a gradient step takes 128 rows of every policy, and
they go on until every policy has seen its rows `num_epochs` times. That is what marl_sb3 does with `n_steps=100`,
`batch_size=128` and a policy per agent, so that both train 20 agent steps per env step: `agent_steps_trained` in the
lines shows it. RLlib's is 1% more, because it appends a row to each fragment for the value behind its end.

Its `episode_return_mean` is that of the episodes of the iteration, 20 of them; marl_sb3's that of the last 100, which
comes later. What else stays RLlib's own: how networks are initialised, Adam's epsilon (1e-8; SB3: 1e-5), and that
advantages are normalised over the rollout instead of the minibatch.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import time
from collections.abc import Iterator, Mapping
from typing import Any

import ray  # type: ignore[import-not-found]  # not installed where marl_sb3 is developed
from ray.rllib.algorithms.ppo import PPOConfig  # type: ignore[import-not-found]
from ray.rllib.connectors.env_to_module import FlattenObservations  # type: ignore[import-not-found]
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig  # type: ignore[import-not-found]
from ray.rllib.env.wrappers.pettingzoo_env import ParallelPettingZooEnv  # type: ignore[import-not-found]
from ray.tune.registry import register_env  # type: ignore[import-not-found]

from marl_sb3.envs.arena import ArenaEnv
from marl_sb3.envs.arena.rules import AGENTS

RUNNERS = 2  # processes that step envs
PACKAGES = ("ray", "torch", "numpy", "gymnasium", "pettingzoo")


def learning_rate(value: float | str, n_timesteps: int) -> float | list[list[float]]:
    """A constant; or for `lin_X` RLlib's form of a line from X down to 0 at `n_timesteps` env steps."""
    if isinstance(value, str):
        return [[0, float(value.removeprefix("lin_"))], [n_timesteps, 0.0]]
    return value


def training_settings(hyperparameters: Mapping[str, Any]) -> dict[str, Any]:
    """RLlib's names for SB3's hyperparameters; what SB3's PPO does not have is off."""
    h = hyperparameters
    return {
        "train_batch_size_per_learner": h["n_envs"] * h["n_steps"],
        "minibatch_size": h["batch_size"],
        "num_epochs": h["n_epochs"],
        "lr": learning_rate(h["learning_rate"], h["n_timesteps"]),
        "gamma": h["gamma"],
        "lambda_": h["gae_lambda"],
        "clip_param": h["clip_range"],
        "entropy_coeff": h["ent_coef"],
        "vf_loss_coeff": h["vf_coef"],
        "vf_clip_param": float("inf"),
        "use_kl_loss": False,
        "grad_clip": h["max_grad_norm"],
        "grad_clip_by": "global_norm",
    }


def config(hyperparameters: Mapping[str, Any], seed: int) -> Any:
    """RLlib's configuration for hyperparameters by SB3's names."""
    network = DefaultModelConfig(
        fcnet_hiddens=hyperparameters["net_arch"], fcnet_activation="tanh", vf_share_layers=False
    )
    return (
        PPOConfig()
        .environment("arena")
        .framework("torch")
        .debugging(seed=seed)
        .env_runners(
            num_env_runners=RUNNERS,
            num_envs_per_env_runner=hyperparameters["n_envs"] // RUNNERS,
            env_to_module_connector=lambda env, spaces=None, device=None: FlattenObservations(multi_agent=True),
        )
        .multi_agent(policies=set(AGENTS), policy_mapping_fn=lambda agent, *_, **__: agent, count_steps_by="env_steps")
        .training(**training_settings(hyperparameters))
        .rl_module(model_config=network)
    )


def iterations(algorithm: Any, started_s: float) -> Iterator[dict[str, Any]]:
    """Train; one line for each iteration."""
    agent_steps_trained = 0
    while True:
        result = algorithm.train()
        agent_steps_trained += sum(int(result["learners"][agent]["num_module_steps_trained"]) for agent in AGENTS)
        yield {
            "env_steps": int(result["num_env_steps_sampled_lifetime"]),
            "agent_steps_trained": agent_steps_trained,
            "episode_return_mean": result["env_runners"].get("episode_return_mean"),
            "seconds": time.perf_counter() - started_s,
        }


def main() -> None:
    """Train until the iterations are done or the return is reached."""
    started_s = time.perf_counter()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("hyperparameters", type=json.loads, help="JSON, by SB3's names")
    parser.add_argument("--iterations", type=int, help="how many; default: no end")
    parser.add_argument(
        "--stop-return", type=float, default=float("inf"), help="end at this mean return; default: none"
    )
    parser.add_argument("--seed", type=int, default=0, help="default: 0")
    arguments = parser.parse_args()
    print(json.dumps({"versions": {name: importlib.metadata.version(name) for name in PACKAGES}}), flush=True)
    register_env("arena", lambda _: ParallelPettingZooEnv(ArenaEnv()))
    ray.init(address="local", num_cpus=RUNNERS + 1, include_dashboard=False, log_to_driver=False)
    algorithm = config(arguments.hyperparameters, arguments.seed).build_algo()
    for done, line in enumerate(iterations(algorithm, started_s), start=1):
        print(json.dumps(line), flush=True)
        reached = line["episode_return_mean"]
        if done == arguments.iterations or (reached is not None and reached >= arguments.stop_return):
            break
    ray.shutdown()


if __name__ == "__main__":
    main()
