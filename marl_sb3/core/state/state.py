"""State as plain data, the tensors that have files of their own, and how both are read with checks.

A state is a tree of dictionaries and lists whose leaves are numbers, strings, None and NumPy arrays. The file
that it comes from is untrusted: type, shape and range of each value are checked before it is used.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from marl_sb3.errors import CheckpointError
from marl_sb3.types import Array

State = dict[str, Any]

MAX_SEED = 2**128
MAX_COUNT = 2**53  # more than any run counts; sums with it fit 64 bits
MAX_NUMBER = 1e300  # sums of such numbers are finite
AS_COUNTS, AS_SUMS = (0, MAX_COUNT), (-MAX_NUMBER, MAX_NUMBER)  # bounds of the numbers in arrays of counts, and of sums
_MAX_TEXT = 1000  # characters
_SHOWN = 80  # characters of a wrong value in a message


class StateReader:
    """One dictionary of a state, read field by field. It is untrusted: check all of it.

    Args:
        values: the dictionary.
        where: its path in the state, for messages.
        num_envs: number of envs of the training that was saved. If it differs from the current number, parts do not
            restore the state of running episodes.
        files: the tensors that have files of their own, by kind of file; see `checkpoint.KINDS`.

    Raises:
        CheckpointError: from every method; a field is missing or has a value that is not accepted.
    """

    def __init__(
        self, values: Any, where: str = "state", num_envs: int = 0, files: Mapping[str, TensorFile] | None = None
    ) -> None:
        if not isinstance(values, Mapping):
            raise _unexpected(where, values, "a mapping")
        self._values = values
        self.where, self.num_envs, self.files = where, num_envs, files or {}

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def error(self, name: str, value: Any, accepted: str) -> CheckpointError:
        """Make the error for a value of this field that is not accepted."""
        return _unexpected(f"{self.where}/{name}", value, accepted)

    def value(self, name: str) -> Any:
        """The value of a field, unchecked."""
        if name not in self._values:
            raise CheckpointError(f"{self.where}/{name} is missing")
        return self._values[name]

    def __getitem__(self, name: str) -> Any:
        """See `value`."""
        return self.value(name)

    def require_names(self, names: Sequence[str]) -> None:
        """Refuse missing fields and fields with other names."""
        for name in names:
            self.value(name)
        for name in self._values:
            if name not in names:
                raise CheckpointError(f"{self.where} has {_short(name)}, which is unexpected")

    def names(self) -> list[str]:
        """The names of all fields; each must be a string that `string` accepts."""
        for name in self._values:
            _require_text(self.where, name)
        return list(self._values)

    def values(self) -> dict[str, Any]:
        """All fields, unchecked, by `names`."""
        self.names()
        return dict(self._values)

    def fields(self, name: str, files: Mapping[str, TensorFile] | None = None) -> StateReader:
        """A reader of the dictionary in a field."""
        return StateReader(self.value(name), f"{self.where}/{name}", self.num_envs, files)

    def integer(self, name: str, minimum: int = 0, maximum: int = MAX_COUNT) -> int:
        """An integer."""
        value = self.value(name)
        if not isinstance(value, int) or isinstance(value, bool) or not minimum <= value <= maximum:
            raise self.error(name, value, f"an integer from {minimum} to {maximum}")
        return value

    def number(self, name: str, minimum: float = -MAX_NUMBER, maximum: float = MAX_NUMBER) -> float:
        """A finite number."""
        value = self.value(name)
        # `isfinite` would raise OverflowError for large integers.
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
        """A printable string."""
        return _require_text(f"{self.where}/{name}", self.value(name))

    def items(self, name: str, length: int | None = None) -> list[Any]:
        """A list; of this length, if one is given."""
        value = self.value(name)
        if not isinstance(value, list) or length not in (None, len(value)):
            raise self.error(name, value, "a list" if length is None else f"a list of {length}")
        return value

    def listed(self, name: str, length: int | None = None) -> StateReader:
        """A reader of the items of a list, by their numbers; see `items`."""
        items = self.items(name, length)
        numbered = {str(number): item for number, item in enumerate(items)}
        return StateReader(numbered, f"{self.where}/{name}", self.num_envs)

    def strings(self, name: str) -> list[str]:
        """A list of printable strings."""
        return [_require_text(f"{self.where}/{name}/{number}", item) for number, item in enumerate(self.items(name))]

    def array(
        self,
        name: str,
        dtype: npt.DTypeLike,
        shape: Sequence[int | None],
        lowest: float | None = None,
        highest: float | None = None,
    ) -> Array:
        """A writable copy of a finite array of exactly this dtype and shape, with numbers within the bounds.

        None in the shape accepts any length.
        """
        value = self.value(name)
        fits = isinstance(value, np.ndarray) and value.dtype == np.dtype(dtype) and len(value.shape) == len(shape)
        wanted = [own if size is None else size for own, size in zip(value.shape, shape, strict=True)] if fits else []
        if not fits or wanted != [*value.shape] or not is_finite(value):
            raise self.error(name, value, f"an array of {np.dtype(dtype)} {_shape_text(shape)}, finite")
        if (lowest is not None and (value < lowest).any()) or (highest is not None and (value > highest).any()):
            raise self.error(name, value, f"numbers from {_bound_text(lowest)} to {_bound_text(highest)}")
        copied: Array = value.copy()
        return copied

    def counts(self, name: str, shape: Sequence[int | None]) -> Array:
        """An array of counts: int64, not negative."""
        return self.array(name, np.int64, shape, *AS_COUNTS)

    def sums(self, name: str, shape: Sequence[int | None]) -> Array:
        """An array of sums: float64, small enough to be added up."""
        return self.array(name, np.float64, shape, *AS_SUMS)

    def sums_or_nan(self, name: str, shape: Sequence[int | None]) -> Array:
        """An array of sums, with NaN where there is none; see `without_nan`."""
        saved = self.fields(name)
        numbers = saved.sums("numbers", shape)
        return np.where(saved.array("known", np.bool_, numbers.shape), numbers, np.nan)

    def like(self, name: str, own: Any, lowest: float | None = None, highest: float | None = None) -> Any:
        """A value like `own`, with numbers within the bounds; the numbers of an array may have none.

        None or a string that is equal; a boolean, an integer or a number; an array of the same dtype and shape; or a
        mapping, a list or a tuple of such values, with the same names or as long. Lists are returned as tuples.
        """
        own = own.item() if isinstance(own, np.generic) else own
        if isinstance(own, Mapping):
            saved = self.fields(name)
            saved.require_names(list(own))
            return {key: saved.like(key, each, lowest, highest) for key, each in own.items()}
        if isinstance(own, (list, tuple)):
            items = self.listed(name, len(own))
            return tuple([items.like(key, each, lowest, highest) for key, each in zip(items, own, strict=True)])
        if isinstance(own, np.ndarray):
            return self.array(name, own.dtype, own.shape, lowest, highest)
        if isinstance(own, bool):
            return self.boolean(name)
        if isinstance(own, (int, float)):
            low, high = AS_COUNTS if isinstance(own, int) else AS_SUMS
            bounds: Any = low if lowest is None else lowest, high if highest is None else highest
            return self.integer(name, *bounds) if isinstance(own, int) else self.number(name, *bounds)
        value = self.value(name)
        if type(value) is not type(own) or value != own:
            raise self.error(name, value, "null" if own is None else str(own))
        return own


def without_nan(sums: Array) -> State:
    """Return an array with NaN where there is no sum as arrays that a checkpoint can hold; see `sums_or_nan`."""
    known = ~np.isnan(sums)
    return {"numbers": np.where(known, sums, 0.0), "known": known}


def is_plain(tree: Any) -> bool:
    """Whether a checkpoint can hold a tree: finite numbers, strings, None, arrays, and mappings and lists of these.

    Keys of mappings must be strings.
    """
    if isinstance(tree, Mapping):
        return all(isinstance(key, str) and is_plain(value) for key, value in tree.items())
    if isinstance(tree, (list, tuple)):
        return all(map(is_plain, tree))
    if isinstance(tree, np.ndarray):
        return tree.dtype.kind in "biuf" and is_finite(tree)
    return tree is None or isinstance(tree, (str, int)) or (isinstance(tree, float) and math.isfinite(tree))


def _require_text(where: str, value: Any) -> str:
    if not isinstance(value, str) or len(value) > _MAX_TEXT or not value.isprintable():
        raise _unexpected(where, value, f"a printable text of at most {_MAX_TEXT} characters")
    return value


def is_finite(array: Array) -> bool:
    """Whether all numbers are finite; uses minimum and maximum, which need no temporary array."""
    return array.dtype.kind != "f" or not array.size or bool(np.isfinite((array.min(), array.max())).all())


def _shape_text(shape: Sequence[int | None]) -> str:
    return "(" + ", ".join("any" if size is None else str(size) for size in shape) + ")"


def _bound_text(bound: float | None) -> str:
    return "any" if bound is None else f"{bound}" if isinstance(bound, int) else f"{bound:g}"


def _unexpected(where: str, value: Any, accepted: str) -> CheckpointError:
    return CheckpointError(f"{where} is {_short(value)}; accepted: {accepted}")


def _short(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype} {_shape_text(value.shape)}"
    if isinstance(value, int) and abs(value) > MAX_SEED:
        return "a number out of range"  # it may have too many digits to print
    if isinstance(value, (Mapping, list)):
        return f"a {type(value).__name__} of {len(value)}"
    text = repr(value)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."


# --- Tensors in files of their own ------------------------------------------------------------------------------------


class Form(NamedTuple):
    """Dtype and shape of a tensor."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of its numbers."""
        return math.prod(self.shape) * self.dtype.itemsize

    def __str__(self) -> str:
        return f"{self.dtype} {self.shape}"


