"""The doors of the core: what an extension implements, and where it says so.

The core uses what stands in a `Door` and names no extension; `marl_sb3.extensions` says which come with the package. A
user's own implementation is added in the same way, from a module that `--import` names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, cast

if TYPE_CHECKING:
    from marl_sb3.storage.checkpoint import Checkpoint, Tensors
    from marl_sb3.storage.state import State

T = TypeVar("T")


class Door(Generic[T]):
    """The implementations of one protocol, by name and in the order in which they were added.

    Args:
        what: one of them in words, for messages.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._added: dict[str, T | str] = {}

    def add(self, name: str, implementation: T | str) -> None:
        """Add an implementation; one of the same name is replaced, in its place.

        Args:
            name: by which the core, a setting or a message refers to it.
            implementation: the object, or its place, `package.module:NAME`, which is imported when it is first used.
        """
        self._added[name] = implementation

    def remove(self, name: str) -> None:
        """Remove an implementation."""
        del self._added[name]

    def __contains__(self, name: object) -> bool:
        return name in self._added

    def __getitem__(self, name: str) -> T:
        """Return an implementation, which is imported if it has not been.

        Raises:
            KeyError: there is none of this name.
        """
        if name not in self._added:
            raise KeyError(f"unknown {self._what} {name!r}; accepted: {', '.join(self._added) or 'none is there'}")
        added = self._added[name]
        if isinstance(added, str):
            module, _, attribute = added.partition(":")
            added = self._added[name] = cast("T", getattr(import_module(module), attribute))
        return added

    def names(self) -> list[str]:
        """Return the names, without importing anything."""
        return list(self._added)

    def __iter__(self) -> Iterator[T]:
        return (self[name] for name in self.names())


# --- Checkpoints -----------------------------------------------------------------------------------------------------


class Store(Protocol):
    """Keeps checkpoints: the state of a training, a tree of plain data and arrays, and the tensors of its policies.

    Of the stores that take a path, the one that was added last writes and reads it. What is read equals what was
    written to the last bit, `-0.0` and the dtypes of arrays too; tuples are read as lists. Tensors may be read when
    they are accessed, see `marl_sb3.storage.checkpoint.LazyTensors`. What is not finite is not written, and what is
    damaged is refused before anything of it is used. A write that fails leaves what was there before.
    `tests/storage/test_stores.py` checks all of it.
    """

    def takes(self, path: str | Path) -> bool:
        """Whether a path that the user names is one of this store's."""

    def place(self, path: str | Path) -> Path:
        """Return where the checkpoint of a path is kept, in the form that `write` takes and users see.

        Raises:
            ConfigError: there is something else that must not be replaced.
        """

    def write(self, place: Path, state: State, tensors: Tensors, about: Mapping[str, Any]) -> None:
        """Write a checkpoint, or replace the one that is there.

        Args:
            place: from `place`.
            state: a tree of plain data and arrays, with strings as keys.
            tensors: of policies and their optimizers, by name of a file and of the tensor.
            about: a description, plain data, which can be read without the rest.

        Raises:
            NumericError: an array is not finite; see `marl_sb3.storage.checkpoint.require_finite`.
            CheckpointError: a tensor has a dtype that checkpoints do not hold; see `require_storable` there.
            OSError: the disk is full or failing.
        """

    def read(self, path: str | Path, which: str | None, use: Callable[[Checkpoint], T]) -> T:
        """Find a checkpoint, pass it on, and return the answer.

        Args:
            path: of a checkpoint, or of what holds several.
            which: of several: `latest`, `best`, or the number of an iteration; None: the store chooses.
            use: may be called again with another checkpoint, where a running training removes the first.

        Raises:
            CheckpointError: there is none, or it is damaged; or from `use`.
        """


STORES: Door[Store] = Door("store of checkpoints")
