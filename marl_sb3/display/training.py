"""A training as it is shown: what it is after, who shows it, and how far it is in words."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from marl_sb3.display.pace import Pace
from marl_sb3.display.tables import MOST_AGENTS, SUM
from marl_sb3.display.text import duration, number
from marl_sb3.metrics import Result, flatten


@dataclass(frozen=True)
class Goals:
    """What a training is after.

    Attributes:
        metric: flat name of the metric by which the best checkpoint is chosen.
        higher_is_better: whether the best has the highest value.
        stop: value by metric at which the training ends.
        checkpoint: the name of the latest checkpoint, None before the first.
        most_agents: how many agents are shown; None: all. By default as many as there is room for, at most 8.
    """

    metric: str = f"env_runners/{SUM}"
    higher_is_better: bool = True
    stop: Mapping[str, float] = field(default_factory=dict)
    checkpoint: Callable[[], str | None] = lambda: None
    most_agents: int | None = MOST_AGENTS


class TrainingView(Protocol):
    """Shows a training. Steps are env steps."""

    def begin(self, done: int, total: int) -> None:
        """The training begins, or has been rolled back, at `done` of `total` steps."""

    def advance(self, done: int) -> None:
        """Called after every env step of all envs: it has to be quick."""

    def add(self, result: Result) -> None:
        """An iteration has ended with this result."""

    def close(self) -> None:
        """The training has ended, whatever ended it; called twice it does nothing."""


def progress_parts(pace: Pace, done: int, total: int) -> list[str]:
    """How far a training is, how long it has taken, and how long it will take."""
    return [
        f"{done:,} of {total:,} env steps",
        f"{duration(pace.elapsed_s())} elapsed",
        f"{duration(pace.left_s(done, total))} left",
    ]


def speed_parts(pace: Pace, result: Result | None) -> list[str]:
    """Speed, and how the time is shared between rollout and update."""
    if result is None:
        return ["iteration 1"]
    timers, throughput, rate = result["timers"], result["throughput"], pace.rate()
    rollout_s, update_s = timers["env_runner_sampling_timer"], timers["learner_update_timer"]
    total_s = (rollout_s + update_s) or 1.0
    env_rate, agent_rate = throughput["env_steps_per_s"], throughput["agent_steps_per_s"]
    agents_rate = rate * agent_rate / env_rate if rate and env_rate and agent_rate else None
    return [
        f"iteration {result['iteration']}",
        f"{number(rate, 0)} env steps/s",
        f"{number(agents_rate, 0)} agent steps/s",
        f"rollout {rollout_s / total_s:.0%}",
        f"update {update_s / total_s:.0%}",
    ]


def metric_value(result: Mapping[str, Any], name: str) -> float | None:
    """The number of this flat name; None where there is none."""
    value: Any = result
    for key in name.split("/"):
        if not isinstance(value, Mapping) or key not in value:
            value = flatten(result).get(name)  # an id may have a slash
            break
        value = value[key]
    return value if isinstance(value, (int, float)) else None


def short(value: Any) -> str:
    """A value of any kind: numbers with four digits."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def first_values(metrics: Mapping[str, Any], most: int = 4) -> str:
    """The first metrics that a function of one's own has returned, with their names."""
    return ", ".join(f"{name} {short(value)}" for name, value in list(flatten(metrics).items())[:most])
