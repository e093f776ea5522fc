"""Kinds of values: types that msgspec checks, with their descriptions in messages.

A kind is a type such as `Annotated[int, Meta(ge=1)] | None`. Its description is derived from the type, unless its
`Meta` has one. No kind may be a union with a tuple of fixed length: msgspec 0.22 crashes on these.
"""

from __future__ import annotations

import fractions
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, repeat
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec
from msgspec import Meta

from marl_sb3.errors import ConfigError, did_you_mean, shown

_LARGEST = sys.float_info.max  # an upper bound that excludes infinity and NaN

Count = Annotated[int, Meta(ge=0)]
PositiveInt = Annotated[int, Meta(ge=1)]
NumberOfEnvs = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Seed = Annotated[int, Meta(ge=0, le=2**32 - 1)]
FiniteFloat = Annotated[float, Meta(ge=-_LARGEST, le=_LARGEST)]
PositiveFloat = Annotated[float, Meta(gt=0, le=_LARGEST)]
NonNegativeFloat = Annotated[float, Meta(ge=0, le=_LARGEST)]
PositiveSeconds = Annotated[float, Meta(gt=0, le=1e6, description="seconds: a number above 0, at most 1000000")]
NumberOfWorkers = Count | Literal["auto"]
Fraction = Annotated[float, Meta(ge=0, le=1)]
Named = Annotated[Mapping[str, Any], Meta(description="a mapping of names to values")]
Strings = Annotated[Sequence[str], Meta(description="a list of strings")]


def accepts(kind: Any, value: Any) -> bool:
    """Whether a value is of a kind. Nothing is converted: `"1"`, `1.0` and `True` are not integers."""
    if get_origin(kind) in (Union, UnionType):
        # One by one: msgspec 0.22 crashes on the union of a string with a pattern and a list.
        return any(map(accepts, get_args(kind), repeat(value)))
    try:
        # msgspec accepts only Python's own float, not its subclass, NumPy's float64.
        msgspec.convert(float(value) if isinstance(value, float) else value, kind)
    except ValueError:  # msgspec's ValidationError is one; an integer of thousands of digits raises a plain one
        return False
    return True


def require(name: str, value: Any, kind: Any, key: str | None = None) -> Any:
    """Return a value, with NumPy's numbers as Python's, or refuse it if it is not of a kind.

    Args:
        name: name of the setting, argument or option, for the message.
    """
    plain = plain_numbers(value)
    if not accepts(kind, plain):
        raise refusal(name, value, kind, key)
    return plain


def plain_numbers(value: Any) -> Any:
    """Convert NumPy's numbers and arrays, also those in mappings and lists, to Python's numbers and lists."""
    if type(value).__module__ == "numpy" and hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, Mapping):
        return {key: plain_numbers(item) for key, item in value.items()}
    return type(value)(map(plain_numbers, value)) if type(value) in (list, tuple) else value


def refusal(name: str, value: Any, kind: Any, key: str | None = None) -> ConfigError:
    """Return the error for a value that is not accepted; the arguments are those of `require`."""
    names = [each for literal in alternatives_of(kind) if get_origin(literal) is Literal for each in get_args(literal)]
    hint = did_you_mean(value, names) if isinstance(value, str) else ""
    accepted = f"{words(kind)}{hint and f'; {hint}'}"
    return ConfigError(f"{name} is {shown(value)}; accepted: {accepted}", key=name if key is None else key)


def words(kind: Any) -> str:
    """Describe the values that a kind accepts: `an integer of at least 1, or null`."""
    meta = next((each for each in getattr(kind, "__metadata__", ()) if each.description), None)
    if meta is not None:
        return str(meta.description)
    if get_origin(kind) is Literal:
        *others, last = map(str, get_args(kind))
        return f"{', '.join(others)} or {last}" if others else last
    alternatives = alternatives_of(kind)
    return ", or ".join(map(words, alternatives)) if len(alternatives) > 1 else f"{_NOUNS[base_of(kind)]}{_range(kind)}"


_NOUNS: Mapping[Any, str] = {
    int: "an integer",
    float: "a number",
    str: "a string",
    bool: "true or false",
    NoneType: "null",
    Mapping: "a mapping",
    Sequence: "a list",
}


