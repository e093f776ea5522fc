"""What all benchmarks share: taking turns, medians and their spread, the report, and the setting it was measured in."""

from __future__ import annotations

import json
import os
import platform
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

# How the results of a training with the change compare with those without it.
CHANGE_CLASSES = {
    "A": "bit-exact",
    "B": "equal to floating point tolerance",
    "C": "same distribution, other random numbers",
    "D": "another algorithm",
}


@dataclass(frozen=True)
class Setting:
    """What a reader must know to judge the figures."""

    what: str  # the task and its size, in one line
    hyperparameters: Mapping[str, Any]  # SB3's name -> value; the same for all sides and results
    threads: str  # how many threads each side uses, in words
    changes: Mapping[str, str]  # change class (see `CHANGE_CLASSES`) -> what marl_sb3 does differently from stock SB3
    # names of the packages whose versions are reported
    packages: Sequence[str] = ("marl_sb3", "stable-baselines3", "torch", "numpy")

    def facts(self) -> dict[str, Any]:
        """Return the setting and the machine, for JSON."""
        return {
            **asdict(self),
            "change_classes": {name: CHANGE_CLASSES[name] for name in self.changes},
            "versions": {name: version(name) for name in self.packages},
            "python": platform.python_version(),
            "machine": platform.machine(),
            "cores": cores(),
        }

    def print(self) -> None:
        """Print the setting; it belongs above the tables."""
        facts = self.facts()
        print("; ".join(filter(None, (self.what, listed(self.hyperparameters)))))
        print(f"{facts['cores']} cores ({facts['machine']}); {self.threads}")
        print(f"Python {facts['python']}, {listed(facts['versions'])}")
        for name, change in self.changes.items():
            print(f"differs by {name} ({CHANGE_CLASSES[name]}): {change}")


def steps_of(reached: Sequence[int | None]) -> str:
    """Return the mean env steps to a goal over seeds and the most of one, in words; None: it was not reached."""
    steps = [each for each in reached if each is not None]
    if len(steps) < len(reached):
        return f"{len(steps)} of {len(reached)} seeds reached it"
    return f"{statistics.fmean(steps):,.0f} ({max(steps):,})"


def cores() -> int:
    """Return how many cores this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


@dataclass(frozen=True)
class Comparison:
    """The same quantity, measured for several sides."""

    unit: str  # of the figures
    raw: Mapping[str, Sequence[float]]  # side -> a figure from each turn
    base: str  # the side that the others are compared with
    less_is_better: bool = False  # True for times, False for rates

    def medians(self) -> dict[str, float]:
        """Return side -> median of its figures."""
        return {side: statistics.median(figures) for side, figures in self.raw.items()}

    def ratios(self) -> dict[str, float]:
        """Return side -> how many times as fast as the base it is."""
        medians = self.medians()
        base = medians[self.base]
        return {side: base / median if self.less_is_better else median / base for side, median in medians.items()}

    def print(self) -> None:
        """Print a table with a row for each side."""
        ratios = self.ratios()
        rows = [[side, spread(figures), f"{ratios[side]:.1f} x"] for side, figures in self.raw.items()]
        print_table(["", f"{self.unit}: median (min to max)", "speed"], rows)

    def facts(self) -> dict[str, Any]:
        """Return unit, figures, medians and ratios, for JSON."""
        return {"unit": self.unit, "raw": self.raw, "median": self.medians(), "ratio": self.ratios()}


@dataclass
class Report:
    """All figures of a benchmark and their setting, for `--json`."""

    benchmark: str  # its name
    setting: Setting  # what was measured
    results: dict[str, Any] = field(default_factory=dict)  # name -> figures

    def write(self, path: Path | None) -> None:
        """Write the report as JSON; None: write nothing."""
        if path is not None:
            facts = {"benchmark": self.benchmark, "setting": self.setting.facts(), "results": self.results}
            path.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


def take_turns(sides: Mapping[str, Callable[[int], T]], repeats: int, what: str = "measuring") -> dict[str, list[T]]:
    """Call every side once in each turn, with the number of the turn; return side -> what it returned in each turn.

    The sides take turns so that a machine that is slow for a minute is slow for all of them.
    """
    measured: dict[str, list[T]] = {name: [] for name in sides}
    for turn in range(repeats):
        for name, side in sides.items():
            say(f"{what}, turn {turn + 1} of {repeats}: {name}")
            measured[name].append(side(turn))
    return measured


def say(message: str) -> None:
    """Print a message about progress to stderr; stdout is for results."""
    print(message, file=sys.stderr, flush=True)


def spread(figures: Sequence[float]) -> str:
    """Format figures as `median (min to max)`."""
    return f"{number(statistics.median(figures))} ({number(min(figures))} to {number(max(figures))})"


def number(value: float) -> str:
    """Format a number with about four digits."""
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.{1 if abs(value) >= 10 else 3}f}"


def listed(values: Mapping[str, Any]) -> str:
    """Format a mapping as `a 1, b 2`."""
    return ", ".join(f"{name} {value}" for name, value in values.items())


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table: the first column is aligned to the left, the others to the right."""
    widths = [max(len(row[column]) for row in [header, *rows]) for column in range(len(header))]
    for row in [header, *rows]:
        cells = [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        print("  ".join([row[0].ljust(widths[0]), *cells]))
