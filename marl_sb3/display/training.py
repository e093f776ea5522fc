"""The protocol of views of a training, and the goals that they show."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from marl_sb3.config.values import counted
from marl_sb3.display.tables import MOST_AGENTS, SUM
from marl_sb3.display.text import short
from marl_sb3.metrics import Result, flatten


@dataclass(frozen=True)
class Goals:
    """The goals of a training, as views show them.

    Attributes:
        metric: flat name of the metric that selects the best checkpoint.
        higher_is_better: whether the highest value of that metric is the best.
        stop: the value of each metric at which the training stops.
        checkpoint: returns the name of the latest checkpoint; None before the first.
        most_agents: show at most this many agents, fewer if there is no room; None: all.
        longest_episode: returns the env steps of the longest episode that has not ended, as far as it is known.
    """

    metric: str = f"env_runners/{SUM}"
    higher_is_better: bool = True
    stop: Mapping[str, float] = field(default_factory=dict)
    checkpoint: Callable[[], str | None] = lambda: None
    most_agents: int | None = MOST_AGENTS
    longest_episode: Callable[[], int] = lambda: 0


class TrainingView(Protocol):
    """A view of a training; all steps are env steps."""

    def begin(self, done: int, total: int) -> None:
        """The training starts, or continues after a rollback, at `done` of `total` steps."""

    def advance(self, done: int) -> None:
        """All envs have taken a step. This is called in the hot loop and must be quick."""

    def add(self, result: Result) -> None:
        """Show the result of an iteration."""

    def close(self) -> None:
        """Close the view; a second call has no effect."""


def metric_value(result: Mapping[str, Any], name: str) -> float | None:
    """Look a number up by its flat name; None if there is none."""
    value: Any = result
    for key in name.split("/"):
        if not isinstance(value, Mapping) or key not in value:
            value = flatten(result).get(name)  # an agent or policy id may contain a slash
            break
        value = value[key]
    return value if isinstance(value, (int, float)) else None


def no_episode_yet(result: Result, longest: int) -> str | None:
    """Return words for a training in which no episode has ended, so that it has no returns; None if one has.

    Args:
        longest: env steps of the longest episode so far; 0: not known.
    """
    if result["env_runners"][SUM] is not None:
        return None
    runs_for = f"; the longest runs for {counted(longest, 'env step')}" if longest else ""
    return f"no episode has ended yet{runs_for}"


def first_values(metrics: Mapping[str, Any]) -> str:
    """The first metrics of a custom evaluation function, with their names."""
    return ", ".join(f"{name} {short(value)}" for name, value in list(flatten(metrics).items())[:4])
