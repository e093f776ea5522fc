"""The result of an evaluation: its metrics, and the values of every episode."""

from __future__ import annotations

from dataclasses import dataclass

from marl_sb3.metrics import Episode, Result
from marl_sb3.types import AgentID


@dataclass(frozen=True)
class Evaluation:
    """The result of an evaluation.

    Attributes:
        metrics: nested, with the names of `env_runners/`; None if no episode has a value.
        episodes: the counted episodes, in the order in which they ended.
    """

    metrics: Result
    episodes: tuple[Episode, ...]

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
