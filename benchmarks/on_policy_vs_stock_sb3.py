"""Compare the on-policy algorithms of marl_sb3 with SB3's and sb3-contrib's: env steps per second of CPU time.

    python benchmarks/on_policy_vs_stock_sb3.py [--only ppo,a2c,...] [--repeats 3] [--env-steps 4096] [--json FILE]

Each algorithm trains in CartPole-v1 with 8 envs. Its hyperparameters are its defaults, except for the length of the
rollouts, and LSTMs of 64 in `recurrent_ppo_64`; `ppo_images` trains SB3's CnnPolicy on random images of 84 x 84 x 4, in
minibatches of 256 and four epochs, as rl-baselines3-zoo does for Atari games. Rollouts and updates are both timed.
Three sides take turns in one process: the stock class on SB3's `DummyVecEnv`; marl_sb3's class on the same vec env;
`MultiAgentAlgorithm` with one agent. The first rollout of each turn is not counted. MaskablePPO gets masks that allow
every action. CPU time is measured because other programs on the machine affect it less than wall-clock time. A turn
with images has a process of its own: marl_sb3 lets the process keep the memory of minibatches, and stock SB3 would gain
from it.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import sb3_contrib
import stable_baselines3
from command_line import add_count, add_names, parser
from measure import Comparison, Report, Setting, number, print_table, take_turns
from stable_baselines3.common.env_util import make_vec_env as make_sb3_vec_env
from stable_baselines3.common.envs import FakeImageEnv
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from trainings import one_torch_thread

import marl_sb3
from marl_sb3 import MultiAgentAlgorithm, PolicySpec
from marl_sb3.types import BoolArray

ENV, N_ENVS = "CartPole-v1", 8
STOCK, IN_PLACE, JOINT = "stock class", "marl_sb3's class in its place", "MultiAgentAlgorithm, one agent"
SETTING = Setting(
    what=f"{ENV}, {N_ENVS} envs, each algorithm with its default networks and hyperparameters",
    hyperparameters={
        "n_steps": "512; a2c 5; recurrent_ppo, ppo_images 128",
        "lstm_hidden_size": "256; recurrent_ppo_64 64",
    },
    threads="1 torch thread",
    changes={
        "A": "the loop of the rollout",
        "B": "fused networks, in rollouts and in updates",
    },
    packages=("marl_sb3", "stable-baselines3", "sb3-contrib", "torch", "numpy", "gymnasium"),
)


@dataclass(frozen=True)
class Case:
    """An algorithm: its stock class, marl_sb3's class, and how both are run."""

    stock: type[OnPolicyAlgorithm]
    ours: type[OnPolicyAlgorithm]
    n_steps: int = 512
    policy: str = "MlpPolicy"
    env: str | Callable[[], gymnasium.Env[Any, Any]] = ENV
    hyperparameters: Mapping[str, Any] = field(default_factory=dict)


