"""Track episodes, with numbers from their infos, and summarise the finished ones as metrics."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from marl_sb3.core.config.values import PositiveInt, require, require_ids
from marl_sb3.core.envs.converted import BENEATH
from marl_sb3.core.metrics.names import Result
from marl_sb3.core.state.fields import Commit, Field, Fields, Stateful, array, in_order, part, sums_or_nan
from marl_sb3.core.state.state import AS_COUNTS, AS_SUMS, State, StateReader, without_nan
from marl_sb3.core.vec_env.interface import MultiAgentVecEnv
from marl_sb3.core.vec_env.step import VecStep
from marl_sb3.errors import ConfigError, EnvError, refuse, require_known
from marl_sb3.types import AgentID, Array, PolicyID

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
    """

    key: str  # the entry of `infos[agent]` to read, in every step that has it
    agent: AgentID | None = None  # the agent whose infos are read; None: every agent
    # how the values of steps become the value of the episode: `sum`, `mean`, `min`, `max` or `last`
    reduce: str = "sum"

    def __post_init__(self) -> None:
        if not isinstance(self.key, Hashable):
            raise ConfigError(f"metric of info key {self.key!r}: accepted: a hashable key of a dictionary")
        require_known(self.reduce, _REDUCTIONS, f"info key {self.key!r}: reduce is {self.reduce!r}", "custom_metrics")


class InfoAccumulator(Stateful):
    """The running value of one `InfoMetric` in each of E envs."""

    fields: ClassVar[Fields] = {"value": sums_or_nan("so_far"), "count": array("count", *AS_SUMS)}

    def __init__(self, name: str, metric: InfoMetric, agents: Iterable[AgentID], num_envs: int) -> None:
        self._name = name
        self.agents = [metric.agent] if metric.agent is not None else list(agents)
        self.metric = metric
        self._combine = _REDUCTIONS[metric.reduce]
        self.so_far = np.empty(num_envs)
        self.count = np.zeros(num_envs)
        self.restart(np.ones(num_envs, dtype=bool))

    def restart(self, envs: Array | list[int]) -> None:
        """Forget the values of the envs that begin a new episode; see `EpisodeTracker.restart`."""
        # Without any event, the sum is 0, but there is no mean, minimum, maximum or last value.
        self.so_far[envs] = 0.0 if self.metric.reduce == "sum" else np.nan
        self.count[envs] = 0

    def add(self, step: VecStep, lengths: Array) -> None:
        """Add a step, which is step `lengths[i]` of the episode of env i."""
        for agent in self.agents:
            try:
                new = step.infos.values(agent, self.metric.key)
            except (TypeError, ValueError) as error:  # NumPy raises it for strings and lists
                raise self._fault(step, lengths, agent) from error
            if new.shape != self.so_far.shape:
                raise self._fault(step, lengths, agent)
            total = self.so_far + new
            if self.metric.reduce == "sum" and math.isfinite(total.dot(total)):  # no NaN: every env has the info
                self.so_far = total
                continue
            seen = ~np.isnan(new)
            start = np.isnan(self.so_far)
            self.so_far = np.where(seen, np.where(start, new, self._combine(self.so_far, new)), self.so_far)
            if self.metric.reduce == "mean":
                self.count += seen

    def _fault(self, step: VecStep, lengths: Array, agent: AgentID) -> EnvError:
        """Make the error for the first info that is not a number."""
        key = self.metric.key
        values = (step.infos[index].get(agent, {}).get(key) for index in range(len(lengths)))
        index, value = next((index, value) for index, value in enumerate(values) if not _is_number_or_none(value))
        return EnvError(
            f"env {index}, step {lengths[index]} of its episode, agent {agent!r}: custom metric {self._name!r}: "
            f"info {key!r} is {value!r}; accepted: a number"
        )

    def value(self, env_index: int) -> float:
        """The value of the episode so far; NaN if there is none."""
        value = float(self.so_far[env_index])
        return value / max(1.0, float(self.count[env_index])) if self.metric.reduce == "mean" else value


def _is_number_or_none(value: Any) -> bool:
    try:
        return np.asarray(value, dtype=np.float64).ndim == 0
    except (TypeError, ValueError):
        return False