def base_of(kind: Any) -> Any:
    """Return the type of a kind without bounds and parameters: `int`, `Mapping`."""
    plain = get_args(kind)[0] if hasattr(kind, "__metadata__") else kind
    return get_origin(plain) or plain


def _range(kind: Any) -> str:
    for meta in getattr(kind, "__metadata__", ()):
        if meta.gt is not None:
            return f" above {meta.gt}" + ("" if meta.le in (None, _LARGEST) else f" and at most {meta.le}")
        if meta.ge not in (None, -_LARGEST):
            return f" of at least {meta.ge}" if meta.le in (None, _LARGEST) else f" from {meta.ge} to {meta.le}"
    return ""


def alternatives_of(kind: Any) -> Sequence[Any]:
    """Return the kinds in a union; for a kind that is no union, the kind alone."""
    plain = get_args(kind)[0] if hasattr(kind, "__metadata__") else kind
    return get_args(plain) if get_origin(plain) in (Union, UnionType) else (kind,)


_INTEGER = re.compile(r"([-+]?[0-9]+(?:_[0-9]+)*(?:\.[0-9]+)?(?:e[-+]?[0-9]{1,2})?)([km]?)", re.IGNORECASE)
_LONGEST_INTEGER = 100  # characters
_SUFFIXES = {"": 1, "k": 1_000, "m": 1_000_000}


def integer_in(text: str) -> int | None:
    """Return the integer that a text is: `100000`, `100_000`, `1e5`, `100k` or `0.1M`; None if it is none."""
    match = _INTEGER.fullmatch(text.strip()) if len(text) <= _LONGEST_INTEGER else None
    if match is None:
        return None
    number, suffix = match.groups()
    value = fractions.Fraction(number.replace("_", "")) * _SUFFIXES[suffix.lower()]
    return value.numerator if value.denominator == 1 else None


def takes_integers_only(kind: Any) -> bool:
    """Whether a kind accepts integers and no other numbers: then a file may have 1e5 for 100000."""
    bases = [base_of(each) for each in alternatives_of(kind)]
    return int in bases and float not in bases


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: `1 env`, `1,000 envs`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


# --- Ids of agents, policies and custom metrics ----------------------------------------------------------------------

# They are keys of checkpoints and parts of metric names and file names (`files.file_names`). An id that cannot be one
# of these is refused before the first step, and not when the trained policies are saved.
EXTERNAL = "external"  # the id of the env that clients step
MAX_ID_BYTES = 200  # of UTF-8; a file name has at most 255, with its suffix
_SHOWN_ID = 60  # characters of a wrong id in a message


def id_fault(value: object) -> str | None:
    """Why a value is not accepted as an id, as the end of a sentence; None if it is accepted."""
    if not isinstance(value, str):
        return f"is of type {type(value).__name__}; accepted: strings"
    if f"{value}" != str.__str__(value):  # an Enum, for example: `str` and `format` disagree
        return f"is a {type(value).__name__}; accepted: plain strings"
    if not value or not value.isprintable():
        return "is empty or has unprintable characters; accepted: printable strings"
    size = len(value.encode())
    return f"has {size} bytes; accepted: at most {MAX_ID_BYTES}" if size > MAX_ID_BYTES else None


def require_ids(kind: str, ids: Iterable[object], key: str, what_to_do: str = "") -> None:
    """Refuse wrong ids.

    Args:
        kind: what the ids are of: `agent`, `policy`, `custom metric`.
        what_to_do: advice, at the end of the message.
    """
    checked = list(ids)
    for value in checked:
        fault = id_fault(value)
        if fault:
            raise ConfigError(f"{kind} id {shown_id(value)} {fault}{what_to_do}", key=key)
    known = set(checked)
    for inner in map(str, checked):
        outer = next((parent for parent in accumulate(inner.split("/")[:-1], "{}/{}".format) if parent in known), None)
        if outer is not None:
            words = "the metrics of the second would lie within those of the first"
            raise ConfigError(f"{kind} ids {outer!r} and {inner!r}: {words}; accepted: other ids", key=key)


def shown_id(value: object) -> str:
    """Return an id for a message, shortened if it is long."""
    return shown(value, _SHOWN_ID)
