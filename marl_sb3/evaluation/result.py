"""What an evaluation results in: its metrics, and the values of every episode."""

from __future__ import annotations

from dataclasses import dataclass

from marl_sb3.metrics import Episode, Result
from marl_sb3.types import AgentID


@dataclass(frozen=True)
class Evaluation:
    """What came out.

    Attributes:
        metrics: nested, by the names of `env_runners/`; None where no episode has a value.
        episodes: those that count, in the order in which they ended.
    """

    metrics: Result
    episodes: tuple[Episode, ...]

    def returns(self) -> list[float]:
        """The sum of all agents' returns in each episode."""
        return [sum(episode.agent_returns.values()) for episode in self.episodes]

    def agent_returns(self, agent: AgentID) -> list[float]:
        """The agent's return in each episode that it took part in."""
        return [episode.agent_returns[agent] for episode in self.episodes if agent in episode.agent_returns]

    def lengths(self) -> list[int]:
        """The env steps of each episode."""
        return [episode.length for episode in self.episodes]

    def custom(self, name: str) -> list[float]:
        """The custom metric in each episode that has it."""
        return [episode.custom[name] for episode in self.episodes if name in episode.custom]
