"""Actions of several parts, Tuple and Dict spaces, as one vector of floats: what policies learn, and envs never see."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces
from typing_extensions import override

from marl_sb3.core.sb3.traits import trait
from marl_sb3.errors import ConfigError
from marl_sb3.types import Array
from marl_sb3.wrappers.observations import choices_of

Space = spaces.Space[Any]

_MOST_CHOICES = 2**24  # of one choice: float32 holds all integers up to here
_Composite = (spaces.Dict, spaces.Tuple)


class Part(NamedTuple):
    """A part of an action that has no parts, and the columns of its numbers in the vector."""

    space: Any
    columns: slice
    most: Array  # the largest number of each choice, counted from 0; empty for a Box
    start: Array  # what the space counts from

    @property
    def size(self) -> int:
        """How many numbers it has."""
        return int(self.columns.stop - self.columns.start)


def joined_actions(space: Space) -> JoinedActions | None:
    """Return the space of the vectors in which policies choose actions of a space; None if they need none.

    It is the form, see `AlgorithmTable.action_form`, of Tuple and Dict spaces, nested ones too, of Box, Discrete,
    MultiDiscrete and MultiBinary. A Box has to be of floats.
    """
    if not isinstance(space, _Composite):
        return None
    leaves = list(_parts_of(space, space))
    accepted = [
        np.dtype(part.dtype).kind == "f"
        if isinstance(part, spaces.Box)
        else max(choices_of(part) or (_MOST_CHOICES + 1,)) <= _MOST_CHOICES
        for part in leaves
    ]
    return JoinedActions(space) if leaves and all(accepted) else None


def _in_order(space: Space) -> Any:
    """Return a space with the parts of Dicts in the order of their names: those that differ in it are equal."""
    if isinstance(space, spaces.Dict):
        return spaces.Dict([(key, _in_order(space.spaces[key])) for key in sorted(space.spaces, key=str)])
    return spaces.Tuple([_in_order(part) for part in space.spaces]) if isinstance(space, spaces.Tuple) else space


def _nested(space: Space, values: Iterator[Any]) -> Any:
    """Put the values of the parts that have no parts into the structure of a space."""
    if isinstance(space, spaces.Dict):
        return {key: _nested(part, values) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_nested(part, values) for part in space.spaces)
    return next(values)


def _parts_of(space: Space, action: Any) -> Iterator[Any]:
    """Yield the values of the parts that have no parts, in the order in which `_nested` asks for them.

    A space, in the place of an action, has the spaces of these parts in theirs.
    """
    if isinstance(space, spaces.Dict):
        for key, part in space.spaces.items():
            yield from _parts_of(part, action[key])
    elif isinstance(space, spaces.Tuple):
        for part, of_part in zip(space.spaces, action, strict=True):
            yield from _parts_of(part, of_part)
    else:
        yield action


class JoinedActions(spaces.Box):  # noqa: PLW1641 - like all spaces, it has no hash
    """The actions of a Tuple or Dict space as vectors: the numbers of all parts, one after the other.

    The parts of a Tuple are in their order, those of a Dict in the order of their names.

    A Discrete is one number, counted from 0; a MultiDiscrete and a MultiBinary are one for each choice; a Box is its
    numbers. To SB3 it is a Box, so that buffers hold vectors, and numbers are clipped to the bounds of the Box parts.

    Args:
        of_env: the env's action space, which `joined_actions` accepts.
    """

    # The actions of `MultiDiscrete(choices)` are the numbers at `choice_columns`, in the order of a mask.
    choices: tuple[int, ...]
    choice_columns: Array  # (number of choices,) int
    real_columns: Array  # int; those of the Box parts

    def __init__(self, of_env: spaces.Dict | spaces.Tuple[Any]) -> None:
        self.of_env: spaces.Dict | spaces.Tuple[Any] = _in_order(of_env)
        self.parts: list[Part] = []
        bounds: list[tuple[Array, Array]] = []
        for space in _parts_of(self.of_env, self.of_env):
            low, high = _bounds(space)
            first = self.parts[-1].columns.stop if self.parts else 0
            most = np.array(choices_of(space) or (), np.int64) - 1
            self.parts.append(Part(space, slice(first, first + len(low)), most, np.asarray(getattr(space, "start", 0))))
            bounds.append((low, high))
        self.choices = tuple(size for part in self.parts for size in choices_of(part.space) or ())
        is_real = np.concatenate([[isinstance(part.space, spaces.Box)] * part.size for part in self.parts]).astype(bool)
        self.choice_columns, self.real_columns = np.flatnonzero(~is_real), np.flatnonzero(is_real)
        low, high = (np.concatenate(each).astype(np.float32) for each in zip(*bounds, strict=True))
        super().__init__(low, high, dtype=np.float32)

    # --- Actions -----------------------------------------------------------------------------------------------------

    def to_env(self, values: Any) -> Any:
        """Return the env's action for a vector, (n,); a list of them for a batch, (rows, n).

        Numbers of choices are rounded, and all are brought within their bounds: those of a stock algorithm, to which
        this is a Box, need not be in the space.
        """
        values = np.asarray(values)
        return [self.split(row) for row in values] if values.ndim == 2 else self.split(values)

    def split(self, values: Array) -> Any:
        """Return the parts of vectors, (..., n), in the structure of the env's space: arrays, (..., *part shape)."""
        return _nested(self.of_env, iter(self.split_parts(values)))

    def split_parts(self, values: Array) -> list[Array]:
        """Return the parts of vectors, (..., n), that have no parts: arrays, (..., *part shape)."""
        return [_of_part(part, values[..., part.columns]) for part in self.parts]

    def from_env(self, action: Any) -> Array:
        """Return the vector of an action of the env, (n,), or those of a list of them, (rows, n).

        An array of vectors is returned as it is.

        Raises:
            ConfigError: it is no action of the env.
        """
        if isinstance(action, np.ndarray) and action.dtype.kind == "f" and action.shape[-1:] == self.shape:
            return action
        if isinstance(action, list) and not self.of_env.contains(action):
            return np.stack([self.from_env(one) for one in action])
        if not self.of_env.contains(action):
            raise ConfigError(f"action {action!r:.200}; accepted: one in {self.of_env}", key="actions")
        return self.join_parts([np.asarray(part) for part in _parts_of(self.of_env, action)])

    def join_parts(self, values: Sequence[Array], lead: Sequence[int] = ()) -> Array:
        """Return the vectors, (*lead, n), of what `split_parts` returns."""
        from_zero = [value - part.start for value, part in zip(values, self.parts, strict=True)]
        columns = [
            np.asarray(numbers, np.float32).reshape(*lead, part.size)
            for part, numbers in zip(self.parts, from_zero, strict=True)
        ]
        return np.concatenate(columns, axis=-1)

    # --- As a space --------------------------------------------------------------------------------------------------

    @override
    def sample(self, mask: Any = None, probability: Any = None) -> Any:
        """Draw a vector; by a mask, (sum of choices,), only of choices that it allows."""
        values = np.empty(self.shape, np.float32)
        if len(self.real_columns):
            self._real_numbers._np_random = self.np_random
            values[self.real_columns] = self._real_numbers.sample()
        allowed: Any = [None] * len(self.choices)
        if mask is not None:
            allowed = np.split(np.asarray(mask, bool), np.cumsum(self.choices)[:-1])
        for column, size, of_choice in zip(self.choice_columns, self.choices, allowed, strict=True):
            possible = np.arange(size) if of_choice is None else np.flatnonzero(of_choice)
            values[column] = possible[self.np_random.integers(len(possible))]
        return values

    @cached_property
    def _real_numbers(self) -> spaces.Box:
        return spaces.Box(self.low[self.real_columns], self.high[self.real_columns], dtype=np.float32)

    @cached_property
    def categories(self) -> spaces.Box:
        """The same vectors with any numbers for Box parts."""
        low, high = np.full((2, *self.shape), np.inf, np.float32) * np.array([[-1], [1]], np.float32)
        low[self.choice_columns], high[self.choice_columns] = 0, np.array(self.choices, np.float32) - 1
        return spaces.Box(low, high, dtype=np.float32)

    @override
    def contains(self, x: Any) -> bool:
        """Whether it is a vector of an action, or an action of the env."""
        if isinstance(x, (dict, tuple)):
            return self.of_env.contains(x)
        chosen = np.asarray(x)[..., self.choice_columns] if np.shape(x) == self.shape else np.empty(0)
        return super().contains(x) and bool((chosen == np.rint(chosen)).all())

    def refusal_of(self, algorithm: type) -> str | None:
        """Return which algorithms act in this space, for one that does not; None if it does."""
        if trait(algorithm, "takes_joined_actions"):
            return None
        return "ppo, a2c, trpo, recurrent_ppo, maskable_ppo (marl_sb3's classes), which take actions of several parts"

    def to_plain(self, describe: Callable[[Space], Any]) -> Any:
        """Return plain data for a checkpoint, see `space_to_plain`; None if a part cannot be described."""

        def plain(space: Space) -> Any:
            if not isinstance(space, _Composite):
                return describe(space)
            named = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
            parts = {str(name): plain(part) for name, part in named if isinstance(name, (str, int))}
            kept = all(parts.values()) and len(parts) == len(space.spaces)
            return {"kind": type(space).__name__, "spaces": parts} if kept else None

        of_env = plain(self.of_env)
        return of_env and {"kind": "Joined", "of": of_env}

    @override
    def __eq__(self, other: Any) -> bool:
        return isinstance(other, JoinedActions) and bool(self.of_env == other.of_env)

    @override
    def __repr__(self) -> str:
        return repr(self.of_env)


def _bounds(space: Space) -> tuple[Array, Array]:
    if isinstance(space, spaces.Box):
        with np.errstate(over="ignore"):  # bounds beyond those of float32 are none
            return space.low.reshape(-1).astype(np.float32), space.high.reshape(-1).astype(np.float32)
    sizes = np.array(choices_of(space), np.float32)
    return np.zeros_like(sizes), sizes - 1


def _of_part(part: Part, numbers: Array) -> Any:
    """Return numbers, (..., size), as values of the part's space, (..., *shape)."""
    space = part.space
    shape = (*numbers.shape[:-1], *(space.shape or ()))
    if isinstance(space, spaces.Box):
        inside = np.minimum(np.maximum(numbers.reshape(shape).astype(space.dtype), space.low), space.high)
        return np.asarray(inside, space.dtype)
    whole = np.minimum(np.maximum(np.rint(numbers), 0), part.most).astype(np.int64)
    return (whole.reshape(shape) + part.start).astype(space.dtype)[()]
