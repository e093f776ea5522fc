"""Compare the algorithms with a replay buffer: stock SB3 and both update paths of marl_sb3, in us per env step.

    python benchmarks/replay_vs_stock_sb3.py [--repeats 3] [--algos dqn,sac,...] [--sizes 64,256] [--steps N]
        [--json FILE]

DQN and QR-DQN train in CartPole-v1, the others in Pendulum-v1, all with one env and SB3's default frequency of updates.
CPU time is measured, updates included, with one thread on each side; the sides take turns. The steps before the first
updates are not counted. "torch" and "fused" are `MultiAgentAlgorithm` with this `update_path`; CrossQ has no fused
path. "updates" is the share of the time that updates take on the faster of both paths.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from command_line import add_names, parser, positive
from measure import Comparison, Report, Setting, number, print_table, take_turns
from trainings import one_torch_thread

import marl_sb3
from marl_sb3.core.config.algorithms import algorithm_info

DISCRETE = ("dqn", "qrdqn")
ALGOS = (*DISCRETE, "sac", "td3", "ddpg", "tqc", "crossq")
SIZES = ("64", "256")
WARM_STEPS = 200  # not counted, the first 100 of them random; also the length of an iteration
HYPERPARAMETERS = {"learning_starts": 100, "buffer_size": 50_000}
SETTING = Setting(
    what="one env, two hidden layers",
    hyperparameters=HYPERPARAMETERS,
    threads="1 torch thread, 1 thread of the kernels",
    changes={"A": "torch", "B": "fused"},
    packages=("marl_sb3", "stable-baselines3", "sb3-contrib", "torch", "numpy", "gymnasium"),
)
STOCK, TORCH, FUSED = "stock", "torch", "fused"


class Clock(marl_sb3.MultiAgentCallback):
    """Measures CPU time per env step and the share of updates, after the warm-up; it watches no single steps."""

    def __init__(self) -> None:
        super().__init__()
        self._begun_s = self._update_s = self._all_s = 0.0
        self.us_per_step = 0.0

    @property
    def update_share(self) -> float:
        """The share of wall-clock time that updates take, from 0 to 1."""
        return self._update_s / self._all_s

    def on_iteration_end(self, result: dict[str, Any]) -> bool:
        """See `MultiAgentCallback.on_iteration_end`."""
        timers = result["timers"]
        if self.num_timesteps == WARM_STEPS:
            self._begun_s = time.process_time()
        else:
            self._update_s += timers["learner_update_timer"]
            self._all_s += timers["learner_update_timer"] + timers["env_runner_sampling_timer"]
        return True

    def _on_training_end(self) -> None:
        taken_s = time.process_time() - self._begun_s
        self.us_per_step = taken_s / (self.num_timesteps - WARM_STEPS) * 1e6


class StockClock(Clock):
    """The same for stock SB3, which has no iterations."""

    def _on_step(self) -> bool:
        if self.num_timesteps == WARM_STEPS:
            self._begun_s = time.process_time()
        return True


def env_of(algo: str) -> str:
    """Return the env that fits the action space of an algorithm."""
    return "CartPole-v1" if algo in DISCRETE else "Pendulum-v1"


def settings(size: int) -> dict[str, Any]:
    """Return a fresh copy of the hyperparameters: SB3 changes `policy_kwargs`."""
    return {**HYPERPARAMETERS, "policy_kwargs": {"net_arch": [size, size]}}


def stock_clock(algo: str, size: int, steps: int, turn: int) -> Clock:
    """Train with stock SB3."""
    clock = StockClock()
    stock: Any = next(
        base for base in algorithm_info(algo).algorithm_class.__mro__ if not base.__module__.startswith("marl_sb3")
    )
    model = stock("MlpPolicy", env_of(algo), seed=turn, device="cpu", **settings(size))
    model.learn(WARM_STEPS + steps, callback=clock)
    return clock


def our_clock(algo: str, size: int, steps: int, path: str, turn: int) -> Clock:
    """Train with `MultiAgentAlgorithm` and one agent."""
    clock = Clock()
    spec = marl_sb3.PolicySpec(algorithm_info(algo).algorithm_class, **settings(size))
    algorithm = marl_sb3.MultiAgentAlgorithm(
        marl_sb3.make_vec_env(env_of(algo), n_envs=1),
        {"policy": spec},
        n_steps=WARM_STEPS,
        seed=turn,
        device="cpu",
        update_path=path,
        n_parallel_updates=1,
    )
    algorithm.learn(WARM_STEPS + steps, callback=clock)
    return clock


def measure(algo: str, size: int, steps: int, repeats: int) -> tuple[Comparison, float]:
    """Compare the sides of one algorithm; return also the share of updates on its faster path."""
    sides: dict[str, Callable[[int], Clock]] = {
        STOCK: partial(stock_clock, algo, size, steps),
        TORCH: partial(our_clock, algo, size, steps, "torch"),
    }
    if hasattr(algorithm_info(algo).algorithm_class, "update_path"):
        sides[FUSED] = partial(our_clock, algo, size, steps, "fused")
    clocks = take_turns(sides, repeats, f"{algo} {size}x{size}")
    times = {side: [clock.us_per_step for clock in of_side] for side, of_side in clocks.items()}
    fastest = clocks[FUSED if FUSED in clocks else TORCH]
    share = statistics.median(clock.update_share for clock in fastest)
    return Comparison("microseconds per env step", times, STOCK, less_is_better=True), share


def table_row(algo: str, size: int, found: Comparison, share: float) -> list[str]:
    """Return a table row: the median of each side, its ratio to stock SB3, and the share of updates."""
    medians, ratios = found.medians(), found.ratios()
    cells = [f"{number(medians[side])} ({ratios[side]:.2f} x)" if side in medians else "" for side in (TORCH, FUSED)]
    return [f"{algo}, {size}x{size}", number(medians[STOCK]), *cells, f"{share:.0%}"]


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and print a table with a row for each algorithm and network size."""
    options = parser(__doc__)
    add_names(options, "--algos", ALGOS)
    add_names(options, "--sizes", SIZES, metavar="N,...")
    options.add_argument(
        "--steps", type=positive, metavar="N", help="counted steps in a turn; default: 2000 for dqn, 400 for the others"
    )
    arguments = options.parse_args(argv)
    one_torch_thread()
    SETTING.print()
    rows, results = [], {}
    for algo in arguments.algos:
        for size in map(int, arguments.sizes):
            steps = arguments.steps or (2000 if algo == "dqn" else 400)
            found, share = measure(algo, size, steps, arguments.repeats)
            rows.append(table_row(algo, size, found, share))
            results[f"{algo}-{size}"] = {**found.facts(), "update_share": share}
    print_table(["microseconds per env step", STOCK, TORCH, FUSED, "updates"], rows)
    Report("replay_vs_stock_sb3", SETTING, results).write(arguments.json)


if __name__ == "__main__":
    main()
