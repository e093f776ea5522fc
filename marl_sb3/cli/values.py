"""Parse values on a command line: integers such as 1e5 and 100k, names, and `KEY=VALUE`."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable
from fractions import Fraction
from typing import Any

from marl_sb3.errors import ConfigError

_INTEGER = re.compile(r"([-+]?[0-9]+(?:_[0-9]+)*(?:\.[0-9]+)?(?:e[-+]?[0-9]{1,2})?)([km]?)", re.IGNORECASE)
_LONGEST_INTEGER = 100  # characters
_SUFFIXES = {"": 1, "k": 1_000, "m": 1_000_000}


def integer(text: str) -> int:
    """Parse an integer, for `type=`: `100000`, `100_000`, `1e5`, `100k` or `0.1M`."""
    match = _INTEGER.fullmatch(text.strip())
    if match is not None and len(text) <= _LONGEST_INTEGER:
        number, suffix = match.groups()
        value = Fraction(number.replace("_", "")) * _SUFFIXES[suffix.lower()]
        if value.denominator == 1:
            return value.numerator
    raise argparse.ArgumentTypeError(f"received {text[:60]!r}; accepted: an integer, such as 100000, 1e5 or 100k")


def algorithm_name(text: str) -> str:
    """Parse the name of an algorithm, for `type=`: `PPO` becomes `ppo`."""
    return text.lower()


def assignments(option: str, texts: Iterable[str], accepted: str = "KEY=VALUE") -> dict[str, Any]:
    """Parse the values of a repeatable option `KEY=VALUE`; each VALUE is YAML.

    Args:
        texts: the values of the option, one per occurrence.
    """
    from marl_sb3.config import parse_value

    return {key: parse_value(value) for key, value in (assignment(option, text, accepted) for text in texts)}


def assignment(option: str, text: str, accepted: str = "KEY=VALUE") -> tuple[str, str]:
    """Split `KEY=VALUE`."""
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise ConfigError(f"{option} is {text!r}; accepted: {accepted}", key=option)
    return key.strip(), value
