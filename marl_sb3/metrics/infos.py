"""Custom metrics: a number per episode from an env's infos."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from marl_sb3.errors import ConfigError, EnvError
from marl_sb3.storage.parts import Fields, Stateful, sums, sums_or_nan
from marl_sb3.types import AgentID, Array
from marl_sb3.vec_env.interface import MultiAgentVecEnv
from marl_sb3.vec_env.step import VecStep

_REDUCTIONS: Mapping[str, Callable[[Array, Array], Array]] = {
    "sum": np.add,
    "mean": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "last": lambda _, new: new,
}


@dataclass(frozen=True)
class InfoMetric:
    """A number per episode, computed from an env's infos.

    An env defines its metrics in `metadata["custom_metrics"] = {name: {"key": ..., "agent": ..., "reduce": ...}}`;
    metrics of an env that cannot be changed are passed to `MultiAgentAlgorithm`.

    Attributes:
        key: the entry of `infos[agent]` to read, in every step that has it.
        agent: the agent whose infos are read; None: every agent.
        reduce: how the values of steps become the value of the episode: `sum`, `mean`, `min`, `max` or `last`.
    """

    key: str
    agent: AgentID | None = None
    reduce: str = "sum"

    def __post_init__(self) -> None:
        if not isinstance(self.key, Hashable):
            raise ConfigError(f"metric of info key {self.key!r}: accepted: a hashable key of a dictionary")
        if self.reduce not in _REDUCTIONS:
            raise ConfigError(
                f"metric of info key {self.key!r}: reduce is {self.reduce!r}; accepted: {', '.join(_REDUCTIONS)}"
            )


class InfoAccumulator(Stateful):
    """The running value of one `InfoMetric` in each of E envs."""

    fields: ClassVar[Fields] = {"value": sums_or_nan("_value"), "count": sums("_count")}

    def __init__(self, name: str, metric: InfoMetric, agents: Iterable[AgentID], num_envs: int) -> None:
        self._name = name
        self._agents = [metric.agent] if metric.agent is not None else list(agents)
        self._metric = metric
        self._combine = _REDUCTIONS[metric.reduce]
        self._value = np.empty(num_envs)
        self._count = np.zeros(num_envs)
        self.restart(np.ones(num_envs, dtype=bool))

    def restart(self, envs: Array) -> None:
        """Forget the values of the envs that begin a new episode, (E,) bool."""
        # Without any event, the sum is 0, but there is no mean, minimum, maximum or last value.
        self._value[envs] = 0.0 if self._metric.reduce == "sum" else np.nan
        self._count[envs] = 0

    def add(self, step: VecStep, lengths: Array) -> None:
        """Add a step, which is step `lengths[i]` of the episode of env i."""
        for agent in self._agents:
            try:
                new = step.infos.values(agent, self._metric.key)
            except (TypeError, ValueError) as error:  # NumPy raises it for strings and lists
                raise self._fault(step, lengths, agent) from error
            if new.shape != self._value.shape:
                raise self._fault(step, lengths, agent)
            seen = ~np.isnan(new)
            start = np.isnan(self._value)
            self._value = np.where(seen, np.where(start, new, self._combine(self._value, new)), self._value)
            self._count += seen

    def _fault(self, step: VecStep, lengths: Array, agent: AgentID) -> EnvError:
        """Make the error for the first info that is not a number."""
        key = self._metric.key
        values = (step.infos[index].get(agent, {}).get(key) for index in range(len(lengths)))
        index, value = next((index, value) for index, value in enumerate(values) if not _is_number_or_none(value))
        return EnvError(
            f"env {index}, step {lengths[index]} of its episode, agent {agent!r}: custom metric {self._name!r}: "
            f"info {key!r} is {value!r}; accepted: a number"
        )

    def value(self, env_index: int) -> float:
        """The value of the episode so far; NaN if there is none."""
        value = float(self._value[env_index])
        return value / max(1.0, float(self._count[env_index])) if self._metric.reduce == "mean" else value


def _is_number_or_none(value: Any) -> bool:
    try:
        return np.asarray(value, dtype=np.float64).ndim == 0
    except (TypeError, ValueError):
        return False


def announced_metrics(env: MultiAgentVecEnv) -> dict[str, InfoMetric]:
    """The custom metrics in an env's metadata.

    Raises:
        ConfigError: an entry is not a mapping of `InfoMetric`'s fields.
    """
    return info_metrics(env.metadata.get("custom_metrics", {}), 'the env\'s metadata["custom_metrics"]')


def info_metrics(entries: Mapping[str, Mapping[str, Any]], source: str) -> dict[str, InfoMetric]:
    """Make `InfoMetric`s from mappings.

    Raises:
        ConfigError: an entry is not a mapping of `InfoMetric`'s fields.
    """
    try:
        return {name: InfoMetric(**fields) for name, fields in entries.items()}
    except (TypeError, AttributeError) as error:
        raise ConfigError(f"{source} is {entries!r}; accepted: {{name: {{key, agent, reduce}}}} ({error})") from error
