"""What came of complete episodes: returns, lengths and metrics, who has won, and whether all of them are alike."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, TypeAlias

import numpy as np

from marl_sb3.core.acting.actor import Acted
from marl_sb3.core.metrics.episodes import Episode
from marl_sb3.core.metrics.names import Result
from marl_sb3.core.vec_env.step import VecStep
from marl_sb3.evaluation.score import OUTCOMES, mean_returns, oppose, points
from marl_sb3.types import AgentID, Array, PolicyID

Seat: TypeAlias = tuple[AgentID, ...]  # the agents that policies play against an opponent; empty: there is none


@dataclass(frozen=True)
class Played:
    """What came of complete episodes."""

    metrics: Result  # nested, with the names of `env_runners/`; None if no episode has a value
    episodes: tuple[Episode, ...]  # the counted episodes, in the order in which they ended
    agents: Sequence[AgentID]  # of the env
    # whether several episodes are one and the same in all that agents see, do and are paid; None: nobody has asked
    alike: bool | None = None

    def returns(self) -> list[float]:
        """Return the sum of all agents' returns in each episode."""
        return [sum(episode.agent_returns.values()) for episode in self.episodes]

    def agent_returns(self, agent: AgentID) -> list[float]:
        """Return the agent's return in each episode in which it took part."""
        return [episode.agent_returns[agent] for episode in self.episodes if agent in episode.agent_returns]

    def lengths(self) -> list[int]:
        """Return the env steps of each episode."""
        return [episode.length for episode in self.episodes]

    def custom(self, name: str) -> list[float]:
        """Return the custom metric of each episode that has it."""
        return [episode.custom[name] for episode in self.episodes if name in episode.custom]

    @property
    def custom_names(self) -> list[str]:
        """The names of the custom metrics that the episodes have, or that the env announces."""
        announced = self.metrics.get("custom_metrics", {})
        names = [name.removesuffix("_mean") for name in announced if name.endswith("_mean")]
        return list(dict.fromkeys([*names, *(name for episode in self.episodes for name in episode.custom)]))

    def by_seed(self, agents: Sequence[AgentID]) -> Array:
        """Return the returns of some agents in each episode, (n, agents), in the order of seeds; NaN: it has none."""
        in_order = sorted(self.episodes, key=lambda episode: episode.env_index)  # those of an env are in order
        paid = [[episode.agent_returns.get(agent, np.nan) for agent in agents] for episode in in_order]
        return np.array(paid, np.float64).reshape(len(paid), len(agents))

    def sides(self, seat: Seat) -> tuple[Array, Array]:
        """Return the mean return of a seat in each episode, and that of all others; see `mean_returns`."""
        others = [agent for agent in self.agents if agent not in seat]
        return mean_returns(self.by_seed(seat)), mean_returns(self.by_seed(others))


def outcomes(played: Mapping[Seat, Played]) -> dict[Seat, dict[str, list[float]]]:
    """Return 0 or 1 for each episode of each seat: whether it was `won`, `drawn` or `lost`; see `points`.

    It is asked only where returns `oppose` each other in all of them; elsewhere nothing is returned.
    """
    sides = {seat: each.sides(seat) for seat, each in played.items()}
    sums = [total for each in played.values() for total in each.returns()]
    if not oppose(np.concatenate([ours for ours, _ in sides.values()]), sums):
        return {}
    won = {seat: points(*both) for seat, both in sides.items()}
    return {
        seat: {outcome: [float(each == worth) for each in own[~np.isnan(own)]] for outcome, worth in OUTCOMES.items()}
        for seat, own in won.items()
    }


def metrics_of(played: Mapping[Seat, Played]) -> Result:
    """Return the metrics of each seat by its name, with the shares of its outcomes; see `evaluate_policies`."""
    found = outcomes(played)
    return {
        seat_name(seat): {**each.metrics, **{name: mean_of(shares) for name, shares in found.get(seat, {}).items()}}
        for seat, each in played.items()
    }


def seat_name(seat: Sequence[AgentID]) -> str:
    """Name a seat by its agents."""
    return ",".join(seat)


def mean_of(values: Iterable[float | None]) -> float | None:
    """Return the mean of those that there are; None if there is none."""
    present = [value for value in values if value is not None]
    return math.fsum(present) / len(present) if present else None


class EpisodeDigests:
    """An `ActingWatcher` that finds out whether episodes are one and the same: what agents see, do and are paid."""

    def __init__(self) -> None:
        self.finished = set[int]()  # the digests of the episodes that have ended

    def begin_episodes(self, step: VecStep) -> None:
        """See `ActingWatcher.begin_episodes`."""
        self._running = [0] * len(step.to_act)

    def before_step(self, step: VecStep, acted: Mapping[PolicyID, Acted], actions: Sequence[Array]) -> None:
        """See `ActingWatcher.before_step`."""
        self._add(*step.observations, *actions)

    def _add(self, *groups: Any) -> None:
        """Add arrays, or dictionaries of them, whose first dimension is the envs, to the digests of their episodes."""
        if len(self.finished) > 1:  # two that differ are enough
            return
        for group in groups:
            for array in group.values() if isinstance(group, dict) else (group,):
                for env_index, digest in enumerate(self._running):
                    self._running[env_index] = zlib.crc32(array[env_index].tobytes(), digest)

    def after_step(self, step: VecStep) -> None:
        """See `ActingWatcher.after_step`."""
        self._add(step.rewards, step.terminated, step.truncated)
        for (env_index, _), seen in sorted(step.final_observations.items(), key=itemgetter(0)):
            for array in seen.values() if isinstance(seen, dict) else (seen,):
                self._running[env_index] = zlib.crc32(np.asarray(array).tobytes(), self._running[env_index])
        for env_index in np.flatnonzero(step.episode_done).tolist():
            self.finished.add(self._running[env_index])
            self._running[env_index] = 0

    def restart_envs(self, env_indices: Sequence[int]) -> None:
        """See `ActingWatcher.restart_envs`; evaluations restore no episodes."""
