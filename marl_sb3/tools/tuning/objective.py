"""The objectives of a search: numbers computed from the evaluations of a trial."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from marl_sb3.core.metrics.names import flatten
from marl_sb3.errors import ConfigError, refuse
from marl_sb3.extensions.dialects.names import metric_here

_EVALUATED = "evaluation/env_runners/"
_AGENTS = f"{_EVALUATED}agent_episode_returns_mean/"
_POLICIES = f"{_EVALUATED}module_episode_returns_mean/"
_AGAINST_RANDOM = "evaluation/against_random/"
_SHORT = {"sum": f"{_EVALUATED}episode_return_mean", "against_random": f"{_AGAINST_RANDOM}gain_mean"}
_MEAN = re.compile(r"mean_of_last_0*([1-9][0-9]{0,8})")
NOT_TOGETHER = ("sum", "min")  # objectives that combine the returns of all agents


@dataclass(frozen=True)
class Objective:
    """What a search maximizes or minimizes."""

    # `sum` or `min` of the agents' returns, `against_random`, an agent's or a policy's id, the name of a custom metric,
    # or the flat name of any metric
    of: str = "sum"
    mode: str = "max"
    # which evaluations of a trial count: `last`, `best`, or the mean of the last k, as `mean_of_last_3`
    over: str = "last"

    def __post_init__(self) -> None:
        if self.mode not in ("max", "min"):
            refuse("--mode", self.mode, "max or min", "mode")
        if self.over not in ("last", "best") and not _MEAN.fullmatch(self.over):
            refuse("--over", self.over, "last, best or mean_of_last_K", "over")

    @property
    def sign(self) -> float:
        """1 where more is better, -1 where less is."""
        return 1.0 if self.mode == "max" else -1.0

    @property
    def plays_random(self) -> bool:
        """Whether it needs evaluations against random policies."""
        return _SHORT.get(self.of, self.of).startswith(_AGAINST_RANDOM)

    def require_enough(self, evaluations: int) -> None:
        """Refuse a mean over more evaluations than a trial has."""
        if self._n_last > evaluations:
            raise ConfigError(f"--over is {self.over!r}, but a trial has {evaluations} evaluations", key="over")

    @property
    def _n_last(self) -> int:
        """The number of evaluations of which the mean counts."""
        mean = _MEAN.fullmatch(self.over)
        return int(mean[1]) if mean else 1

    def require_known(self, names: Sequence[str]) -> None:
        """Refuse an objective that is not among the names of metrics."""
        if self.of != "min" and self.metric(names) not in names:
            agents, policies = (
                ", ".join(name.removeprefix(prefix) for name in names if name.startswith(prefix))
                for prefix in (_AGENTS, _POLICIES)
            )
            here = metric_here(self.of)
            raise ConfigError(
                f"--objective is {self.of!r}{here and '; '}{here}; accepted: sum, min, against_random, an agent "
                f"({agents}), a policy ({policies}), a custom metric or the name of any metric",
                key="objective",
            )

    def metric(self, names: Sequence[str]) -> str:
        """The flat name of the objective's metric; `names` are those of all metrics."""
        if self.of in _SHORT:
            return _SHORT[self.of]
        candidates = (f"{_AGENTS}{self.of}", f"{_POLICIES}{self.of}", f"{_EVALUATED}custom_metrics/{self.of}_mean")
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

    def of_training(self, results: Sequence[Mapping[str, Any]]) -> float:
        """The objective of a complete training, from the results of its iterations.

        Raises:
            ConfigError: no evaluation has a value.
        """
        evaluated = [self.value(result) for result in results if "evaluation" in result]
        values = [value for value in evaluated if value is not None]
        if not values:
            raise ConfigError(f"no evaluation of the trial has a value of the objective {self.of!r}", key="objective")
        if self.over == "best":
            return max(values) if self.mode == "max" else min(values)
        last = values[-self._n_last :]
        return math.fsum(last) / len(last)


def parse_objectives(objective: str, mode: str, over: str) -> list[Objective]:
    """The objectives with these names, separated by commas; `mode` is that of all, or a list of the same length."""
    names = [name.strip() for name in objective.split(",")]
    modes = [name.strip() for name in mode.split(",")]
    modes = modes * len(names) if len(modes) == 1 else modes
    if len(modes) != len(names):
        refuse("--mode", mode, f"one of max and min, or {len(names)} of them", "mode")
    if "" in names or len(set(names)) < len(names):
        refuse("--objective", objective, "different names, A or A,B", "objective")
    return [Objective(name, of_one, over) for name, of_one in zip(names, modes, strict=True)]
