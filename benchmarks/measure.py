"""What all benchmarks share: options, turns, medians with their spread, and the circumstances of the figures."""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

import torch
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm

from marl_sb3 import MultiAgentAlgorithm

T = TypeVar("T")

# What a change does to the results of a training.
CHANGE_CLASSES = {
    "A": "bit-exact",
    "B": "equal to floating point tolerance",
    "C": "same distribution, other random numbers",
    "D": "another algorithm",
}


@dataclass(frozen=True)
class Setting:
    """What has to be known to read the figures.

    Attributes:
        what: one line: the task and its size.
        hyperparameters: by SB3's names; they hold for all sides and results.
        threads: who uses how many.
        changes: by change class, what marl_sb3 does differently from stock SB3.
        packages: whose versions matter.
    """

    what: str
    hyperparameters: Mapping[str, Any]
    threads: str
    changes: Mapping[str, str]
    packages: Sequence[str] = ("marl_sb3", "stable-baselines3", "torch", "numpy")

    def facts(self) -> dict[str, Any]:
        """The setting and the machine, for JSON."""
        return {
            **asdict(self),
            "change_classes": {name: CHANGE_CLASSES[name] for name in self.changes},
            "versions": {name: version(name) for name in self.packages},
            "python": platform.python_version(),
            "machine": platform.machine(),
            "cores": cores(),
        }

    def print(self) -> None:
        """Say it above the tables."""
        facts = self.facts()
        print("; ".join(filter(None, (self.what, listed(self.hyperparameters)))))
        print(f"{facts['cores']} cores ({facts['machine']}); {self.threads}")
        print(f"Python {facts['python']}, {listed(facts['versions'])}")
        for name, change in self.changes.items():
            print(f"differs by {name} ({CHANGE_CLASSES[name]}): {change}")


def cores() -> int:
    """Those that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


@dataclass(frozen=True)
class Comparison:
    """The same figure of several sides.

    Attributes:
        unit: of the figures.
        raw: by side, a figure from each turn.
        base: the side that ratios refer to.
        less_is_better: figures are times, not rates.
    """

    unit: str
    raw: Mapping[str, Sequence[float]]
    base: str
    less_is_better: bool = False

    def medians(self) -> dict[str, float]:
        """By side."""
        return {side: statistics.median(figures) for side, figures in self.raw.items()}

    def ratios(self) -> dict[str, float]:
        """By side: how many times as fast as the base."""
        medians = self.medians()
        base = medians[self.base]
        return {side: base / median if self.less_is_better else median / base for side, median in medians.items()}

    def print(self) -> None:
        """As a table, a row for each side."""
        ratios = self.ratios()
        rows = [[side, spread(figures), f"{ratios[side]:.1f} x"] for side, figures in self.raw.items()]
        print_table(["", f"{self.unit}: median (min to max)", "speed"], rows)

    def facts(self) -> dict[str, Any]:
        """For JSON."""
        return {"unit": self.unit, "raw": self.raw, "median": self.medians(), "ratio": self.ratios()}


@dataclass
class Report:
    """Figures and their setting, for `--json`.

    Attributes:
        benchmark: its name.
        setting: what was measured, and where.
        results: by name.
    """

    benchmark: str
    setting: Setting
    results: dict[str, Any] = field(default_factory=dict)

    def write(self, path: Path | None) -> None:
        """As JSON; None writes nothing."""
        if path is not None:
            facts = {"benchmark": self.benchmark, "setting": self.setting.facts(), "results": self.results}
            path.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


def parser(doc: str | None, repeats: int | None = 3) -> argparse.ArgumentParser:
    """The options of every benchmark; `doc` is its docstring. `repeats=None` leaves that option out."""
    made = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    if repeats is not None:
        made.add_argument(
            "--repeats", type=positive, default=repeats, metavar="N", help=f"turns of each side; default: {repeats}"
        )
    made.add_argument("--json", type=Path, metavar="FILE", help="also write everything to this file; default: no file")
    return made


def positive(text: str) -> int:
    """An integer of at least 1, for `argparse`."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not accepted; at least 1")
    return number