def info_metrics(entries: Mapping[str, Mapping[str, Any]], source: str) -> dict[str, InfoMetric]:
    """Make `InfoMetric`s from mappings.

    Raises:
        ConfigError: an entry is not a mapping of `InfoMetric`'s fields.
    """
    try:
        return {name: InfoMetric(**fields) for name, fields in entries.items()}
    except (TypeError, AttributeError) as error:
        raise ConfigError(f"{source} is {entries!r}; accepted: {{name: {{key, agent, reduce}}}}", key=source) from error


@dataclass(frozen=True)
class Episode:
    """One finished episode of one env."""

    env_index: int  # index of the env
    length: int  # number of env steps
    agent_returns: Mapping[AgentID, float]  # undiscounted sum of rewards of each agent that acted or got a reward
    agent_steps: Mapping[AgentID, int]  # number of actions of each agent
    custom: Mapping[str, float]  # the custom metrics that have a value
    duration_s: float  # wall-clock seconds from its first to its last step, including updates in between
    # agent -> the policy that played it, or another player
    policy_of: Mapping[AgentID, PolicyID] = field(default_factory=dict)


class EpisodeTracker(Stateful):
    """Tracks the episodes of E envs and summarises the last `window` finished ones.

    Args:
        window: number of episodes that means, minima and maxima are taken of.
        custom_metrics: metrics in addition to those in the env's metadata.
        candidates: agent -> the policies that may play it, where this varies by episode.

    Raises:
        ConfigError: `window` is less than 1, or the env's metadata is wrong.
    """

    # env index -> agent -> the policy that plays it in the running episode
    policies_in: Callable[[int], Mapping[AgentID, PolicyID]]

    def __init__(
        self,
        env: MultiAgentVecEnv,
        policy_of: Mapping[AgentID, PolicyID],
        window: int = 100,
        custom_metrics: Mapping[str, InfoMetric] | None = None,
        candidates: Mapping[AgentID, Sequence[PolicyID]] | None = None,
    ) -> None:
        self._agents = env.agents
        self._is_beneath = bool(env.metadata.get(BENEATH))
        self._policy_of, self._candidates = policy_of, candidates or {}
        self.policies_in = lambda env_index: policy_of
        self._num_envs = env.num_envs
        announced = info_metrics(env.metadata.get("custom_metrics", {}), 'the env\'s metadata["custom_metrics"]')
        self.custom_metrics = {**announced, **_checked(custom_metrics or {})}
        require_ids("custom metric", self.custom_metrics, "custom_metrics")
        for name, metric in self.custom_metrics.items():
            if metric.agent is not None and metric.agent not in env.agents:
                raise ConfigError(
                    f"custom metric {name!r}: agent is {metric.agent!r}; the env has {', '.join(env.agents)}",
                    key="custom_metrics",
                )
        self.episodes: deque[Episode] = deque(maxlen=require("stats_window_size", window, PositiveInt))  # the newest
        self._added: list[str] = []  # names of custom metrics that hooks have added
        self.begin()

    def begin(self) -> None:
        """Forget all running episodes; call it after a reset of all envs."""
        shape = (self._num_envs, len(self._agents))
        self.returns = np.zeros(shape)
        self.agent_steps = np.zeros(shape, dtype=np.int64)
        self.lengths = np.zeros(self._num_envs, dtype=np.int64)
        self.started_s = np.full(self._num_envs, time.perf_counter())
        self.accumulators = {
            name: InfoAccumulator(name, metric, self._agents, self._num_envs)
            for name, metric in self.custom_metrics.items()
        }

    def longest_running(self) -> int:
        """Return the env steps of the longest episode that has not ended; 0 if the envs are stepped elsewhere."""
        return int(self.lengths.max())

    def record(self, step: VecStep) -> list[Episode]:
        """Record one step of all envs; return the episodes that have finished.

        Raises:
            EnvError: the info that a custom metric reads is not a number.
        """
        self.returns += step.rewards  # whether or not the agent acted
        self.agent_steps += step.acted
        self.lengths += step.stepped
        for accumulator in self.accumulators.values():
            accumulator.add(step, self.lengths)
        ended = self._beneath(step) if self._is_beneath else step.episode_done
        if not np.count_nonzero(ended):  # for few envs much faster than any()
            return []
        finished = [self._episode(int(index)) for index in np.flatnonzero(ended)]
        self.restart(ended)
        self.episodes.extend(finished)
        return finished

    def _beneath(self, step: VecStep) -> Array:
        """Take over what envs of one agent count beneath their wrappers; return whose episodes have ended, (E,).

        Infos hold the return and the length of the running episode; those of a reset, what the ended one had, or None.
        """
        ended = step.episode_done.copy()
        for index in np.flatnonzero(step.stepped).tolist():
            counted = step.infos[index].get(self._agents[0], {}).get(BENEATH)
            if counted is None:  # the env was lost: its episode ends with what was counted last
                continue
            if ended[index]:
                before = step.reset_infos[index].get(self._agents[0], {}).get(BENEATH)
                ended[index], counted = before is not None, before or counted
            self.returns[index, 0], self.lengths[index] = counted
        return ended

    def running(self, env_index: int) -> tuple[int, dict[AgentID, float], dict[AgentID, int]]:
        """Return length, returns of agents that have acted or were paid, and actions, of an env's running episode."""
        returns, agent_steps = self.returns[env_index].tolist(), self.agent_steps[env_index].tolist()
        acted = dict(zip(self._agents, agent_steps, strict=True))
        paid = {agent: paid for agent, paid in zip(self._agents, returns, strict=True) if acted[agent] or paid}
        return int(self.lengths[env_index]), paid, acted

    def add_custom(self, episode: Episode, numbers: Mapping[str, float]) -> None:
        """Add custom metrics to a finished episode in the window."""
        if not numbers:
            return
        place = next(number for number, each in enumerate(self.episodes) if each is episode)
        self.episodes[place] = replace(episode, custom={**episode.custom, **numbers})
        self._added = list(dict.fromkeys([*self._added, *(n for n in numbers if n not in self.custom_metrics)]))

    def _episode(self, env_index: int) -> Episode:
        length, paid, acted = self.running(env_index)
        custom = {name: accumulator.value(env_index) for name, accumulator in self.accumulators.items()}
        return Episode(
            env_index=env_index,
            length=length,
            agent_returns=paid,
            agent_steps=acted,
            custom={name: value for name, value in custom.items() if math.isfinite(value)},
            duration_s=time.perf_counter() - self.started_s[env_index],
            policy_of=self.policies_in(env_index),
        )

    def restart(self, envs: Array | list[int]) -> None:
        """Forget the running episodes of these envs, (E,) bool or indices: they have begun new ones."""
        self.returns[envs] = 0.0
        self.agent_steps[envs] = 0
        self.lengths[envs] = 0
        self.started_s[envs] = time.perf_counter()
        for accumulator in self.accumulators.values():
            accumulator.restart(envs)

    def summary(self) -> Result:
        """The episode metrics of `env_runners/`; None before an episode has finished."""
        episodes = self.episodes
        return {
            **_spread("episode_return", [sum(e.agent_returns.values()) for e in episodes]),
            **_spread("episode_len", [e.length for e in episodes]),
            "episode_duration_sec_mean": _mean([e.duration_s for e in episodes]),
            "agent_episode_returns_mean": {
                agent: _mean([e.agent_returns[agent] for e in episodes if agent in e.agent_returns])
                for agent in self._agents
            },
            "module_episode_returns_mean": self._returns_of_policies(),
            "agent_steps": {agent: _mean([e.agent_steps[agent] for e in episodes]) for agent in self._agents},
            "custom_metrics": {
                key: value
                for name in (*self.custom_metrics, *self._added)
                for key, value in _spread(name, [e.custom[name] for e in episodes if name in e.custom]).items()
            },
        }

    # --- State -------------------------------------------------------------------------------------------------------

    fields: ClassVar[Fields] = {
        "returns": array("returns", *AS_SUMS),
        "agent_steps": array("agent_steps", *AS_COUNTS),
        "lengths": array("lengths", *AS_COUNTS),
        "running_s": Field(
            lambda self: time.perf_counter() - self.started_s,
            lambda self, state, name: state.sums(name, self.started_s.shape),
            lambda self, running_s: setattr(self, "started_s", time.perf_counter() - running_s),
        ),
        "custom": part("accumulators"),
        "finished": Field(
            lambda self: self._finished(), lambda self, state, name: self._read_finished(state.fields(name))
        ),
    }

    def read_state(self, saved: StateReader) -> Callable[[], None]:
        """See `Part.read_state`; with another number of envs, only the finished episodes are restored."""
        if saved.num_envs == self._num_envs:
            return super().read_state(saved)
        return in_order([self.begin, self._read_finished(saved.fields("finished"))])

    def _finished(self) -> State:
        """Return the finished episodes in the window as columns."""
        episodes = self.episodes
        agent_steps = [[e.agent_steps[agent] for agent in self._agents] for e in episodes]
        returns = [[e.agent_returns.get(agent, math.nan) for agent in self._agents] for e in episodes]
        names = [*self.custom_metrics, *self._added]
        custom = [[e.custom.get(name, math.nan) for name in names] for e in episodes]
        of_agents, of_metrics = (len(episodes), len(self._agents)), (len(episodes), len(names))
        return {
            "env_index": np.array([e.env_index for e in episodes], np.int64),
            "length": np.array([e.length for e in episodes], np.int64),
            "duration_s": np.array([e.duration_s for e in episodes], float),
            "agent_steps": np.array(agent_steps, np.int64).reshape(of_agents),
            "agent_returns": without_nan(np.array(returns, float).reshape(of_agents)),
            "custom": without_nan(np.array(custom, float).reshape(of_metrics)),
            "added": list(self._added),
            **({"played": self._played()} if self._candidates else {}),
        }

    def _played(self) -> Array:
        """Return which candidate of each agent has played in the finished episodes, (n, A); their number: another."""
        candidates = self._candidates.items()
        numbers = [[[*own, p := e.policy_of[agent]].index(p) for agent, own in candidates] for e in self.episodes]
        return np.array(numbers, np.int64).reshape(len(numbers), len(self._agents))

    def _read_finished(self, state: StateReader) -> Commit:
        env_index, added = state.counts("env_index", (None,)), state.strings("added")
        n, agents, names = len(env_index), self._agents, [*self.custom_metrics, *added]
        played = state.array("played", np.int64, (n, len(agents)), 0).tolist() if self._candidates else []
        columns = (
            env_index,
            state.counts("length", (n,)),
            state.sums_or_nan("agent_returns", (n, len(agents))),
            state.counts("agent_steps", (n, len(agents))),
            state.sums_or_nan("custom", (n, len(names))),
            state.sums("duration_s", (n,)),
        )
        policies = (
            [self._policies_of(numbers, state) for numbers in played] if self._candidates else n * [self._policy_of]
        )
        episodes: list[Episode] = []
        for env, length, paid, acted, own, *others in zip(*map(np.ndarray.tolist, columns), policies, strict=True):
            steps = dict(zip(agents, acted, strict=True))
            episodes.append(Episode(env, length, _known(agents, paid), steps, _known(names, own), *others))

        def commit() -> None:
            self._added = added
            self.episodes = deque(episodes, self.episodes.maxlen)

        return commit

    def _policies_of(self, numbers: Sequence[int], state: StateReader) -> Mapping[AgentID, PolicyID]:
        played = list(zip(self._candidates.items(), numbers, strict=True))
        for (_, policies), number in played:
            if number > len(policies):
                raise state.error("played", number, f"the number of a candidate, at most {len(policies)}")
        return {agent: [*policies, ""][number] for (agent, policies), number in played}

    def _returns_of_policies(self) -> dict[PolicyID, float | None]:
        """Return the mean return of the agents that each policy has played."""
        candidates = self._candidates or {agent: (policy,) for agent, policy in self._policy_of.items()}
        returns: dict[PolicyID, list[float]] = {policy: [] for those in candidates.values() for policy in those}
        for episode in self.episodes:
            policy_of = episode.policy_of if self._candidates else self._policy_of
            for agent, paid in episode.agent_returns.items():
                if policy_of.get(agent) in returns:
                    returns[policy_of[agent]].append(paid)
        return {policy: _mean(paid) for policy, paid in returns.items()}


def _checked(custom_metrics: Any) -> Mapping[str, InfoMetric]:
    is_mapping = isinstance(custom_metrics, Mapping)
    if not is_mapping or not all(isinstance(metric, InfoMetric) for metric in custom_metrics.values()):
        refuse("custom_metrics", custom_metrics, "a mapping of names to InfoMetric")
    return {**custom_metrics}


def _known(names: Sequence[str], values: Sequence[float]) -> dict[str, float]:
    return {name: value for name, value in zip(names, values, strict=True) if not math.isnan(value)}


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None


def _spread(name: str, values: list[float]) -> Result:
    mean, least, most = (_mean(values), min(values), max(values)) if values else (None, None, None)
    return {f"{name}_mean": mean, f"{name}_min": least, f"{name}_max": most}
