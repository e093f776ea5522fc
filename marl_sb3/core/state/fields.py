"""The parts of a checkpoint, and the fields that their states consist of.

A part lists its fields once; `Stateful` returns, checks and sets them by this list. A state is restored in two phases:
first, every part checks its saved state and changes nothing. When all parts have done so, the functions that they
returned set the state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np

from marl_sb3.core.state.state import State, StateReader, without_nan

Commit = Callable[[], None]  # sets a state that was checked before; the content of a checkpoint cannot make it fail


class Part(Protocol):
    """A part of a training that a checkpoint holds."""

    def get_state(self) -> State:
        """Return the full state as plain data and arrays, without the tensors that have files of their own."""

    def read_state(self, saved: StateReader) -> Callable[[], object]:
        """Check a saved state; nothing changes yet.

        Returns:
            A function that sets the state; the content of the checkpoint cannot make it fail.

        Raises:
            CheckpointError: it is not the state of such a part; names the path of the value.
        """


def in_order(setters: Sequence[Callable[[], object]]) -> Commit:
    """Join functions that set parts of a state: one function that calls them in this order."""

    def commit() -> None:
        for put in setters:
            put()

    return commit


# --- Fields ----------------------------------------------------------------------------------------------------------


class Field(NamedTuple):
    """One entry of the state of an object, its owner."""

    get: Callable[[Any], Any]  # returns the entry of an owner, as plain data or arrays
    # Takes the owner, the reader of its saved state, and the name of the entry. It checks the saved entry, and returns
    # what `put` takes.
    read: Callable[[Any, Any, str], Any]
    # Takes the owner and what `read` has returned, and sets the entry. Without `put`, `read` returns a function that
    # sets the entry, or None if there is nothing to set.
    put: Callable[[Any, Any], None] | None = None


Fields = Mapping[str, Field]
Bound = float | Callable[[Any], float]  # a number, or how to find it in the owner


class Stateful:
    """Base class of objects whose state consists of fields."""

    fields: ClassVar[Fields] = {}  # the fields by their names in the state, in the order in which they are set

    def get_state(self) -> State:
        """Return the state as plain data and arrays."""
        return {name: field.get(self) for name, field in self.all_fields().items()}

    def read_state(self, state: StateReader) -> Commit:
        """Check a saved state; nothing changes yet.

        Returns:
            A function that sets the state.

        Raises:
            CheckpointError: it is not the state of such an object; names the path of the value.
        """
        return partial(self.set_fields, self.read_fields(state))

    def read_fields(self, state: StateReader) -> dict[str, Any]:
        """Check a saved state; returns what `set_fields` takes, by the names of the fields."""
        fields = self.all_fields()
        state.require_names(list(fields))
        values = {name: field.read(self, state, name) for name, field in fields.items()}
        self.check_state(values, state)
        return values

    def set_fields(self, values: Mapping[str, Any]) -> None:
        """Set all fields."""
        for name, field in self.all_fields().items():
            value = values[name]
            if field.put is not None:
                field.put(self, value)
            elif value is not None:
                value()
        self.state_was_set()

    def all_fields(self) -> Fields:
        """Return `fields`, and those that only this object has."""
        return self.fields

    def check_state(self, values: Mapping[str, Any], state: StateReader) -> None:
        """Refuse values of fields that contradict each other."""

    def state_was_set(self) -> None:
        """Called when all fields have been set: derive from them what is not saved."""


def scalar(path: str, lowest: float | None = None, highest: Bound | None = None, like: float | None = None) -> Field:
    """A number or a bool, finite and within the bounds, of the type that the attribute has.

    Args:
        path: the name of the attribute, or a path that leads to it as `algorithm.num_timesteps` does.
        lowest: without it, integers are counts.
        highest: the greatest value.
        like: a value of the attribute's type, where the attribute or what is saved may be None.
    """
    get = attrgetter(path)

    def read(owner: Any, state: StateReader, name: str) -> Any:
        if like is not None and state.value(name) is None:
            return None
        most = highest(owner) if callable(highest) else highest
        return state.like(name, get(owner) if like is None else like, lowest, most)

    return Field(get, read, _setter(path))


def array(path: str, lowest: float | None = None, highest: Bound | None = None) -> Field:
    """An array, finite, of the dtype and shape that the attribute has; or mappings and tuples of such arrays.

    Its numbers lie within the bounds. None where the attribute is None.
    """
    get = attrgetter(path)

    def read(owner: Any, state: StateReader, name: str) -> Any:
        most = highest(owner) if callable(highest) else highest
        return state.like(name, _copied(get(owner)), lowest, most)

    return Field(lambda owner: _copied(get(owner)), read, _setter(path))


def sums_or_nan(path: str) -> Field:
    """An array of sums, with NaN where there is none."""
    get = attrgetter(path)
    return Field(
        lambda owner: without_nan(get(owner)),
        lambda owner, state, name: state.sums_or_nan(name, get(owner).shape),
        _setter(path),
    )


def part(path: str, num_envs: Callable[[Any], int] | None = None) -> Field:
    """An object with a state of its own, or a mapping of names to such objects; None where the owner has none.

    Args:
        path: see `scalar`.
        num_envs: the number of envs of an owner; if the saved training had another, the object begins new episodes.
    """
    get = attrgetter(path)

    def states(owner: Any) -> State | None:
        own = get(owner)
        return None if own is None else states_of(own) if isinstance(own, Mapping) else own.get_state()

    def read(owner: Any, state: StateReader, name: str) -> Any:
        own = get(owner)
        if num_envs is not None and num_envs(owner) != state.num_envs:
            return None if own is None else own.begin_episodes
        if own is None:
            return state.like(name, None)
        saved = state.fields(name)
        return read_states(own, saved) if isinstance(own, Mapping) else own.read_state(saved)

    return Field(states, read)


def states_of(objects: Mapping[str, Stateful]) -> State:
    """Return the states of several objects by their names."""
    return {name: each.get_state() for name, each in objects.items()}


def read_states(objects: Mapping[str, Stateful], state: StateReader) -> Commit:
    """Check what `states_of` returned; returns a function that sets it."""
    state.require_names(list(objects))
    return in_order([each.read_state(state.fields(name)) for name, each in objects.items()])


def _setter(path: str) -> Callable[[Any, Any], None]:
    """A function that sets the attribute to which a path leads."""
    owners, _, name = path.rpartition(".")
    return lambda owner, value: setattr(attrgetter(owners)(owner) if owners else owner, name, value)


def _copied(own: Any) -> Any:
    if own is None:
        return None
    if isinstance(own, Mapping):
        return {name: _copied(each) for name, each in own.items()}
    return list(map(_copied, own)) if isinstance(own, tuple) else np.array(own)
