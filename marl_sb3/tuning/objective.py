"""The objective of a search: a number computed from the evaluations of a trial."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from marl_sb3.errors import ConfigError
from marl_sb3.metrics import flatten

_EVALUATED = "evaluation/env_runners/"
_AGENTS = f"{_EVALUATED}agent_episode_returns_mean/"
_MEAN = re.compile(r"mean_of_last_0*([1-9][0-9]{0,8})")


@dataclass(frozen=True)
class Objective:
    """What a search maximizes or minimizes.

    Attributes:
        of: `sum` or `min` of the agents' returns, an agent's id, the name of a custom metric, or the flat name of any
            metric.
        over: which evaluations of a trial count: `last`, `best`, or the mean of the last k, as `mean_of_last_3`.
    """

    of: str = "sum"
    mode: str = "max"
    over: str = "last"

    def __post_init__(self) -> None:
        if self.mode not in ("max", "min"):
            raise ConfigError(f"--mode is {self.mode!r}; accepted: max or min", key="mode")
        if self.over not in ("last", "best") and not _MEAN.fullmatch(self.over):
            raise ConfigError(f"--over is {self.over!r}; accepted: last, best or mean_of_last_K", key="over")

    def require_enough(self, evaluations: int) -> None:
        """Refuse a mean over more evaluations than a trial has."""
        if self._n_last() > evaluations:
            raise ConfigError(f"--over is {self.over!r}, but a trial has {evaluations} evaluations", key="over")

    def _n_last(self) -> int:
        """The number of evaluations of which the mean counts."""
        mean = _MEAN.fullmatch(self.over)
        return int(mean[1]) if mean else 1

    def require_known(self, names: Sequence[str]) -> None:
        """Refuse an objective that is not among the names of metrics."""
        if self.of != "min" and self.metric(names) not in names:
            agents = [name.removeprefix(_AGENTS) for name in names if name.startswith(_AGENTS)]
            raise ConfigError(
                f"--objective is {self.of!r}; accepted: sum, min, an agent ({', '.join(agents)}), a custom metric or "
                "the name of any metric",
                key="objective",
            )

    def metric(self, names: Sequence[str]) -> str:
        """The flat name of the objective's metric; `names` are those of all metrics."""
        if self.of == "sum":
            return f"{_EVALUATED}episode_return_mean"
        candidates = (f"{_AGENTS}{self.of}", f"{_EVALUATED}custom_metrics/{self.of}_mean")
        return next((name for name in candidates if name in names), self.of)

    def value(self, result: Mapping[str, Any]) -> float | None:
        """The objective of an iteration; None if it was not evaluated."""
        flat = flatten(result)
        if self.of == "min":
            returns = [value for name, value in flat.items() if name.startswith(_AGENTS)]
            return min(returns) if returns and None not in returns else None
        if not any(name.startswith(_EVALUATED) for name in flat):
            return None
        value = flat.get(self.metric(list(flat)))
        return None if value is None else float(value)

    def final(self, values: Sequence[float]) -> float:
        """The objective of a trial, from the values of its evaluations."""
        if not values:
            raise ConfigError(f"no evaluation of the trial has a value of the objective {self.of!r}", key="objective")
        if self.over == "best":
            return max(values) if self.mode == "max" else min(values)
        last = values[-self._n_last() :]
        return math.fsum(last) / len(last)
