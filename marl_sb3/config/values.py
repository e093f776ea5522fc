"""Kinds of values: what is accepted, in words and as a test; every check of a number or a string is one of these."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from marl_sb3.errors import ConfigError

SHOWN = 200  # characters of a wrong value in a message


def shown(value: Any) -> str:
    """A value for a message, cut short; it may be anything that a file can hold."""
    try:
        text = repr(value)
    except ValueError:  # an integer of thousands of digits
        return "a number of too many digits"
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


@dataclass(frozen=True)
class Accepted:
    """A kind of values.

    Attributes:
        words: what is accepted, for messages.
        test: whether a value is.
        reads_floats: whether floats without a fraction stand for integers: 1e5 in a file for 100000.
    """

    words: str
    test: Callable[[Any], bool]
    reads_floats: bool = False

    def require(self, name: str, value: Any, key: str | None = None) -> None:
        """Refuse a value of another kind.

        Args:
            name: of the setting, the argument or the option, for the message.
            value: anything.
            key: of the error; None: the name.

        Raises:
            ConfigError: with the name, the value and what is accepted.
        """
        if not self.test(value):
            raise ConfigError(f"{name} is {shown(value)}; accepted: {self.words}", key=name if key is None else key)

    def or_null(self) -> Accepted:
        """The same, or None."""
        return replace(self, words=f"{self.words}, or null", test=lambda value: value is None or self.test(value))


def is_integer(value: Any) -> bool:
    """Whether it is an integer, of Python's own; booleans are none."""
    return isinstance(value, int) and not isinstance(value, bool)


def integer(minimum: int, maximum: int | None = None) -> Accepted:
    """Integers within bounds."""
    words = f"an integer of at least {minimum}" if maximum is None else f"an integer from {minimum} to {maximum}"
    return Accepted(
        words,
        lambda value: is_integer(value) and minimum <= value and (maximum is None or value <= maximum),
        reads_floats=True,
    )


def number(words: str, test: Callable[[float], bool]) -> Accepted:
    """Finite numbers that pass a test."""
    return Accepted(words, lambda value: is_number(value) and test(value))


def is_number(value: Any) -> bool:
    """Whether it is a number that a float can hold; not NaN, not infinity."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def one_of(*words: str) -> Accepted:
    """Certain strings."""
    return Accepted(" or ".join(words), lambda value: isinstance(value, str) and value in words)


STRING = Accepted("a string", lambda value: isinstance(value, str))
STRINGS = Accepted(
    "a list of strings",
    lambda value: isinstance(value, (list, tuple)) and all(isinstance(item, str) for item in value),
)
BOOLEAN = Accepted("true or false", lambda value: isinstance(value, bool))
MAPPING = Accepted("a mapping", lambda value: isinstance(value, Mapping))


def counted(number: int, noun: str) -> str:
    """A number with its noun: `1 env`, `1,000 envs`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
