"""Settings of envs that change from one episode to the next, as in a curriculum."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any

from marl_sb3.errors import CheckpointError, ConfigError
from marl_sb3.storage.state import State, StateReader, is_plain


class EnvSettings:
    """The settings that `configure` has set for one env.

    Attributes:
        in_force: settings of its running episode.
        coming: settings that its next episode begins with.
    """

    def __init__(self, in_force: Mapping[str, Any] | None = None, coming: Mapping[str, Any] | None = None) -> None:
        self.in_force = dict(in_force or {})
        self.coming = dict(coming or {})

    def tell(self, settings: Mapping[str, Any]) -> None:
        """Keep settings for the next episode."""
        self.coming.update(deepcopy(dict(settings)))

    def begin_episode(self) -> Mapping[str, Any]:
        """Put the coming settings in force, and return them for the env's `configure`."""
        new, self.coming = self.coming, {}
        self.in_force.update(new)
        return new

    def get_state(self) -> State:
        """Plain data."""
        return {"in_force": dict(self.in_force), "coming": dict(self.coming)}


def read_settings(state: StateReader, num_envs: int) -> list[EnvSettings]:
    """Read the field `settings` of a state.

    Raises:
        CheckpointError: it is not a list of states from `EnvSettings.get_state`.
    """
    listed = state.items("settings", num_envs)
    readers = [StateReader(one, f"{state.where}/settings/{index}") for index, one in enumerate(listed)]
    return [EnvSettings(_mapping(reader, "in_force"), _mapping(reader, "coming")) for reader in readers]


def _mapping(reader: StateReader, name: str) -> dict[str, Any]:
    fields = reader.fields(name)
    return {key: fields.value(key) for key in fields.names()}


def require_settings(env: Any, configure: Callable[..., Any] | None, settings: Mapping[str, Any], *first: Any) -> None:
    """Refuse settings that an env cannot take, or that a checkpoint cannot hold.

    Args:
        configure: the env's own method; None if it has none.
        first: arguments of the method before the settings.

    Raises:
        ConfigError: the env has no `configure`, the method does not take such settings, or a value is not plain data.
    """
    kind = type(env).__name__
    if configure is None:
        raise ConfigError(f"configure: {kind} has no method configure(**settings), so its settings cannot change")
    for name, value in settings.items():
        if not is_plain(value) or isinstance(value, tuple):
            raise ConfigError(
                f"configure: {name} is {value!r}; accepted: numbers, strings, booleans, None, arrays, and lists and "
                "mappings of these",
                key=name,
            )
    try:
        inspect.signature(configure).bind(*first, **settings)
    except TypeError as error:
        taken = list(inspect.signature(configure).parameters)[len(first) :]
        raise ConfigError(f"configure of {kind}: {error}; it takes: {', '.join(taken)}") from error


def put_back(
    own: EnvSettings, saved: EnvSettings, env: Any, configure: Callable[..., Any] | None, index: int, *first: Any
) -> str | None:
    """Give an env the settings that were in force when it was saved; those that were to come are left out.

    Args:
        own: the present settings of the env, which are changed.
        saved: its settings then.
        env: for messages.
        configure: the env's own method; None if it has none.
        index: of the env, for messages.
        first: arguments of the method before the settings.

    Returns:
        None, or a reason: settings were changed since then that had not been changed before. The env keeps these.

    Raises:
        CheckpointError: the env does not take them.
    """
    try:
        for part in (saved.in_force, saved.coming):
            if part:
                require_settings(env, configure, part, *first)
        if saved.in_force and configure is not None:
            configure(*first, **saved.in_force)
    except Exception as error:
        raise CheckpointError(f"settings of env {index}: {error}") from error
    kept = {name: value for name, value in own.in_force.items() if name not in saved.in_force}
    own.in_force, own.coming = {**saved.in_force, **kept}, {}
    return f"configure() has changed {', '.join(kept)} since then, and the earlier value is not known" if kept else None
