"""The wrappers of an env, and which of them defines a name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def layers(env: Any) -> Iterator[Any]:
    """Yield the env's wrappers from the outermost inwards, then the env itself."""
    while env is not None:
        yield env
        env = getattr(env, "__dict__", {}).get("env")


def attribute(env: Any, name: str) -> Any:
    """Return the attribute of the outermost layer that has it.

    Raises:
        AttributeError: no layer has it.
    """
    return getattr(owner(env, name), name)


def owner(env: Any, name: str) -> Any:
    """Return the outermost layer that defines `name`; the innermost layer if none does."""
    found = list(layers(env))
    return next((layer for layer in found if name in layer.__dict__ or hasattr(type(layer), name)), found[-1])


def call_or_read(env: Any, name: str, /, *args: Any, **kwargs: Any) -> Any:
    """Call the method `name` of the outermost layer that has it; an attribute that is no method is returned.

    Raises:
        AttributeError: no layer has it.
    """
    found = attribute(env, name)
    return found(*args, **kwargs) if callable(found) or args or kwargs else found
