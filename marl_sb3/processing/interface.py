"""What a processor of observations is, and what it works on: batches over the rows of one policy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from gymnasium import spaces

from marl_sb3.types import AgentID, Array, Observations

Memory = Mapping[str, Array]  # what rows remember within an episode: (rows, ...) arrays, never changed in place


class Look(NamedTuple):
    """What rows see, on its way through the processors.

    Attributes:
        seen: (rows, ...) observations, processed so far.
        memory: of these rows, before they see this.
        agents: (rows,) which one of the policy's agents a row is, counted from 0.
        learn: whether running statistics take the observations in.
    """

    seen: Observations
    memory: Memory
    agents: Array
    learn: bool = False


class ObservationProcessor(Protocol):
    """Processes the observations of a policy's rows; made for the space of what it is given.

    Attributes:
        space: of what it returns.
    """

    space: spaces.Space[Any]

    def initial(self, rows: int) -> Memory:
        """What so many rows remember at the start of an episode; empty without memory."""

    def observe(self, look: Look) -> tuple[Observations, Memory]:
        """Process what rows see.

        Returns:
            What the next processor is given, and the parts of the memory that change.
        """

    def acted(self, memory: Memory, actions: Array) -> Memory:
        """The parts of the memory that change when rows take actions, (rows, ...), of the policy's action space."""


class Policy(NamedTuple):
    """What a processor knows of its policy.

    Attributes:
        policy_id: for messages.
        agents: the agents that it acts for.
        action_space: in which it acts.
    """

    policy_id: str
    agents: tuple[AgentID, ...]
    action_space: spaces.Space[Any]


class Memoryless:
    """A processor without memory."""

    def initial(self, rows: int) -> Memory:
        """See `ObservationProcessor.initial`."""
        return {}

    def acted(self, memory: Memory, actions: Array) -> Memory:
        """See `ObservationProcessor.acted`."""
        return {}
