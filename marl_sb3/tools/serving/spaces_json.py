"""Observations and actions of Gymnasium spaces as JSON, and back, with checks.

    Box            numbers, in lists nested as the shape says: `[0.5, -1]`; of an image: rows of pixels of channels
    Discrete       an integer
    MultiDiscrete  a list of integers
    MultiBinary    a list of 0 and 1, or of true and false
    Dict           an object with the same keys
    Tuple          a list

JSON has no NaN and no infinity, and neither is accepted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from gymnasium import spaces

from marl_sb3.errors import ConfigError
from marl_sb3.extensions.display.text import one_line
from marl_sb3.types import AgentID, Array
from marl_sb3.wrappers.observations import env_space

Space = spaces.Space[Any]

_MAX_DIMENSIONS = 32


class SpaceError(ConfigError):
    """A value is not in its space.

    Args:
        where: whose value of what it is, such as `agent 'a': the observation`.
        key: the part of the value that does not fit, such as `position[3]`; empty for all of it.
        found: what it is.
        accepted: the shape, the type and the range of that part.
        agent: whose value it is; None: nobody's.

    Attributes:
        key: as given; None for all of the value.
        accepted, agent: as given.
    """

    def __init__(self, where: str, key: str, found: str, accepted: str, agent: AgentID | None = None) -> None:
        named = f"{where}, {key}," if key else where
        super().__init__(f"{named} is {found}; accepted: {accepted}", key=key or None)
        self.accepted, self.agent = accepted, agent


# --- Reading ---------------------------------------------------------------------------------------------------------


def decode(
    space: Space,
    plain: Any,
    what: str,
    *,
    agent: AgentID | None = None,
    rows: int | None = None,
    within_bounds: bool = True,
) -> Any:
    """Read a value of a space from the plain data of JSON.

    Args:
        space: the space; one of those above, or made of them.
        plain: lists, numbers, strings and mappings, which are untrusted.
        what: what the value is, for messages, such as `the observation`.
        agent: whose value it is, for messages; None: nobody's.
        rows: number of values in a batch: each array has a leading axis of this length. None: a single value.
        within_bounds: whether the numbers of a Box have to be within its bounds.

    Returns:
        The value as the space has it: arrays of its dtype, dictionaries and tuples. Discrete: a NumPy integer.

    Raises:
        SpaceError: it is no value of the space; the message names the part, and its shape, type and range.
    """
    return _Reader(what, agent, () if rows is None else (rows,), within_bounds).read(space, plain, "")


@dataclass(frozen=True)
class _Reader:
    _what: str
    _agent: AgentID | None
    _lead: tuple[int, ...]  # the leading axes of arrays
    _within_bounds: bool

    def read(self, space: Space, plain: Any, key: str) -> Any:
        if isinstance(space, spaces.Dict):
            return self._read_dict(space, plain, key)
        if isinstance(space, spaces.Tuple):
            if not isinstance(plain, (list, tuple)) or len(plain) != len(space.spaces):
                raise self._error(key, _shown(plain), f"a list of {len(space.spaces)} parts")
            parts = enumerate(zip(space.spaces, plain, strict=True))
            return tuple(self.read(part, value, f"{key}[{index}]") for index, (part, value) in parts)
        return self._read_numbers(space, plain, key)

    def _read_dict(self, space: spaces.Dict, plain: Any, key: str) -> dict[str, Any]:
        keys = ", ".join(map(str, space.spaces))
        if not isinstance(plain, Mapping):
            raise self._error(key, _shown(plain), f"an object with the keys {keys}")
        by_text = {str(name): name for name in space.spaces}  # keys of a Dict may be integers
        missing = [name for name in by_text if name not in plain]
        other = [one_line(name) for name in plain if name not in by_text]
        if missing or other:
            parts = [f"without {', '.join(missing)}"] if missing else []
            parts += [f"with {', '.join(other):.200}"] if other else []
            raise self._error(key, f"an object {' and '.join(parts)}", f"the keys {keys}")
        return {
            name: self.read(space.spaces[name], plain[text], f"{key}.{text}" if key else text)
            for text, name in by_text.items()
        }

    def _read_numbers(self, space: Space, plain: Any, key: str) -> Any:
        low, high = self._bounds(space)
        dtype: Any = np.dtype(space.dtype)
        if dtype.kind == "b" or isinstance(space, spaces.MultiBinary):
            plain = _without_booleans(plain, len(self._lead) + len(space.shape or ()))
        if dtype.kind == "f":
            numbers = self._numbers(space, plain, key, float)
            with np.errstate(over="ignore"):  # a number that is too large becomes infinite, which is refused
                values = numbers.astype(dtype)
            fits = np.isfinite(values) & (values >= low) & (values <= high)
        else:
            values = numbers = self._numbers(space, plain, key, int)
            fits = (values >= low) & (values <= high)
        if not np.all(fits):
            raise self._first_error(fits, numbers, space, key)
        read = values.astype(dtype)
        return read[()] if isinstance(space, spaces.Discrete) else read

    def _bounds(self, space: Space) -> tuple[Any, Any]:
        """The lowest and the highest value of each number of a space."""
        if isinstance(space, spaces.Box):
            dtype: Any = np.dtype(space.dtype)
            if self._within_bounds or dtype.kind == "b":
                return space.low, space.high
            return (-np.inf, np.inf) if dtype.kind == "f" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
        if isinstance(space, spaces.Discrete):
            return int(space.start), int(space.start) + int(space.n) - 1
        if isinstance(space, spaces.MultiDiscrete):
            return space.start, space.start + space.nvec - 1
        if isinstance(space, spaces.MultiBinary):
            return 0, 1
        accepted = "Box, Discrete, MultiDiscrete, MultiBinary, Dict, Tuple"
        raise ConfigError(f"values of {space} cannot be sent; accepted: {accepted}")

    def _numbers(self, space: Space, plain: Any, key: str, kind: type) -> Array:
        """Read lists of numbers with the shape of the space, as float64 or int64; as objects if they are larger."""
        assert space.shape is not None
        shape = (*self._lead, *space.shape)
        nested: Any = kind
        for _ in range(min(len(shape), _MAX_DIMENSIONS)):
            nested = list[nested]
        try:
            lists = msgspec.convert(plain, nested)
            try:
                numbers = np.asarray(lists, np.float64 if kind is float else np.int64)
            except OverflowError:  # compared with the bounds as they are, and refused unless the space has such numbers
                numbers = np.asarray(lists, object)
        except (msgspec.ValidationError, ValueError, RecursionError) as error:
            found = f"not as its space says ({error})" if isinstance(plain, (list, tuple)) else _shown(plain)
            raise self._error(key, found.replace("`", ""), self._accepted(space)) from error
        if numbers.shape != shape:
            numbers = numbers.reshape(shape) if numbers.size == 0 and 0 in shape else numbers
            if numbers.shape != shape:
                raise self._error(key, f"of shape {numbers.shape}", self._accepted(space))
        return numbers

    def _first_error(self, fits: Any, numbers: Array, space: Space, key: str) -> SpaceError:
        """Return the error of the first number that does not fit."""
        index = tuple(int(place) for place in np.argwhere(~np.asarray(fits))[0])
        at = "".join(f"[{place}]" for place in index)
        accepted = self._accepted(space, index[len(self._lead) :])
        return self._error(key + at, f"{numbers[index]!s:.60}", accepted)

    def _error(self, key: str, found: str, accepted: str) -> SpaceError:
        where = self._what if self._agent is None else f"agent {self._agent!r}: {self._what}"
        return SpaceError(where, key, found, accepted, self._agent)

    def _accepted(self, space: Space, index: tuple[int, ...] | None = None) -> str:
        """Describe the shape, type and range of values of a space; with an index, of the number there."""
        kind = "numbers" if np.dtype(space.dtype).kind == "f" else "integers"
        low, high = (_bound_words(bound, index) for bound in self._bounds(space))
        shape = (*self._lead, *(space.shape or ()))
        return f"{kind} of shape {shape}, {low} to {high}" if shape else f"one of the {kind} {low} to {high}"


def _without_booleans(plain: Any, depth: int) -> Any:
    """Return lists of true and false as lists of 1 and 0."""
    if depth > 0:
        return [_without_booleans(part, depth - 1) for part in plain] if isinstance(plain, (list, tuple)) else plain
    return int(plain) if isinstance(plain, bool) else plain


def _bound_words(bound: Any, index: tuple[int, ...] | None) -> str:
    """A bound in words: that of the number at an index; without one, that of all numbers if it is the same."""
    array = np.asarray(bound)
    if array.ndim and index is not None:
        array = array[index]
    distinct = {value.item() for value in np.unique(array)}
    if len(distinct) != 1:
        return "its own bound"
    number = distinct.pop()
    return f"{number:.6g}" if isinstance(number, float) else str(number)


def _shown(plain: Any) -> str:
    """A value in few words: its text if it is short, else what it is."""
    if isinstance(plain, Mapping):
        return "an object"
    if isinstance(plain, (list, tuple)):
        return f"a list of {len(plain)}"
    return "null" if plain is None else f"{plain!r:.60}"


# --- Writing ---------------------------------------------------------------------------------------------------------


def encode(space: Space, value: Any) -> Any:
    """Return a value of a space, or a batch of them, as plain data that `decode` reads.

    Raises:
        ConfigError: it has a number that is not finite, or another structure than the space.
    """
    if hasattr(space, "to_env"):  # vectors of actions of several parts, or such actions
        own = space.to_env(value) if isinstance(value, np.ndarray) else value
        inner = env_space(space)
        return [encode(inner, each) for each in own] if isinstance(own, list) else encode(inner, own)
    if isinstance(space, spaces.Dict):
        return {str(name): encode(part, _part(value, name, space)) for name, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return [encode(part, _part(value, index, space)) for index, part in enumerate(space.spaces)]
    array = np.asarray(value)
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise ConfigError(f"a value of {space} has numbers that are not finite; accepted by JSON: finite ones")
    if isinstance(space, spaces.MultiBinary):
        array = array.astype(np.int8)
    return array.tolist()


def _part(value: Any, key: Any, space: Space) -> Any:
    try:
        return value[key]
    except (KeyError, IndexError, TypeError) as error:
        raise ConfigError(f"a value of {space} has no part {key!r}") from error


def describe(space: Space) -> dict[str, Any]:
    """Return a space as plain data for JSON: its kind, shape, type and range.

    A bound is one number if all are equal, else nested lists; null where there is none.
    """
    space = env_space(space)
    kind = next((kind for kind in _FIELDS if isinstance(space, kind)), None)
    if kind is None:
        raise ConfigError(f"{space} cannot be described; accepted: {', '.join(kind.__name__ for kind in _FIELDS)}")
    return {"kind": kind.__name__, **{name: plain(getattr(space, name)) for name, plain in _FIELDS[kind].items()}}


def _bound_to_plain(bound: Array) -> Any:
    if bound.size and (bound == bound.flat[0]).all():
        bound = bound.flat[0]
    return _without_infinities(np.asarray(bound).tolist())


def _without_infinities(plain: Any) -> Any:
    if isinstance(plain, list):
        return [_without_infinities(part) for part in plain]
    return None if isinstance(plain, float) and not math.isfinite(plain) else plain


def _described_parts(parts: Any) -> Any:
    if isinstance(parts, Mapping):
        return {str(name): describe(part) for name, part in parts.items()}
    return [describe(part) for part in parts]


# Kind of space -> its attributes, and what makes plain data of each.
_FIELDS: Mapping[type[Space], Mapping[str, Callable[[Any], Any]]] = {
    spaces.Box: {"shape": list, "dtype": str, "low": _bound_to_plain, "high": _bound_to_plain},
    spaces.Discrete: {"n": int, "start": int},
    spaces.MultiDiscrete: {"nvec": np.ndarray.tolist, "start": np.ndarray.tolist},
    spaces.MultiBinary: {"shape": list},
    spaces.Dict: {"spaces": _described_parts},
    spaces.Tuple: {"spaces": _described_parts},
}
