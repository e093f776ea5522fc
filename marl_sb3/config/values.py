"""Values in messages."""

from __future__ import annotations

from typing import Any

SHOWN = 200  # characters of a wrong value in a message


def shown(value: Any) -> str:
    """A value for a message, cut short; it may be anything that a file can hold."""
    try:
        text = repr(value)
    except ValueError:  # an integer of thousands of digits
        return "a number of too many digits"
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."
