"""Which agents have ended in an episode, and which of them live again."""

from __future__ import annotations

from collections.abc import Collection

from marl_sb3.types import AgentID


class EndedAgents(set[AgentID]):
    """The agents that have ended in the running episode.

    An agent that has ended, has left the env's `agents`, and is among them again later lives again: its next action
    begins a new trajectory. One that stays in `agents` after its end has not left, and remains ended.
    """

    _absent: frozenset[AgentID] = frozenset()  # ended, and not in `agents` after the latest step

    def look_at(self, present: Collection[AgentID]) -> None:
        """Take the env's `agents` after a step, or where an episode is continued."""
        if self:
            self.difference_update(self._absent.intersection(present))
            self._absent = frozenset(self.difference(present))
