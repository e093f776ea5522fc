"""One env of a batch, as far as it can be asked for anything alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from marl_sb3.envs.batched import BatchedEnv


@dataclass(frozen=True)
class OneOfBatch:
    """What one env of a batch can be asked for: its picture, and what all envs of the batch share."""

    env: BatchedEnv
    index: int
    in_force: Mapping[str, Any]  # what `configure` has set for it
    render_env: Callable[[int], Any]

    def call(self, name: str, /, *args: Any, **kwargs: Any) -> Any:
        """See `MultiAgentVecEnv.call`."""
        if name in _OF_ONE_ENV:
            return getattr(self, name)(*args, **kwargs)
        shared = self._read(name, _no_attribute)
        if callable(shared) or args or kwargs:
            raise AttributeError(f"a batched env has no method {name!r} for single envs; use vectorizer='sync'")
        return shared

    def render(self) -> Any:
        """Its picture."""
        return self.render_env(self.index)

    def get_wrapper_attr(self, name: str) -> Any:
        """An attribute of the batch, or what `configure` has set for this env."""
        return self._read(name)

    def _read(self, name: str, *default: Any) -> Any:
        """An attribute of the batch; what `configure` has set for this env comes before it."""
        return self.in_force[name] if name in self.in_force else getattr(self.env, name, *default)

    def set_wrapper_attr(self, name: str, value: Any) -> None:
        """Set an attribute of the batch, for all its envs."""
        setattr(self.env, name, value)

    def has_wrapper(self, wrapper_class: type) -> bool:
        """Whether the batch is an instance of `wrapper_class`; it has no wrappers."""
        return isinstance(self.env, wrapper_class)


def _no_attribute() -> None:
    """Stands for an attribute that is absent, as None may be its value."""


_OF_ONE_ENV = ("render", "get_wrapper_attr", "set_wrapper_attr", "has_wrapper")