class AllAllowed(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Adds action masks that allow every action."""

    def action_masks(self) -> BoolArray:
        """Return the mask: (actions,) bool, all True."""
        return np.ones(2, dtype=np.bool_)


def masked_cartpole() -> AllAllowed:
    """Make a CartPole with action masks."""
    return AllAllowed(gymnasium.make(ENV))


def images() -> FakeImageEnv:
    """Make an env of random images, 84 x 84 x 4."""
    return FakeImageEnv(84, 84, n_channels=4, channel_first=False)


RECURRENT_PPO = Case(sb3_contrib.RecurrentPPO, marl_sb3.RecurrentPPO, n_steps=128, policy="MlpLstmPolicy")
CASES: Mapping[str, Case] = {
    "ppo": Case(stable_baselines3.PPO, marl_sb3.PPO),
    "ppo_images": Case(
        stable_baselines3.PPO,
        marl_sb3.PPO,
        n_steps=128,
        policy="CnnPolicy",
        env=images,
        hyperparameters={"batch_size": 256, "n_epochs": 4},
    ),
    "a2c": Case(stable_baselines3.A2C, marl_sb3.A2C, n_steps=5),
    "trpo": Case(sb3_contrib.TRPO, marl_sb3.TRPO),
    "maskable_ppo": Case(sb3_contrib.MaskablePPO, marl_sb3.MaskablePPO, env=masked_cartpole),
    "recurrent_ppo": RECURRENT_PPO,
    "recurrent_ppo_64": replace(RECURRENT_PPO, hyperparameters={"policy_kwargs": {"lstm_hidden_size": 64}}),
}


def env_steps_per_cpu_s(train: Callable[[], Any], env_steps: int) -> float:
    """Call `train`, which takes so many env steps; return env steps per second of CPU time."""
    started_s = time.process_time()
    train()
    return env_steps / (time.process_time() - started_s)


def with_sb3_loop(case: Case, algorithm: type[OnPolicyAlgorithm], env_steps: int, n_steps: int, seed: int) -> float:
    """Measure `learn` of a stock class or of marl_sb3's class."""
    env = make_sb3_vec_env(case.env, n_envs=N_ENVS, seed=seed)
    model = algorithm(case.policy, env, n_steps=n_steps, seed=seed, device="cpu", **case.hyperparameters)
    model.learn(n_steps * N_ENVS)
    return env_steps_per_cpu_s(partial(model.learn, env_steps, reset_num_timesteps=False), env_steps)


def with_joint_loop(case: Case, env_steps: int, n_steps: int, seed: int) -> float:
    """Measure `MultiAgentAlgorithm`. All counted env steps are one iteration."""
    env = marl_sb3.make_vec_env(case.env, n_envs=N_ENVS)
    spec = PolicySpec(case.ours, case.policy, n_steps=n_steps, **case.hyperparameters)
    model = MultiAgentAlgorithm(env, {"shared": spec}, n_steps=env_steps // N_ENVS, seed=seed, device="cpu")
    model.train_iteration()
    return env_steps_per_cpu_s(model.train_iteration, env_steps)


def sides_of(case: Case, env_steps: int) -> dict[str, Callable[[int], float]]:
    """Return side -> function that measures it in a turn, given the number of the turn."""
    n_steps = min(case.n_steps, env_steps // N_ENVS)
    sides: dict[str, Callable[[int], float]] = {
        STOCK: partial(with_sb3_loop, case, case.stock, env_steps, n_steps),
        IN_PLACE: partial(with_sb3_loop, case, case.ours, env_steps, n_steps),
        JOINT: partial(with_joint_loop, case, env_steps, n_steps),
    }
    if case.policy != "CnnPolicy":
        return sides
    return {name: partial(in_own_process, side) for name, side in sides.items()}


def in_own_process(side: Callable[[int], float], seed: int) -> float:
    """Measure a side in a fork of this process."""
    with multiprocessing.get_context("fork").Pool(1) as pool:
        return pool.apply(side, (seed,))


def row(name: str, rates: Comparison) -> list[str]:
    """Return the table row of an algorithm: the rate of each side, and its ratio to the rate of the stock class."""
    medians, ratios = rates.medians(), rates.ratios()
    ours = [f"{number(medians[side])} ({ratios[side]:.2f} x)" for side in (IN_PLACE, JOINT)]
    return [name, number(medians[STOCK]), *ours]


def main(argv: Sequence[str] | None = None) -> None:
    """Measure the algorithms one after the other and print a table with a row for each."""
    options = parser(__doc__)
    add_names(options, "--only", CASES)
    add_count(options, "--env-steps", 4096, "env steps counted in a turn")
    arguments = options.parse_args(argv)
    one_torch_thread()
    results = {
        name: Comparison(
            "env steps/s of CPU time",
            take_turns(sides_of(CASES[name], arguments.env_steps), arguments.repeats, name),
            base=STOCK,
        )
        for name in arguments.only
    }
    SETTING.print()
    print_table(["env steps/s", STOCK, IN_PLACE, JOINT], [row(name, rates) for name, rates in results.items()])
    Report("on_policy_vs_stock_sb3", SETTING, {name: rates.facts() for name, rates in results.items()}).write(
        arguments.json
    )


if __name__ == "__main__":
    main()