class TensorFile(Mapping[str, Array]):
    """Tensors in a file of their own, which is untrusted. These are in memory; a store may read its own when asked.

    Args:
        name: that of the file, without suffix, for messages.
        arrays: the tensors by name.
    """

    def __init__(self, name: str, arrays: Mapping[str, Array]) -> None:
        self.name, self._arrays = name, arrays
        # dtype and shape of each, which are known before a number is read
        self.forms: Mapping[str, Form] = {key: Form(array.dtype, array.shape) for key, array in arrays.items()}

    def load(self, names: Iterable[str] | None = None) -> dict[str, Array]:
        """Return copies of some tensors, or of all, in memory.

        Raises:
            CheckpointError: they are damaged.
        """
        return {name: self._arrays[name].copy() for name in names or self.forms}

    def pieces(self, name: str) -> Iterator[tuple[int, Array]]:
        """Yield slices of a tensor's first axis, each with the index where it begins: it may be a large file's."""
        yield 0, self._arrays[name]

    def __getitem__(self, name: str) -> Array:
        return self.load([name])[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.forms)

    def __len__(self) -> int:
        return len(self.forms)

    def __contains__(self, name: object) -> bool:
        return name in self.forms  # Mapping's own would read the tensor

    def require(self, accepted: Mapping[str, Form]) -> None:
        """Refuse tensors of other names, dtypes or shapes than these, which the policy has; none is read."""
        for name in self.forms:
            if name not in accepted:
                raise CheckpointError(f"{self.name}: {name[:80]!r} is not in the policy as it is built")
        for name, form in accepted.items():
            if name not in self.forms:
                raise CheckpointError(f"{self.name}: {name} is missing")
            if self.forms[name] != form:
                words = f"{name} is {self.forms[name]}; accepted: {form}, as the policy is built"
                raise CheckpointError(f"{self.name}: {words}")
