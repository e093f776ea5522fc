"""The parts of a checkpoint: each returns its own state, and restores it in two phases.

First, every part checks its saved state and changes nothing. When all parts have done so, the functions that they
returned set the state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from marl_sb3.storage.state import State, StateReader
from marl_sb3.types import Array

Arrays = Mapping[str, Array]


class TensorFile(NamedTuple):
    """Tensors of a part in a file of their own.

    Attributes:
        name: name of the file without suffix, for messages.
        arrays: the tensors by name; `StoredTensors` if they are read from a folder.
    """

    name: str
    arrays: Arrays


@dataclass(frozen=True)
class SavedPart:
    """The saved state of one part. A stranger may have written it: check all of it.

    Attributes:
        state: what `get_state` returned.
        files: what `get_tensors` returned, by kind of file.
        num_envs: number of envs of the training that was saved. If it differs from the current number, a part does not
            restore the state of running episodes.
    """

    state: StateReader
    num_envs: int
    files: Mapping[str, TensorFile] = field(default_factory=dict)


class Part(Protocol):
    """A part of a training that a checkpoint holds."""

    def get_state(self) -> State:
        """Return the full state as plain data and arrays, without the tensors that have files of their own."""

    def read_state(self, saved: SavedPart) -> Callable[[], object]:
        """Check a saved state; nothing changes yet.

        Returns:
            A function that sets the state; the content of the checkpoint cannot make it fail.

        Raises:
            CheckpointError: it is not the state of such a part; names the path of the value.
        """


class TensorPart(Part, Protocol):
    """A part that keeps tensors in files of their own."""

    def get_tensors(self) -> Mapping[str, Arrays]:
        """Return copies of the tensors, by kind of file; see `policy_files.KINDS`."""


def in_order(setters: Sequence[Callable[[], object]]) -> Callable[[], None]:
    """Join functions that set parts of a state: one function that calls them in this order."""

    def put_back() -> None:
        for put in setters:
            put()

    return put_back
