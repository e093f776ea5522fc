"""State as plain data: what `get_state` methods return, and how `set_state` methods read it back with checks.

A state is a tree of dictionaries and lists whose leaves are numbers, strings, None and NumPy arrays. It may come from a
file that a stranger wrote, so that nothing in it is used before its type, shape and range have been looked at.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from marl_sb3.errors import CheckpointError
from marl_sb3.types import Array

State = dict[str, Any]

MAX_SEED = 2**128
_MAX_COUNT = 2**53  # far beyond any run, and what is added to it still fits 64 bits
_MAX_NUMBER = 1e300  # a window of such numbers can be summed
_MAX_TEXT = 1000  # characters
_SHOWN = 80  # characters of a wrong value in a message


class StateReader:
    """One dictionary of a state, read field by field.

    Args:
        values: what stands in the place of the dictionary.
        where: its path, for messages.

    Raises:
        CheckpointError: from every method: the field is missing or is not what is accepted.
    """

    def __init__(self, values: Any, where: str = "state") -> None:
        if not isinstance(values, Mapping):
            raise _unexpected(where, values, "a mapping")
        self._values = values
        self.where = where

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def error(self, name: str, value: Any, accepted: str) -> CheckpointError:
        """What to raise for a value that has been found wrong elsewhere."""
        return _unexpected(f"{self.where}/{name}", value, accepted)

    def value(self, name: str) -> Any:
        """Whatever it is."""
        if name not in self._values:
            raise CheckpointError(f"{self.where}/{name} is missing")
        return self._values[name]

    def require_names(self, names: Sequence[str]) -> None:
        """Refuse any other set of fields."""
        for name in names:
            self.value(name)
        for name in self._values:
            if name not in names:
                raise CheckpointError(f"{self.where} has {_short(name)}, which does not belong there")

    def names(self) -> list[str]:
        """The names of all fields, where they may be any: each a text as `text` accepts it."""
        for name in self._values:
            _require_text(self.where, name)
        return list(self._values)

    def fields(self, name: str) -> StateReader:
        """A dictionary within."""
        return StateReader(self.value(name), f"{self.where}/{name}")

    def items(self, name: str, length: int | None = None) -> list[Any]:
        """A list, of a certain length or of any."""
        value = self.value(name)
        if not isinstance(value, list) or length not in (None, len(value)):
            raise self.error(name, value, "a list" if length is None else f"a list of {length}")
        return value

    def integer(self, name: str, minimum: int = 0, maximum: int = _MAX_COUNT) -> int:
        """An integer."""
        value = self.value(name)
        if not isinstance(value, int) or isinstance(value, bool) or not minimum <= value <= maximum:
            raise self.error(name, value, f"an integer from {minimum} to {maximum}")
        return value

    def number(self, name: str, minimum: float = -_MAX_NUMBER, maximum: float = _MAX_NUMBER) -> float:
        """A finite number."""
        value = self.value(name)
        # By comparison: an integer may be too large for a float.
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not minimum <= value <= maximum:
            raise self.error(name, value, f"a number from {minimum:g} to {maximum:g}")
        return float(value)

    def boolean(self, name: str) -> bool:
        """True or false."""
        value = self.value(name)
        if not isinstance(value, bool):
            raise self.error(name, value, "true or false")
        return value

    def string(self, name: str) -> str:
        """A word, which may be shown on a terminal."""
        return _require_text(f"{self.where}/{name}", self.value(name))

    def array(self, name: str, dtype: npt.DTypeLike, shape: Sequence[int | None], finite: bool = True) -> Array:
        """An array of exactly this dtype and shape, where None is any length; a copy that may be written to."""
        value = self.value(name)
        wanted = f"an array of {np.dtype(dtype)} {_shape_text(shape)}"
        if not isinstance(value, np.ndarray) or value.dtype != np.dtype(dtype) or not _fits(value.shape, shape):
            raise self.error(name, value, wanted)
        if finite and value.dtype.kind == "f" and not np.isfinite(value).all():
            raise self.error(name, value, f"{wanted}, finite")
        return value.copy()

    def counts(self, name: str, shape: Sequence[int | None]) -> Array:
        """An array of int64 that counts something."""
        array = self.array(name, np.int64, shape)
        if (array < 0).any() or (array > _MAX_COUNT).any():
            raise self.error(name, array, f"numbers from 0 to {_MAX_COUNT}")
        return array

    def sums(self, name: str, shape: Sequence[int | None]) -> Array:
        """An array of float64 whose numbers can be added up."""
        array = self.array(name, np.float64, shape)
        if (np.abs(array) > _MAX_NUMBER).any():
            raise self.error(name, array, f"numbers from {-_MAX_NUMBER:g} to {_MAX_NUMBER:g}")
        return array


def is_plain(tree: Any) -> bool:
    """Whether a checkpoint can hold it: finite numbers, strings, None, arrays, and mappings and lists of these.

    Keys of mappings have to be words.
    """
    if isinstance(tree, Mapping):
        return all(isinstance(key, str) and is_plain(value) for key, value in tree.items())
    if isinstance(tree, (list, tuple)):
        return all(map(is_plain, tree))
    if isinstance(tree, np.ndarray):
        return tree.dtype.kind in "biu" or (tree.dtype.kind == "f" and bool(np.isfinite(tree).all()))
    return tree is None or isinstance(tree, (str, int)) or (isinstance(tree, float) and math.isfinite(tree))


def _require_text(where: str, value: Any) -> str:
    if not isinstance(value, str) or len(value) > _MAX_TEXT or not value.isprintable():
        raise _unexpected(where, value, f"a printable text of at most {_MAX_TEXT} characters")
    return value


def _fits(shape: Sequence[int], wanted: Sequence[int | None]) -> bool:
    return len(shape) == len(wanted) and all(w in (None, s) for s, w in zip(shape, wanted, strict=True))


def _shape_text(shape: Sequence[int | None]) -> str:
    return "(" + ", ".join("any" if size is None else str(size) for size in shape) + ")"


def _unexpected(where: str, value: Any, accepted: str) -> CheckpointError:
    return CheckpointError(f"{where} is {_short(value)}; accepted: {accepted}")


def _short(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype} {_shape_text(value.shape)}"
    if isinstance(value, int) and abs(value) > MAX_SEED:
        return "a number out of range"  # whose digits may be too many to print
    if isinstance(value, (Mapping, list)):
        return f"a {type(value).__name__} of {len(value)}"
    text = repr(value)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."
