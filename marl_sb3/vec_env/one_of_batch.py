"""Access to a single env of a batched env."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from marl_sb3.envs.batched import BatchedEnv


@dataclass(frozen=True)
class OneOfBatch:
    """One env of a batched env: it renders, and has the attributes that all envs share."""

    env: BatchedEnv
    in_force: Mapping[str, Any]  # the settings that `configure` has set for it
    render: Callable[[], Any]  # its picture

    def call(self, name: str, /, *args: Any, **kwargs: Any) -> Any:
        """See `MultiAgentVecEnv.call`."""
        if name in _OF_ONE_ENV:
            return getattr(self, name)(*args, **kwargs)
        shared = self._read(name, _no_attribute)
        if callable(shared) or args or kwargs:
            raise AttributeError(f"a batched env has no method {name!r} for single envs; use vectorizer='sync'")
        return shared

    def get_wrapper_attr(self, name: str) -> Any:
        """Return a setting that `configure` has set for this env, otherwise an attribute of the batched env."""
        return self._read(name)

    def _read(self, name: str, *default: Any) -> Any:
        """Return a setting that `configure` has set for this env, otherwise an attribute of the batched env."""
        return self.in_force[name] if name in self.in_force else getattr(self.env, name, *default)

    def set_wrapper_attr(self, name: str, value: Any) -> None:
        """Set an attribute of the batch, for all its envs."""
        setattr(self.env, name, value)

    def has_wrapper(self, wrapper_class: type) -> bool:
        """Whether the batch is an instance of `wrapper_class`; it has no wrappers."""
        return isinstance(self.env, wrapper_class)


def _no_attribute() -> None:
    """Mark an absent attribute: None may be the value of an attribute."""


_OF_ONE_ENV = ("render", "get_wrapper_attr", "set_wrapper_attr", "has_wrapper")
