"""Measure the env steps per second of trainings, and compare several ways to train."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping, Sequence

import torch
from command_line import add_count, parser
from measure import Comparison, Report, Setting, take_turns
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm

from marl_sb3 import MultiAgentAlgorithm


def one_torch_thread() -> None:
    """Let PyTorch use one thread, and silence SB3's warning about a `batch_size` that does not divide the rollout."""
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message="You have specified a mini-batch size")


class _RolloutClock(BaseCallback):
    """Notes when each rollout of an SB3 algorithm began."""

    def __init__(self) -> None:
        super().__init__()
        self.begun_s: list[float] = []

    def _on_rollout_start(self) -> None:
        self.begun_s.append(time.perf_counter())

    def _on_step(self) -> bool:
        return True


def sb3_iterations_per_s(model: OnPolicyAlgorithm, iterations: int) -> float:
    """Return the rollouts with their updates per second of SB3's `learn`. The first one is not counted."""
    clock = _RolloutClock()
    model.learn((iterations + 1) * model.n_steps * model.n_envs, callback=clock)
    return iterations / (time.perf_counter() - clock.begun_s[1])


def iterations_per_s(algorithm: MultiAgentAlgorithm, iterations: int) -> float:
    """Return the iterations per second of marl_sb3. The first one is not counted."""
    algorithm.train_iteration()
    started_s = time.perf_counter()
    for _ in range(iterations):
        algorithm.train_iteration()
    return iterations / (time.perf_counter() - started_s)


def compare_trainings(
    benchmark: str,
    doc: str | None,
    setting: Setting,
    sides: Mapping[str, Callable[[int, int], float]],
    iterations: int,
    argv: Sequence[str] | None,
) -> None:
    """Run a whole benchmark that compares env steps per second.

    Args:
        benchmark: its name.
        doc: its docstring.
        setting: what is measured.
        sides: `(iterations, seed) -> env steps per second`; ratios are relative to the first side.
        iterations: default number of counted iterations in a turn.
        argv: the command line; None: that of the process.
    """
    options = parser(doc)
    add_count(options, "--iterations", iterations, "counted iterations in a turn")
    arguments = options.parse_args(argv)
    one_torch_thread()
    turns = {name: lambda turn, side=side: side(arguments.iterations, turn) for name, side in sides.items()}
    rates = Comparison("env steps/s", take_turns(turns, arguments.repeats), base=next(iter(sides)))
    setting.print()
    rates.print()
    Report(benchmark, setting, {"throughput": rates.facts()}).write(arguments.json)
