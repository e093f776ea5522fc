"""The doors of the core: what an extension implements, and where it says so.

The core uses what stands in a `Door` and names no extension; `marl_sb3.extensions` says which come with the package. A
user's own implementation is added in the same way, from a module that `--import` names.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import Generic, TypeVar, cast

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
