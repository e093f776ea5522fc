"""Kinds of values: types that msgspec checks, and what a message says of them.

A kind is a type such as `Annotated[int, Meta(ge=1)] | None`. Its words follow from it, unless its `Meta` has a
description. No kind may be a union with a tuple of fixed length: msgspec 0.22 crashes on these.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec
from msgspec import Meta

from marl_sb3.errors import ConfigError

SHOWN = 200  # characters of a wrong value in a message
_LARGEST = sys.float_info.max  # as an upper bound, it excludes infinity and NaN

Count = Annotated[int, Meta(ge=0)]
PositiveInt = Annotated[int, Meta(ge=1)]
Seed = Annotated[int, Meta(ge=0, le=2**32 - 1)]
FiniteFloat = Annotated[float, Meta(ge=-_LARGEST, le=_LARGEST)]
PositiveFloat = Annotated[float, Meta(gt=0, le=_LARGEST)]
NonNegativeFloat = Annotated[float, Meta(ge=0, le=_LARGEST)]
Fraction = Annotated[float, Meta(ge=0, le=1)]
Named = Annotated[Mapping[str, Any], Meta(description="a mapping of names to values")]
Strings = Annotated[Sequence[str], Meta(description="a list of strings")]


def at_least(minimum: int) -> Any:
    """The kind of the integers from a minimum on."""
    return Annotated[int, Meta(ge=minimum)]


def accepts(kind: Any, value: Any) -> bool:
    """Whether a value is of a kind. Nothing is converted: `"1"`, `1.0` and `True` are not integers."""
    try:
        # Of floats, msgspec knows Python's own type only; NumPy's float64 is a subclass of it.
        msgspec.convert(float(value) if isinstance(value, float) else value, kind)
    except ValueError:  # msgspec's ValidationError is one; an integer of thousands of digits raises a plain one
        return False
    return True


def require(name: str, value: Any, kind: Any, key: str | None = None) -> None:
    """Refuse a value of another kind.

    Args:
        name: of the setting, the argument or the option, for the message.
    """
    if not accepts(kind, value):
        raise refusal(name, value, kind, key)


def refusal(name: str, value: Any, kind: Any, key: str | None = None) -> ConfigError:
    """The error of a value that is not accepted; arguments as for `require`."""
    return ConfigError(f"{name} is {shown(value)}; accepted: {words(kind)}", key=name if key is None else key)


def words(kind: Any) -> str:
    """What a kind accepts: `an integer of at least 1, or null`."""
    meta = next((each for each in getattr(kind, "__metadata__", ()) if each.description), None)
    if meta is not None:
        return str(meta.description)
    if get_origin(kind) is Literal:
        return " or ".join(map(str, get_args(kind)))
    alternatives = alternatives_of(kind)
    return ", or ".join(map(words, alternatives)) if len(alternatives) > 1 else f"{_noun(kind)}{_range(kind)}"


_NOUNS: Mapping[Any, str] = {
    int: "an integer",
    float: "a number",
    str: "a string",
    bool: "true or false",
    NoneType: "null",
    Mapping: "a mapping",
    Sequence: "a list",
}


def _noun(kind: Any) -> str:
    return _NOUNS[base_of(kind)]


def base_of(kind: Any) -> Any:
    """The type of a kind without bounds and parameters: `int`, `Mapping`."""
    plain = get_args(kind)[0] if hasattr(kind, "__metadata__") else kind
    return get_origin(plain) or plain


def _range(kind: Any) -> str:
    for meta in getattr(kind, "__metadata__", ()):
        if meta.gt is not None:
            return f" above {meta.gt}"
        if meta.ge not in (None, -_LARGEST):
            return f" of at least {meta.ge}" if meta.le in (None, _LARGEST) else f" from {meta.ge} to {meta.le}"
    return ""


def alternatives_of(kind: Any) -> Sequence[Any]:
    """The kinds of a union; a kind that is no union is the only one."""
    plain = get_args(kind)[0] if hasattr(kind, "__metadata__") else kind
    return get_args(plain) if get_origin(plain) in (Union, UnionType) else (kind,)


def takes_integers_only(kind: Any) -> bool:
    """Whether the only numbers of a kind are integers: then a file may write 100000 as 1e5."""
    bases = [base_of(each) for each in alternatives_of(kind)]
    return int in bases and float not in bases


def shown(value: Any) -> str:
    """A value for a message, cut short; it may be anything that a file can hold."""
    try:
        text = repr(value)
    except ValueError:  # an integer of thousands of digits
        return "a number of too many digits"
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def counted(number: int, noun: str) -> str:
    """A number with its noun: `1 env`, `1,000 envs`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
