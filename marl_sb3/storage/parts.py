"""The parts that a checkpoint is made of: each gives its own state, and takes it back in two phases.

First every part reads all of its saved state and checks it; nothing has changed by then. Only when all of them have,
the functions that they returned set it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from marl_sb3.storage.state import State, StateReader
from marl_sb3.types import Array

Arrays = Mapping[str, Array]


class TensorFile(NamedTuple):
    """Tensors of a part in a file of their own.

    Attributes:
        name: of the file without its suffix, for messages.
        arrays: by name; `StoredTensors` where they come from a folder.
    """

    name: str
    arrays: Arrays


@dataclass(frozen=True)
class SavedPart:
    """What a checkpoint holds of one part. A stranger may have written it: check all of it.

    Attributes:
        state: what `get_state` returned.
        files: by kind, what `get_tensors` returned.
        num_envs: of the training that was saved. A part that keeps state of running episodes leaves it out where this
            is not its own number.
    """

    state: StateReader
    num_envs: int
    files: Mapping[str, TensorFile] = field(default_factory=dict)


class Part(Protocol):
    """A part of a training that a checkpoint holds."""

    def get_state(self) -> State:
        """Everything that the part needs to go on, as plain data and arrays; tensors in files of their own apart."""

    def read_state(self, saved: SavedPart) -> Callable[[], object]:
        """Check a saved state; nothing changes yet.

        Returns:
            A function that sets the state. It does not fail because of what is in the checkpoint.

        Raises:
            CheckpointError: it is not the state of such a part; the message has the path of the value.
        """


class TensorPart(Part, Protocol):
    """A part that keeps tensors in files of their own."""

    def get_tensors(self) -> Mapping[str, Arrays]:
        """Copies of the tensors by kind of file; see `policy_files.KINDS`."""