def take_turns(sides: Mapping[str, Callable[[int], T]], repeats: int, what: str = "measuring") -> dict[str, list[T]]:
    """Call every side with the number of the turn, all sides before the next turn; what each returned.

    In turns, because a machine that is slow for a minute is then slow for all sides.
    """
    measured: dict[str, list[T]] = {name: [] for name in sides}
    for turn in range(repeats):
        for name, side in sides.items():
            say(f"{what}, turn {turn + 1} of {repeats}: {name}")
            measured[name].append(side(turn))
    return measured


def some_of(known: Iterable[str]) -> Callable[[str], list[str]]:
    """Names with commas between them, for `argparse`."""
    accepted = list(known)

    def names(text: str) -> list[str]:
        chosen = text.split(",")
        for name in chosen:
            if name not in accepted:
                raise argparse.ArgumentTypeError(f"unknown {name!r}; accepted: {','.join(accepted)}")
        return chosen

    return names


def one_torch_thread() -> None:
    """For this process; and no warning that 128 does not divide the rollout, which it does not on any side."""
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message="You have specified a mini-batch size")


class _RolloutClock(BaseCallback):
    """When each rollout of an SB3 algorithm began."""

    def __init__(self) -> None:
        super().__init__()
        self.begun_s: list[float] = []

    def _on_rollout_start(self) -> None:
        self.begun_s.append(time.perf_counter())

    def _on_step(self) -> bool:
        return True


def sb3_iterations_per_s(model: OnPolicyAlgorithm, iterations: int) -> float:
    """Rollouts and updates per second of `learn`, after one that is not counted."""
    clock = _RolloutClock()
    model.learn((iterations + 1) * model.n_steps * model.n_envs, callback=clock)
    return iterations / (time.perf_counter() - clock.begun_s[1])


def iterations_per_s(algorithm: MultiAgentAlgorithm, iterations: int) -> float:
    """The same of marl_sb3's joint loop."""
    algorithm.train_iteration()
    started_s = time.perf_counter()
    for _ in range(iterations):
        algorithm.train_iteration()
    return iterations / (time.perf_counter() - started_s)


def say(message: str) -> None:
    """Tell whoever waits; stdout is for results."""
    print(message, file=sys.stderr, flush=True)


def compare_trainings(
    benchmark: str,
    doc: str | None,
    setting: Setting,
    sides: Mapping[str, Callable[[int, int], float]],
    iterations: int,
    argv: Sequence[str] | None,
) -> None:
    """The whole of a benchmark that compares env steps per second.

    Args:
        benchmark: its name.
        doc: its docstring.
        setting: what is measured.
        sides: `(iterations, seed) -> env steps per second`; the first is what ratios refer to.
        iterations: counted in a turn, by default.
        argv: the command line; None: that of the process.
    """
    options = parser(doc)
    options.add_argument(
        "--iterations",
        type=positive,
        default=iterations,
        metavar="N",
        help=f"counted iterations in a turn; default: {iterations}",
    )
    arguments = options.parse_args(argv)
    one_torch_thread()
    turns = {name: lambda turn, side=side: side(arguments.iterations, turn) for name, side in sides.items()}
    rates = Comparison("env steps/s", take_turns(turns, arguments.repeats), base=next(iter(sides)))
    setting.print()
    rates.print()
    Report(benchmark, setting, {"throughput": rates.facts()}).write(arguments.json)


def spread(figures: Sequence[float]) -> str:
    """`median (min to max)`."""
    return f"{number(statistics.median(figures))} ({number(min(figures))} to {number(max(figures))})"


def number(value: float) -> str:
    """About four digits."""
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.{1 if abs(value) >= 10 else 3}f}"


def listed(values: Mapping[str, Any]) -> str:
    """`a 1, b 2`."""
    return ", ".join(f"{name} {value}" for name, value in values.items())


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Columns as wide as they need to be; numbers to the right, names to the left."""
    widths = [max(len(row[column]) for row in [header, *rows]) for column in range(len(header))]
    for row in [header, *rows]:
        cells = [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        print("  ".join([row[0].ljust(widths[0]), *cells]))
