"""Which agents are shown where there is no room for all of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from marl_sb3.types import AgentID

Returns = Mapping[AgentID, float | None]


@dataclass(frozen=True)
class ShownAgents:
    """Agents and their returns, best first; all of them in the env's order where there is room.

    Attributes:
        first: the best ones, or all.
        others: how many are left out between `first` and `last`.
        last: the worst ones.
    """

    first: Returns
    others: int
    last: Returns


def shown_agents(returns: Returns, most: int | None) -> ShownAgents:
    """All agents, or the best and the worst of them.

    Args:
        returns: mean return of each agent; None where it has none yet.
        most: how many are shown; None: all.
    """
    if most is None or len(returns) <= most + 1:  # one that is left out takes as much room to mention
        return ShownAgents(returns, 0, {})
    known = {agent: value for agent, value in returns.items() if value is not None}
    ranked: list[AgentID] = sorted(known, key=lambda agent: -known[agent])
    ranked += [agent for agent in returns if agent not in known]
    best, worst = most - most // 2, most // 2
    last = ranked[len(ranked) - worst :]
    return ShownAgents(
        {agent: returns[agent] for agent in ranked[:best]},
        len(returns) - most,
        {agent: returns[agent] for agent in last},
    )
