"""The sides of marl_sb3 and of stock SB3 in `against_jax.py`: they train cases with PPO and print what they cost.

Nothing is set but the hyperparameters: neither vectorizer nor path nor threads.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import stable_baselines3
from stable_baselines3.common.env_util import make_vec_env as make_sb3_vec_env
from timed_cases import Training, print_costs, print_versions, side_parser

from marl_sb3 import MultiAgentAlgorithm, make_vec_env

PACKAGES = ("marl_sb3", "stable-baselines3", "torch", "numpy", "numba", "gymnasium")
NOT_SB3 = ("n_envs", "n_timesteps", "net_arch")  # not arguments of SB3's PPO


def arguments_of(hyperparameters: Mapping[str, Any]) -> dict[str, Any]:
    """Those of SB3's PPO."""
    own = {name: value for name, value in hyperparameters.items() if name not in NOT_SB3}
    return {**own, "policy_kwargs": {"net_arch": hyperparameters["net_arch"]}, "device": "cpu"}


def ours(env: str, hyperparameters: Mapping[str, Any], seed: int) -> Training:
    """`MultiAgentAlgorithm` with a shared policy."""
    envs = make_vec_env(env, n_envs=hyperparameters["n_envs"])
    algorithm = MultiAgentAlgorithm(envs, "shared", seed=seed, **arguments_of(hyperparameters))
    return Training(algorithm.train_iteration, hyperparameters["n_envs"] * hyperparameters["n_steps"])


def stock(env: str, hyperparameters: Mapping[str, Any], seed: int) -> Training:
    """SB3's PPO on its `DummyVecEnv`; what its `learn` does is done one iteration at a time."""
    envs = make_sb3_vec_env(env, n_envs=hyperparameters["n_envs"], seed=seed)
    model = stable_baselines3.PPO("MlpPolicy", envs, seed=seed, **arguments_of(hyperparameters))
    _, callback = model._setup_learn(10**9, None)  # what learn() begins with

    def iteration() -> None:
        model.collect_rollouts(envs, callback, model.rollout_buffer, model.n_steps)
        model.train()

    return Training(iteration, hyperparameters["n_envs"] * hyperparameters["n_steps"])


def main() -> None:
    """Print versions, and a line for each case."""
    parser = side_parser(__doc__, "list of cases: name, env and hyperparameters with SB3's names")
    parser.add_argument("--stock", action="store_true", help="train with stock SB3; default: with marl_sb3")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore", message="You have specified a mini-batch size")
    print_versions(PACKAGES)
    print_costs(stock if arguments.stock else ours, arguments)


if __name__ == "__main__":
    main()
