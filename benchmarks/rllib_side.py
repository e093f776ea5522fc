"""RLlib's side of `arena_vs_rllib.py`: PPO in the arena, one policy per agent. Runs in RLlib's virtual environment.

With `--env CartPole-v1` it is RLlib's side of the figure of `against_jax.py`, where there is one agent.

It prints JSON lines as `marl_sb3_side.py` does: versions first, then one per iteration.

How RLlib counts: `train_batch_size_per_learner` is in env steps, also with several agents, since `count_steps_by` is
`env_steps` (the default, set here explicitly). 2,000 env steps in 20 envs are 20 fragments of 100 steps, and 2,000 rows
for each of the two policies. `minibatch_size` is in rows of one policy: a gradient step uses 128 rows of every policy,
until each policy has used its rows `num_epochs` times. marl_sb3 does the same with `n_steps=100`, `batch_size=128` and
a policy per agent. Both train 20 agent steps per env step, as `agent_steps_trained` shows; RLlib trains 1% more, since
it appends a row to each fragment for the value of its last observation.

What still differs: RLlib's `episode_return_mean` covers the 20 episodes of the iteration; marl_sb3's covers the last
100 and so lags behind. RLlib initialises its networks in its own way, Adam's epsilon is 1e-8 (SB3: 1e-5), and
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
from ray.rllib.core import ALL_MODULES  # type: ignore[import-not-found]
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig  # type: ignore[import-not-found]
from ray.rllib.env.wrappers.pettingzoo_env import ParallelPettingZooEnv  # type: ignore[import-not-found]
from ray.tune.registry import register_env  # type: ignore[import-not-found]

from marl_sb3.envs.arena import ArenaEnv
from marl_sb3.envs.arena.rules import AGENTS

RUNNERS = 2  # processes that step envs
PACKAGES = ("ray", "torch", "numpy", "gymnasium", "pettingzoo")


def learning_rate(value: float | str, n_timesteps: int) -> float | list[list[float]]:
    """Translate a constant or `lin_X`, which falls linearly from X to 0 over `n_timesteps` env steps."""
    if isinstance(value, str):
        return [[0, float(value.removeprefix("lin_"))], [n_timesteps, 0.0]]
    return value


def training_settings(hyperparameters: Mapping[str, Any]) -> dict[str, Any]:
    """Translate SB3's hyperparameters to RLlib's; features that SB3's PPO lacks are switched off."""
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


def config(env: str, hyperparameters: Mapping[str, Any], seed: int) -> Any:
    """Build RLlib's configuration from hyperparameters with SB3's names."""
    runners = min(RUNNERS, hyperparameters["n_envs"])
    network = DefaultModelConfig(
        fcnet_hiddens=hyperparameters["net_arch"], fcnet_activation="tanh", vf_share_layers=False
    )
    made = (
        PPOConfig()
        .environment(env)
        .framework("torch")
        .debugging(seed=seed)
        .env_runners(num_env_runners=runners, num_envs_per_env_runner=hyperparameters["n_envs"] // runners)
        .training(**training_settings(hyperparameters))
        .rl_module(model_config=network)
    )
    if env != "arena":
        return made
    return made.env_runners(
        env_to_module_connector=lambda env, spaces=None, device=None: FlattenObservations(multi_agent=True)
    ).multi_agent(policies=set(AGENTS), policy_mapping_fn=lambda agent, *_, **__: agent, count_steps_by="env_steps")


def iterations(algorithm: Any, started_s: float) -> Iterator[dict[str, Any]]:
    """Train, and yield a line for each iteration."""
    agent_steps_trained = 0
    while True:
        result = algorithm.train()
        trained = result["learners"]  # policy -> figures; those of all policies together are not counted
        agent_steps_trained += sum(
            int(each["num_module_steps_trained"]) for name, each in trained.items() if name != ALL_MODULES
        )
        yield {
            "env_steps": int(result["num_env_steps_sampled_lifetime"]),
            "agent_steps_trained": agent_steps_trained,
            "episode_return_mean": result["env_runners"].get("episode_return_mean"),
            "seconds": time.perf_counter() - started_s,
        }


def main() -> None:
    """Train until the iterations are done or the return is reached; print a line for each iteration."""
    started_s = time.perf_counter()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("hyperparameters", type=json.loads, help="JSON object with SB3's names")
    parser.add_argument("--env", default="arena", help="arena, or one of Gymnasium's; default: arena")
    parser.add_argument("--iterations", type=int, help="number of iterations; default: unlimited")
    parser.add_argument(
        "--stop-return", type=float, default=float("inf"), help="stop at this mean return; default: none"
    )
    parser.add_argument("--seed", type=int, default=0, help="default: 0")
    arguments = parser.parse_args()
    print(json.dumps({"versions": {name: importlib.metadata.version(name) for name in PACKAGES}}), flush=True)
    register_env("arena", lambda _: ParallelPettingZooEnv(ArenaEnv()))
    ray.init(address="local", num_cpus=RUNNERS + 1, include_dashboard=False, log_to_driver=False)
    algorithm = config(arguments.env, arguments.hyperparameters, arguments.seed).build_algo()
    for done, line in enumerate(iterations(algorithm, started_s), start=1):
        print(json.dumps(line), flush=True)
        reached = line["episode_return_mean"]
        if done == arguments.iterations or (reached is not None and reached >= arguments.stop_return):
            break
    ray.shutdown()


if __name__ == "__main__":
    main()
