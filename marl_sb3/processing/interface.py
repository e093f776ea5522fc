"""The base class of processors of observations, which work on batches over the rows of one policy, part by part.

Each key of a Dict is a part; any other space is one part.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

from gymnasium import spaces

from marl_sb3.types import AgentID, Array, Observations

Space = spaces.Space[Any]
WHOLE = ""  # the key of an observation that has none


def parts_of(space: Space) -> dict[str, Space]:
    """Return the space of each key of a Dict; for any other space, that space alone."""
    return dict(space.spaces) if isinstance(space, spaces.Dict) else {WHOLE: space}


def with_parts(space: Space, parts: Mapping[str, Space]) -> Space:
    """Return a space with these parts instead of those of `space`."""
    own = {**parts_of(space), **parts}
    return spaces.Dict([*own.items()]) if isinstance(space, spaces.Dict) else own[WHOLE]


def part(seen: Observations, key: str) -> Array:
    """Return the array of a part."""
    return seen[key] if isinstance(seen, dict) else seen


def map_parts(seen: Observations, function: Callable[[str, Array], Array], keys: Collection[str]) -> Observations:
    """Apply a function of key and array to the parts with these keys; the other parts stay unchanged."""
    if isinstance(seen, dict):
        return {key: function(key, array) if key in keys else array for key, array in seen.items()}
    return function(WHOLE, seen) if WHOLE in keys else seen


def named(key: str) -> str:
    """Name a part in a message."""
    return f"key {key!r}: " if key else ""


Memory = Mapping[str, Array]  # what rows remember within an episode: (rows, ...) arrays, never changed in place


class ProcessorInput(NamedTuple):
    """The input of a processor.

    Attributes:
        seen: (rows, ...) observations, as the previous processor returned them.
        memory: memory of these rows before this observation.
        agents: (rows,) index of each row's agent among the agents of the policy.
        learn: whether the observations update running statistics.
    """

    seen: Observations
    memory: Memory
    agents: Array
    learn: bool = False


class ObservationProcessor(ABC):
    """Processes the observations of a policy's rows; it is made for one input space.

    Attributes:
        space: space of its results.
    """

    space: spaces.Space[Any]

    def initial(self, rows: int) -> Memory:
        """Return the memory of `rows` rows at the start of an episode; empty for a processor without memory."""
        return {}

    @abstractmethod
    def observe(self, inputs: ProcessorInput) -> tuple[Observations, Memory]:
        """Process observations.

        Returns:
            The observations for the next processor, and the parts of the memory that change.
        """

    def acted(self, memory: Memory, actions: Array) -> Memory:
        """Return the parts of the memory that change when rows take these (rows, ...) actions of the policy."""
        return {}


class Policy(NamedTuple):
    """What a processor knows about its policy.

    Attributes:
        policy_id: id of the policy, for messages.
        agents: the agents that the policy acts for.
        action_space: the space in which the policy acts.
    """

    policy_id: str
    agents: tuple[AgentID, ...]
    action_space: spaces.Space[Any]
